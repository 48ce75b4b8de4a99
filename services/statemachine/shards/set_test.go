package shards_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/statemachine"
	"chancery/services/statemachine/shards"
)

// echo is a machine without state: it answers with the command.
type echo struct{}

type effects = statemachine.Effects[int, int]

func (echo) Decide(_ time.Time, t statemachine.Ticket, c int, out *effects) { out.AnswerNow(t, c) }
func (echo) Apply(int)                                                      {}
func (echo) Commit(time.Time, int64, int, *effects)                         {}
func (echo) Rollback(time.Time, []int, []errcode.Code, *effects)            {}
func (echo) Loaded(time.Time, *effects)                                     {}
func (echo) Due() time.Time                                                 { return time.Time{} }
func (echo) Tick(time.Time, *effects)                                       {}

type noCodec struct{}

func (noCodec) Encode(dst []byte, _ int) ([]byte, int, bool) { return dst, 0, false }
func (noCodec) Decode(recordbatch.Header, *recordbatch.Record) (int, bool, error) {
	return 0, false, nil
}

// emptyLog is a log without records, which refuses to be loaded while fenced is set.
type emptyLog struct{ fenced *atomic.Bool }

func (l emptyLog) Load(context.Context, func(recordbatch.Header, *recordbatch.Record) error) (int64, error) {
	if l.fenced.Load() {
		return 0, statemachine.ErrFenced
	}
	return 0, nil
}

func (emptyLog) Append(context.Context, [][]byte, int64, func(int64, error)) {}

// fixture is a set, the metadata that it follows, and the shards that it has made.
type fixture struct {
	t      *testing.T
	set    *shards.Set[int, int, int]
	image  *metadata.Image
	fenced atomic.Bool
	made   []string
}

var topicID = uuid.UUID{1}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, image: metadata.Empty("c")}
	f.set = shards.New(shards.Config[int, int, int]{
		NodeID: 7, Kind: metadata.GroupShard, Topic: "__consumer_offsets", Image: func() *metadata.Image { return f.image },
		Build: func(s shards.Spec) *statemachine.Shard[int, int, int] {
			f.made = append(f.made, fmt.Sprintf("%d at %d", s.Number, s.Epoch))
			return statemachine.NewShard(statemachine.Config[int, int, int]{
				New: func() statemachine.Machine[int, int, int] { return echo{} }, Codec: noCodec{}, Log: emptyLog{&f.fenced},
				MaxBatchBytes: 1000, MaxQueuedBytes: 1000, AnswerTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
			})
		},
	})
	f.push(&metarecord.TopicRecord{Name: "__consumer_offsets", TopicID: topicID},
		&metarecord.PartitionRecord{TopicID: topicID, PartitionID: 0, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1},
		&metarecord.PartitionRecord{TopicID: topicID, PartitionID: 1, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	return f
}

func (f *fixture) push(records ...metarecord.Record) {
	f.t.Helper()
	d, err := f.image.Apply(f.image.Offset()+int64(len(records)), 1, records...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.image = d.Image()
	f.set.Follow(f.t.Context(), d, f.image)
	synctest.Wait()
}

func (f *fixture) give(shard, owner, epoch int32) {
	f.t.Helper()
	f.push(&metarecord.ShardRecord{Kind: int8(metadata.GroupShard), Shard: shard, Owner: owner, Epoch: epoch})
}

func (f *fixture) here(want ...int32) {
	f.t.Helper()
	var got []int32
	for number := range int32(3) {
		if reply, err := f.set.Do(f.t.Context(), number, 5); err == nil && reply == 5 {
			got = append(got, number)
		} else if errcode.Of(err) != errcode.NotCoordinator {
			f.t.Errorf("shard %d: %d, %v", number, reply, err)
		}
	}
	if !slices.Equal(got, want) {
		f.t.Errorf("the shards %v are here, want %v", got, want)
	}
}

func TestShardsFollowTheMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.here()
		f.give(0, 7, 3)
		f.give(1, 8, 1)
		f.here(0)
		first := f.set.Find(0)
		f.give(1, 7, 2)
		f.here(0, 1)
		if f.set.Find(0) != first || first.Context().Err() != nil {
			t.Error("a shard that stays was made anew")
		}
		// It was another's meanwhile.
		f.give(0, 7, 5)
		f.here(0, 1)
		if f.set.Find(0) == first || first.Context().Err() == nil {
			t.Error("a shard with a new epoch is the old one")
		}
		f.give(0, 8, 6)
		f.here(1)
		f.push(&metarecord.RemoveTopicRecord{TopicID: topicID})
		f.here()
		if want := []string{"0 at 3", "1 at 2", "0 at 5"}; !slices.Equal(f.made, want) {
			t.Errorf("made were %v, want %v", f.made, want)
		}
		f.set.AwaitEmpty(t.Context())
		f.set.Drain(t.Context())
	})
}

// TestShardThatEndsByItself: it is started again as long as the metadata gives it to this instance.
func TestShardThatEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.fenced.Store(true)
		f.give(0, 7, 1)
		f.here()
		f.fenced.Store(false)
		<-time.After(2 * time.Second)
		synctest.Wait()
		f.here(0)
		f.set.Drain(t.Context())
		f.here()
		f.give(1, 7, 1)
		f.here() // nothing begins any more
	})
}
