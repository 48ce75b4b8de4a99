package replica

import (
	"errors"
	"fmt"
	"sort"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
	"chancery/storaged/internal/log"
)

const (
	// A write takes at most so many batches and bytes, so that those behind it need not wait for all of them.
	maxWriteBatches = 512
	maxWriteBytes   = 8 << 20
	// Clients that know TRANSACTION_ABORTABLE speak this version of Produce.
	abortableVersion = 11
)

// appendEvent is one partition of an append.
type appendEvent struct {
	op    *AppendOp
	index int
}

// stagedAppend is an append that has passed and waits for the write; its batch is at the same place in batches.
type stagedAppend struct {
	appendEvent
	result appendResult
}

// appendResult is the answer to an append that was written.
type appendResult struct {
	baseOffset, logAppendTimeMs, logStart int64
}

// waitingAck is an append that waits for the high watermark to reach an offset.
type waitingAck struct {
	appendEvent
	offset int64
	result appendResult
}

// Append queues one partition of a request. Appends are written in the order of the calls.
func (r *Replica) Append(op *AppendOp, index int) {
	if !op.advance(index, stageQueued) {
		op.free(index)
		return
	}
	r.post(event{append: appendEvent{op, index}})
}

// makeRules turns the topic's configs into what batches are checked against.
func (r *Replica) makeRules() {
	c := r.config
	rules := recordbatch.Rules{
		Topic: r.topic, Partition: r.key.Partition,
		MaxMessageBytes:      c.MaxMessageBytes,
		MaxDecompressedBytes: c.MaxDecompressedMessageBytes,
		SegmentBytes:         c.SegmentBytes,
		Compacted:            c.CleanupCompact,
		TimestampBeforeMaxMs: c.MessageTimestampBeforeMaxMs,
		TimestampAfterMaxMs:  c.MessageTimestampAfterMaxMs,
		HeaderOnly:           r.env.HeaderOnly,
	}
	if c.MessageTimestampType == "LogAppendTime" {
		rules.TimestampType = recordbatch.LogAppendTime
	}
	rules.Recompress, rules.Codec, rules.Level = codecOf(c)
	r.rules = rules
}

// codecOf reads compression.type and the level that belongs to it.
func codecOf(c *configdef.Topic) (recompress bool, codec recordbatch.Compression, level int) {
	switch c.CompressionType {
	case "uncompressed":
		return true, recordbatch.None, 0
	case "gzip":
		return true, recordbatch.Gzip, c.CompressionGzipLevel
	case "snappy":
		return true, recordbatch.Snappy, 0
	case "lz4":
		return true, recordbatch.LZ4, c.CompressionLz4Level
	case "zstd":
		return true, recordbatch.Zstd, c.CompressionZstdLevel
	}
	return false, recordbatch.None, 0 // producer
}

// appendAll checks appends one by one and writes those that pass together.
func (r *Replica) appendAll(events []event) {
	now := r.env.now()
	r.rules.NowMs = now.UnixMilli()
	next, size := r.machine.LogEnd(), 0
	for i := range events {
		if len(r.staged) >= maxWriteBatches || size >= maxWriteBytes {
			r.write(now)
			next, size = r.machine.LogEnd(), 0
		}
		a := events[i].append
		if !a.op.advance(a.index, stageWriting) {
			a.op.free(a.index)
			continue
		}
		if a.op.marker != nil && len(r.staged) > 0 {
			// A marker is judged by what is in the log.
			r.write(now)
			next, size = r.machine.LogEnd(), 0
		}
		if n, ok := r.stage(now, a, next); ok {
			size += n
			next = r.batches[len(r.batches)-1].Header().NextOffset()
			if a.op.marker != nil {
				r.write(now)
				next, size = r.machine.LogEnd(), 0
			}
		} else {
			next = max(next, r.machine.LogEnd())
		}
	}
	r.write(now)
}

