package log

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/services/storage"
	"chancery/services/vfs"
	"chancery/services/vfs/memfs"
)

var errPower = errors.New("no power")

// TestPowerLossWhileStartingLocally: whenever a follower loses its power, it must not take the begin of its local log for the begin
// of the log. As a leader it would have all that is remote deleted.
func TestPowerLossWhileStartingLocally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := memfs.New(func() time.Time { return time.UnixMilli(1) })
		if err := disk.MkdirAll("/d", 0o755); err != nil {
			t.Fatal(err)
		}
		left := 1 << 30
		f := newFixture(t, "/d", func(o *Options) {
			o.Config.RemoteStorageEnable, o.Config.SegmentBytes = true, 400
			o.FS = vfs.Faulty{FS: disk, Inject: func(op vfs.Op, _ string) error {
				if left--; left < 0 && op != vfs.OpRead {
					return errPower
				}
				return nil
			}}
		})
		for range rapid.IntRange(0, 3).Draw(t, "before") {
			f.append(0, spec{bytes: 50})
		}
		checkpoint := int64(0)
		if rapid.Bool().Draw(t, "flush before") {
			if err := f.Flush(); err != nil {
				t.Fatal(err)
			}
			checkpoint = f.RecoveryPoint()
		}
		left = rapid.IntRange(0, 60).Draw(t, "operations")
		err := f.StartLocallyAt(LocalStart{LogStart: 0, LocalStart: 100, Epochs: []storage.EpochStart{{Epoch: 0, StartOffset: 0}, {Epoch: 3, StartOffset: 40}}})
		for err == nil && f.LogEndOffset() < 110 {
			batch := makeBatch(t, f.LogEndOffset(), int32(f.LogEndOffset()-100)/4+3, spec{bytes: 50})
			if err = f.AppendAsFollower(buffers(batch, 1000)); err == nil && f.LogEndOffset() == 105 && rapid.Bool().Draw(t, "flush after") {
				if err = f.Flush(); err == nil {
					checkpoint = f.RecoveryPoint()
				}
			}
		}
		f.Abandon()
		left = 1 << 30
		disk.LosePower(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "draw") })
		f.o.CleanShutdown, f.o.RecoveryPoint = false, checkpoint
		f.open()
		if f.LogStartOffset() != 0 {
			t.Fatalf("the log begins at %d, its local part at %d, it ends at %d", f.LogStartOffset(), f.LocalLogStartOffset(), f.LogEndOffset())
		}
		if epoch := f.EpochForOffset(70); f.LogEndOffset() > 100 && epoch != 3 {
			t.Fatalf("offset 70 was of epoch 3, and is of %d", epoch)
		}
	})
}

// TestPowerLossKeepsTheHistoryOfTheRemoteTier: the epochs of what has gone to the remote tier and is not here any more are in no record,
// so they must outlast every power loss.
func TestPowerLossKeepsTheHistoryOfTheRemoteTier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := memfs.New(func() time.Time { return time.UnixMilli(1) })
		if err := disk.MkdirAll("/d", 0o755); err != nil {
			t.Fatal(err)
		}
		f := newFixture(t, "/d", func(o *Options) {
			o.FS, o.Config.SegmentBytes = disk, 300
			o.Config.RemoteStorageEnable, o.Config.LocalRetentionMs, o.Config.LocalRetentionBytes = true, -1, 0
		})
		checkpoint, epoch := int64(0), int32(0)
		var history []int32
		for range rapid.IntRange(3, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0:
				if err := f.Flush(); err != nil {
					t.Fatal(err)
				}
				checkpoint = f.RecoveryPoint()
			case 1:
				epoch += int32(rapid.IntRange(1, 3).Draw(t, "more"))
				if err := f.AssignEpochStart(epoch, f.LogEndOffset()); err != nil {
					t.Fatal(err)
				}
			case 2:
				f.SetHighWatermark(f.LogEndOffset())
				f.SetRemoteEndOffset(f.LogEndOffset())
				if _, err := f.DeleteRetired(f.clock); err != nil {
					t.Fatal(err)
				}
				f.removals = nil
			default:
				f.append(epoch, spec{bytes: 60, timestamp: 1})
				history = append(history, epoch)
			}
		}
		local := f.LocalLogStartOffset()
		f.Abandon()
		disk.LosePower(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "draw") })
		f.o.CleanShutdown, f.o.RecoveryPoint = false, checkpoint
		f.open()
		if f.LogStartOffset() != 0 {
			t.Fatalf("the log begins at %d, its local part at %d, before at %d, it ends at %d", f.LogStartOffset(), f.LocalLogStartOffset(), local, f.LogEndOffset())
		}
		for offset, want := range history[:min(int64(len(history)), f.LogEndOffset())] {
			if got := f.EpochForOffset(int64(offset)); got != want {
				t.Fatalf("offset %d was of epoch %d, and is of %d; the local part begins at %d, before at %d", offset, want, got, f.LocalLogStartOffset(), local)
			}
		}
	})
}
