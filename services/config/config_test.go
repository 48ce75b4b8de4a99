package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseProperties(t *testing.T) {
	const text = "# comment\n" +
		"! another \\\n" +
		"a=1\r\n" +
		"  b : two words \r" +
		"c\tthree\n" +
		"\n" +
		"long = one,\\\n" +
		"       two,\\\n" +
		"       three\n" +
		`key\ with\:blanks=x\=y\\` + "\n" +
		`u=\u00e9\uD83D\uDE00\t|` + "\n" +
		"empty=\n" +
		"alone\n" +
		"a = 2\n" +
		"last=\\"
	got, err := parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []property{
		{"a", "1", 3}, {"b", "two words ", 4}, {"c", "three", 5}, {"long", "one,two,three", 7}, {"key with:blanks", `x=y\`, 10},
		{"u", "\u00e9\U0001F600\t|", 11}, {"empty", "", 12}, {"alone", "", 13}, {"a", "2", 14}, {"last", "", 15},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %+v, want %+v", got[i], want[i])
		}
	}
	if p, err := parse([]byte("a=\xe9")); err != nil || p[0].value != "\u00e9" {
		t.Errorf("Latin-1: %+v, %v", p, err)
	}
	if _, err := parse([]byte("\nx=\\u12")); err == nil || !strings.Contains(err.Error(), "line 2: x:") {
		t.Errorf("bad escape: %v", err)
	}
}

func FuzzParseProperties(f *testing.F) {
	for _, s := range []string{"a=b", "a\\\nb", "\\", "=", "\\u", "\\ud83d\\ude00=x", "#\\\n", "a b\\:c", "\r\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		properties, err := parse(data)
		if err != nil {
			return
		}
		for _, p := range properties {
			if p.line < 1 || p.line > len(data)+1 {
				t.Errorf("%q is on line %d", p.key, p.line)
			}
		}
	})
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.properties")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	path := write(t, "node.id=1\nlog.dirs=/a\nlistener.name.x.ssl.keystore.location=/k\nrsm.config.bucket=b\nssl.key.password=p\nnum.io.threads=8\n")
	s, err := Load(path, []string{"node.id=2", "broker.rack=r=1"})
	if err != nil {
		t.Fatal(err)
	}
	s.SetDefault("log.dirs", "/b", "default")
	s.SetDefault("num.partitions", "3", "default")
	want := map[string]string{
		"node.id": "2", "log.dirs": "/a", "listener.name.x.ssl.keystore.location": "/k", "rsm.config.bucket": "b",
		"broker.rack": "r=1", "ssl.key.password": "p", "num.io.threads": "8", "num.partitions": "3",
	}
	if !maps.Equal(s.Map(), want) {
		t.Errorf("got %v", s.Map())
	}
	if s.Where("node.id") != "--set" || s.Where("log.dirs") != path+":2" || s.Node().Int("node.id") != 2 {
		t.Errorf("node.id from %s, log.dirs from %s", s.Where("node.id"), s.Where("log.dirs"))
	}
	for _, c := range s.Changed() {
		if c.Key == "num.io.threads" || c.Key == "ssl.key.password" && c.Value != "[hidden]" {
			t.Errorf("shown as changed: %+v", c)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, c := range []struct {
		file string
		sets []string
		want []string
	}{
		{"\nlog.retension.ms=5\nnum.io.threads=x", nil, []string{
			"server.properties:2: unknown key log.retension.ms, did you mean log.retention.ms?",
			"server.properties:3: Invalid value x for configuration num.io.threads: Not a number of type INT; want a whole number, such as the default 8",
		}},
		{"", []string{"qwertzuiop=1"}, []string{"--set: unknown key qwertzuiop"}},
		{"", []string{"node.id"}, []string{"--set node.id: want key=value"}},
		{"a=\\ux", nil, []string{"server.properties: line 1: a:"}},
		{"log.retention.ms=0", nil, []string{"settings that do not fit together: log.retention.ms must be"}},
	} {
		_, err := Load(write(t, c.file), c.sets)
		if err == nil {
			t.Errorf("%q %q: accepted", c.file, c.sets)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q %q: got %v, want %s", c.file, c.sets, err, want)
			}
		}
	}
	if _, err := Load("/no/such/file", nil); err == nil || !strings.Contains(err.Error(), "there is no properties file /no/such/file") {
		t.Errorf("no file: %v", err)
	}
}