// stage checks an append and puts its batch, stamped, with those to be written; it gives the batch's size. An append that
// fails or repeats an earlier one is settled here.
func (r *Replica) stage(now time.Time, a appendEvent, next int64) (size int, ok bool) {
	req := a.op.req
	r.env.Metrics.ProducePartitions.Add(1)
	if err := r.admit(a.op); err != nil {
		r.refuse(a, err)
		return 0, false
	}
	// A conditional append that comes late must not land behind what its writer has appended or read since.
	if at := req.Partitions[a.index].EndOffset; req.CheckEndOffset && at != next {
		r.refuse(a, errcode.OffsetOutOfRange.Errorf("the log of %s ends at %d, not at %d", r.String(), next, at))
		return 0, false
	}
	r.rules.APIVersion, r.rules.Origin = req.APIVersion, recordbatch.FromClient
	if req.WriterEpoch >= 0 || a.op.marker != nil {
		r.rules.Origin = recordbatch.FromCoordinator
	}
	r.batches = append(r.batches, recordbatch.Batch{})
	last := len(r.batches) - 1
	if err := r.env.Codecs.Validate(req.Partitions[a.index].Records, &r.rules, &r.batches[last]); err != nil {
		h := r.batches[last].Header()
		r.batches = r.batches[:last]
		if !r.heardFirst(now, a, h) {
			r.refuse(a, err)
		}
		return 0, false
	}
	h := r.batches[last].Header()
	h.SetBaseOffset(next)
	h.SetLeaderEpoch(r.machine.LeaderEpoch())
	if h.HasProducerID() && r.settledByProducer(now, a, h) {
		return 0, false
	}
	a.op.decided(a.index)
	r.staged = append(r.staged, stagedAppend{a, appendResult{next, r.batches[last].LogAppendTimeMs, r.machine.LogStart()}})
	r.env.Metrics.BytesIn.Add(int64(h.Size()))
	r.env.Metrics.MessagesIn.Add(int64(h.Count()))
	return h.Size(), true
}

// heardFirst says that the coordinator of a transaction decides first about a batch that the log is going to refuse, as with Apache
// Kafka: the append stands aside, or has been refused for what is known of its transaction.
func (r *Replica) heardFirst(now time.Time, a appendEvent, h recordbatch.Header) bool {
	if r.rules.Origin != recordbatch.FromClient || h.Magic() != recordbatch.Magic || !h.HasProducerID() || !h.IsTransactional() ||
		h.ProducerID() == r.vouched.producerID {
		return false
	}
	aside, err := r.standsAside(now, a, h)
	if err != nil {
		r.refuse(a, err)
	}
	return aside || err != nil
}

// admit checks what does not depend on the batch.
func (r *Replica) admit(op *AppendOp) error {
	req := op.req
	if r.failed {
		return errcode.KafkaStorageError.Err()
	}
	if code := r.machine.CheckAppend(req.Acks == storage.AcksAll); code != errcode.None {
		return code.Err()
	}
	if req.WriterEpoch == storage.AdminWriterEpoch {
		return nil
	}
	if req.WriterEpoch == storage.NoWriterEpoch {
		if r.shards != 0 && op.marker != nil {
			return errcode.InvalidRequest.Errorf("markers of %s are written by the owner of the shard", r.topic)
		}
		if r.shards != 0 {
			return errcode.InvalidTopicException.Errorf("Cannot append to internal topic %s", r.topic)
		}
		return nil
	}
	return r.admitWriter(req)
}

// admitWriter fences coordinators that have lost their shard: no append of an epoch may follow one of a later epoch, nor what
// the owner of a later epoch has read. The image is the newest one, and this runs right before the write.
func (r *Replica) admitWriter(req *storage.AppendRequest) error {
	if r.shards == 0 {
		return errcode.InvalidRequest.Errorf("topic %s holds no coordinator's state", r.topic)
	}
	image := r.env.Image()
	shard := image.Shard(r.shards, r.key.Partition)
	switch {
	case req.WriterEpoch < shard.Epoch:
		return errcode.NotCoordinator.Errorf("the shard's epoch is %d, the writer's is %d", shard.Epoch, req.WriterEpoch)
	case req.WriterEpoch > shard.Epoch:
		return errcode.NotLeaderOrFollower.Wrap(fmt.Errorf("the writer of %s knows epoch %d, the image at %d only %d",
			r, req.WriterEpoch, image.Offset(), shard.Epoch))
	}
	return nil
}

