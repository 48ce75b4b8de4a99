package log

import (
	"math"
	"sort"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// rememberedBatches is how many batches of a producer can be told from new ones when they come again.
const rememberedBatches = 5

// Duplicate is the batch that a producer sends again.
type Duplicate struct {
	Found       bool
	BaseOffset  int64
	LastOffset  int64
	TimestampMs int64
}

// Producer is the state of a producer, for DescribeProducers.
type Producer struct {
	ID               int64
	Epoch            int16
	LastSequence     int32
	LastTimestampMs  int64
	CoordinatorEpoch int32
	// TxnStart is the first offset of the open transaction; -1 for none.
	TxnStart int64
}

// batchInfo is a batch that a producer wrote.
type batchInfo struct {
	lastSequence int32
	offsetDelta  int32
	lastOffset   int64
	timestamp    int64
}

func (b *batchInfo) firstSequence() int32 {
	return recordbatch.DecrementSequence(b.lastSequence, b.offsetDelta)
}

// producer is what the log knows of one producer id.
type producer struct {
	id               int64
	epoch            int16
	coordinatorEpoch int32
	lastTimestamp    int64
	// txnStart is the first offset of the open transaction; -1 for none.
	txnStart int64
	// batches are the newest of the current epoch, the oldest first.
	batches [rememberedBatches]batchInfo
	n       int
}

func newProducer(id int64) producer {
	return producer{id: id, epoch: recordbatch.NoProducerEpoch, coordinatorEpoch: -1, lastTimestamp: recordbatch.NoTimestamp, txnStart: -1}
}

func (p *producer) lastSequence() int32 {
	if p.n == 0 {
		return recordbatch.NoSequence
	}
	return p.batches[p.n-1].lastSequence
}

func (p *producer) setEpoch(epoch int16) {
	if p.epoch != epoch {
		p.epoch, p.n = epoch, 0
	}
}

func (p *producer) addBatch(h recordbatch.Header) {
	p.setEpoch(h.ProducerEpoch())
	if p.n == rememberedBatches {
		copy(p.batches[:], p.batches[1:])
		p.n--
	}
	p.batches[p.n] = batchInfo{
		lastSequence: h.LastSequence(), offsetDelta: h.LastOffsetDelta(), lastOffset: h.LastOffset(), timestamp: h.MaxTimestamp(),
	}
	p.n++
	p.lastTimestamp = h.MaxTimestamp()
	if h.IsTransactional() && p.txnStart < 0 {
		p.txnStart = h.BaseOffset()
	}
}

func (p *producer) duplicate(h recordbatch.Header) Duplicate {
	if p.epoch != h.ProducerEpoch() {
		return Duplicate{}
	}
	for i := range p.batches[:p.n] {
		b := &p.batches[i]
		if b.firstSequence() == h.BaseSequence() && b.lastSequence == h.LastSequence() {
			return Duplicate{Found: true, BaseOffset: b.lastOffset - int64(b.offsetDelta), LastOffset: b.lastOffset, TimestampMs: b.timestamp}
		}
	}
	return Duplicate{}
}

// openTxn is a transaction of which no marker has been written, or, with last set, whose marker is not yet committed.
type openTxn struct {
	producerID int64
	first      int64
	last       int64
}

// producers is the state of all producers of a log: their newest batches and their transactions. It has its own lock, so
// that a description of the producers does not have to go through the log's writer.
type producers struct {
	mu sync.Mutex
	// expiration is how long a producer without an open transaction is remembered after its last batch.
	expiration time.Duration

	byID map[int64]*producer
	// pending are copies of producers with the batches that were checked and are about to be appended.
	pending map[int64]*producer
	// ongoing and unreplicated are sorted by their first offset.
	ongoing      []openTxn
	unreplicated []openTxn

	// end is the offset that the state reflects, snapshotEnd that of the newest snapshot on disk.
	end         int64
	snapshotEnd int64
}

func (s *producers) get(id int64) *producer {
	p := s.byID[id]
	if p == nil {
		fresh := newProducer(id)
		p = &fresh
		if s.byID == nil {
			s.byID = make(map[int64]*producer)
		}
		s.byID[id] = p
	}
	return p
}

// newest is the producer of a batch that is about to be appended, with those of its batches that are about to be, too; nil when
// it is not known. The lock is held.
func (s *producers) newest(h recordbatch.Header) *producer {
	if h.BaseOffset() <= s.end && len(s.pending) > 0 {
		// The batches that were checked before did not come.
		clear(s.pending)
	}
	if p := s.pending[h.ProducerID()]; p != nil {
		return p
	}
	return s.byID[h.ProducerID()]
}

// check judges a batch that is about to be appended, with its offset, and notes it as pending.
func (s *producers) check(h recordbatch.Header, origin recordbatch.Origin) (Duplicate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := h.ProducerID()
	p := s.newest(h)
	fresh := newProducer(id)
	if p == nil {
		p = &fresh
	}
	if origin == recordbatch.FromClient {
		if d := p.duplicate(h); d.Found {
			return d, nil
		}
	}
	if err := p.admit(h, origin); err != nil {
		return Duplicate{}, err
	}
	next := *p
	next.addBatch(h)
	if s.pending == nil {
		s.pending = make(map[int64]*producer)
	}
	if at := s.pending[id]; at != nil {
		*at = next
	} else {
		s.pending[id] = &next
	}
	return Duplicate{}, nil
}

// admit says whether a batch of data may follow what the producer has written.
func (p *producer) admit(h recordbatch.Header, origin recordbatch.Origin) error {
	if h.ProducerEpoch() < p.epoch {
		return errcode.InvalidProducerEpoch.Errorf("Epoch of producer %d is %d, which is smaller than the last seen epoch %d",
			p.id, h.ProducerEpoch(), p.epoch)
	}
	if origin == recordbatch.FromClient {
		if err := p.admitSequence(h); err != nil {
			return err
		}
	}
	if p.txnStart >= 0 && !h.IsTransactional() {
		return errcode.InvalidTxnState.Errorf("Expected transactional write from producer %d at offset %d", p.id, h.BaseOffset())
	}
	return nil
}

func (p *producer) admitSequence(h recordbatch.Header) error {
	first := h.BaseSequence()
	if h.ProducerEpoch() != p.epoch {
		if first != 0 && p.epoch != recordbatch.NoProducerEpoch {
			return errcode.OutOfOrderSequenceNumber.Errorf("Invalid sequence number for new epoch of producer %d at offset %d: "+
				"%d (request epoch), %d (seq. number), %d (current producer epoch)", p.id, h.BaseOffset(), h.ProducerEpoch(), first, p.epoch)
		}
		return nil
	}
	last := p.lastSequence()
	if int64(first) == int64(last)+1 || first == 0 && last == math.MaxInt32 {
		return nil
	}
	return errcode.OutOfOrderSequenceNumber.Errorf("Out of order sequence number for producer %d at offset %d: "+
		"%d (incoming seq. number), %d (current end sequence number)", p.id, h.BaseOffset(), first, last)
}

// checkMarker judges the marker that is to end a transaction. With transaction version 2 the coordinator raises the epoch
// for each marker, so that one with the epoch of the data is late; but a marker that comes again after it was
// written must be let through.
func (s *producers) checkMarker(id int64, epoch int16, m recordbatch.EndTxnMarker, transactionVersion int16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byID[id]
	if p == nil {
		return nil
	}
	late := epoch < p.epoch
	if transactionVersion >= 2 && epoch == p.epoch {
		late = p.txnStart >= 0 && epoch != math.MaxInt16
	}
	if late {
		return errcode.InvalidProducerEpoch.Errorf("Epoch of producer %d is %d in a transaction marker, the last seen epoch is %d",
			id, epoch, p.epoch)
	}
	if p.coordinatorEpoch > m.CoordinatorEpoch {
		return errcode.TransactionCoordinatorFenced.Errorf("Invalid coordinator epoch for producerId %d: %d (zombie), %d (current)",
			id, m.CoordinatorEpoch, p.coordinatorEpoch)
	}
	return nil
}

// appended takes in a batch of data that is in the log.
func (s *producers) appended(h recordbatch.Header) {
	p := s.get(h.ProducerID())
	before := p.txnStart
	p.addBatch(h)
	if before < 0 && p.txnStart >= 0 {
		s.ongoing = append(s.ongoing, openTxn{producerID: p.id, first: p.txnStart, last: -1})
	}
	s.end = h.NextOffset()
}

// ended takes in a transaction marker that is in the log at an offset. It gives the transaction that it aborts, for the
// transaction index; false when it commits one, or ends none.
func (s *producers) ended(h recordbatch.Header, m recordbatch.EndTxnMarker) (abortedTxn, bool) {
	p := s.get(h.ProducerID())
	first := p.txnStart
	p.setEpoch(h.ProducerEpoch())
	p.coordinatorEpoch, p.lastTimestamp, p.txnStart = m.CoordinatorEpoch, h.MaxTimestamp(), -1
	s.end = h.NextOffset()
	if first < 0 {
		return abortedTxn{}, false
	}
	offset := h.BaseOffset()
	for i := range s.ongoing {
		if s.ongoing[i].first == first {
			s.ongoing = append(s.ongoing[:i], s.ongoing[i+1:]...)
			break
		}
	}
	at := sort.Search(len(s.unreplicated), func(i int) bool { return s.unreplicated[i].first > first })
	s.unreplicated = append(s.unreplicated, openTxn{})
	copy(s.unreplicated[at+1:], s.unreplicated[at:])
	s.unreplicated[at] = openTxn{producerID: p.id, first: first, last: offset}
	if m.Type != recordbatch.Abort {
		return abortedTxn{}, false
	}
	stable := offset + 1
	if len(s.ongoing) > 0 {
		stable = s.ongoing[0].first
	}
	return abortedTxn{producerID: p.id, first: first, last: offset, lastStable: stable}, true
}

// firstUnstable is the first offset of a transaction that is open or whose marker is not below the high watermark; -1 for
// none.
func (s *producers) firstUnstable() int64 {
	first := int64(-1)
	if len(s.ongoing) > 0 {
		first = s.ongoing[0].first
	}
	if len(s.unreplicated) > 0 && (first < 0 || s.unreplicated[0].first < first) {
		first = s.unreplicated[0].first
	}
	return first
}

// committed forgets finished transactions whose marker lies below an offset.
func (s *producers) committed(offset int64) {
	keep := s.unreplicated[:0]
	for _, t := range s.unreplicated {
		if t.last >= offset {
			keep = append(keep, t)
		}
	}
	s.unreplicated = keep
}

func (s *producers) expired(p *producer, now time.Time) bool {
	return p.txnStart < 0 && now.UnixMilli()-p.lastTimestamp >= s.expiration.Milliseconds()
}

func (s *producers) expire(now time.Time, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiration = after
	for id, p := range s.byID {
		if s.expired(p, now) {
			delete(s.byID, id)
		}
	}
}

// reset empties the state and lets it reflect an offset.
func (s *producers) reset(end int64) {
	s.byID, s.pending, s.ongoing, s.unreplicated = nil, nil, nil, nil
	s.end = end
}

// restore takes the producers of a snapshot.
func (s *producers) restore(list []producer, end int64, now time.Time) {
	s.reset(end)
	s.snapshotEnd = end
	for i := range list {
		p := &list[i]
		if s.expired(p, now) {
			continue
		}
		*s.get(p.id) = *p
		if p.txnStart >= 0 {
			s.ongoing = append(s.ongoing, openTxn{producerID: p.id, first: p.txnStart, last: -1})
		}
	}
	sort.Slice(s.ongoing, func(i, j int) bool { return s.ongoing[i].first < s.ongoing[j].first })
}

// list is a copy of all producers, sorted by id.
func (s *producers) list() []producer {
	out := make([]producer, 0, len(s.byID))
	for _, p := range s.byID {
		out = append(out, *p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].id < out[j].id })
	return out
}

