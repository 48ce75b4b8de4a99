package recordbatch

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"chancery/services/kafka/errcode"

	"google.golang.org/grpc/mem"
)

// Origin is who writes a batch, which decides what is checked.
type Origin int8

// The origins of an append.
const (
	// FromClient is a Produce request: everything is checked.
	FromClient Origin = iota
	// FromCoordinator is a coordinator that writes to its own shard: control batches and any sequence are allowed.
	FromCoordinator
)

// Rules is what a partition's leader asks of a batch: the topic's configs and the circumstances of the append.
type Rules struct {
	// Topic and Partition are for messages.
	Topic     string
	Partition int32
	Origin    Origin
	// APIVersion is the version of the Produce request.
	APIVersion int16
	// NowMs is the time of the append.
	NowMs int64

	// MaxMessageBytes is max.message.bytes: the most that a batch may have, before and after recompression.
	MaxMessageBytes int
	// MaxDecompressedBytes is max.decompressed.message.bytes.
	MaxDecompressedBytes int
	// SegmentBytes is segment.bytes: no batch may be larger than a segment.
	SegmentBytes int
	// Compacted says that cleanup.policy has compact, so that every record needs a key.
	Compacted bool
	// TimestampType, TimestampBeforeMaxMs and TimestampAfterMaxMs are the message.timestamp.* configs.
	TimestampType        TimestampType
	TimestampBeforeMaxMs int64
	TimestampAfterMaxMs  int64
	// Recompress says that compression.type is not "producer" but Codec, at Level.
	Recompress bool
	Codec      Compression
	Level      int
	// HeaderOnly is record.validation=header: records are looked at only where a rule needs it.
	HeaderOnly bool
}

// Batch is a batch that passed: a copy of its header, ready to be stamped with offset and epoch, and its records.
type Batch struct {
	header [HeaderSize]byte
	// Body holds the records from Skip on: the caller's own buffers, of which no reference was taken, or new bytes.
	Body mem.BufferSlice
	Skip int
	// Rebuilt says that Body is new bytes and not the caller's buffers.
	Rebuilt bool
	// LogAppendTimeMs is the time of the append if the topic has LogAppendTime, else NoTimestamp.
	LogAppendTimeMs int64
}

// Header is the batch's header. Only SetBaseOffset and SetLeaderEpoch may change it.
func (b *Batch) Header() Header { return b.header[:] }

// Size is the size of the batch with its header.
func (b *Batch) Size() int { return b.Header().Size() }

// Bytes copies the batch into one piece.
func (b *Batch) Bytes() []byte {
	out := make([]byte, 0, b.Size())
	out = append(out, b.header[:]...)
	src := bufferSource{buffers: b.Body, skip: b.Skip, length: b.Size() - HeaderSize}
	for {
		p, _ := src.next() // a source of buffers has no errors
		if p == nil {
			return out
		}
		out = append(out, p...)
	}
}

// BatchOf takes a whole batch in one piece as one that passed, without checking anything: for batches that were just
// built. The bytes belong to the Batch from then on.
func BatchOf(batch []byte) Batch {
	b := Batch{Body: mem.BufferSlice{mem.SliceBuffer(batch)}, Skip: HeaderSize, Rebuilt: true, LogAppendTimeMs: NoTimestamp}
	copy(b.header[:], batch)
	return b
}

// RecordError names a record that made its batch fail.
type RecordError struct {
	// Index is the record's place in the batch.
	Index   int32
	Message string
}

// maxRecordErrors bounds how many bad records an answer lists; the text has the full count.
const maxRecordErrors = 1000

// ValidationError is why a leader refuses a batch. errcode.Of finds its code.
type ValidationError struct {
	Err     *errcode.Error
	Records []RecordError
	// AtLog says that the batch got as far as the log, so that the answer carries the partition's log start offset, as
	// Kafka's does.
	AtLog bool
}

// Error is the code and the text.
func (e *ValidationError) Error() string { return e.Err.Error() }

