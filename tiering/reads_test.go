package tiering

import (
	"testing"

	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/tiering/internal/remotestate"
)

// TestHistoryOfAnEarlierLeader: after an unclean election the segments behind an offset are others, though the offset itself is in
// both histories. What was learned of the earlier leader must not be read from.
func TestHistoryOfAnEarlierLeader(t *testing.T) {
	p := remotelog.Partition{TopicID: uuid.UUID{1}}
	segment := func(id byte, first, last int64) remotestate.Entry {
		return remotestate.Entry{State: remotelog.CopyFinished, Segment: &remotelog.Segment{
			Partition: p, ID: uuid.UUID{id}, StartOffset: first, EndOffset: last, LeaderEpochs: []remotelog.EpochStart{{Epoch: 3, StartOffset: first}},
		}}
	}
	view := &remotestate.View{Partition: p, Segments: []remotestate.Entry{segment(1, 0, 9), segment(2, 10, 19)}}
	var r reads
	r.learn(p, remotestate.Log{End: 30, LocalStart: 20, Epochs: []remotelog.EpochStart{{Epoch: 3}}}, 3)
	asked := func(leaderEpoch int32) *history {
		return r.usable(p, view, leaderEpoch, func(h *history) bool { return h.holds(5, 3) })
	}
	if h := asked(3); h == nil || len(h.segments) != 2 {
		t.Fatalf("the history of the leader is %+v", h)
	}
	if h := asked(4); h != nil {
		t.Fatalf("a reader of leader epoch 4 reads in the history of epoch 3: %+v", h)
	}
	r.learn(p, remotestate.Log{End: 15, LocalStart: 10, Epochs: []remotelog.EpochStart{{Epoch: 3}, {Epoch: 4, StartOffset: 12}}}, 4)
	if h := asked(4); h == nil || len(h.segments) != 2 || h.segments[1].LastOffset != 11 {
		t.Fatalf("the history of the new leader is %+v", h)
	}
	// A slow answer of the earlier leader changes nothing.
	r.learn(p, remotestate.Log{End: 30, LocalStart: 20, Epochs: []remotelog.EpochStart{{Epoch: 3}}}, 3)
	if h := asked(4); h == nil {
		t.Fatal("the history of the new leader was replaced by that of an earlier one")
	}
}
