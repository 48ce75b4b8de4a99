package storagerpc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/transport"
)

// coalesceBytes is the payload up to which a frame is copied into one buffer: for small batches that is cheaper than
// the handling of one buffer for each.
const coalesceBytes = 4 << 10

// appendFrame is an AppendFrame: several appends and their record batches.
type appendFrame struct {
	appends []numberedAppend
	// sizes are those of the partitions of all appends, and decoder is where each is put together, while a frame is read.
	sizes   []int32
	decoder appendDecoder
}

// numberedAppend is an append with its id on the stream.
type numberedAppend struct {
	id  uint64
	req *storage.AppendRequest
}

var _ transport.Message = (*appendFrame)(nil)

// payloadBytes is how many bytes of record batches the frame has.
func (f *appendFrame) payloadBytes() int {
	n := 0
	for _, a := range f.appends {
		n += recordBytes(a.req)
	}
	return n
}

func recordBytes(req *storage.AppendRequest) int {
	n := 0
	for i := range req.Partitions {
		n += req.Partitions[i].Records.Len()
	}
	return n
}

// MarshalBuffers gives the buffers of the requests away with the frame.
func (f *appendFrame) MarshalBuffers() (mem.BufferSlice, error) {
	payload, header, buffers := f.payloadBytes(), 16, 1
	for _, a := range f.appends {
		header += 48 + len(a.req.TransactionalID) + 32*len(a.req.Partitions)
		for i := range a.req.Partitions {
			buffers += len(a.req.Partitions[i].Records)
		}
	}
	coalesce := payload <= coalesceBytes
	if coalesce {
		header += payload
	}
	b := make([]byte, 0, header)
	for _, a := range f.appends {
		b = encodeAppend(b, a)
	}
	if payload > 0 {
		b = protowire.AppendTag(b, payloadField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(payload))
	}
	if coalesce {
		for _, a := range f.appends {
			for i := range a.req.Partitions {
				b = appendBuffers(b, a.req.Partitions[i].Records)
			}
			releaseRecords(a.req)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	out := append(make(mem.BufferSlice, 0, buffers), mem.SliceBuffer(b))
	for _, a := range f.appends {
		for i := range a.req.Partitions {
			out = append(out, a.req.Partitions[i].Records...)
			a.req.Partitions[i].Records = nil
		}
	}
	return out, nil
}

func appendBuffers(b []byte, records storage.Buffers) []byte {
	for _, buffer := range records {
		b = append(b, buffer.ReadOnlyData()...)
	}
	return b
}

// releaseRecords frees the records of a request that will not be sent, or has been copied.
func releaseRecords(req *storage.AppendRequest) {
	for i := range req.Partitions {
		req.Partitions[i].Records.Free()
		req.Partitions[i].Records = nil
	}
}

func encodeAppend(b []byte, a numberedAppend) []byte {
	b, mark := openNested(b, 1)
	b = appendNumber(b, 1, a.id)
	b = appendZigZag(b, 2, int64(a.req.Acks))
	b = appendNumber(b, 3, uint64(a.req.TimeoutMs))
	b = appendNumber(b, 4, uint64(a.req.MetadataOffset))
	b = appendZigZag(b, 5, int64(a.req.WriterEpoch))
	b = appendNumber(b, 6, uint64(a.req.APIVersion))
	b = appendString(b, 7, a.req.TransactionalID)
	for i := range a.req.Partitions {
		p := &a.req.Partitions[i]
		var inner int
		b, inner = openNested(b, 8)
		b = appendTopicID(b, 1, p.TopicID)
		b = appendNumber(b, 2, uint64(p.Partition))
		size := int64(-1)
		if p.Records != nil {
			size = int64(p.Records.Len())
		}
		b = appendNumber(b, 3, uint64(size))
		b = appendNumber(b, 4, uint64(p.EndOffset))
		b = closeNested(b, inner)
	}
	b = appendBool(b, 9, a.req.CheckEndOffset)
	return closeNested(b, mark)
}

// UnmarshalBuffers reads a frame. Each request then owns its records, as slices of the frame's buffers.
func (f *appendFrame) UnmarshalBuffers(data mem.BufferSlice) error {
	f.appends, f.sizes = f.appends[:0], f.sizes[:0]
	payload, err := decodeFrame(data, payloadField, f)
	defer payload.Free()
	if err != nil {
		return err
	}
	return f.share(payload)
}

// drop lets go of the requests, so that a frame that is used again does not keep them alive.
func (f *appendFrame) drop() {
	clear(f.appends)
	f.appends = f.appends[:0]
	f.decoder = appendDecoder{}
}

// share gives each partition its part of the payload.
func (f *appendFrame) share(payload mem.BufferSlice) error {
	c := cursor{buffers: payload, left: payload.Len()}
	total := 0
	for _, size := range f.sizes {
		if size < -1 {
			return errSizes
		}
		total += max(0, int(size))
	}
	if total != c.left {
		return errSizes
	}
	next := 0
	for _, a := range f.appends {
		for i := range a.req.Partitions {
			if size := f.sizes[next]; size >= 0 {
				a.req.Partitions[i].Records = c.references(int(size))
			}
			next++
		}
	}
	return nil
}

func (f *appendFrame) number(protowire.Number, uint64) error { return nil }

func (f *appendFrame) bytes(field protowire.Number, b []byte) error {
	if field != 1 {
		return nil
	}
	// A partition takes about 24 bytes.
	req := &storage.AppendRequest{Partitions: make([]storage.PartitionAppend, 0, 1+len(b)/24)}
	f.decoder.numberedAppend = numberedAppend{req: req}
	f.decoder.sizes = f.sizes
	err := decodeNested(b, &f.decoder)
	f.sizes = f.decoder.sizes
	f.appends = append(f.appends, f.decoder.numberedAppend)
	return err
}

// appendDecoder reads one Append.
type appendDecoder struct {
	numberedAppend
	sizes     []int32
	partition appendPartitionDecoder
}

func (d *appendDecoder) number(field protowire.Number, v uint64) error {
	switch field {
	case 1:
		d.id = v
	case 2:
		d.req.Acks = int16(zigZag32(v))
	case 3:
		d.req.TimeoutMs = int32(v)
	case 4:
		d.req.MetadataOffset = int64(v)
	case 5:
		d.req.WriterEpoch = zigZag32(v)
	case 6:
		d.req.APIVersion = int16(v)
	case 9:
		d.req.CheckEndOffset = v != 0
	}
	return nil
}

func (d *appendDecoder) bytes(field protowire.Number, b []byte) error {
	switch field {
	case 7:
		return toString(b, &d.req.TransactionalID)
	case 8:
		d.partition = appendPartitionDecoder{}
		err := decodeNested(b, &d.partition)
		d.req.Partitions = append(d.req.Partitions, d.partition.PartitionAppend)
		d.sizes = append(d.sizes, d.partition.size)
		return err
	}
	return nil
}

// appendPartitionDecoder reads one AppendPartition.
type appendPartitionDecoder struct {
	storage.PartitionAppend
	size int32
}

func (d *appendPartitionDecoder) number(field protowire.Number, v uint64) error {
	switch field {
	case 2:
		d.Partition = int32(v)
	case 3:
		d.size = int32(v)
	case 4:
		d.EndOffset = int64(v)
	}
	return nil
}

func (d *appendPartitionDecoder) bytes(field protowire.Number, b []byte) error {
	if field == 1 {
		return toTopicID(b, &d.TopicID)
	}
	return nil
}

// appendResultFrame is an AppendResultFrame.
type appendResultFrame struct {
	results []numberedResult
}

// numberedResult is a result with the id of its append.
type numberedResult struct {
	id     uint64
	result *storage.AppendResult
}

var _ transport.Message = (*appendResultFrame)(nil)

// MarshalBuffers writes the frame into one buffer.
func (f *appendResultFrame) MarshalBuffers() (mem.BufferSlice, error) {
	size := 0
	for _, r := range f.results {
		size += 16 + 64*len(r.result.Partitions)
	}
	b := make([]byte, 0, size)
	for _, r := range f.results {
		var mark int
		b, mark = openNested(b, 1)
		b = appendNumber(b, 1, r.id)
		for i := range r.result.Partitions {
			b = encodeAppendResult(b, &r.result.Partitions[i])
		}
		b = closeNested(b, mark)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func encodeAppendResult(b []byte, p *storage.PartitionAppendResult) []byte {
	b, mark := openNested(b, 2)
	b = appendTopicID(b, 1, p.TopicID)
	b = appendNumber(b, 2, uint64(p.Partition))
	b = appendNumber(b, 3, uint64(p.Error))
	b = appendString(b, 4, p.ErrorMessage)
	for i := range p.RecordErrors {
		var inner int
		b, inner = openNested(b, 5)
		b = appendNumber(b, 1, uint64(p.RecordErrors[i].BatchIndex))
		b = appendString(b, 2, p.RecordErrors[i].Message)
		b = closeNested(b, inner)
	}
	b = appendZigZag(b, 6, p.BaseOffset)
	b = appendZigZag(b, 7, p.LogAppendTimeMs)
	b = appendZigZag(b, 8, p.LogStartOffset)
	b = appendZigZag(b, 9, int64(p.Leader.ID))
	b = appendZigZag(b, 10, int64(p.Leader.Epoch))
	b = appendBool(b, 11, p.OutcomeUnknown)
	return closeNested(b, mark)
}

// UnmarshalBuffers reads a frame.
func (f *appendResultFrame) UnmarshalBuffers(data mem.BufferSlice) error {
	f.results = f.results[:0]
	_, err := decodeFrame(data, 0, f)
	return err
}

func (f *appendResultFrame) number(protowire.Number, uint64) error { return nil }

func (f *appendResultFrame) bytes(field protowire.Number, b []byte) error {
	if field != 1 {
		return nil
	}
	// A partition's result takes at least 24 bytes.
	d := appendResultDecoder{numberedResult{result: &storage.AppendResult{
		Partitions: make([]storage.PartitionAppendResult, 0, 1+len(b)/24)}}}
	if err := decodeNested(b, &d); err != nil {
		return err
	}
	f.results = append(f.results, d.numberedResult)
	return nil
}

// appendResultDecoder reads one AppendResult.
type appendResultDecoder struct{ numberedResult }

func (d *appendResultDecoder) number(field protowire.Number, v uint64) error {
	if field == 1 {
		d.id = v
	}
	return nil
}

func (d *appendResultDecoder) bytes(field protowire.Number, b []byte) error {
	if field != 2 {
		return nil
	}
	d.result.Partitions = append(d.result.Partitions, storage.PartitionAppendResult{})
	p := &d.result.Partitions[len(d.result.Partitions)-1]
	return decodeNested(b, (*partitionAppendResultDecoder)(p))
}

// partitionAppendResultDecoder reads one AppendPartitionResult.
type partitionAppendResultDecoder storage.PartitionAppendResult

func (d *partitionAppendResultDecoder) number(field protowire.Number, v uint64) error {
	switch field {
	case 2:
		d.Partition = int32(v)
	case 3:
		d.Error = errcode.Code(v)
	case 6:
		d.BaseOffset = protowire.DecodeZigZag(v)
	case 7:
		d.LogAppendTimeMs = protowire.DecodeZigZag(v)
	case 8:
		d.LogStartOffset = protowire.DecodeZigZag(v)
	case 9:
		d.Leader.ID = zigZag32(v)
	case 10:
		d.Leader.Epoch = zigZag32(v)
	case 11:
		d.OutcomeUnknown = protowire.DecodeBool(v)
	}
	return nil
}

func (d *partitionAppendResultDecoder) bytes(field protowire.Number, b []byte) error {
	switch field {
	case 1:
		return toTopicID(b, &d.TopicID)
	case 4:
		return toString(b, &d.ErrorMessage)
	case 5:
		var e recordErrorDecoder
		if err := decodeNested(b, &e); err != nil {
			return err
		}
		d.RecordErrors = append(d.RecordErrors, storage.RecordError(e))
	}
	return nil
}

// recordErrorDecoder reads one RecordError.
type recordErrorDecoder storage.RecordError

func (d *recordErrorDecoder) number(field protowire.Number, v uint64) error {
	if field == 1 {
		d.BatchIndex = int32(v)
	}
	return nil
}

func (d *recordErrorDecoder) bytes(field protowire.Number, b []byte) error {
	if field == 2 {
		return toString(b, &d.Message)
	}
	return nil
}