// Unwrap gives the errcode.Error.
func (e *ValidationError) Unwrap() error { return e.Err }

func refuse(atLog bool, code errcode.Code, format string, args ...any) error {
	return &ValidationError{Err: &errcode.Error{Code: code, Text: fmt.Sprintf(format, args...)}, AtLog: atLog}
}

func refuseWith(atLog bool, err error) error {
	var e *errcode.Error
	if !errors.As(err, &e) {
		e = &errcode.Error{Code: errcode.UnknownServerError, Cause: err}
	}
	return &ValidationError{Err: e, AtLog: atLog}
}

// Validate checks what a Produce request carries for one partition and fills in b, whatever was in it. records stays the
// caller's: it must live until the batch has been written, and is freed by the caller. An error is a *ValidationError.
func (c *Codecs) Validate(records mem.BufferSlice, r *Rules, b *Batch) error {
	if err := b.take(records, r); err != nil {
		return err
	}
	if err := checkHeader(b.Header(), r); err != nil {
		return err
	}
	h := b.Header()
	v := validation{codecs: c, rules: r, batch: b, source: h.Compression(), target: h.Compression(), maxTimestamp: NoTimestamp}
	if r.Recompress && (v.source != None || !h.IsControl()) {
		v.target = r.Codec
	}
	if err := v.run(); err != nil {
		return err
	}
	if b.Rebuilt && b.Size() > r.MaxMessageBytes {
		return v.tooLarge(b.Size())
	}
	if b.Size() > r.SegmentBytes {
		return refuse(false, errcode.RecordListTooLarge, "Message batch size is %d bytes in append to partition %s-%d, "+
			"which exceeds the maximum configured segment size of %d.", b.Size(), r.Topic, r.Partition, r.SegmentBytes)
	}
	return nil
}

// take finds the one batch of a partition, checks what can be checked without its records, and copies the header.
func (b *Batch) take(records mem.BufferSlice, r *Rules) error {
	*b = Batch{Body: records, Skip: HeaderSize, LogAppendTimeMs: NoTimestamp}
	it := IterateBuffers(records)
	if !it.Next() {
		if it.Err() != nil {
			return refuseWith(false, it.Err())
		}
		return refuse(false, errcode.InvalidRecord,
			"Produce requests with version %d must have at least one record batch per partition", r.APIVersion)
	}
	if it.Header().Magic() != Magic {
		return refuse(false, errcode.InvalidRecord,
			"Produce requests with version %d are only allowed to contain record batches with magic version 2", r.APIVersion)
	}
	copy(b.header[:], it.Header())
	h := b.Header()
	if r.APIVersion < 7 && h.Compression() == Zstd {
		return refuse(false, errcode.UnsupportedCompressionType,
			"Produce requests with version %d are not allowed to use ZStandard compression", r.APIVersion)
	}
	if it.Next() {
		return refuse(false, errcode.InvalidRecord,
			"Produce requests with version %d are only allowed to contain exactly one record batch per partition", r.APIVersion)
	}
	if it.Err() != nil {
		return refuseWith(false, it.Err())
	}
	if r.Origin == FromClient && h.BaseOffset() != 0 {
		return refuse(true, errcode.InvalidRecord, "The baseOffset of the record batch in the append to %s-%d should be 0, but it is %d",
			r.Topic, r.Partition, h.BaseOffset())
	}
	if h.Size() > r.MaxMessageBytes {
		return refuse(false, errcode.MessageTooLarge, "The record batch size in the append to %s-%d is %d bytes "+
			"which exceeds the maximum configured value of %d.", r.Topic, r.Partition, h.Size(), r.MaxMessageBytes)
	}
	if h.CRC() != continueCRC(h.checksum(), records, HeaderSize, h.Size()-HeaderSize) {
		return refuse(false, errcode.CorruptMessage, "Record is corrupt (stored crc = %d) in topic partition %s-%d.",
			h.CRC(), r.Topic, r.Partition)
	}
	return nil
}

