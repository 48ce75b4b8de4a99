package log

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/services/kafka/recordbatch"
	"chancery/services/vfs/memfs"
)

// TestPowerLossAfterTruncation: what a log has cut off may be back after a power loss, as its end. It must never lie between what
// was before and what came after the cut, where no check would find it.
func TestPowerLossAfterTruncation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f *fixture
		checkpoint := int64(0)
		disk := memfs.New(func() time.Time { return time.UnixMilli(1) })
		if err := disk.MkdirAll("/d", 0o755); err != nil {
			t.Fatal(err)
		}
		f = newFixture(t, "/d", func(o *Options) {
			o.FS, o.Config.SegmentBytes = disk, 400
			o.RecoveryPointFell = func() { checkpoint = f.RecoveryPoint() }
		})
		write := func(name string, epoch int32) {
			for range rapid.IntRange(1, 12).Draw(t, name) {
				f.append(epoch, spec{bytes: 50, records: rapid.IntRange(1, 2).Draw(t, "records")})
				if rapid.IntRange(0, 4).Draw(t, "flush") == 0 {
					if err := f.Flush(); err != nil {
						t.Fatal(err)
					}
					checkpoint = f.RecoveryPoint()
				}
			}
		}
		write("before", 1)
		if err := f.TruncateTo(rapid.Int64Range(0, f.LogEndOffset()-1).Draw(t, "cut")); err != nil {
			t.Fatal(err)
		}
		write("after", 2)
		want := f.all(0)
		f.Abandon()
		disk.LosePower(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "draw") })
		f.o.CleanShutdown, f.o.RecoveryPoint = false, checkpoint
		f.open()
		got := f.all(0)
		last := int32(-1)
		for it := recordbatch.Iterate(got); it.Next(); {
			last = it.Header().LeaderEpoch()
		}
		if last == 2 && !bytes.HasPrefix(want, got) {
			t.Fatalf("%d bytes are no beginning of the %d that were written", len(got), len(want))
		}
	})
}
