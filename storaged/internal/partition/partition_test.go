package partition_test

import (
	"testing"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/internal/partition"
)

// bench is a replica on node 1 whose followers are nodes 2 and 3.
type bench struct {
	now     time.Time
	brokers map[int32]partition.BrokerState
	p       *partition.Partition
}

func newBench(logEnd int64) *bench {
	b := &bench{now: time.Unix(1000, 0), brokers: map[int32]partition.BrokerState{1: {Epoch: 11}, 2: {Epoch: 12}, 3: {Epoch: 13}}}
	b.p = partition.New(&partition.Config{
		Self: 1, ReplicaLagTimeMax: 10 * time.Second, SelfEpoch: func() int64 { return 11 },
		Broker: func(id int32) (partition.BrokerState, bool) {
			s, ok := b.brokers[id]
			return s, ok
		},
	}, 0, 0, logEnd)
	return b
}

func (b *bench) lead(minISR int, isr ...int32) partition.Effects {
	return b.p.BecomeLeader(b.now, &metadata.Partition{Replicas: []int32{1, 2, 3}, ISR: isr, Leader: 1, LeaderEpoch: 4, PartitionEpoch: 7}, minISR)
}

func (b *bench) fetched(id int32, offset int64) partition.Effects {
	return b.p.FollowerFetched(b.now, partition.FollowerFetch{
		Replica: id, BrokerEpoch: b.brokers[id].Epoch, LeaderEpoch: 4, FetchOffset: offset, LeaderEnd: b.p.LogEnd(), At: b.now,
	})
}

func TestBecomingLeader(t *testing.T) {
	b := newBench(5)
	out := b.lead(1, 1, 2, 3)
	if out.AssignEpoch == nil || *out.AssignEpoch != (partition.EpochStart{Epoch: 4, Offset: 5}) || !out.LookAgain || out.HighWatermarkMoved {
		t.Fatalf("%+v", out)
	}
	// What the metadata log tells after the controller's own answer is old news.
	if out := b.p.BecomeFollower(&metadata.Partition{Leader: 2, LeaderEpoch: 3, PartitionEpoch: 6}); out != (partition.Effects{}) || b.p.Role() != partition.Leading {
		t.Fatalf("%+v", out)
	}
	// The same registration again changes nothing.
	if out := b.lead(1, 1, 2, 3); out.AssignEpoch != nil || out.LookAgain {
		t.Fatalf("%+v", out)
	}
	alone := newBench(5)
	if out := alone.lead(1, 1); !out.HighWatermarkMoved || alone.p.HighWatermark() != 5 {
		t.Fatalf("%+v", out)
	}
}

func TestHighWatermark(t *testing.T) {
	for _, x := range []struct {
		name   string
		minISR int
		isr    []int32
		ends   map[int32]int64
		fenced int32 // below 0 for one that is about to stop
		want   int64
	}{
		{"the slowest of the ISR counts", 1, []int32{1, 2, 3}, map[int32]int64{2: 8, 3: 6}, 0, 6},
		{"those out of the ISR do not", 1, []int32{1}, nil, 0, 10},
		{"one that may join does", 1, []int32{1, 2}, map[int32]int64{2: 9, 3: 4}, 0, 4},
		{"unless its node is fenced", 1, []int32{1, 2}, map[int32]int64{2: 9, 3: 4}, 3, 9},
		{"unless its node is about to stop", 1, []int32{1, 2}, map[int32]int64{2: 9, 3: 4}, -3, 9},
		{"below the minimum it stands still", 2, []int32{1}, nil, 0, 0},
		{"a minimum above the replicas means all of them", 5, []int32{1, 2, 3}, map[int32]int64{2: 7, 3: 7}, 0, 7},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := newBench(0)
			b.lead(x.minISR, x.isr...)
			if x.fenced > 0 {
				s := b.brokers[x.fenced]
				s.Fenced = true
				b.brokers[x.fenced] = s
			} else if x.fenced < 0 {
				s := b.brokers[-x.fenced]
				s.ShuttingDown = true
				b.brokers[-x.fenced] = s
			}
			b.p.Appended(b.now, 4)
			// Whoever fetches up to the end counts as caught up from then on.
			for id := range x.ends {
				b.p.FollowerFetched(b.now, partition.FollowerFetch{
					Replica: id, BrokerEpoch: b.brokers[id].Epoch, LeaderEpoch: 4, FetchOffset: 4, LeaderEnd: 4, At: b.now,
				})
			}
			b.p.Appended(b.now, 10)
			for id, end := range x.ends {
				b.fetched(id, end)
			}
			if got := b.p.HighWatermark(); got != x.want {
				t.Fatalf("got %d, want %d", got, x.want)
			}
		})
	}
}