// checkHeader checks what the header alone tells.
func checkHeader(h Header, r *Rules) error {
	if !h.Compression().Known() {
		return &ValidationError{AtLog: true, Err: &errcode.Error{
			Code: errcode.UnknownServerError, Cause: fmt.Errorf("unknown compression type %d", int8(h.Compression()))}}
	}
	if r.Origin != FromClient {
		return nil
	}
	switch {
	case h.LastOffsetDelta() < 0:
		return refuse(true, errcode.InvalidRecord, "Batch has an invalid offset range: [%d, %d] in topic partition %s-%d",
			h.BaseOffset(), h.LastOffset(), r.Topic, r.Partition)
	case h.Count() <= 0:
		return refuse(true, errcode.InvalidRecord, "Invalid reported count for record batch: %d in topic partition %s-%d",
			h.Count(), r.Topic, r.Partition)
	case int64(h.LastOffsetDelta())+1 != int64(h.Count()):
		return refuse(true, errcode.InvalidRecord,
			"Inconsistent batch offset range [%d, %d] and count of records %d in topic partition %s-%d",
			h.BaseOffset(), h.LastOffset(), h.Count(), r.Topic, r.Partition)
	case h.IsControl():
		return refuse(true, errcode.InvalidRecord, "Clients are not allowed to write control records in topic partition %s-%d",
			r.Topic, r.Partition)
	case h.HasProducerID() && h.BaseSequence() < 0:
		return refuse(true, errcode.InvalidRecord,
			"Invalid sequence number %d in record batch with producerId %d in topic partition %s-%d",
			h.BaseSequence(), h.ProducerID(), r.Topic, r.Partition)
	}
	return nil
}

// walkState is what a walk needs on the heap, kept for the next one.
type walkState struct {
	cursor  cursor
	walker  walker
	buffers bufferSource
}

// validation is one run of Validate over the records.
type validation struct {
	codecs         *Codecs
	rules          *Rules
	batch          *Batch
	source, target Compression

	maxTimestamp int64
	// shifted says that a record's offset was not its place in the batch.
	shifted    bool
	errors     []RecordError
	errorCount int
	badTime    bool
}

func (v *validation) run() error {
	h := v.batch.Header()
	rebuild := v.source != v.target
	if !rebuild && v.headerSuffices() {
		v.maxTimestamp = h.MaxTimestamp()
		v.stampTimestamps()
		return nil
	}
	if !rebuild {
		if err := v.walk(nil); err != nil {
			return err
		}
		// Some old clients number the records inside compressed batches wrongly. Kafka rewrites those, and leaves
		// uncompressed ones alone.
		rebuild = v.shifted && v.source != None
	}
	if rebuild {
		return v.rebuild()
	}
	v.stampTimestamps()
	return nil
}

// headerSuffices says whether the rules let the records go unseen. Timestamps are judged by the header's; when those are
// out of bounds the records must be seen so that the bad ones can be named.
func (v *validation) headerSuffices() bool {
	h, r := v.batch.Header(), v.rules
	if !r.HeaderOnly || r.Compacted || h.TimestampType() == LogAppendTime {
		return false
	}
	if r.TimestampType == LogAppendTime {
		return true
	}
	return !outOfBounds(h.BaseTimestamp(), r) && !outOfBounds(h.MaxTimestamp(), r)
}

func outOfBounds(timestamp int64, r *Rules) bool {
	if timestamp == NoTimestamp {
		return false
	}
	age := r.NowMs - timestamp
	return age > r.TimestampBeforeMaxMs || -age > r.TimestampAfterMaxMs
}

