package log

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

// kafkaDir is a log directory that Apache Kafka 4.4.0 has written: batches of all codecs, transactions (one still open), a
// compacted topic after several passes of the cleaner, LogAppendTime, an empty log, an internal topic.
const kafkaDir = "testdata/kafka-4.4"

// kafkaLogs are the topics in it, with what must be true of them.
var kafkaLogs = []struct {
	topic             string
	end, stable       int64
	segments          int
	producers         int
	aborted           []storage.AbortedTransaction
	indexIntervalByte int
}{
	{"codecs", 150, 150, 1, 5, nil, 500},
	{"txn", 25, 24, 1, 3, []storage.AbortedTransaction{{ProducerID: 5, FirstOffset: 0}, {ProducerID: 6, FirstOffset: 12}, {ProducerID: 5, FirstOffset: 16}}, 100},
	{"compacted", 73, 73, 2, 3, nil, 100},
	{"logappend", 48, 48, 1, 1, nil, 4096},
	{"empty", 0, 0, 1, 0, nil, 4096},
	{"__transaction_state", 32, 32, 1, 0, nil, 4096},
}

// openKafka opens a copy of one of the logs.
func openKafka(t *testing.T, topic string, indexInterval int, edit func(dir string)) *fixture {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, topic+"-0"), os.DirFS(filepath.Join(kafkaDir, topic+"-0"))); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(filepath.Join(dir, topic+"-0"))
	}
	f := newFixture(t, dir, func(o *Options) {
		o.Topic, o.Partition, o.TopicID, o.CleanShutdown = topic, 0, uuid.UUID{}, edit == nil
		o.ProducerIDExpiration, o.Config.IndexIntervalBytes = 1<<62, indexInterval
	})
	f.SetHighWatermark(f.LogEndOffset())
	return f
}

func TestOpensWhatKafkaWrote(t *testing.T) {
	for _, k := range kafkaLogs {
		t.Run(k.topic, func(t *testing.T) {
			f := openKafka(t, k.topic, k.indexIntervalByte, nil)
			if f.LogEndOffset() != k.end || f.LastStableOffset() != k.stable || len(f.Segments()) != k.segments || len(f.ActiveProducers()) != k.producers {
				t.Fatalf("end %d stable %d, %d segments, producers %+v", f.LogEndOffset(), f.LastStableOffset(), len(f.Segments()), f.ActiveProducers())
			}
			var want []byte
			for _, name := range files(t, f.dir) {
				if strings.HasSuffix(name, logSuffix) {
					want = append(want, readFile(t, f, name)...)
				}
			}
			if got := f.all(0); !bytes.Equal(got, want) {
				t.Fatal("other bytes are served than Kafka has written")
			}
			if list, err := f.AbortedTransactions(0, k.end); err != nil || !slices.Equal(list, k.aborted) {
				t.Fatalf("aborted %+v, %v", list, err)
			}
			checkTimes(t, f, want)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			compareWithKafka(t, f.dir, k.topic)
		})
	}
}

// checkTimes looks every record up by its time.
func checkTimes(t *testing.T, f *fixture, batches []byte) {
	t.Helper()
	type at struct{ time, offset int64 }
	var all []at
	for it := recordbatch.Iterate(batches); it.Next(); {
		for records := testCodecs.Records(it.Bytes(), 1<<20); records.Next(); {
			all = append(all, at{records.Record().Timestamp, records.Record().Offset})
		}
	}
	for _, x := range all {
		first := slices.IndexFunc(all, func(y at) bool { return y.time >= x.time })
		got, ok, err := f.OffsetForTimestamp(x.time)
		if err != nil || !ok || got.Offset != all[first].offset || got.Timestamp != all[first].time {
			t.Fatalf("time %d is at %+v %v %v, want %+v", x.time, got, ok, err, all[first])
		}
	}
}

// compareWithKafka compares all files with those that Kafka wrote.
func compareWithKafka(t *testing.T, dir, topic string) {
	t.Helper()
	got, want := files(t, dir), files(t, filepath.Join(kafkaDir, topic+"-0"))
	if !slices.Equal(got, want) {
		t.Errorf("files %q, Kafka has %q", got, want)
	}
	for _, name := range want {
		if topic == "empty" && name == epochCheckpointName {
			continue // an epoch without records is forgotten at the next start, by Kafka, too
		}
		ours, _ := os.ReadFile(filepath.Join(dir, name))
		theirs, err := os.ReadFile(filepath.Join(kafkaDir, topic+"-0", name))
		if err != nil || !bytes.Equal(ours, theirs) {
			t.Errorf("%s is\n%x, Kafka wrote\n%x %v", name, ours, theirs, err)
		}
	}
}

// TestRecoversAsKafka takes everything away that can be found in the records, and compares what is made of them with what
// Kafka had.
func TestRecoversAsKafka(t *testing.T) {
	for _, k := range kafkaLogs {
		t.Run(k.topic, func(t *testing.T) {
			f := openKafka(t, k.topic, k.indexIntervalByte, func(dir string) {
				for _, name := range files(t, dir) {
					if !strings.HasSuffix(name, logSuffix) && name != partitionMetadataName && name != epochCheckpointName {
						if err := os.Remove(filepath.Join(dir, name)); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			compareWithKafka(t, f.dir, k.topic)
		})
	}
}
