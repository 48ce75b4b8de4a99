//go:build jvm

package jvm

import (
	"path/filepath"
	"strings"
	"testing"
)

const (
	metadataQuorumTool = "org.apache.kafka.tools.MetadataQuorumCommand"
	featureTool        = "org.apache.kafka.tools.FeatureCommand"
)

// testQuorum asks about the controllers and the levels of features.
func testQuorum(t *testing.T, k *tools, s server) {
	quorum := func(args ...string) result {
		return k.run(t, "", metadataQuorumTool, append([]string{"--bootstrap-server", s.bootstrap}, args...)...)
	}
	quorum("describe", "--status").ok().says(`LeaderId: +\d+`, `HighWatermark: +\d+`, `CurrentVoters: +\[\{"id"`, `CurrentObservers: +\[`)
	quorum("describe", "--replication").ok().counts(1, `Leader`)
	quorum("remove-controller", "--controller-id", "99", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ").failed().says(`UnsupportedVersionException`)

	features := func(args ...string) result {
		return k.run(t, "", featureTool, append([]string{"--bootstrap-server", s.bootstrap}, args...)...)
	}
	features("describe").ok().says(`metadata.version.*4\.4-IV2`, `kraft.version`)
	features("upgrade", "--feature", "group.version=1", "--dry-run").ok()
	features("downgrade", "--metadata", "4.0").failed().says(`Refusing to perform the requested downgrade`)
}

// testMetadataLog reads the copies of the metadata log.
func testMetadataLog(t *testing.T, k *tools, s server) {
	var files []string
	for _, dir := range s.logDirs {
		found, err := filepath.Glob(filepath.Join(dir, "__cluster_metadata-0", "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Fatal("no copy of the metadata log found")
	}
	k.run(t, "", dumpLogTool, "--files", strings.Join(files, ","), "--cluster-metadata-decoder").ok().
		says(`"type":"FEATURE_LEVEL_RECORD".*"name":"metadata.version"`, `"type":"TOPIC_RECORD".*"name":"payments"`, `"type":"REGISTER_BROKER_RECORD"`).
		never(`Error at`, `skipping`, `isvalid: false`)
}
