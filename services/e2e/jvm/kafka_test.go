//go:build jvm

package jvm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"chancery/services/testkit"
)

const (
	storageTool = "kafka.tools.StorageTool"
	kafkaServer = "kafka.Kafka"
)

// kafka is an Apache Kafka of one node.
type kafka struct {
	tools     *tools
	config    string
	logDir    string
	bootstrap string
	process   *exec.Cmd
}

func newKafka(t *testing.T, k *tools) *kafka {
	t.Helper()
	dir := t.TempDir()
	clients, controllers := testkit.FreeAddress(t), testkit.FreeAddress(t)
	s := &kafka{tools: k, config: filepath.Join(dir, "server.properties"), logDir: filepath.Join(dir, "data"), bootstrap: clients}
	text := fmt.Sprintf("process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@%s\nlisteners=PLAINTEXT://%s,CONTROLLER://%s\n"+
		"controller.listener.names=CONTROLLER\nlog.dirs=%s\nlog.cleaner.backoff.ms=100\n"+
		"offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n",
		controllers, clients, controllers, s.logDir)
	if err := os.WriteFile(s.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	k.run(t, "", storageTool, "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", s.config).ok()
	return s
}

// start returns when the broker serves clients and all its partitions have leaders.
func (s *kafka) start(t *testing.T) {
	t.Helper()
	s.process = exec.CommandContext(t.Context(), "java", s.tools.options(kafkaServer, s.config)...)
	s.process.Stderr = os.Stderr
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	awaitLeaders(t, s.bootstrap)
}

// stop ends it cleanly.
func (s *kafka) stop(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = s.process.Wait() // a JVM that was told to end has a code of its own
}
