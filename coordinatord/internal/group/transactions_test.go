package group

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

func txnCommit(producer int64, epoch int16, group string, partition int32, offset int64) *CommitInTransaction {
	c := &CommitInTransaction{ProducerID: producer, ProducerEpoch: epoch}
	c.Group, c.Generation, c.APIVersion, c.RetentionMs = group, -1, 4, -1
	c.Offsets = []OffsetToCommit{{Key: offsets.Key{Topic: "t", Partition: partition}, Offset: offset, LeaderEpoch: -1}}
	return c
}

// verified sends a commit, and sends it again with the coordinator's word where that is needed.
func (w *world) verified(c *CommitInTransaction) TxnCommitReply {
	w.T.Helper()
	r := reply[TxnCommitReply](w, w.Do(c))
	if r.Guard != 0 {
		c.Verified = r.Guard
		r = reply[TxnCommitReply](w, w.Do(c))
	}
	return r
}

func (w *world) end(c *EndTransaction) errcode.Code {
	w.T.Helper()
	return reply[errcode.Code](w, w.Do(c))
}

func (w *world) seesOffset(group string, stable bool, want int64, code errcode.Code) {
	w.T.Helper()
	if f := w.fetch(group, "t", 0, stable); f.Offset != want || f.Code != code {
		w.T.Fatalf("stable %t: %+v, want %d %s", stable, f, want, code)
	}
}

func TestTransactionalCommitIsSeenWithItsMarker(t *testing.T) {
	for _, commit := range []bool{true, false} {
		w := newWorld(t)
		w.commitOutside("g", "t", 0, 1)
		if r := w.verified(txnCommit(7, 0, "g", 0, 5)); r.Code != errcode.None || r.Codes[0] != errcode.None {
			t.Fatalf("%+v", r)
		}
		w.seesOffset("g", false, 1, errcode.None)
		w.seesOffset("g", true, -1, errcode.UnstableOffsetCommit)
		if code := w.end(&EndTransaction{ProducerID: 7, Commit: commit}); code != errcode.None {
			t.Fatal(code)
		}
		want := int64(1)
		if commit {
			want = 5
		}
		w.seesOffset("g", true, want, errcode.None)
		w.reload()
		w.seesOffset("g", true, want, errcode.None)
	}
}

// TestVerificationOfTransactions: only the first commit of a transaction needs the coordinator's word, and none that was given
// before a marker counts after it.
func TestVerificationOfTransactions(t *testing.T) {
	w := newWorld(t)
	first := reply[TxnCommitReply](w, w.Do(txnCommit(7, 0, "g", 0, 5)))
	again := reply[TxnCommitReply](w, w.Do(txnCommit(7, 0, "g", 0, 5)))
	if first.Guard == 0 || again.Guard != first.Guard || w.m.producerOf(7).open {
		t.Fatalf("%+v %+v", first, again)
	}
	if code := w.end(&EndTransaction{ProducerID: 7}); code != errcode.None {
		t.Fatal(code)
	}
	late := txnCommit(7, 0, "g", 0, 5)
	late.Verified = first.Guard
	if r := reply[TxnCommitReply](w, w.Do(late)); r.Guard == 0 || r.Guard == first.Guard {
		t.Fatalf("%+v", r)
	}
	if r := w.verified(late); r.Code != errcode.None {
		t.Fatalf("%+v", r)
	}
	if r := reply[TxnCommitReply](w, w.Do(txnCommit(7, 0, "h", 0, 5))); r.Guard != 0 || r.Code != errcode.None {
		t.Fatalf("the transaction is open: %+v", r)
	}
	if r := reply[TxnCommitReply](w, w.Do(txnCommit(7, 1, "g", 0, 5))); r.Guard == 0 {
		t.Fatalf("another epoch is another transaction: %+v", r)
	}
	trusted := txnCommit(9, 0, "g", 0, 5)
	trusted.Trusted = true
	if r := reply[TxnCommitReply](w, w.Do(trusted)); r.Guard != 0 || r.Code != errcode.None {
		t.Fatalf("%+v", r)
	}
}