// walk goes through all records and collects what is wrong with them. With out set it also writes them there, with
// their offsets put right.
func (v *validation) walk(out sink) error {
	h := v.batch.Header()
	state, _ := v.codecs.walks.Get().(*walkState)
	if state == nil {
		state = &walkState{}
	}
	defer func() {
		*state = walkState{} // holds nobody's bytes while it waits
		v.codecs.walks.Put(state)
	}()
	src, done, err := v.open(state)
	if err != nil {
		return refuseWith(true, err)
	}
	defer done()
	c, w := &state.cursor, &state.walker
	*c = cursor{src: src}
	*w = walker{cursor: c, header: h, out: out}
	v.maxTimestamp, v.shifted, v.errors, v.errorCount, v.badTime = NoTimestamp, false, nil, 0, false
	for i := range h.Count() {
		w.next(i)
		if c.err != nil {
			break
		}
		if w.offsetDelta != i {
			v.shifted = true
		}
		if !v.checkRecord(i, w) {
			continue
		}
		v.maxTimestamp = max(v.maxTimestamp, w.timestamp)
	}
	if c.err == nil && h.Count() > 0 && !c.atEnd() {
		c.fail(errRemaining)
	}
	if c.err != nil {
		return v.structureError(c.err)
	}
	return v.recordErrors()
}

// open gives the decompressed records as a source, and what must be called after use.
func (v *validation) open(state *walkState) (source, func(), error) {
	b := v.batch
	n := b.Size() - HeaderSize
	if v.source == None {
		state.buffers = bufferSource{buffers: b.Body, skip: b.Skip, length: n}
		return &state.buffers, func() {}, nil
	}
	in, free := v.codecs.contiguous(b.Body, b.Skip, n)
	s, err := v.codecs.open(v.source, in, int64(v.rules.MaxDecompressedBytes))
	if err != nil {
		free()
		return nil, nil, err
	}
	return s, func() { s.close(); free() }, nil
}

// contiguous gives n bytes of the buffers from at on in one piece: as they are when one buffer holds them, else copied to
// a scratch buffer, which free gives back.
func (c *Codecs) contiguous(b mem.BufferSlice, at, n int) (p []byte, free func()) {
	for len(b) > 0 && at >= b[0].Len() {
		at -= b[0].Len()
		b = b[1:]
	}
	if len(b) > 0 && b[0].Len()-at >= n {
		return b[0].ReadOnlyData()[at : at+n], func() {}
	}
	scratch := c.scratch(n)
	src := bufferSource{buffers: b, skip: at, length: n}
	for {
		piece, _ := src.next() // a source of buffers has no errors
		if piece == nil {
			return *scratch, func() { c.freeScratch(scratch) }
		}
		*scratch = append(*scratch, piece...)
	}
}

// checkRecord judges one record and says whether it is good.
func (v *validation) checkRecord(index int32, w *walker) bool {
	r := v.rules
	if r.Compacted && !w.hasKey {
		v.bad(index, false, func() string {
			return fmt.Sprintf("Compacted topic cannot accept message without key in topic partition %s-%d", r.Topic, r.Partition)
		})
		return false
	}
	if r.TimestampType == CreateTime && w.timestamp != NoTimestamp {
		if !outOfBounds(w.timestamp, r) {
			return true
		}
		v.bad(index, true, func() string {
			return fmt.Sprintf("Timestamp %d of message with offset %d is out of range. The timestamp should be within [%d, %d]",
				w.timestamp, v.batch.Header().BaseOffset()+int64(w.offsetDelta), r.NowMs-r.TimestampBeforeMaxMs, r.NowMs+r.TimestampAfterMaxMs)
		})
		return false
	}
	if w.header.TimestampType() == LogAppendTime {
		v.bad(index, true, func() string {
			return "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
		})
		return false
	}
	return true
}

func (v *validation) bad(index int32, time bool, message func() string) {
	v.errorCount++
	v.badTime = v.badTime || time
	if len(v.errors) < maxRecordErrors {
		v.errors = append(v.errors, RecordError{Index: index, Message: message()})
	}
}

