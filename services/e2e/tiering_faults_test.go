package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
	"chancery/services/testkit/s3"
)

// tieredWriter writes to the partitions of a topic until it is told to end, and knows which record is at which offset.
type tieredWriter struct {
	t      *testing.T
	topic  string
	client *kgo.Client
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex
	// acked are the sequence numbers by offset, for each partition.
	acked []map[int64]int64
}

// writtenValue is the value of a writer's record.
func writtenValue(partition int32, seq int64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%03d/%011d|", partition, seq), 256)
}

func startTieredWriter(t *testing.T, bootstrap []string, topic string, partitions int32) *tieredWriter {
	w := &tieredWriter{t: t, topic: topic, acked: make([]map[int64]int64, partitions)}
	w.client = newClient(t, bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(100))
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	for p := range partitions {
		w.acked[p] = map[int64]int64{}
		w.done.Go(func() { w.write(ctx, p) })
	}
	return w
}

// write keeps a partition's records coming, some hundred KiB a second.
func (w *tieredWriter) write(ctx context.Context, partition int32) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for seq := int64(0); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for range 4 {
			n := seq
			seq++
			w.client.Produce(context.WithoutCancel(ctx), &kgo.Record{Topic: w.topic, Partition: partition, Value: writtenValue(partition, n)}, func(r *kgo.Record, err error) {
				if err != nil {
					w.t.Errorf("record %d of partition %d: %v", n, partition, err)
					return
				}
				w.mu.Lock()
				w.acked[partition][r.Offset] = n
				w.mu.Unlock()
			})
		}
	}
}

// end ends the writing and waits until everything is acknowledged.
func (w *tieredWriter) end() {
	w.cancel()
	w.done.Wait()
	if err := w.client.Flush(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *tieredWriter) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, m := range w.acked {
		n += len(m)
	}
	return n
}

// read reads a partition from its begin up to an offset and wants each record where it was acknowledged.
func (w *tieredWriter) read(bootstrap []string, partition int32, to int64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 90*time.Second)
	defer cancel()
	cl := newClient(w.t, bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{w.topic: {partition: kgo.NewOffset().At(0)}}))
	defer cl.Close()
	for at := int64(0); at < to; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			w.t.Fatalf("partition %d: nothing came at offset %d of %d: %v", partition, at, to, fetches.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			w.mu.Lock()
			seq, known := w.acked[partition][r.Offset]
			w.mu.Unlock()
			if r.Offset != at || known && !bytes.Equal(r.Value, writtenValue(partition, seq)) {
				w.t.Fatalf("partition %d: at offset %d came %d with %.20q, acknowledged was %d", partition, at, r.Offset, r.Value, seq)
			}
			at++
		})
	}
}

// TestTieringFaults kills process after process of a cluster that copies to S3 and is read from there. Nothing that was
// acknowledged is lost or wrong in either tier, copying goes on, and in the end the store has what the metadata says, and nothing
// of a topic that is gone. With CHANCERY_E2E_ROUNDS it goes on for longer, and shows each round in a table with -v.
func TestTieringFaults(t *testing.T) {
	server := s3.Start(t, false)
	server.CreateBucket(t, "segments")
	properties := map[string]string{
		"remote.log.storage.manager.class.name": "s3", "rsm.config.bucket": "segments", "rsm.config.endpoint": server.Endpoint,
		"rsm.config.region": s3.Region, "rsm.config.access.key": s3.AccessKey, "rsm.config.secret.key": s3.SecretKey,
	}
	for _, layer := range []map[string]string{tieringOn, quickFencing} {
		for k, v := range layer {
			properties[k] = v
		}
	}
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Gateways: 2, Storage: 3, Controllers: 1, Coordinators: 1, Tiering: 2, Properties: properties})
	const topic, partitions = "tiered-under-faults", 2
	tieredTopic(t, p.Bootstrap, topic, partitions, 3, map[string]*string{"min.insync.replicas": set("1")})
	w := startTieredWriter(t, p.Bootstrap, topic, partitions)
	for i := range int32(partitions) {
		awaitOffset(t, p.Bootstrap, topic, i, earliestLocal, 1)
	}
	victims := []string{"tiering-1", "storage-1", "gateway-1", "tiering-2", "storage-2", "gateway-2", "storage-3"}
	for round := range roundsOfFaults(t) {
		victim := victims[round%len(victims)]
		began := time.Now()
		before, tiered := w.count(), offsetAt(t, p.Bootstrap, topic, 0, latestTiered)
		p.Kill(victim)
		w.await(before+50, "acknowledgements after the kill of "+victim)
		produced := time.Since(began)
		awaitOffset(t, p.Bootstrap, topic, 0, latestTiered, tiered+1)
		copied := time.Since(began)
		p.Restart(victim)
		for i := range int32(partitions) {
			w.read(p.Bootstrap, i, offsetAt(t, p.Bootstrap, topic, i, latestTiered))
		}
		t.Logf("| %3d | %-10s | produced after %6s | copied after %6s | read all after %6s | %d records |", round, victim,
			produced.Round(10*time.Millisecond), copied.Round(10*time.Millisecond), time.Since(began).Round(10*time.Millisecond), w.count())
	}
	w.end()
	for i := range int32(partitions) {
		w.read(p.Bootstrap, i, offsetAt(t, p.Bootstrap, topic, i, latest))
	}
	checkStore(t, p)
	if _, err := admin(t, p.Bootstrap).DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	awaitNoObjects(t, server.Root, "/")
}

// await waits until so many records are acknowledged.
func (w *tieredWriter) await(n int, what string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 60*time.Second)
	defer cancel()
	await(ctx, w.t, what, func() (bool, error) { return w.count() >= n, nil })
}

// checkStore has the store's differences from the metadata repaired, which killed instances may have left, and wants none then.
func checkStore(t *testing.T, p *testkit.Playground) {
	t.Helper()
	var admins []string
	for _, process := range p.StatusJSON() {
		if strings.HasPrefix(process.Name, "tiering-") {
			admins = append(admins, process.Addresses["admin"])
		}
	}
	slices.Sort(admins)
	for _, args := range [][]string{{"--repair", "--older-than", "0s"}, nil} {
		args = append([]string{"tiering", "fsck", "--admin", strings.Join(admins, ",")}, args...)
		out, err := exec.CommandContext(t.Context(), testkit.Binary(t), args...).CombinedOutput()
		t.Logf("%s\n%s", strings.Join(args, " "), out)
		if err != nil {
			t.Fatal(err)
		}
	}
}