func TestISRShrinksAndGrows(t *testing.T) {
	b := newBench(0)
	b.lead(1, 1, 2, 3)
	b.p.Appended(b.now, 1)
	b.now = b.now.Add(8 * time.Second)
	b.fetched(2, 1)
	b.now = b.now.Add(8 * time.Second)
	out := b.p.Tick(b.now)
	if out.AlterPartition == nil || len(out.AlterPartition.ISR) != 2 || out.AlterPartition.Added != -1 ||
		out.AlterPartition.ISR[0] != (partition.Member{ID: 1, BrokerEpoch: 11}) || out.AlterPartition.ISR[1] != (partition.Member{ID: 2, BrokerEpoch: 12}) {
		t.Fatalf("%+v", out.AlterPartition)
	}
	// Until the controller agrees, the one that leaves still counts, and nothing else is proposed.
	if b.p.HighWatermark() != 0 || b.p.Tick(b.now) != (partition.Effects{}) || b.fetched(3, 0).AlterPartition != nil {
		t.Fatal("the proposal was taken for granted")
	}
	done := b.p.AlterPartitionDone(b.now, out.AlterPartition, partition.Altered{LeaderEpoch: 4, PartitionEpoch: 8, ISR: []int32{1, 2}})
	if done.ISRGrowth != -1 || !done.HighWatermarkMoved || b.p.HighWatermark() != 1 || b.p.PartitionEpoch() != 8 {
		t.Fatalf("%+v", done)
	}
	// One that is behind the high watermark may not come back; one that has reached it may, and counts at once.
	if b.fetched(3, 0).AlterPartition != nil {
		t.Fatal("a replica without committed records was to join")
	}
	grow := b.fetched(3, 1).AlterPartition
	if grow == nil || grow.Added != 3 || grow.PartitionEpoch != 8 {
		t.Fatalf("%+v", grow)
	}
	b.p.Appended(b.now, 2)
	b.fetched(2, 2)
	if b.p.HighWatermark() != 1 {
		t.Fatal("the one that joins was not waited for")
	}
}

// TestNodesThatStopDoNotJoin: a node that is about to stop has everything, and is not taken in.
func TestNodesThatStopDoNotJoin(t *testing.T) {
	b := newBench(0)
	b.lead(1, 1, 2)
	b.brokers[3] = partition.BrokerState{Epoch: 13, ShuttingDown: true}
	if out := b.fetched(3, 0); out.AlterPartition != nil {
		t.Fatalf("%+v", out.AlterPartition)
	}
	b.brokers[3] = partition.BrokerState{Epoch: 13}
	if out := b.fetched(3, 0); out.AlterPartition == nil || out.AlterPartition.Added != 3 {
		t.Fatalf("%+v", out.AlterPartition)
	}
}

// TestNewEpochGivesNoCreditOutOfTheISR: with a new epoch the members of the ISR count as caught up for a while. Others do not, or one that
// is far behind would hold the high watermark back.
func TestNewEpochGivesNoCreditOutOfTheISR(t *testing.T) {
	b := newBench(0)
	b.lead(1, 1, 2, 3)
	b.p.Appended(b.now, 10)
	b.fetched(2, 10)
	b.fetched(3, 4)
	b.now = b.now.Add(20 * time.Second)
	b.p.BecomeLeader(b.now, &metadata.Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 5, PartitionEpoch: 8}, 1)
	if got := b.p.HighWatermark(); got != 10 {
		t.Fatalf("got %d, want 10", got)
	}
	// Nor does one that is in the ISR lose its place at once.
	if out := b.p.Tick(b.now); out.AlterPartition != nil {
		t.Fatalf("%+v", out.AlterPartition)
	}
}