// TestWhoMayCommitInTransactions has the rules that differ from commits outside.
func TestWhoMayCommitInTransactions(t *testing.T) {
	w := newWorld(t)
	w.client("g").alone("x")
	for _, x := range []struct {
		name       string
		group      string
		member     string
		generation int32
		version    int16
		want       errcode.Code
	}{
		{"without member and generation", "g", "", -1, 2, errcode.None},
		{"unknown member", "g", "nobody", 1, 3, errcode.UnknownMemberId},
		{"generation without member", "g", "", 1, 3, errcode.UnknownMemberId},
		{"generation of no group", "none", "", 1, 5, errcode.IllegalGeneration},
		{"generation of no group, newer client", "none", "", 1, 6, errcode.GroupIdNotFound},
		{"no group", "new", "", -1, 5, errcode.None},
	} {
		c := txnCommit(7, 0, x.group, 0, 5)
		c.MemberID, c.Generation, c.APIVersion = x.member, x.generation, x.version
		if r := w.verified(c); r.Code != x.want {
			t.Errorf("%s: %+v", x.name, r)
		}
	}
}

func TestMarkersOfGroups(t *testing.T) {
	for _, x := range []struct {
		name string
		end  EndTransaction
		want errcode.Code
	}{
		{"older epoch", EndTransaction{ProducerEpoch: 2}, errcode.InvalidProducerEpoch},
		{"the epoch of the data", EndTransaction{ProducerEpoch: 3, CoordinatorEpoch: 4}, errcode.None},
		{"the epoch of the data, version 2", EndTransaction{ProducerEpoch: 3, CoordinatorEpoch: 4, Version: 2}, errcode.InvalidProducerEpoch},
		{"the next epoch, version 2", EndTransaction{ProducerEpoch: 4, CoordinatorEpoch: 4, Version: 2}, errcode.None},
		{"older coordinator", EndTransaction{ProducerEpoch: 4, CoordinatorEpoch: 3}, errcode.TransactionCoordinatorFenced},
	} {
		w := newWorld(t)
		w.end(&EndTransaction{ProducerID: 7, ProducerEpoch: 2, CoordinatorEpoch: 4})
		w.verified(txnCommit(7, 3, "g", 0, 5))
		for range 2 {
			x.end.ProducerID = 7
			if code := w.end(&x.end); code != x.want {
				t.Errorf("%s: %s", x.name, code)
			}
			w.reload()
			if x.want != errcode.None {
				continue
			}
			// It may come again, since its answer was lost.
			if x.end.Version < 2 {
				break
			}
		}
	}
}

// TestLateCommitOfAnOlderEpoch: what a zombie commits after its transaction was ended is refused without a question.
func TestLateCommitOfAnOlderEpoch(t *testing.T) {
	w := newWorld(t)
	w.end(&EndTransaction{ProducerID: 7, ProducerEpoch: 4, Version: 2})
	if r := reply[TxnCommitReply](w, w.Do(txnCommit(7, 3, "g", 0, 5))); r.Code != errcode.InvalidProducerEpoch {
		t.Fatalf("%+v", r)
	}
}

// TestStagedOffsetsDoNotExpire: neither the offset nor the group goes while a transaction is about to change the offset.
func TestStagedOffsetsDoNotExpire(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.verified(txnCommit(7, 0, "g", 0, 5))
	w.verified(txnCommit(7, 0, "only", 0, 6))
	w.After(10 * 24 * time.Hour)
	w.seesOffset("g", false, 1, errcode.None)
	w.end(&EndTransaction{ProducerID: 7, Commit: true})
	w.seesOffset("g", true, 5, errcode.None)
	w.seesOffset("only", true, 6, errcode.None)
	w.After(10 * 24 * time.Hour)
	w.state("only", "Dead")
	if len(w.m.producers) != 0 {
		t.Fatal("the producer is still known")
	}
}

// TestTopicsGoneWithOpenTransactions: what a transaction has for a topic that is deleted does not come back with the transaction's end,
// neither beside a committed offset nor alone, nor when its marker is under way.
func TestTopicsGoneWithOpenTransactions(t *testing.T) {
	for _, ending := range []bool{false, true} {
		w := newWorld(t)
		w.commitOutside("g", "t", 0, 1)
		for _, group := range []string{"g", "only"} {
			for p := range int32(2) {
				c := txnCommit(7, 0, group, p, 5)
				c.Offsets[0].TopicID = uuid.UUID{1 + byte(p)}
				w.verified(c)
			}
		}
		end := &EndTransaction{ProducerID: 7, Commit: true}
		w.Manual = true
		if ending {
			w.Do(end)
		}
		w.Do(&TopicsGone{Gone: func(name string, id uuid.UUID) bool { return name == "t" && id == uuid.UUID{1} }})
		w.Commit()
		w.Manual = false
		if !ending {
			w.end(end)
		}
		for range 2 {
			for _, group := range []string{"g", "only"} {
				w.seesOffset(group, true, -1, errcode.None)
				if f := w.fetch(group, "t", 1, true); f.Offset != 5 {
					t.Fatalf("ending %t: the offset of another topic of the same name: %+v", ending, f)
				}
			}
			w.reload()
		}
	}
}

