package group

import (
	"slices"
	"strings"
	"testing"
	"time"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
)

func TestCommitFromOutside(t *testing.T) {
	w := newWorld(t)
	if c := w.commitOutside("g", "t", 0, 3); c != errcode.None {
		t.Fatal(c.Name())
	}
	w.state("g", "Empty")
	if f := w.fetch("g", "t", 0, false); f.Offset != 3 || f.LeaderEpoch != -1 || f.Code != errcode.None {
		t.Fatalf("%+v", f)
	}
	if f := w.fetch("g", "t", 1, false); f.Offset != -1 || f.Code != errcode.None || f.Metadata != "" {
		t.Fatalf("%+v", f)
	}
	if f := w.fetch("other", "t", 0, true); f.Offset != -1 || f.Code != errcode.None {
		t.Fatalf("%+v", f)
	}
	// The name alone is no protection against members: a member id is not looked at in an empty group.
	named := &client{w: w, group: "g", id: "m", generation: -1}
	if c := named.commit("t", 0, 4); c != errcode.None {
		t.Fatal(c.Name())
	}
	instance := (&client{w: w, group: "g", generation: -1}).static("i")
	if c := instance.commit("t", 0, 4); c != errcode.None {
		t.Fatal(c.Name())
	}
	with := &client{w: w, group: "g", id: "m", generation: 5}
	if c := with.commit("t", 0, 4); c != errcode.UnknownMemberId {
		t.Fatal(c.Name())
	}
	unknown := &client{w: w, group: "unknown", generation: 5}
	if c := unknown.commit("t", 0, 4); c != errcode.GroupIdNotFound {
		t.Fatal(c.Name())
	}
	old := unknown.commitCommand("t", 0, 4)
	old.APIVersion = 8
	if r := reply[CommitReply](w, w.Do(old)); r.Code != errcode.IllegalGeneration {
		t.Fatal(r.Code.Name())
	}
}

func TestCommitOfMembers(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	if c := a.commit("t", 0, 5); c != errcode.None {
		t.Fatal(c.Name())
	}
	if c := w.commitOutside("g", "t", 0, 6); c != errcode.UnknownMemberId {
		t.Fatal(c.Name())
	}
	other := *a
	other.generation++
	if c := other.commit("t", 0, 6); c != errcode.IllegalGeneration {
		t.Fatal(c.Name())
	}
	other = *a
	other.id = "nobody"
	if c := other.commit("t", 0, 6); c != errcode.UnknownMemberId {
		t.Fatal(c.Name())
	}
	long := a.commitCommand("t", 0, 7)
	long.Offsets[0].Metadata = strings.Repeat("x", 4097)
	long.Offsets = append(long.Offsets, OffsetToCommit{Key: offsets.Key{Topic: "t", Partition: 1}, Metadata: strings.Repeat("é", 4096)})
	r := reply[CommitReply](w, w.Do(long))
	if r.Code != errcode.None || r.Codes[0] != errcode.OffsetMetadataTooLarge || r.Codes[1] != errcode.None {
		t.Fatalf("%+v", r)
	}
	huge := a.commitCommand("t", 0, 7)
	for i := range int32(20000) {
		huge.Offsets = append(huge.Offsets, OffsetToCommit{Key: offsets.Key{Topic: "t", Partition: i}})
	}
	if r := reply[CommitReply](w, w.Do(huge)); r.Code != errcode.UnknownServerError {
		t.Fatalf("a commit that does not fit into a batch: %+v", r.Code.Name())
	}
	if f := w.fetch("g", "t", 0, true); f.Offset != 5 {
		t.Fatalf("%+v", f)
	}
}

func TestReadsSeeOnlyWhatIsDurable(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.Manual = true
	c := &client{w: w, group: "g", generation: -1}
	commit := w.Do(c.commitCommand("t", 0, 2))
	w.Silent(commit)
	if f := w.fetch("g", "t", 0, false); f.Offset != 1 {
		t.Fatalf("%+v", f)
	}
	stable := w.Do(&FetchOffsets{Group: "g", RequireStable: true, Partitions: []PartitionToFetch{{Key: offsets.Key{Topic: "t"}}}})
	w.Silent(stable)
	fresh := &client{w: w, group: "new", generation: -1}
	w.Do(fresh.commitCommand("t", 0, 2))
	w.state("new", "Dead")
	w.Commit()
	if f := reply[FetchReply](w, stable).Offsets[0]; f.Offset != 2 {
		t.Fatalf("%+v", f)
	}
	reply[CommitReply](w, commit)
	if f := w.fetch("g", "t", 0, false); f.Offset != 2 {
		t.Fatalf("%+v", f)
	}
	w.state("new", "Empty")
}