// recordErrors turns the bad records into the batch's error.
func (v *validation) recordErrors() error {
	if v.errorCount == 0 {
		return nil
	}
	e := &ValidationError{Records: v.errors, AtLog: true}
	if v.badTime {
		e.Err = &errcode.Error{Code: errcode.InvalidTimestamp, Text: "One or more records have been rejected due to invalid timestamp"}
		return e
	}
	var first []string
	for _, x := range v.errors[:min(3, len(v.errors))] {
		first = append(first, fmt.Sprintf("RecordError(batchIndex=%d, message='%s')", x.Index, x.Message))
	}
	e.Err = &errcode.Error{Code: errcode.InvalidRecord, Text: fmt.Sprintf("One or more records have been rejected due to %d record errors "+
		"in total, and only showing the first three errors at most: [%s]", v.errorCount, strings.Join(first, ", "))}
	return e
}

// structureError is the answer to records that cannot be read.
func (v *validation) structureError(err error) error {
	if errors.Is(err, errCompressed) {
		return v.tooLarge(v.rules.MaxMessageBytes + 1)
	}
	if errcode.Of(err) == errcode.UnknownServerError {
		var e *errcode.Error
		if !errors.As(err, &e) {
			err = invalid(err)
		}
	}
	return refuseWith(true, err)
}

func (v *validation) tooLarge(size int) error {
	return refuse(false, errcode.MessageTooLarge, "Message batch size is %d bytes in append to partition %s-%d "+
		"which exceeds the maximum configured size of %d.", size, v.rules.Topic, v.rules.Partition, v.rules.MaxMessageBytes)
}

// stampTimestamps puts the header's timestamp type and maximum right, and its checksum where that changes anything.
func (v *validation) stampTimestamps() {
	b := v.batch
	if !v.setTimestamps() {
		return
	}
	h := b.Header()
	h.setCRC(continueCRC(h.checksum(), b.Body, b.Skip, b.Size()-HeaderSize))
}

// setTimestamps sets type and maximum and says whether they were different.
func (v *validation) setTimestamps() bool {
	h, r := v.batch.Header(), v.rules
	maximum := v.maxTimestamp
	if r.TimestampType == LogAppendTime {
		maximum = r.NowMs
		v.batch.LogAppendTimeMs = r.NowMs
	}
	if h.TimestampType() == r.TimestampType && h.MaxTimestamp() == maximum {
		return false
	}
	attributes := h.Attributes() &^ attributeLogAppendTime
	if r.TimestampType == LogAppendTime {
		attributes |= attributeLogAppendTime
	}
	h.setAttributes(attributes)
	h.setMaxTimestamp(maximum)
	return true
}

// rebuild compresses the records anew, with the topic's codec and right offsets. Nothing larger than max.message.bytes
// and a chunk of records is held in memory on the way, however much the records grow in between.
func (v *validation) rebuild() error {
	b := v.batch
	// Room for what the batch may have, and not more memory than needed at first.
	out := &bounded{buf: make([]byte, HeaderSize, HeaderSize+max(b.Size(), 512)), limit: max(v.rules.MaxMessageBytes, HeaderSize)}
	e, err := v.codecs.encoder(v.target, v.rules.Level, out)
	if err != nil {
		return refuseWith(true, err)
	}
	w := &gather{out: e}
	if err := v.walk(w); err != nil {
		e.abandon()
		return err
	}
	if err := w.flush(); err != nil {
		e.abandon()
		return v.structureError(err)
	}
	if err := e.finish(); err != nil {
		return v.structureError(err)
	}
	h := b.Header()
	h.setLength(len(out.buf))
	h.setAttributes(h.Attributes()&^attributeCompression&0xff | int16(v.target))
	h.setLastOffsetDelta(h.Count() - 1)
	v.setTimestamps()
	h.setCRC(crc32.Update(h.checksum(), castagnoli, out.buf[HeaderSize:]))
	b.Body, b.Skip, b.Rebuilt = mem.BufferSlice{mem.SliceBuffer(out.buf)}, HeaderSize, true
	return nil
}