func TestProposalsThatFail(t *testing.T) {
	for code, want := range map[errcode.Code]string{
		errcode.IneligibleReplica:     "free",
		errcode.OperationNotAttempted: "free",
		errcode.FencedLeaderEpoch:     "stuck",
		errcode.InvalidUpdateVersion:  "stuck",
		errcode.UnknownTopicId:        "stuck",
		errcode.NetworkException:      "again",
		errcode.RequestTimedOut:       "again",
	} {
		b := newBench(0)
		b.lead(1, 1)
		proposal := b.fetched(2, 0).AlterPartition
		out := b.p.AlterPartitionFailed(b.now, proposal, code)
		got := "stuck"
		switch next := b.fetched(3, 0).AlterPartition; {
		case out.AlterPartition == proposal:
			got = "again"
		case next != nil:
			got = "free"
		}
		if got != want {
			t.Errorf("%s: %s, want %s", code.Name(), got, want)
		}
		// The outcome of a proposal that is not the present one says nothing.
		if out := b.p.AlterPartitionFailed(b.now, &partition.AlterPartition{}, errcode.NetworkException); out != (partition.Effects{}) {
			t.Errorf("%+v", out)
		}
	}
}

func TestStaleFetchesDoNotCount(t *testing.T) {
	b := newBench(3)
	b.lead(1, 1, 2)
	for name, f := range map[string]partition.FollowerFetch{
		"another epoch":      {Replica: 2, BrokerEpoch: 12, LeaderEpoch: 3, FetchOffset: 3, LeaderEnd: 3},
		"former incarnation": {Replica: 2, BrokerEpoch: 9, LeaderEpoch: 4, FetchOffset: 3, LeaderEnd: 3},
		"not a replica":      {Replica: 8, BrokerEpoch: -1, LeaderEpoch: 4, FetchOffset: 3, LeaderEnd: 3},
	} {
		if out := b.p.FollowerFetched(b.now, f); out != (partition.Effects{}) || b.p.HighWatermark() != 0 {
			t.Errorf("%s: %+v", name, out)
		}
	}
	if out := b.fetched(2, 3); !out.HighWatermarkMoved {
		t.Errorf("%+v", out)
	}
}

func TestLowWatermark(t *testing.T) {
	b := newBench(10)
	b.lead(1, 1, 2, 3)
	b.fetched(2, 10)
	b.fetched(3, 10)
	b.p.LogStartMoved(5)
	if b.p.LowWatermark() != 0 {
		t.Fatal(b.p.LowWatermark())
	}
	at := func(id int32, start int64) partition.Effects {
		return b.p.FollowerFetched(b.now, partition.FollowerFetch{Replica: id, BrokerEpoch: -1, LeaderEpoch: 4, FetchOffset: 10, LogStart: start, LeaderEnd: 10, At: b.now})
	}
	if out := at(2, 5); out.LowWatermarkMoved {
		t.Fatalf("%+v", out)
	}
	if out := at(3, 4); !out.LowWatermarkMoved || b.p.LowWatermark() != 4 {
		t.Fatalf("%+v %d", out, b.p.LowWatermark())
	}
	b.brokers[3] = partition.BrokerState{Epoch: 13, Fenced: true}
	if out := b.p.BrokersChanged(b.now); !out.LowWatermarkMoved || b.p.LowWatermark() != 5 {
		t.Fatalf("%+v %d", out, b.p.LowWatermark())
	}
}

func TestFollowing(t *testing.T) {
	b := newBench(5)
	out := b.p.BecomeFollower(&metadata.Partition{Replicas: []int32{1, 2}, Leader: 2, LeaderEpoch: 4, PartitionEpoch: 1})
	if out.Fetch == nil || *out.Fetch != (partition.FetchFrom{Leader: 2, LeaderEpoch: 4}) || !b.p.FollowsIn(4) || b.p.FollowsIn(3) {
		t.Fatalf("%+v", out)
	}
	if out := b.p.Followed(8, 20); !out.HighWatermarkMoved || b.p.HighWatermark() != 8 {
		t.Fatalf("%+v %d", out, b.p.HighWatermark())
	}
	if out := b.p.Followed(9, 3); out.HighWatermarkMoved || b.p.HighWatermark() != 8 {
		t.Fatalf("%+v %d", out, b.p.HighWatermark())
	}
	if b.p.Truncated(6); b.p.HighWatermark() != 6 || b.p.LogEnd() != 6 {
		t.Fatal(b.p.HighWatermark(), b.p.LogEnd())
	}
	// A batch that has the log's start inside goes as a whole.
	b.p.LogStartMoved(5)
	if b.p.Truncated(4); b.p.LogStart() != 4 || b.p.HighWatermark() != 4 || b.p.LogEnd() != 4 {
		t.Fatal(b.p.LogStart(), b.p.HighWatermark(), b.p.LogEnd())
	}
	// The ISR of the same leader epoch changed: the copying goes on.
	if out := b.p.BecomeFollower(&metadata.Partition{Replicas: []int32{1, 2}, Leader: 2, LeaderEpoch: 4, PartitionEpoch: 2}); out.Fetch != nil || out.StopFetching {
		t.Fatalf("%+v", out)
	}
	if out := b.p.BecomeFollower(&metadata.Partition{Replicas: []int32{1, 2}, Leader: metadata.NoLeader, LeaderEpoch: 5, PartitionEpoch: 3}); !out.StopFetching || b.p.Role() != partition.Idle {
		t.Fatalf("%+v", out)
	}
	if out := b.p.BecomeFollower(&metadata.Partition{Replicas: []int32{1, 2}, Leader: 2, LeaderEpoch: 6, PartitionEpoch: 4}); out.Fetch == nil {
		t.Fatalf("%+v", out)
	}
	if out := b.lead(1, 1); out != (partition.Effects{}) && !out.StopFetching {
		t.Fatalf("%+v", out)
	}
}

