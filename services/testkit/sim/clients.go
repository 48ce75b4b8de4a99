package sim

import (
	"fmt"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/simulation"
)

const (
	// inFlight is how many batches of a producer are under way at once, as many as a leader remembers. It counts from the first one
	// that has not been acknowledged, since answers come in order where no connection breaks.
	inFlight = 5
	// queued is how many batches a producer keeps.
	queued = 8
)

// client follows the metadata at its own pace.
type client struct {
	process
	image      *metadata.Image
	controller int
}

func (w *World) newClient(format string, args ...any) *client {
	c := &client{process: w.newProcess(format, args...)}
	w.add(&c.process)
	c.image = w.quorum.image
	return c
}

func (w *World) refresh(c *client) {
	w.later(&c.process, w.between(50*time.Millisecond, 400*time.Millisecond), func() {
		c.image = w.quorum.image
		w.refresh(c)
	})
}

// leader is who leads a partition as far as the client knows.
func (w *World) leader(c *client, k simulation.Key) (*node, int32) {
	p := c.image.Partition(k.TopicID, k.Partition)
	if p == nil || p.Leader < 0 {
		return nil, -1
	}
	return w.nodeOf(p.Leader), p.LeaderEpoch
}

// producer writes batches to one partition.
type producer struct {
	*client
	key  simulation.Key
	acks int16
	// pid is -1 for a producer that is not idempotent.
	pid      int64
	sequence int32
	queue    []*batch
	flying   int
	// established says that a leader knows the producer: before that, a second batch could overtake the first one.
	established bool
	// waiting says that nothing is sent until all that is under way has come back.
	waiting bool
}

// batch is a batch of one producer; its id is also the timestamp of its records.
type batch struct {
	id       int64
	pid      int64
	sequence int32
	count    int32
	acks     int16
	key      simulation.Key
	// sent says that it is under way, done that it need not be sent any more.
	sent, done bool
	// acknowledged is the offset at which it was acknowledged; -1 before that.
	acknowledged int64
	// forgiven says that its loss is allowed: a leader acknowledged it that an election out of sync has overtaken.
	forgiven bool
}

func (w *World) newProducer(k simulation.Key, acks int16, idempotent bool) *producer {
	p := &producer{client: w.newClient("producer %d", len(w.producers)+1), key: k, acks: acks, pid: -1}
	if idempotent {
		p.pid = w.checker.newProducerID()
	}
	return p
}

// produce makes a batch now and then, as long as there are not too many.
func (w *World) produce(p *producer) {
	w.later(&p.process, w.between(10*time.Millisecond, 250*time.Millisecond), func() {
		if len(p.queue) < queued && !w.healed {
			b := &batch{pid: p.pid, sequence: p.sequence, count: int32(1 + w.draw(3)), acks: p.acks, key: p.key, acknowledged: -1}
			p.sequence += b.count
			w.checker.newBatch(b)
			p.queue = append(p.queue, b)
			w.flush(p)
		}
		w.produce(p)
	})
}

// flush sends what may be sent, in order.
func (w *World) flush(p *producer) {
	if p.waiting {
		return
	}
	limit := inFlight
	if p.pid >= 0 && !p.established {
		limit = 1
	}
	for _, b := range p.queue[:min(limit, len(p.queue))] {
		if b.sent || b.done {
			continue
		}
		to, _ := w.leader(p.client, p.key)
		if to == nil {
			w.hold(p)
			return
		}
		w.sendBatch(p, b, to)
	}
}

// hold lets a producer wait until what is under way has come back, and then send again from the first on.
func (w *World) hold(p *producer) {
	p.waiting = true
	if p.flying > 0 {
		return
	}
	w.later(&p.process, w.between(20*time.Millisecond, 200*time.Millisecond), func() {
		if p.flying == 0 && p.waiting {
			p.waiting = false
			w.flush(p)
		}
	})
}

