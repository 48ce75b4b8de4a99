package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "node.properties")
	if err := os.WriteFile(file, []byte("node.id=1\nlog.retention.hours=8\nlog.retention.huors=8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	notADir := filepath.Join(file, "data")
	for _, c := range []struct {
		args string
		exit int
		want []string
	}{
		{"", exitUsage, []string{"no command given", "Available Commands", "playground"}},
		{"--help", exitOK, []string{"Available Commands", "gateway", "storaged", "controllerd", "coordinatord", "tiering", "all", "version"}},
		{"version", exitOK, []string{"chancery unknown (go1."}},
		{"--version", exitOK, []string{"chancery unknown (go1."}},
		{"version now", exitUsage, []string{"unknown command"}},
		{"galeway", exitUsage, []string{`unknown command "galeway"`, "gateway", "See 'chancery --help'"}},
		{"gateway", exitUsage, []string{"want --config FILE.properties", "See 'chancery gateway --help'"}},
		{"gateway --confg x", exitUsage, []string{"unknown flag: --confg"}},
		{"gateway --config " + filepath.Join(dir, "none"), exitFailed, []string{"there is no properties file", "none"}},
		{"storaged --config " + file, exitFailed, []string{file + ":3", "unknown key log.retention.huors, did you mean log.retention.hours?"}},
		{"storaged --set node.id=one", exitFailed, []string{"--set", "node.id", "whole number"}},
		{"storaged --set node.id", exitFailed, []string{"want key=value"}},
		{"storaged --set node.id=1", exitFailed, []string{"controller.quorum.bootstrap.servers is not set", "grpc.listeners is not set"}},
		{"gateway --set controller.quorum.bootstrap.servers=c:1", exitFailed, []string{"node.id is not set"}},
		{"gateway --set node.id=1 --set controller.quorum.bootstrap.servers=here", exitFailed, []string{"controller.quorum.bootstrap.servers", `"here"`, "host:port"}},
		{"coordinatord --set node.id=1 --set controller.quorum.bootstrap.servers=c:1 --set grpc.listeners=0.0.0.0:1", exitFailed,
			[]string{"grpc.listeners", "others cannot dial 0.0.0.0:1", "advertised.grpc.listeners"}},
		{"controllerd --set node.id=1 --set grpc.listeners=c:1 --set controller.quorum.voters=1:c:2 --set metadata.log.dir=" + dir, exitFailed,
			[]string{"controller.quorum.voters", `"1:c:2" is not id@host:port`}},
		{"all --kafka-listen 9092 --data " + dir, exitFailed, []string{"--kafka-listen 9092: want host:port"}},
		{"all --data=", exitFailed, []string{"--data is empty: want a folder"}},
		{"all --data " + notADir, exitFailed, []string{"log.dirs (--data)", "not a directory", "want a folder that this user can write to"}},
		{"all --data " + dir + " --set metadata.log.dir=" + notADir, exitFailed, []string{"metadata.log.dir (--set)", "not a directory"}},
		{"all --data " + dir + " --set num.partitions=0", exitFailed, []string{"num.partitions"}},
		{"all --data " + dir + " extra", exitUsage, []string{"unknown command"}},
		{"playground --storage 0", exitUsage, []string{"--storage 0: must be at least 1"}},
		{"playground --log-dirs 0", exitUsage, []string{"--log-dirs 0: must be at least 1"}},
		{"playground --storage many", exitUsage, []string{"--storage", "many"}},
		{"playground --set brokre.rack=a --data " + dir, exitFailed, []string{"unknown key brokre.rack, did you mean broker.rack?"}},
		{"playground kill --data " + dir, exitUsage, []string{"want the name of one process"}},
		{"playground kill storage-1 --data " + dir, exitFailed, []string{"no playground runs in " + dir}},
		{"playground status --data " + dir, exitFailed, []string{"no playground runs in " + dir}},
		{"playground explode", exitUsage, []string{"unknown command"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out bytes.Buffer
			if exit := execute(t.Context(), strings.Fields(c.args), &out, &out); exit != c.exit {
				t.Errorf("exit code %d, want %d", exit, c.exit)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, out.String())
				}
			}
		})
	}
}
