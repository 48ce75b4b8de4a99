package txn

import (
	"maps"
	"math"

	"chancery/services/kafka/recordbatch"
)

// State is how far a transaction is, with Kafka's numbers.
type State int8

// The states. Kafka has two more, which never come into the log: Dead and PrepareEpochFence.
const (
	Empty State = iota
	Ongoing
	PrepareCommit
	PrepareAbort
	CompleteCommit
	CompleteAbort
	dead
	prepareEpochFence
)

// String is Kafka's name of a state, as it stands in answers and filters.
func (s State) String() string {
	names := [...]string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"}
	if s < 0 || int(s) >= len(names) {
		return "Unknown"
	}
	return names[s]
}

// KnownState says whether a name in a filter is that of a state.
func KnownState(name string) bool {
	for s := Empty; s <= prepareEpochFence; s++ {
		if s.String() == name {
			return true
		}
	}
	return false
}

// ending says that markers are being written.
func (s State) ending() bool { return s == PrepareCommit || s == PrepareAbort }

// expires says that the transactional id may be forgotten in this state.
func (s State) expires() bool { return s == Empty || s == CompleteCommit || s == CompleteAbort }

// Partition is a partition by its topic's name.
type Partition struct {
	Topic     string
	Partition int32
}

// Transaction is what is known of a transactional id. It is immutable: each transition makes another one.
type Transaction struct {
	ID         string
	ProducerID int64
	// PrevProducerID is the producer id before the last transition, NextProducerID the one that the producer gets when its
	// transaction has ended, because its epochs are used up.
	PrevProducerID, NextProducerID int64
	Epoch                          int16
	// LastEpoch is the epoch that the producer had before the present one. It is not in the log.
	LastEpoch  int16
	TimeoutMs  int32
	State      State
	Partitions map[Partition]struct{}
	// StartMs is when the transaction began, -1 for none; UpdatedMs is when anything changed.
	StartMs, UpdatedMs int64
	// ClientVersion is the transaction.version by which the client speaks.
	ClientVersion int16
}

const (
	noTime int64 = -1
	// epochBumps is the transaction.version from which on each transaction has an epoch of its own.
	epochBumps int16 = 2
	// noTimeout is the time-out of transactions that nobody ends for their producer.
	noTimeout int32 = math.MaxInt32
)

// exhausted says that a producer can get no further epoch: the largest is for fencing only.
func exhausted(epoch int16) bool { return epoch >= math.MaxInt16-1 }

// created is a transactional id that nobody has used.
func created(id string, producerID int64, timeoutMs int32, nowMs int64) *Transaction {
	return &Transaction{
		ID: id, ProducerID: producerID, PrevProducerID: recordbatch.NoProducerID, NextProducerID: recordbatch.NoProducerID,
		Epoch: recordbatch.NoProducerEpoch, LastEpoch: recordbatch.NoProducerEpoch, TimeoutMs: timeoutMs,
		StartMs: noTime, UpdatedMs: nowMs,
	}
}

// next is a copy to change.
func (t *Transaction) next(s State, nowMs int64) *Transaction {
	n := *t
	n.State, n.PrevProducerID, n.UpdatedMs = s, t.ProducerID, nowMs
	return &n
}

// initialized is the state after InitProducerId.
func (t *Transaction) initialized(producerID int64, epoch, lastEpoch int16, timeoutMs int32, nowMs int64) *Transaction {
	n := t.next(Empty, nowMs)
	n.ProducerID, n.Epoch, n.LastEpoch, n.TimeoutMs = producerID, epoch, lastEpoch, timeoutMs
	n.Partitions, n.StartMs = nil, noTime
	return n
}

// added is the state with more partitions in the transaction.
func (t *Transaction) added(partitions []Partition, clientVersion int16, nowMs int64) *Transaction {
	n := t.next(Ongoing, nowMs)
	n.Partitions = maps.Clone(t.Partitions)
	if t.State != Ongoing {
		n.StartMs, n.Partitions = nowMs, nil
	}
	if n.Partitions == nil {
		n.Partitions = make(map[Partition]struct{}, len(partitions))
	}
	for _, p := range partitions {
		n.Partitions[p] = struct{}{}
	}
	n.ClientVersion = clientVersion
	return n
}

// has says whether all these partitions are in the transaction.
func (t *Transaction) has(partitions []Partition) bool {
	for _, p := range partitions {
		if _, ok := t.Partitions[p]; !ok {
			return false
		}
	}
	return true
}

// prepared is the state in which markers are written. By transaction version 2 the producer gets the next epoch with it, or,
// when there is none, the next producer id as soon as they are written.
func (t *Transaction) prepared(commit bool, version int16, nextProducerID int64, nowMs int64) *Transaction {
	n := t.next(PrepareAbort, nowMs)
	if commit {
		n.State = PrepareCommit
	}
	n.ClientVersion, n.NextProducerID = version, nextProducerID
	if t.State != Ongoing {
		// Nothing was added, but a producer of version 2 cannot know that.
		n.StartMs, n.Partitions = nowMs, nil
	}
	if version >= epochBumps {
		n.LastEpoch = t.Epoch
		if t.Epoch < math.MaxInt16 {
			n.Epoch = t.Epoch + 1
		}
	}
	return n
}

// fenced is the state in which the markers are written that abort the transaction of a producer that is not to go on: its epoch
// is raised.
func (t *Transaction) fenced(version int16, nextProducerID int64, nowMs int64) *Transaction {
	n := t.prepared(false, version, nextProducerID, nowMs)
	if version < epochBumps {
		n.ClientVersion, n.LastEpoch = 0, recordbatch.NoProducerEpoch
		if t.Epoch < math.MaxInt16 {
			n.Epoch = t.Epoch + 1
		}
	}
	return n
}

// completed is the state when all markers have been written.
func (t *Transaction) completed(nowMs int64) *Transaction {
	n := t.next(CompleteAbort, nowMs)
	if t.State == PrepareCommit {
		n.State = CompleteCommit
	}
	if t.ClientVersion >= epochBumps && t.NextProducerID != recordbatch.NoProducerID {
		n.ProducerID, n.Epoch = t.NextProducerID, 0
	}
	n.NextProducerID, n.Partitions = recordbatch.NoProducerID, nil
	return n
}

// SortedPartitions are the partitions by topic and number.
func (t *Transaction) SortedPartitions() []Partition { return sorted(t.Partitions) }