func TestFetchAll(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.commitOutside("g", "u", 1, 2)
	r := reply[FetchReply](w, w.Do(&FetchOffsets{Group: "g", All: true}))
	if len(r.Offsets) != 2 {
		t.Fatalf("%+v", r)
	}
	r = reply[FetchReply](w, w.Do(&FetchOffsets{Group: "other", All: true}))
	if len(r.Offsets) != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestFetchOfARemadeTopic(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	for id, want := range map[uuid.UUID]int64{{1}: 1, {2}: -1, {}: 1} {
		r := reply[FetchReply](w, w.Do(&FetchOffsets{Group: "g", Partitions: []PartitionToFetch{{Key: offsets.Key{Topic: "t"}, TopicID: id}}}))
		if r.Offsets[0].Offset != want {
			t.Fatalf("%v: %+v", id, r)
		}
	}
}

func TestDeleteOffsets(t *testing.T) {
	w := newWorld(t)
	del := func(group, topic string, p int32) errcode.Code {
		r := reply[CommitReply](w, w.Do(&DeleteOffsets{Group: group, Partitions: []offsets.Key{{Topic: topic, Partition: p}}}))
		if r.Code != errcode.None {
			return r.Code
		}
		return r.Codes[0]
	}
	if c := del("g", "t", 0); c != errcode.GroupIdNotFound {
		t.Fatal(c.Name())
	}
	w.commitOutside("g", "t", 0, 1)
	if c := del("g", "t", 0); c != errcode.None {
		t.Fatal(c.Name())
	}
	if c := del("g", "t", 0); c != errcode.None {
		t.Fatal("what is not there:", c.Name())
	}
	if f := w.fetch("g", "t", 0, true); f.Offset != -1 {
		t.Fatalf("%+v", f)
	}
	a := w.client("members").alone("x")
	a.commit("t", 0, 1)
	a.commit("u", 0, 1)
	if c := del("members", "t", 0); c != errcode.GroupSubscribedToTopic {
		t.Fatal(c.Name())
	}
	if c := del("members", "u", 0); c != errcode.None {
		t.Fatal(c.Name())
	}
	b := w.client("connect")
	b.kind = "connect"
	b.alone("x")
	if c := del("connect", "t", 0); c != errcode.NonEmptyGroup {
		t.Fatal(c.Name())
	}
}

func TestDeleteGroups(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	a.commit("t", 0, 1)
	del := func(ids ...string) []errcode.Code { return reply[[]errcode.Code](w, w.Do(&DeleteGroups{IDs: ids})) }
	if c := del("g", "other"); c[0] != errcode.NonEmptyGroup || c[1] != errcode.GroupIdNotFound {
		t.Fatal(c)
	}
	a.leave()
	if c := del("g"); c[0] != errcode.None {
		t.Fatal(c)
	}
	if c := del("g"); c[0] != errcode.GroupIdNotFound {
		t.Fatal(c)
	}
	w.state("g", "Dead")
	if f := w.fetch("g", "t", 0, false); f.Offset != -1 {
		t.Fatalf("%+v", f)
	}
	if n := len(w.m.groups); n != 0 {
		t.Fatalf("%d groups left", n)
	}
	if n := len(w.replay().groups); n != 0 {
		t.Fatalf("%d groups after a replay", n)
	}
}

func TestListGroups(t *testing.T) {
	w := newWorld(t)
	w.client("g").alone("x")
	w.commitOutside("simple", "t", 0, 1)
	for _, tt := range []struct {
		c    ListGroups
		want []string
	}{
		{ListGroups{}, []string{"g", "simple"}},
		{ListGroups{States: []string{" sTABLE "}}, []string{"g"}},
		{ListGroups{States: []string{"Empty"}}, []string{"simple"}},
		{ListGroups{States: []string{"Empty", "Stable"}}, []string{"g", "simple"}},
		{ListGroups{States: []string{"Dead"}}, nil},
		{ListGroups{States: []string{""}}, nil},
		{ListGroups{Types: []string{"Classic"}}, []string{"g", "simple"}},
		{ListGroups{Types: []string{"consumer"}}, nil},
		{ListGroups{Types: []string{"nosuch"}}, nil},
	} {
		var ids []string
		for _, g := range reply[[]ListedGroup](w, w.Do(&tt.c)) {
			ids = append(ids, g.ID)
			if g.Type != "classic" || g.ID == "g" && g.ProtocolType != "consumer" || g.ID == "simple" && g.ProtocolType != "" {
				t.Fatalf("%+v", g)
			}
		}
		slices.Sort(ids)
		if !slices.Equal(ids, tt.want) {
			t.Fatalf("%+v: %v, want %v", tt.c, ids, tt.want)
		}
	}
}

func TestOffsetsExpire(t *testing.T) {
	w := newWorld(t)
	a := w.client("members").alone("x")
	a.session = 1 << 30
	a.commit("t", 0, 1)
	a.commit("unsubscribed", 0, 1)
	w.commitOutside("simple", "t", 0, 1)
	w.commitOutside("kept", "t", 0, 1)
	own := (&client{w: w, group: "own", generation: -1}).commitCommand("t", 0, 1)
	own.RetentionMs, own.APIVersion = (20 * time.Minute).Milliseconds(), 4
	w.Do(own)
	beat := func(d time.Duration) {
		for ; d > 0; d -= 5 * time.Second {
			w.After(5 * time.Second)
			if c := a.heartbeat(); c != errcode.None {
				t.Fatal(c.Name())
			}
		}
	}
	beat(35 * time.Minute)
	w.commitOutside("kept", "t", 0, 2)
	w.state("own", "Dead")
	w.state("simple", "Empty")
	beat(40 * time.Minute)
	w.state("simple", "Dead")
	w.state("kept", "Empty")
	if f := w.fetch("members", "t", 0, false); f.Offset != 1 {
		t.Fatalf("offsets of a group with members must stay: %+v", f)
	}
	if f := w.fetch("members", "unsubscribed", 0, false); f.Offset != -1 {
		t.Fatalf("offsets of a topic that nobody subscribes to any more must go: %+v", f)
	}
	a.leave()
	w.After(50 * time.Minute)
	if f := w.fetch("members", "t", 0, false); f.Offset != 1 {
		t.Fatalf("retention counts from when the group became empty: %+v", f)
	}
	w.After(25 * time.Minute)
	w.state("members", "Dead")
	w.state("kept", "Dead")
	if len(w.m.groups) != 0 {
		t.Fatalf("%v", w.m.groups)
	}
}

func TestGroupWithoutAnythingLeavesTheList(t *testing.T) {
	w := newWorld(t)
	w.client("g").alone("x").leave()
	w.state("g", "Empty")
	w.After(10 * time.Minute)
	w.state("g", "Dead")
}

func TestTopicsGone(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.commitOutside("g", "u", 0, 1)
	w.Do(&TopicsGone{Gone: func(name string, id uuid.UUID) bool { return name == "t" && id == uuid.UUID{1} }})
	if f := w.fetch("g", "t", 0, true); f.Offset != -1 {
		t.Fatalf("%+v", f)
	}
	if f := w.fetch("g", "u", 0, true); f.Offset != 1 {
		t.Fatalf("%+v", f)
	}
}

func TestTransactionsInTheLog(t *testing.T) {
	w := newWorld(t)
	at := int64(100)
	load := func(r *Record) {
		at++
		if r.offset != nil {
			r.offset.RecordOffset = at
		}
		w.m.Apply(r)
		w.m.Commit(w.Now, at, r, &w.Effects)
	}
	pending := func(producer, offset int64) *Record {
		v := &offsets.Value{}
		v.Offset.Offset = offset
		return &Record{kind: offsetRecord, groupID: "g", key: offsets.Key{Topic: "t"}, producerID: producer, offset: v}
	}
	end := func(producer int64, commit bool) *Record {
		marker := recordbatch.EndTxnMarker{Type: recordbatch.Abort}
		if commit {
			marker.Type = recordbatch.Commit
		}
		return &Record{kind: transactionRecord, producerID: producer, marker: marker}
	}
	w.commitOutside("g", "t", 0, 1)
	load(pending(7, 5))
	if f := w.fetch("g", "t", 0, false); f.Offset != 1 || f.Code != errcode.None {
		t.Fatalf("%+v", f)
	}
	if f := w.fetch("g", "t", 0, true); f.Offset != -1 || f.Code != errcode.UnstableOffsetCommit {
		t.Fatalf("%+v", f)
	}
	load(end(7, false))
	if f := w.fetch("g", "t", 0, true); f.Offset != 1 {
		t.Fatalf("%+v", f)
	}
	load(pending(7, 6))
	load(pending(8, 9))
	load(end(7, true))
	if f := w.fetch("g", "t", 0, false); f.Offset != 6 {
		t.Fatalf("%+v", f)
	}
	if f := w.fetch("g", "t", 0, true); f.Code != errcode.UnstableOffsetCommit {
		t.Fatalf("%+v", f)
	}
	// A later commit outside the transaction wins over the transaction's.
	plain := pending(noProducer, 20)
	load(plain)
	load(end(8, true))
	if f := w.fetch("g", "t", 0, true); f.Offset != 20 {
		t.Fatalf("%+v", f)
	}
	// A deletion takes what is pending with it.
	load(pending(9, 30))
	load(&Record{kind: offsetRecord, groupID: "g", key: offsets.Key{Topic: "t"}, producerID: noProducer})
	load(end(9, true))
	if f := w.fetch("g", "t", 0, true); f.Offset != -1 || f.Code != errcode.None {
		t.Fatalf("%+v", f)
	}
}
