package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"chancery/services/config"
)

// TestStoreSettings: what is wrong with the settings of the object store is told before anything starts, with where it stands and what would
// be right; processes that have no store do not mind.
func TestStoreSettings(t *testing.T) {
	for _, c := range []struct{ lines, want string }{
		{"rsm.config.bukket=x", "file.properties:2: unknown key rsm.config.bukket, did you mean rsm.config.bucket?"},
		{"rsm.config.qqqqqqqqqqqqqqqq=x", "file.properties:2: rsm.config.qqqqqqqqqqqqqqqq is not known; there are"},
		{"rsm.config.bucket=b\nrsm.config.part.size.bytes=17", `file.properties:3: rsm.config.part.size.bytes is "17": want a whole number`},
		{"remote.log.storage.manager.class.name=s4", `file.properties:2: remote.log.storage.manager.class.name is "s4", want one of dir, minio, s3`},
		{"remote.log.storage.manager.class.name=s3", "rsm.config.bucket is not set"},
		{"remote.log.storage.manager.class.name=minio\nrsm.config.bucket=b", "rsm.config.endpoint is not set"},
		{"remote.log.storage.manager.class.name=s3\nrsm.config.bucket=b\nrsm.config.endpoint=http://h/b", "rsm.config.endpoint is \"http://h/b\": want a URL without a path"},
		{"remote.log.storage.manager.class.name=s3\nrsm.config.bucket=b", ""},
		{"remote.log.storage.manager.class.name=dir", "rsm.config.dir.path is not set"},
	} {
		file := filepath.Join(t.TempDir(), "file.properties")
		if err := os.WriteFile(file, []byte("remote.log.storage.system.enable=true\n"+c.lines+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := config.Load(file, []string{"node.id=1", "controller.quorum.bootstrap.servers=h:1", "grpc.listeners=h:2", "log.dirs=" + t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		err = checkSettings(Tiering, s)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.lines, err, c.want)
		}
		if err := checkSettings(Storaged, s); err != nil {
			t.Errorf("a storage node minds %s: %v", c.lines, err)
		}
	}
}
