// Command bench measures a Chancery cluster as its users would load it and prints a table: throughput, latency, CPU
// seconds per GiB and resident memory, in one process and split into services.
//
// It owns the load and the figures; it must never judge them: speed is compared by people, side by side, not by tests.
// The load costs little itself: prebuilt batches, raw frames, requests pipelined on each connection.
//
//	bench --binary bin/chancery                     starts and measures both shapes
//	bench --bootstrap host:port --pids 12,34        measures a cluster that is already there
//	bench --beside host:port --beside-pids 56       measures another broker after these, in the same run
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// options are the flags of a run.
type options struct {
	binary      string
	dataDir     string
	bootstrap   string
	pids        string
	beside      string
	besidePids  string
	only        string
	work        string
	measureTime time.Duration
	warmUp      time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/chancery", "the binary to start and measure")
	flag.StringVar(&o.dataDir, "data", "", "where the servers keep their data (default: a new folder on a memory file system where there is one)")
	flag.StringVar(&o.bootstrap, "bootstrap", "", "measure the cluster at these addresses instead of starting one")
	flag.StringVar(&o.pids, "pids", "", "with --bootstrap: process ids whose CPU and memory count, comma-separated")
	flag.StringVar(&o.beside, "beside", "", "then measure the cluster at these addresses in the same way, to compare")
	flag.StringVar(&o.besidePids, "beside-pids", "", "process ids of that cluster")
	flag.StringVar(&o.only, "only", "", "measure this shape only: all or split")
	flag.StringVar(&o.work, "work", "", "measure only the work whose name contains this")
	flag.DurationVar(&o.measureTime, "time", 8*time.Second, "measured time of each kind of work")
	flag.DurationVar(&o.warmUp, "warm-up", 2*time.Second, "time before it that does not count")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	var rows []row
	defer func() { printTable(rows) }()
	measureGiven := func(shape, bootstrap, pids string) error {
		list, err := parsePids(pids)
		if err != nil {
			return err
		}
		got, err := measureCluster(ctx, o, &cluster{shape: shape, bootstrap: strings.Split(bootstrap, ","), pids: list})
		rows = append(rows, got...)
		return err
	}
	if o.bootstrap != "" {
		if err := measureGiven("given", o.bootstrap, o.pids); err != nil {
			return err
		}
	} else {
		got, err := measureShapes(ctx, o)
		rows = got
		if err != nil {
			return err
		}
	}
	if o.beside == "" {
		return nil
	}
	return measureGiven("beside", o.beside, o.besidePids)
}

// measureShapes starts and measures one process, then the services apart.
func measureShapes(ctx context.Context, o options) ([]row, error) {
	dir, err := dataDir(o.dataDir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var rows []row
	for _, shape := range []string{"all", "split"} {
		if o.only != "" && o.only != shape {
			continue
		}
		c, err := startCluster(ctx, shape, o.binary, filepath.Join(dir, shape))
		if err != nil {
			return rows, fmt.Errorf("start %s: %w", shape, err)
		}
		got, err := measureCluster(ctx, o, c)
		rows = append(rows, got...)
		if err := errors.Join(err, c.stop()); err != nil {
			return rows, fmt.Errorf("measure %s: %w", shape, err)
		}
	}
	return rows, nil
}

// dataDir makes a folder for the servers. A memory file system takes the disk out of the figures.
func dataDir(base string) (string, error) {
	if base == "" {
		if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
			base = "/dev/shm"
		}
	}
	return os.MkdirTemp(base, "chancery-bench-")
}

// row is one line of the table.
type row struct {
	shape, work string
	mbPerSec    float64
	reqPerSec   float64
	p50, p99    time.Duration
	cpuCores    float64
	cpuPerGiB   float64
	// cpuPerReq is in microseconds.
	cpuPerReq float64
	rssMiB    float64
}

func measureCluster(ctx context.Context, o options, c *cluster) ([]row, error) {
	var rows []row
	for _, w := range works() {
		if !strings.Contains(w.name, o.work) {
			continue
		}
		r, err := measure(ctx, o, c, w)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", w.name, err)
		}
		rows = append(rows, r...)
		fmt.Fprintf(os.Stderr, "measured %s in %s: %.0f MB/s, %.0f requests/s\n", w.name, c.shape, r[0].mbPerSec, r[0].reqPerSec)
	}
	return rows, nil
}

// measure runs one kind of work: warm-up, then the time that counts. It gives a row for the work, and one for each of its steps.
func measure(ctx context.Context, o options, c *cluster, w work) ([]row, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var t tally
	done := make(chan error, 1)
	go func() { done <- w.run(ctx, c.bootstrap, &t) }()

	if err := pause(ctx, o.warmUp, done); err != nil {
		return nil, err
	}
	t.counting.Store(true)
	bytes0, requests0, usage0, start := t.bytes.Load(), t.requests.Load(), c.usage(), time.Now()
	if err := pause(ctx, o.measureTime, done); err != nil {
		return nil, err
	}
	elapsed := time.Since(start).Seconds()
	bytes, requests, used := t.bytes.Load()-bytes0, t.requests.Load()-requests0, c.usage()
	t.counting.Store(false)
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	if n := t.failures.Load(); n > 0 {
		return nil, fmt.Errorf("%d partitions answered with an error, the first %s", n, t.firstFailure())
	}
	r := row{shape: c.shape, work: w.name, mbPerSec: float64(bytes) / elapsed / (1 << 20), reqPerSec: float64(requests) / elapsed, rssMiB: used.rssMiB}
	r.p50, r.p99 = t.quantile(0.50), t.quantile(0.99)
	cpu := used.cpuSeconds - usage0.cpuSeconds
	r.cpuCores = cpu / elapsed
	if requests > 0 {
		r.cpuPerReq = cpu * 1e6 / float64(requests)
	}
	if bytes > 0 {
		r.cpuPerGiB = cpu / (float64(bytes) / (1 << 30))
	}
	rows := []row{r}
	for _, name := range t.stepNames() {
		rows = append(rows, row{shape: c.shape, work: "  of which " + name, p50: t.stepQuantile(name, 0.50), p99: t.stepQuantile(name, 0.99)})
	}
	return rows, nil
}

// pause waits for d, and stops early when the work ends by itself, which is a failure.
func pause(ctx context.Context, d time.Duration, done <-chan error) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case err := <-done:
		return fmt.Errorf("the load ended early: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func printTable(rows []row) {
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "shape\twork\tMB/s\trequests/s\tp50 ms\tp99 ms\tcores\tCPU s/GiB\tCPU µs/request\tRSS MiB\t")
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%s\t%.1f\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.0f\t\n", r.shape, r.work, r.mbPerSec, r.reqPerSec,
			float64(r.p50.Microseconds())/1000, float64(r.p99.Microseconds())/1000, r.cpuCores, r.cpuPerGiB, r.cpuPerReq, r.rssMiB)
	}
	tw.Flush()
}