// CheckProducer judges a batch with a producer id, whose header has been stamped with the offset that it will have. It
// gives the batch that it repeats, or an error with the code for the producer. A batch that passes counts as written for
// the checks of those behind it, so several can be checked before they go to one Append; a batch at the log's end
// begins anew.
func (l *Log) CheckProducer(h recordbatch.Header, origin recordbatch.Origin) (Duplicate, error) {
	return l.producers.check(h, origin)
}

// CheckMarker judges the marker that is to end a transaction of a producer, for the given transaction.version.
func (l *Log) CheckMarker(producerID int64, producerEpoch int16, m recordbatch.EndTxnMarker, transactionVersion int16) error {
	return l.producers.checkMarker(producerID, producerEpoch, m, transactionVersion)
}

// InTransaction says whether the producer has a transaction open in the partition.
func (l *Log) InTransaction(producerID int64) bool {
	l.producers.mu.Lock()
	defer l.producers.mu.Unlock()
	p := l.producers.byID[producerID]
	return p != nil && p.txnStart >= 0
}

// Standing is what the log knows of a batch's producer before the batch.
type Standing struct {
	// Duplicate is the batch that this one repeats.
	Duplicate Duplicate
	// Epoch is the producer's newest epoch, NoProducerEpoch for one that is not known.
	Epoch int16
	// Fresh says that the producer has no batch of its newest epoch.
	Fresh bool
	// InTransaction says that the producer has a transaction open in the partition, with the batch's epoch.
	InTransaction bool
}