// settledByProducer judges the batch that was staged last by what its producer has written before. True means that it is not
// to be written: the append was refused, or repeats an earlier one.
func (r *Replica) settledByProducer(now time.Time, a appendEvent, h recordbatch.Header) bool {
	dup, aside, err := r.checkProducer(now, a, h)
	if err == nil && !dup.Found && !aside {
		return false
	}
	last := len(r.batches) - 1
	r.batches = r.batches[:last]
	if aside && err == nil {
		return true
	}
	if err != nil {
		r.refuse(a, err)
		return true
	}
	a.op.free(a.index)
	if dup.LastOffset >= r.machine.LogEnd() {
		// It repeats one that is still to be written.
		r.write(now)
	}
	// Kafka answers a repeated batch with its largest timestamp as the time of the append, whatever the topic's type.
	res := appendResult{dup.BaseOffset, dup.TimestampMs, r.machine.LogStart()}
	switch {
	case dup.LastOffset >= r.machine.LogEnd():
		a.op.settle(a.index, func(p *storage.PartitionAppendResult) { p.Error, p.OutcomeUnknown = errcode.KafkaStorageError, true })
	case a.op.req.Acks == storage.AcksAll && dup.LastOffset >= r.machine.HighWatermark():
		r.await(waitingAck{a, dup.LastOffset + 1, res})
	default:
		a.settle(res)
	}
	return true
}

// checkProducer judges a batch with a producer id: it may repeat another one, or stand aside until the transaction's coordinator
// has been heard. A coordinator that writes to its own shard has judged already.
func (r *Replica) checkProducer(now time.Time, a appendEvent, h recordbatch.Header) (dup log.Duplicate, aside bool, err error) {
	switch {
	case a.op.marker != nil:
		err = r.Log().CheckMarker(h.ProducerID(), h.ProducerEpoch(), a.op.marker.EndTxnMarker, a.op.marker.TransactionVersion)
		if err == nil {
			r.markerStaged(h.ProducerID())
		}
		return dup, false, err
	case r.rules.Origin == recordbatch.FromCoordinator:
		return dup, false, nil
	case h.IsTransactional():
		if aside, err = r.standsAside(now, a, h); aside || err != nil {
			return dup, aside, err
		}
	}
	dup, err = r.Log().CheckProducer(h, r.rules.Origin)
	return dup, false, err
}

// write writes what is staged and answers, or lets wait, what was written.
func (r *Replica) write(now time.Time) {
	if len(r.staged) == 0 {
		return
	}
	err := r.Log().Append(r.batches)
	for _, s := range r.staged {
		s.op.free(s.index)
	}
	if err != nil {
		for _, s := range r.staged {
			s.op.settle(s.index, func(p *storage.PartitionAppendResult) {
				p.Error, p.OutcomeUnknown = errcode.KafkaStorageError, true
			})
		}
		r.clearStaged()
		r.fail(fmt.Errorf("append: %w", err))
		return
	}
	end := r.batches[len(r.batches)-1].Header().NextOffset()
	for i, s := range r.staged {
		if s.op.req.Acks == storage.AcksAll {
			r.await(waitingAck{s.appendEvent, r.batches[i].Header().NextOffset(), s.result})
		}
	}
	r.apply(r.machine.Appended(now, end))
	for _, s := range r.staged {
		if s.op.req.Acks != storage.AcksAll {
			s.settle(s.result)
		}
	}
	r.clearStaged()
}

func (r *Replica) clearStaged() {
	clear(r.staged)
	clear(r.batches)
	r.staged, r.batches = r.staged[:0], r.batches[:0]
}