func (w *World) sendBatch(p *producer, b *batch, to *node) {
	b.sent = true
	p.flying++
	w.note("%s sends batch %d (producer %d, sequence %d, %d records) to %s", p.name, b.id, b.pid, b.sequence, b.count, to.name)
	acks := b.acks
	if w.o.Wrong.AcknowledgeEarly && acks == storage.AcksAll {
		acks = storage.AcksLeader
	}
	w.call(&p.process, &to.process, requestTimeout, func(answer func(func())) {
		w.use(to, func() {
			to.core.Append(p.key, acks, b.encode(), func(res storage.PartitionAppendResult) {
				w.checker.look(w, to)
				s, _ := to.core.State(p.key)
				if res.Error == errcode.None {
					w.checker.acknowledgedBy(w, to, b, res.BaseOffset)
				}
				w.note("%s answers batch %d of partition %d: %s, offset %d, unknown %v", to.name, b.id, b.key.Partition, res.Error.Name(), res.BaseOffset, res.OutcomeUnknown)
				forgotten := res.Error == errcode.OutOfOrderSequenceNumber && w.checker.holds(to, b)
				answer(func() {
					if forgotten {
						w.repeated(p, b)
						return
					}
					w.sentBatch(p, b, &res, s.LeaderEpoch)
				})
			})
		})
	}, func() {
		w.sentBatch(p, b, &storage.PartitionAppendResult{Error: errcode.RequestTimedOut, OutcomeUnknown: true}, -1)
	})
}

// sentBatch takes the outcome of a batch in.
func (w *World) sentBatch(p *producer, b *batch, res *storage.PartitionAppendResult, leaderEpoch int32) {
	p.flying--
	b.sent = false
	switch {
	case res.Error == errcode.None:
		b.acknowledged = res.BaseOffset
		// The answer may come when an election out of sync has given up what it tells of.
		b.forgiven = b.forgiven || leaderEpoch < w.checker.truth(p.key).unclean
		w.checker.acknowledged(w, b)
		p.established = true
		p.drop(b)
	case b.pid < 0 && res.OutcomeUnknown:
		p.drop(b)
	case res.Error == errcode.OutOfOrderSequenceNumber && len(p.queue) > 0 && p.queue[0] == b && !w.isOld(p.key, leaderEpoch):
		w.outOfOrder(p, b, leaderEpoch)
	case !isRetriable(res.Error):
		w.fail("%s: batch %d was refused with %s", p.name, b.id, res.Error.Name())
	default:
		p.waiting = true
	}
	if p.waiting {
		w.hold(p)
		return
	}
	w.flush(p)
}

// repeated ends a batch that is in the leader's log, though the leader does not know it for a repetition: the snapshots of
// producers have only the last batch of each, as Kafka's do, and that is all that is known after a restart in order.
func (w *World) repeated(p *producer, b *batch) {
	p.flying--
	b.sent = false
	p.drop(b)
	if p.waiting {
		w.hold(p)
		return
	}
	w.flush(p)
}

// isOld says whether a leader epoch has been followed by another one.
func (w *World) isOld(k simulation.Key, epoch int32) bool {
	p := w.quorum.image.Partition(k.TopicID, k.Partition)
	return p == nil || p.LeaderEpoch > epoch
}

// outOfOrder is what a leader says to the first batch of an idempotent producer when it does not know all those before, which
// were acknowledged: records are lost, or were deleted and one of them came again.
func (w *World) outOfOrder(p *producer, b *batch, epoch int32) {
	if p.acks == storage.AcksAll && !w.checker.mayHaveLost(p.key) && !w.checker.truth(p.key).anew[p.pid] {
		w.fail("%s: the leader of epoch %d takes batch %d, sequence %d, for out of order, though all before it were acknowledged",
			p.name, epoch, b.id, b.sequence)
		return
	}
	w.note("%s begins anew: batch %d is out of order", p.name, b.id)
	p.pid, p.sequence, p.queue, p.waiting, p.established = w.checker.newProducerID(), 0, nil, false, false
}

// drop takes a batch that is done out of the queue, once all before it are.
func (p *producer) drop(b *batch) {
	b.done = true
	for len(p.queue) > 0 && p.queue[0].done {
		p.queue = p.queue[1:]
	}
}