// Standing gives what is known of the producer of a batch, whose header has been stamped with the offset that it would
// have. Batches that have been checked and are about to be appended count.
func (l *Log) Standing(h recordbatch.Header) Standing {
	s := &l.producers
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.newest(h)
	if p == nil {
		return Standing{Epoch: recordbatch.NoProducerEpoch, Fresh: true}
	}
	return Standing{
		Duplicate: p.duplicate(h), Epoch: p.epoch, Fresh: p.n == 0,
		InTransaction: p.txnStart >= 0 && p.epoch == h.ProducerEpoch(),
	}
}

// ActiveProducers are the producers that the log knows, by id. Any goroutine may ask.
func (l *Log) ActiveProducers() []Producer {
	l.producers.mu.Lock()
	defer l.producers.mu.Unlock()
	var out []Producer
	for _, p := range l.producers.list() {
		out = append(out, Producer{
			ID: p.id, Epoch: p.epoch, LastSequence: p.lastSequence(), LastTimestampMs: p.lastTimestamp,
			CoordinatorEpoch: p.coordinatorEpoch, TxnStart: p.txnStart,
		})
	}
	return out
}

// ExpireProducers forgets producers that have not written for a time (producer.id.expiration.ms). Any
// goroutine may call it.
func (l *Log) ExpireProducers(now time.Time, after time.Duration) { l.producers.expire(now, after) }
