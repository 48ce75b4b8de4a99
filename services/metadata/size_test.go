package metadata_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// TestSizeOfALargeImage holds the memory of 100,000 partitions below 200 MB, which is to be the most that the metadata of a
// large cluster costs each process.
func TestSizeOfALargeImage(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 100,000 partitions")
	}
	const topics, partitions, limit = 2000, 50, 200 << 20
	directories := []uuid.UUID{uuid.Random(), uuid.Random(), uuid.Random()}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	begin := time.Now()
	image := metadata.Empty("large")
	for i := range topics {
		id := uuid.Random()
		records := []metarecord.Record{&metarecord.TopicRecord{Name: fmt.Sprintf("topic-%d", i), TopicID: id}}
		for p := range partitions {
			records = append(records, &metarecord.PartitionRecord{
				PartitionID: int32(p), TopicID: id, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1, Directories: directories,
			})
		}
		// As a follower has it: each record comes from bytes of its own.
		decoded, err := metarecord.DecodeAll(metarecord.EncodeAll(records))
		if err != nil {
			t.Fatal(err)
		}
		delta, err := image.Apply(image.Offset()+int64(len(records)), 1, decoded...)
		if err != nil {
			t.Fatal(err)
		}
		image = delta.Image()
	}
	took := time.Since(begin)
	size := heap() - before
	t.Logf("%d partitions take %d MB and %s to apply", topics*partitions, size>>20, took.Round(time.Millisecond))
	if size > limit {
		t.Errorf("%d bytes, want at most %d", size, limit)
	}
	runtime.KeepAlive(image)
}