func isRetriable(code errcode.Code) bool {
	switch code {
	case errcode.NotLeaderOrFollower, errcode.RequestTimedOut, errcode.NotEnoughReplicas, errcode.NotEnoughReplicasAfterAppend,
		errcode.KafkaStorageError, errcode.OutOfOrderSequenceNumber, errcode.UnknownTopicOrPartition, errcode.NetworkException,
		errcode.FencedLeaderEpoch, errcode.UnknownLeaderEpoch:
		return true
	}
	return false
}

// encode makes the batch as it goes over the wire.
func (b *batch) encode() []byte {
	o := recordbatch.NewOptions()
	if b.pid >= 0 {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = b.pid, 0, b.sequence
	}
	builder := recordbatch.NewBuilder(nil, o)
	for i := range b.count {
		builder.Append(b.id, nil, fmt.Appendf(nil, "record %d of batch %d", i, b.id))
	}
	out, err := builder.Build()
	if err != nil {
		return nil // The leader will refuse it.
	}
	return out
}

// consumer reads one partition.
type consumer struct {
	*client
	key      simulation.Key
	position int64
	latest   int64
}

func (w *World) newConsumer(k simulation.Key) *consumer {
	return &consumer{client: w.newClient("consumer of %d", k.Partition), key: k}
}

func (w *World) consume(c *consumer) {
	w.later(&c.process, w.between(20*time.Millisecond, 300*time.Millisecond), func() {
		to, epoch := w.leader(c.client, c.key)
		if to == nil {
			w.consume(c)
			return
		}
		again := func() { w.consume(c) }
		if w.chance(20) {
			w.askLatest(c, to, epoch, again)
			return
		}
		w.fetch(c, to, epoch, again)
	})
}

func (w *World) fetch(c *consumer, to *node, epoch int32, again func()) {
	req := &storage.FetchRequest{ReplicaID: storage.ConsumerReplicaID, ReplicaEpoch: -1, Partitions: []storage.FetchPartition{{
		TopicID: c.key.TopicID, Partition: c.key.Partition, CurrentLeaderEpoch: epoch, FetchOffset: c.position,
		LastFetchedEpoch: -1, LogStartOffset: -1, MaxBytes: 4000,
	}}}
	w.call(&c.process, &to.process, requestTimeout, func(answer func(func())) {
		var res storage.FetchPartitionResult
		var start int64
		w.use(to, func() {
			res = to.core.Fetch(req)
			start, _ = to.core.FindOffset(c.key, storage.ConsumerReplicaID, epoch, simulation.Earliest)
		})
		if !to.up {
			return // Its last disk broke under the read.
		}
		answer(func() {
			switch res.Error {
			case errcode.None:
				w.checker.consumed(w, c, res.Records.Buffers.Materialize(), epoch)
			case errcode.OffsetOutOfRange:
				w.outOfRange(c, start, epoch)
			default:
				// The client looks again where the leader is.
			}
			again()
		})
	}, again)
}

// outOfRange brings a consumer to the start of the log when its records were deleted. There is no other good reason.
func (w *World) outOfRange(c *consumer, start int64, epoch int32) {
	switch {
	case start > c.position:
		c.position = start
	case w.checker.mayHaveLost(c.key):
		c.position, c.latest = max(start, 0), 0
	case start >= 0:
		w.fail("%s: offset %d is out of range for the leader of epoch %d, whose log starts at %d", c.name, c.position, epoch, start)
	}
}

// askLatest asks for the end of what can be read, which must never go back.
func (w *World) askLatest(c *consumer, to *node, epoch int32, again func()) {
	w.call(&c.process, &to.process, requestTimeout, func(answer func(func())) {
		end, code := to.core.FindOffset(c.key, storage.ConsumerReplicaID, epoch, simulation.Latest)
		answer(func() {
			if code == errcode.None {
				if end < c.latest || end < c.position {
					if w.checker.mayHaveLost(c.key) {
						c.latest, c.position = 0, min(c.position, end)
					} else {
						w.fail("%s: the leader of epoch %d ends at %d for consumers, after it ended at %d and was read up to %d",
							c.name, epoch, end, c.latest, c.position)
					}
				}
				c.latest = end
			}
			again()
		})
	}, again)
}