func TestWhereToCut(t *testing.T) {
	b := newBench(10)
	at := func(epoch int32, end int64) storage.EpochEndOffset {
		return storage.EpochEndOffset{Epoch: epoch, EndOffset: end}
	}
	for _, x := range []struct {
		leader, local storage.EpochEndOffset
		known         bool
		want          int64
	}{
		{at(3, 7), at(3, 9), true, 7},
		{at(3, 9), at(3, 7), true, 7},
		{at(3, 7), at(2, 4), true, 4},
		{at(3, 7), storage.NoDivergence, false, 7},
		{at(3, 99), storage.NoDivergence, false, 10},
		{at(-1, 6), at(2, 4), true, 6},
	} {
		if got := b.p.TruncateTo(x.leader, x.local, x.known); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
}

// TestRefusedMemberHoldsNothingBack: a replica that was about to join, and is gone for good, does not stop acknowledgements when
// the controller refuses it, although the members of the ISR have nothing new to fetch.
func TestRefusedMemberHoldsNothingBack(t *testing.T) {
	b := newBench(0)
	b.lead(2, 1, 2)
	out := b.fetched(3, 0)
	if out.AlterPartition == nil {
		t.Fatal("no proposal")
	}
	b.brokers[3] = partition.BrokerState{Epoch: 13, Fenced: true}
	b.p.Appended(b.now, 5)
	b.fetched(2, 5)
	if hw := b.p.HighWatermark(); hw != 0 {
		t.Fatalf("the high watermark is %d while a replica without these records may be joining", hw)
	}
	if failed := b.p.AlterPartitionFailed(b.now, out.AlterPartition, errcode.IneligibleReplica); !failed.HighWatermarkMoved || b.p.HighWatermark() != 5 {
		t.Fatalf("%+v, high watermark %d", failed, b.p.HighWatermark())
	}
}

// TestKnownRegistrationKeepsTheProposal: the controller's answer may overtake the metadata log, which then tells a leader what it
// knows already. What the leader has proposed since may have been agreed to, so the new member goes on counting.
func TestKnownRegistrationKeepsTheProposal(t *testing.T) {
	b := newBench(0)
	b.lead(2, 1, 2)
	b.p.Appended(b.now, 5)
	b.fetched(2, 5)
	out := b.fetched(3, 5)
	if out.AlterPartition == nil || out.AlterPartition.Added != 3 || b.p.HighWatermark() != 5 {
		t.Fatalf("%+v, high watermark %d", out, b.p.HighWatermark())
	}
	proposal := out.AlterPartition
	b.lead(2, 1, 2)
	b.brokers[3] = partition.BrokerState{Epoch: 13, Fenced: true} // It would not count as one that may join.
	b.p.Appended(b.now, 9)
	b.fetched(2, 9)
	if hw := b.p.HighWatermark(); hw != 5 {
		t.Fatalf("the high watermark is %d, and the proposed member has 5 records", hw)
	}
	if out := b.p.AlterPartitionFailed(b.now, proposal, errcode.NetworkException); out.AlterPartition != proposal {
		t.Fatal("the proposal is not sent again")
	}
}