// settle answers an append that has what it asked for.
func (a appendEvent) settle(res appendResult) {
	a.op.settle(a.index, func(p *storage.PartitionAppendResult) {
		p.BaseOffset, p.LogAppendTimeMs, p.LogStartOffset = res.baseOffset, res.logAppendTimeMs, res.logStart
	})
}

// await lets an append wait. They are in the order of their offsets; only a repeated batch may have an earlier one.
func (r *Replica) await(w waitingAck) {
	r.env.Metrics.WaitingProduces.Add(1)
	at := len(r.acks)
	if at > 0 && r.acks[at-1].offset > w.offset {
		at = sort.Search(at, func(i int) bool { return r.acks[i].offset > w.offset })
	}
	r.acks = append(r.acks, waitingAck{})
	copy(r.acks[at+1:], r.acks[at:])
	r.acks[at] = w
}

// acknowledge answers the appends that the high watermark has reached.
func (r *Replica) acknowledge() {
	hw := r.machine.HighWatermark()
	n := 0
	for n < len(r.acks) && r.acks[n].offset <= hw {
		r.acks[n].settle(r.acks[n].result)
		n++
	}
	r.dropAcks(n)
}

// failWaiting answers the appends that wait: their batches are in the log, but may be cut off by the next leader.
func (r *Replica) failWaiting(code errcode.Code) {
	leader := r.View().CurrentLeader()
	for _, w := range r.acks {
		w.op.settle(w.index, func(p *storage.PartitionAppendResult) {
			p.Error, p.OutcomeUnknown, p.Leader = code, true, leader
		})
	}
	r.dropAcks(len(r.acks))
	r.failVerifications(code)
	r.failDeletes(code)
}

func (r *Replica) dropAcks(n int) {
	if n == 0 {
		return
	}
	r.env.Metrics.WaitingProduces.Add(-int64(n))
	rest := copy(r.acks, r.acks[n:])
	clear(r.acks[rest:])
	r.acks = r.acks[:rest]
}

// refuse answers an append that was not written.
func (r *Replica) refuse(a appendEvent, err error) {
	r.env.Metrics.FailedProducePartitions.Add(1)
	a.op.free(a.index)
	var invalid *recordbatch.ValidationError
	atLog := errors.As(err, &invalid) && invalid.AtLog
	code := errcode.Of(err)
	if code == errcode.UnknownServerError {
		r.env.Logger.Warn("append refused", "partition", r.String(), "error", err)
	}
	leader := storage.NoLeader
	if code == errcode.NotLeaderOrFollower {
		leader = r.View().CurrentLeader()
	}
	// As with Apache Kafka, a text goes along only where single records are named.
	text := ""
	if e := (*errcode.Error)(nil); invalid != nil && len(invalid.Records) > 0 && errors.As(err, &e) {
		text = e.Text
	}
	a.op.settle(a.index, func(p *storage.PartitionAppendResult) {
		p.Error, p.Leader = code, leader
		p.ErrorMessage = text
		if invalid == nil {
			// As Kafka does, what the log itself refuses comes with the log's start.
			if refusedByLog(code) {
				p.LogStartOffset = r.machine.LogStart()
			}
			return
		}
		for _, e := range invalid.Records {
			p.RecordErrors = append(p.RecordErrors, storage.RecordError{BatchIndex: e.Index, Message: e.Message})
		}
		if atLog {
			p.LogStartOffset = r.machine.LogStart()
		}
	})
}

// refusedByLog says whether a code without a fault in the batch itself means that the log looked at the batch: its
// producer's state does not allow it.
func refusedByLog(code errcode.Code) bool {
	switch code {
	case errcode.OutOfOrderSequenceNumber, errcode.InvalidProducerEpoch, errcode.UnknownProducerId, errcode.InvalidTxnState,
		errcode.TransactionAbortable, errcode.DuplicateSequenceNumber, errcode.TransactionCoordinatorFenced:
		return true
	}
	return false
}