// TestDeletionBeforeTheTransaction: a deletion takes what transactions had before it in the log, and not what they get after it, though
// all of it becomes durable together.
func TestDeletionBeforeTheTransaction(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.Manual = true
	w.Do(&DeleteOffsets{Group: "g", Partitions: []offsets.Key{{Topic: "t"}}})
	c := txnCommit(7, 0, "g", 0, 5)
	c.Trusted = true
	w.Do(c)
	w.Do(&EndTransaction{ProducerID: 7, Commit: true})
	w.Commit()
	w.Manual = false
	w.seesOffset("g", true, 5, errcode.None)
	w.reload()
	w.seesOffset("g", true, 5, errcode.None)
}

// TestRolledBackTransactions: whatever is taken back, the machine is as if it had never been decided.
func TestRolledBackTransactions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.Manual = true
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			producer := rapid.Int64Range(1, 2).Draw(rt, "producer")
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 0, 1:
				c := txnCommit(producer, 0, "g", rapid.Int32Range(0, 1).Draw(rt, "partition"), rapid.Int64Range(0, 9).Draw(rt, "offset"))
				c.Trusted = true
				w.Do(c)
			case 2:
				w.Do(&EndTransaction{ProducerID: producer, Commit: rapid.Bool().Draw(rt, "commit")})
			case 3:
				w.Do((&client{w: w, group: "g", generation: -1}).commitCommand("t", 0, 100))
			case 4:
				w.Commit()
			case 5:
				w.Fail(errcode.CoordinatorNotAvailable)
			case 6:
				w.Do(&DeleteOffsets{Group: "g", Partitions: []offsets.Key{{Topic: "t"}, {Topic: "t", Partition: 1}}})
			}
		}
		w.Fail(errcode.CoordinatorNotAvailable)
		w.Commit()
		fresh := w.replay()
		for _, partition := range []int32{0, 1} {
			k := offsets.Key{Topic: "t", Partition: partition}
			had, want := w.m.offsets.Newest("g", k), fresh.offsets.Newest("g", k)
			if (had == nil) != (want == nil) || had != nil && had.Offset != want.Offset {
				rt.Fatalf("partition %d: %+v, want %+v", partition, had, want)
			}
			if had, want := w.m.offsets.IsOpen("g", k), fresh.offsets.IsOpen("g", k); had != want {
				rt.Fatalf("partition %d is open: %t, want %t", partition, had, want)
			}
		}
		for _, id := range []int64{1, 2} {
			if w.m.producerOf(id).open != fresh.producerOf(id).open {
				rt.Fatalf("producer %d is open: %t", id, w.m.producerOf(id).open)
			}
		}
	})
}

// TestWhoMayCommitInTransactionsOfConsumers: members are known by their epoch, which clients before version 6 are told of in other words.
func TestWhoMayCommitInTransactionsOfConsumers(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	a := w.modern("g", "a", "t").beat().has(2, "t[0 1]")
	blank := ""
	commit := func(member string, instance *string, epoch int32, version int16) errcode.Code {
		c := txnCommit(7, 0, "g", 0, 5)
		c.MemberID, c.InstanceID, c.Generation, c.APIVersion, c.Offsets[0].TopicID = member, instance, epoch, version, topicOf("t")
		return w.verified(c).Code
	}
	for _, x := range []struct {
		name     string
		member   string
		instance *string
		epoch    int32
		version  int16
		want     errcode.Code
	}{
		{"a member", "a", nil, 2, 5, errcode.None},
		{"without member and epoch", "", nil, -1, 5, errcode.None},
		{"without member and epoch, but with an instance", "", &blank, -1, 5, errcode.UnknownMemberId},
		{"unknown member", "nobody", nil, 2, 6, errcode.UnknownMemberId},
		{"a newer epoch", "a", nil, 3, 6, errcode.StaleMemberEpoch},
		{"a newer epoch, older client", "a", nil, 3, 5, errcode.IllegalGeneration},
		{"from before it had the partition", "a", nil, 1, 6, errcode.StaleMemberEpoch},
		{"from before it had the partition, older client", "a", nil, 1, 5, errcode.IllegalGeneration},
	} {
		if code := commit(x.member, x.instance, x.epoch, x.version); code != x.want {
			t.Errorf("%s: %s, want %s", x.name, code.Name(), x.want.Name())
		}
	}
	a.leave(-1)
	w.code("from outside when empty", int16(commit("", &blank, -1, 5)), errcode.None)
	w.code("unknown member when empty", int16(commit("a", nil, 0, 6)), errcode.UnknownMemberId)
}
