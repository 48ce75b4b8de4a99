// Command failover measures how long partitions are without a leader when a storage node dies at once: it starts a playground,
// makes a topic, kills a node, and watches the metadata of a gateway until every partition has a leader again.
//
// It owns the measurement and must never judge it.
//
//	failover --binary bin/chancery --partitions 1000
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit/ports"
)

const (
	topic = "failover"
	// portsInARow is more than the playground needs.
	portsInARow = 40
	poll        = 5 * time.Millisecond
)

type options struct {
	binary     string
	dataDir    string
	partitions int
	session    time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/chancery", "the binary to start")
	flag.StringVar(&o.dataDir, "data", "", "where the servers keep their data (default: a new folder for temporary files)")
	flag.IntVar(&o.partitions, "partitions", 3000, "partitions of three replicas; one in three is led by the node that dies")
	flag.DurationVar(&o.session, "session", 9*time.Second, "broker.session.timeout.ms")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp(o.dataDir, "chancery-failover-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	port, err := ports.FreeRun(portsInARow)
	if err != nil {
		return err
	}
	end, err := startPlayground(ctx, o, filepath.Join(dir, "playground"), port)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	client, err := kgo.NewClient(kgo.SeedBrokers(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	begin := time.Now()
	if _, err := admin.CreateTopic(ctx, int32(o.partitions), 3, nil, topic); err != nil {
		return fmt.Errorf("make the topic: %w", err)
	}
	fmt.Printf("%d partitions made in %s\n", o.partitions, time.Since(begin).Round(time.Millisecond))
	return measure(ctx, o, admin, filepath.Join(dir, "playground"))
}

// startPlayground starts a cluster of real processes and gives what ends it.
func startPlayground(ctx context.Context, o options, dir string, port int) (end func() error, err error) {
	cmd := exec.CommandContext(ctx, o.binary, "playground", "--data", dir, "--base-port", strconv.Itoa(port),
		"--set", "broker.session.timeout.ms="+strconv.FormatInt(o.session.Milliseconds(), 10))
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end = func() error { return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()) }
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "ready") {
		return nil, errors.Join(fmt.Errorf("the playground is not ready: %q", line), err, end())
	}
	return end, nil
}

// measure kills node 1 and prints when leaders began to move and when the last one had.
func measure(ctx context.Context, o options, admin *kadm.Client, dir string) error {
	led, err := ledBy(ctx, admin, 1)
	if err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, o.binary, "playground", "kill", "storage-1", "--data", dir).Run(); err != nil {
		return fmt.Errorf("kill a node: %w", err)
	}
	killed := time.Now()
	var first time.Time
	for {
		asked := time.Now()
		left, err := ledBy(ctx, admin, 1)
		if err != nil {
			return err
		}
		if first.IsZero() && left < led {
			first = asked
		}
		if left == 0 {
			break
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	last := time.Now()
	fmt.Printf("node 1 led %d partitions and was killed; leaders moved after %s (session time-out %s); the last one %s after the first was seen\n",
		led, first.Sub(killed).Round(time.Millisecond), o.session, last.Sub(first).Round(time.Millisecond))
	return nil
}

// ledBy counts the partitions that a node leads, and those that nobody leads.
func ledBy(ctx context.Context, admin *kadm.Client, node int32) (int, error) {
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, p := range topics[topic].Partitions {
		if p.Leader == node || p.Leader < 0 {
			n++
		}
	}
	return n, nil
}
