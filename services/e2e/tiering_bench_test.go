package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/testkit"
	"chancery/services/testkit/s3"
)

// The benchmarks of tiered storage as a client sees it, over HTTP, with a store that is as far away as S3 within a region. The
// store and the client are in the process of the benchmark; what the CPU metrics count is the cluster's processes alone:
//
//	go test ./services/e2e -run '^$' -bench Tier -benchtime 3x
const (
	tierBenchBytes        = 256 << 20
	tierBenchSegmentBytes = 64 << 20
	tierBenchBatchBytes   = 256 << 10
)

// List prices of S3 Standard, in thousandths of a dollar per request.
const (
	putMilliDollars = 0.005
	getMilliDollars = 0.0004
)

// benchCluster is the processes of a cluster.
type benchCluster struct {
	bootstrap []string
	pids      func() []int
}

// tierBenchProperties are the settings of a cluster with a store.
func tierBenchProperties(store *s3.Simulated) map[string]string {
	p := map[string]string{
		"remote.log.storage.manager.class.name": "s3", "rsm.config.bucket": "bucket", "rsm.config.endpoint": store.Endpoint,
		"rsm.config.region": s3.Region, "rsm.config.access.key": "a", "rsm.config.secret.key": "b", "log.retention.check.interval.ms": "500",
		"log.initial.task.delay.ms": "500",
	}
	maps.Copy(p, tieringOn)
	return p
}

