package handler

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/statemachine"
)

// several makes an envelope of requests of one version.
func several(version int16, reqs ...kmsg.Request) *commonv1.Envelope {
	e := &commonv1.Envelope{ApiKey: int32(reqs[0].Key()), ApiVersion: int32(version), MetadataOffset: 10}
	for i, req := range reqs {
		req.SetVersion(version)
		if body := req.AppendTo(nil); i == 0 {
			e.Body = body
		} else {
			e.More = append(e.More, body)
		}
	}
	return e
}

// TestSeveralCommits: each is answered by itself, in their order, also what the shard is not asked about, and the last one holds.
func TestSeveralCommits(t *testing.T) {
	for v := int16(2); v <= 10; v++ {
		c := newCluster(t)
		id, generation := c.member("g")
		at := func(offset int64) place { return place{"a", topicID, 0, offset, ""} }
		bodies, err := c.h.HandleSeveral(t.Context(), 0, several(v,
			commitRequest("g", id, generation, at(1)),
			commitRequest("g", id, generation+1, at(2)),
			commitRequest("g", id, generation, place{"nope", uuid.UUID{9}, 0, 6, ""}),
			commitRequest("g", id, generation),
			commitRequest("g", id, generation, at(3))))
		if err != nil {
			t.Fatal(err)
		}
		unknown := errcode.UnknownTopicOrPartition
		if v >= commitTopicIDs {
			unknown = errcode.UnknownTopicId
		}
		for i, want := range [][]errcode.Code{{errcode.None}, {errcode.IllegalGeneration}, {unknown}, {}, {errcode.None}} {
			r := kmsg.NewPtrOffsetCommitResponse()
			r.Version = v
			if err := r.ReadFrom(bodies[i]); err != nil {
				t.Fatal(err)
			}
			var got []errcode.Code
			for _, topic := range r.Topics {
				got = append(got, errcode.Code(topic.Partitions[0].ErrorCode))
			}
			if len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
				t.Errorf("v%d, commit %d: %v, want %v", v, i, got, want)
			}
		}
		if p := fetched(c, 8, send[*kmsg.OffsetFetchResponse](c, 8, fetchRequest("g", at(0)))); p.Offset != 3 {
			t.Errorf("v%d: the offset is %d", v, p.Offset)
		}
	}
}

func TestSeveralCommitsFailTogether(t *testing.T) {
	c := newCluster(t)
	good := commitRequest("g", "", -1, place{"a", topicID, 0, 1, ""})
	if _, err := c.h.HandleSeveral(t.Context(), 0, several(4, heartbeatRequest("g", "m", 1), heartbeatRequest("g", "m", 1))); errcode.Of(err) != errcode.UnsupportedVersion {
		t.Errorf("several of another API: %v", err)
	}
	bad := several(9, good, good)
	bad.More[0] = bad.More[0][:3]
	if _, err := c.h.HandleSeveral(t.Context(), 0, bad); errcode.Of(err) != errcode.InvalidRequest {
		t.Errorf("a malformed one: %v", err)
	}
	c.failure = errcode.NotCoordinator.Wrap(statemachine.ErrNotDecided)
	if _, err := c.h.HandleSeveral(t.Context(), 0, several(9, good, good)); errcode.Of(err) != errcode.NotCoordinator {
		t.Errorf("the shard is elsewhere: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.failure = context.Canceled
	if _, err := c.h.HandleSeveral(ctx, 0, several(9, good, good)); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has gone: %v", err)
	}
	c.failure = errcode.CoordinatorLoadInProgress.Wrap(statemachine.ErrNotDecided)
	bodies, err := c.h.HandleSeveral(t.Context(), 0, several(9, good, good))
	if err != nil || len(bodies) != 2 {
		t.Fatalf("while it loads: %d answers, %v", len(bodies), err)
	}
}
