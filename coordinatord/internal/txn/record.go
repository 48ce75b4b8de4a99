package txn

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/recordbatch"
)

// newestValueVersion is the newest version of a record's value that is understood.
const newestValueVersion = 1

// Record is one record of the shard's log.
type Record struct {
	id string
	// state is nil for a tombstone.
	state *Transaction
	// version is that of the value, which transaction.version decides.
	version int16
}

// Codec is the codec of a shard's records: those of Kafka's transaction log.
type Codec struct {
	// Skipped is told of records that are left out because nobody here knows what they mean; nil tells nobody.
	Skipped func(reason string)
}

// Encode appends the key and the value of a record.
func (Codec) Encode(dst []byte, r *Record) (out []byte, valueAt int, hasValue bool) {
	key := kmsg.TxnMetadataKey{TransactionalID: r.id}
	dst = key.AppendTo(dst)
	valueAt = len(dst)
	if r.state == nil {
		return dst, valueAt, false
	}
	t := r.state
	v := kmsg.NewTxnMetadataValue()
	v.Version = r.version
	v.ProducerID, v.ProducerEpoch, v.TimeoutMillis = t.ProducerID, t.Epoch, t.TimeoutMs
	v.State = kmsg.TransactionState(t.State)
	v.LastUpdateTimestamp, v.StartTimestamp = t.UpdatedMs, t.StartMs
	v.PreviousProducerID, v.NextProducerID, v.ClientTransactionVersion = t.PrevProducerID, t.NextProducerID, t.ClientVersion
	if t.State != Empty {
		v.Topics = topicsOf(t.Partitions)
	}
	return v.AppendTo(dst), valueAt, true
}

// topicsOf is the partitions sorted, and never null: Kafka reads null only where the state is Empty.
func topicsOf(partitions map[Partition]struct{}) []kmsg.TxnMetadataValueTopic {
	topics := []kmsg.TxnMetadataValueTopic{}
	for _, p := range sorted(partitions) {
		n := len(topics)
		if n == 0 || topics[n-1].Topic != p.Topic {
			t := kmsg.NewTxnMetadataValueTopic()
			t.Topic = p.Topic
			topics = append(topics, t)
			n++
		}
		topics[n-1].Partitions = append(topics[n-1].Partitions, p.Partition)
	}
	return topics
}

func sorted(partitions map[Partition]struct{}) []Partition {
	list := make([]Partition, 0, len(partitions))
	for p := range partitions {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Partition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return list
}

// Decode reads a record of the log. What a newer broker has written in a form that is not known is left out, as Kafka does.
func (c Codec) Decode(batch recordbatch.Header, record *recordbatch.Record) (*Record, bool, error) {
	if batch.IsControl() {
		return nil, false, nil
	}
	if len(record.Key) < 2 {
		return nil, false, fmt.Errorf("record at offset %d: the key is shorter than its version", record.Offset)
	}
	if v := int16(binary.BigEndian.Uint16(record.Key)); v != 0 {
		c.skip(record, fmt.Sprintf("key of version %d", v))
		return nil, false, nil
	}
	var key kmsg.TxnMetadataKey
	if err := key.ReadFrom(record.Key); err != nil {
		return nil, false, fmt.Errorf("record at offset %d: key: %w", record.Offset, err)
	}
	r := &Record{id: key.TransactionalID}
	if record.Value == nil {
		return r, true, nil
	}
	if len(record.Value) < 2 {
		return nil, false, fmt.Errorf("record at offset %d: the value is shorter than its version", record.Offset)
	}
	if r.version = int16(binary.BigEndian.Uint16(record.Value)); r.version < 0 || r.version > newestValueVersion {
		c.skip(record, fmt.Sprintf("value of version %d", r.version))
		return nil, false, nil
	}
	state, err := decodeValue(key.TransactionalID, record.Value)
	if err != nil {
		return nil, false, fmt.Errorf("transactional id %q at offset %d: %w", r.id, record.Offset, err)
	}
	r.state = state
	return r, true, nil
}

func (c Codec) skip(record *recordbatch.Record, what string) {
	if c.Skipped != nil {
		c.Skipped(fmt.Sprintf("record at offset %d has a %s", record.Offset, what))
	}
}

func decodeValue(id string, value []byte) (*Transaction, error) {
	v := kmsg.NewTxnMetadataValue()
	if err := v.ReadFrom(value); err != nil {
		return nil, err
	}
	s := State(v.State)
	if s < Empty || s > CompleteAbort {
		return nil, errors.New("state " + s.String() + " does not belong into the log")
	}
	t := &Transaction{
		ID: id, ProducerID: v.ProducerID, PrevProducerID: v.PreviousProducerID, NextProducerID: v.NextProducerID,
		Epoch: v.ProducerEpoch, LastEpoch: recordbatch.NoProducerEpoch, TimeoutMs: v.TimeoutMillis, State: s,
		StartMs: v.StartTimestamp, UpdatedMs: v.LastUpdateTimestamp, ClientVersion: v.ClientTransactionVersion,
	}
	for i := range v.Topics {
		for _, p := range v.Topics[i].Partitions {
			if t.Partitions == nil {
				t.Partitions = map[Partition]struct{}{}
			}
			t.Partitions[Partition{v.Topics[i].Topic, p}] = struct{}{}
		}
	}
	return t, nil
}