// oneProcess runs `chancery all` until the benchmark ends.
func oneProcess(b *testing.B, properties map[string]string) benchCluster {
	b.Helper()
	address := testkit.FreeAddress(b)
	args := []string{"all", "--data", b.TempDir(), "--kafka-listen", address}
	for _, k := range slices.Sorted(maps.Keys(properties)) {
		args = append(args, "--set", k+"="+properties[k])
	}
	cmd := exec.Command(testkit.Binary(b), args...)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			b.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			b.Errorf("%v\n%s", err, out.String())
		}
	})
	c := benchCluster{[]string{address}, func() []int { return []int{cmd.Process.Pid} }}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	for cl := c.client(b); cl.Ping(ctx) != nil; {
		select {
		case <-ctx.Done():
			b.Fatalf("it is not ready\n%s", out.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return c
}

// services runs each service in a process of its own.
func services(b *testing.B, properties map[string]string) benchCluster {
	b.Helper()
	p := testkit.StartPlayground(b, testkit.PlaygroundOptions{Storage: 1, Gateways: 1, Controllers: 1, Coordinators: 1, Tiering: 1, Properties: properties})
	return benchCluster{p.Bootstrap, func() []int {
		var pids []int
		for _, one := range p.Processes() {
			pids = append(pids, one.PID)
		}
		return pids
	}}
}

var benchShapes = map[string]func(*testing.B, map[string]string) benchCluster{"all": oneProcess, "services": services}

// cpuSeconds is what the processes have used. The kernel counts it in hundredths of a second.
func (c benchCluster) cpuSeconds(b *testing.B) float64 {
	b.Helper()
	var ticks int64
	for _, pid := range c.pids() {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			b.Skip("no CPU times of processes here: ", err)
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, f := range fields[11:13] {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			ticks += n
		}
	}
	return float64(ticks) / 100
}

func (c benchCluster) client(b *testing.B, opts ...kgo.Opt) *kgo.Client {
	b.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.bootstrap...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(tierBenchBatchBytes), kgo.MetadataMinAge(100 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cl.Close)
	return cl
}

func (c benchCluster) topic(b *testing.B, cl *kgo.Client, name string) kadm.TopicID {
	b.Helper()
	resp, err := kadm.NewClient(cl).CreateTopic(b.Context(), 1, 1, map[string]*string{
		"remote.storage.enable": set("true"), "local.retention.ms": set("1000"), "segment.bytes": set(strconv.Itoa(tierBenchSegmentBytes)),
		"file.delete.delay.ms": set("1000"),
	}, name)
	if err != nil || resp.Err != nil {
		b.Fatal(err, resp.Err)
	}
	return resp.ID
}

// produceCold writes to a topic and waits until all of it is in the store alone, since what is still copied and deleted would count
// with what comes next, and a consumer would yield to the producer; it returns where the local log begins, and how long the copies took.
func (c benchCluster) produceCold(b *testing.B, cl *kgo.Client, topic string) (local int64, took time.Duration) {
	b.Helper()
	random := rand.NewChaCha8([32]byte{1})
	began, all := time.Now(), int64(0)
	for sent := 0; sent < tierBenchBytes+tierBenchSegmentBytes; {
		var records []*kgo.Record
		for range 16 {
			value := make([]byte, tierBenchBatchBytes-1000)
			random.Read(value)
			records = append(records, &kgo.Record{Topic: topic, Value: value})
			sent += len(value)
		}
		all += int64(len(records))
		if err := cl.ProduceSync(b.Context(), records...).FirstErr(); err != nil {
			b.Fatal(err)
		}
	}
	awaitFarEnough(b, cl, topic, latestTiered, tierBenchBytes/tierBenchBatchBytes-1)
	took = time.Since(began)
	awaitFarEnough(b, cl, topic, earliestLocal, all)
	return all, took
}

// awaitFarEnough waits until an offset of a topic's partition 0 is as far as it is to come.
func awaitFarEnough(b *testing.B, cl *kgo.Client, topic string, timestamp, least int64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	for {
		is, err := tryOffsetAt(ctx, cl, topic, 0, timestamp)
		if err != nil {
			b.Fatal(err)
		}
		if is >= least {
			return
		}
		select {
		case <-ctx.Done():
			b.Fatalf("the offset of %s that %d asks for is %d, want %d", topic, timestamp, is, least)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// fetchOnce makes one fetch as a consumer with default settings does, and gives the bytes and the offset after the last batch.
func fetchOnce(ctx context.Context, cl *kgo.Client, topic kadm.TopicID, offset int64) (int, int64, error) {
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = offset, 1<<20, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.TopicID, rt.Partitions = topic, []kmsg.FetchRequestTopicPartition{rp}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, 500, 1, 50<<20
	req.SessionEpoch, req.Topics = -1, []kmsg.FetchRequestTopic{rt}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, offset, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, offset, fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	p := resp.Topics[0].Partitions[0]
	if p.ErrorCode != 0 {
		return 0, offset, kerr.ErrorForCode(p.ErrorCode)
	}
	batches := p.RecordBatches
	for len(batches) >= 61 {
		size := 12 + int(binary.BigEndian.Uint32(batches[8:]))
		if size > len(batches) {
			break
		}
		offset = int64(binary.BigEndian.Uint64(batches)) + int64(binary.BigEndian.Uint32(batches[23:])) + 1
		batches = batches[size:]
	}
	return len(p.RecordBatches), offset, nil
}

// readCold reads a topic up to an offset; first is when the first records came.
func readCold(ctx context.Context, cl *kgo.Client, topic kadm.TopicID, end int64) (read int64, first time.Duration, err error) {
	began := time.Now()
	for offset := int64(0); offset < end; {
		n, next, err := fetchOnce(ctx, cl, topic, offset)
		if err != nil {
			return read, first, err
		}
		if n > 0 && first == 0 {
			first = time.Since(began)
		}
		read, offset = read+int64(n), next
	}
	return read, first, nil
}

// BenchmarkTierColdConsumer is one consumer of what is only in the store, with the default 1 MiB of a fetch, one fetch at a time.
func BenchmarkTierColdConsumer(b *testing.B) {
	for shape, start := range benchShapes {
		b.Run(shape, func(b *testing.B) {
			store := s3.NewSimulated(b, s3.FarStore)
			c := start(b, tierBenchProperties(store))
			cl := c.client(b, kgo.DisableFetchSessions())
			var firsts []time.Duration
			var cpu, gets, moved float64
			b.StopTimer()
			b.ResetTimer()
			for i := range b.N {
				topic := fmt.Sprint("cold-", i)
				id := c.topic(b, cl, topic)
				end, _ := c.produceCold(b, cl, topic)
				before, used := store.Stats(), c.cpuSeconds(b)
				b.StartTimer()
				read, first, err := readCold(b.Context(), cl, id, end)
				b.StopTimer()
				if err != nil {
					b.Fatal(err)
				}
				cpu += c.cpuSeconds(b) - used
				gets += float64(store.Stats().Requests["get"] - before.Requests["get"])
				moved += float64(read)
				firsts = append(firsts, first)
			}
			slices.Sort(firsts)
			const gib = 1 << 30
			b.ReportMetric(moved/1e6/b.Elapsed().Seconds(), "MB/s")
			b.ReportMetric(float64(firsts[len(firsts)/2].Microseconds())/1000, "first-ms")
			b.ReportMetric(cpu/moved*gib, "cpu-s/GiB")
			b.ReportMetric(gets/moved*gib, "GETs/GiB")
			b.ReportMetric(gets/moved*gib*getMilliDollars, "m$/GiB")
		})
	}
}

// tierBenchTurns is how often writing alone and beside a consumer take turns: the times of one turn differ by more than what is
// measured, as others use the machine, too.
const tierBenchTurns = 10

// BenchmarkTierProduce writes small records one by one: alone and beside a consumer that reads another topic from the store, in
// turns, and while segments of another topic are copied to the store. The p99 of the latter two by the first is what those cost
// who write.
func BenchmarkTierProduce(b *testing.B) {
	for shape, start := range benchShapes {
		b.Run(shape, func(b *testing.B) {
			store := s3.NewSimulated(b, s3.FarStore)
			properties := tierBenchProperties(store)
			properties["rsm.config.cache.memory.bytes"] = strconv.Itoa(64 << 20) // what is read again comes from the store again
			c := start(b, properties)
			cl := c.client(b, kgo.DisableFetchSessions())
			cold := c.topic(b, cl, "cold")
			end, _ := c.produceCold(b, cl, "cold")
			producer := c.client(b, kgo.ProducerLinger(0))
			c.topic(b, producer, "hot")
			write := func(times []time.Duration) ([]time.Duration, time.Duration) {
				began := time.Now()
				for range 2000 {
					began := time.Now()
					if err := producer.ProduceSync(b.Context(), &kgo.Record{Topic: "hot", Value: make([]byte, 1024)}).FirstErr(); err != nil {
						b.Fatal(err)
					}
					times = append(times, time.Since(began))
				}
				return times, time.Since(began)
			}
			write(nil)
			var alone, beside, copying []time.Duration
			var reading, copied time.Duration
			var read, bytesCopied int64
			for i := range b.N {
				for range tierBenchTurns {
					alone, _ = write(alone)
					ctx, cancel := context.WithCancel(b.Context())
					ended := make(chan int64, 1)
					go func() { ended <- readOn(ctx, b, cl, cold, end) }()
					var took time.Duration
					beside, took = write(beside)
					reading += took
					cancel()
					read += <-ended
				}
				bulk := fmt.Sprint("bulk-", i)
				c.uncopied(b, cl, bulk)
				before := store.Stats().BytesIn
				tier(b, cl, bulk)
				var took time.Duration
				copying, took = write(copying)
				copied += took
				bytesCopied += store.Stats().BytesIn - before
				awaitFarEnough(b, cl, bulk, latestTiered, tierBenchBytes/tierBenchBatchBytes-1)
			}
			p99 := func(times []time.Duration) float64 {
				slices.Sort(times)
				return float64(times[len(times)*99/100].Microseconds()) / 1000
			}
			b.ReportMetric(p99(alone), "p99-ms-alone")
			b.ReportMetric(p99(beside), "p99-ms-beside-reader")
			b.ReportMetric(p99(beside)/p99(alone), "reader-ratio")
			b.ReportMetric(float64(read)/reading.Seconds()/1e6, "read-MB/s")
			b.ReportMetric(p99(copying), "p99-ms-beside-copy")
			b.ReportMetric(p99(copying)/p99(alone), "copy-ratio")
			b.ReportMetric(float64(bytesCopied)/copied.Seconds()/1e6, "copied-MB/s")
		})
	}
}

// readOn reads a topic up to an offset again and again, until the context ends; it returns the bytes.
func readOn(ctx context.Context, b *testing.B, cl *kgo.Client, topic kadm.TopicID, end int64) (total int64) {
	for {
		read, _, err := readCold(ctx, cl, topic, end)
		total += read
		if ctx.Err() != nil {
			return total
		}
		if err != nil {
			b.Error(err)
			return total
		}
	}
}

// uncopied makes a topic with segments that could be copied, but for remote.storage.enable.
func (c benchCluster) uncopied(b *testing.B, cl *kgo.Client, topic string) {
	b.Helper()
	resp, err := kadm.NewClient(cl).CreateTopic(b.Context(), 1, 1, map[string]*string{"segment.bytes": set(strconv.Itoa(tierBenchSegmentBytes))}, topic)
	if err != nil || resp.Err != nil {
		b.Fatal(err, resp.Err)
	}
	value := make([]byte, tierBenchBatchBytes-1000)
	for sent := 0; sent < tierBenchBytes+tierBenchSegmentBytes/2; {
		var records []*kgo.Record
		for range 16 {
			records = append(records, &kgo.Record{Topic: topic, Value: value})
			sent += len(value)
		}
		if err := cl.ProduceSync(b.Context(), records...).FirstErr(); err != nil {
			b.Fatal(err)
		}
	}
}

// tier lets the segments of a topic be copied.
func tier(b *testing.B, cl *kgo.Client, topic string) {
	b.Helper()
	resp, err := kadm.NewClient(cl).AlterTopicConfigs(b.Context(), []kadm.AlterConfig{{Name: "remote.storage.enable", Value: set("true")}}, topic)
	if err != nil || resp[0].Err != nil {
		b.Fatal(err, resp)
	}
}
