package storagerpc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/transport"
)

// fetchFrame is a FetchFrame: a fetch, or the wish to have the answer to an earlier one at once.
type fetchFrame struct {
	id     uint64
	cancel bool
	files  fileTarget
	req    *storage.FetchRequest
}

var _ transport.Message = (*fetchFrame)(nil)

// MarshalBuffers writes the frame into one buffer.
func (f *fetchFrame) MarshalBuffers() (mem.BufferSlice, error) {
	if f.req == nil {
		b := appendBool(appendNumber(make([]byte, 0, 16), 1, f.id), 2, f.cancel)
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	r := f.req
	b := make([]byte, 0, 128+len(r.RackID)+56*len(r.Partitions))
	b = appendNumber(b, 1, f.id)
	b = appendBool(b, 2, f.cancel)
	b = appendZigZag(b, 3, int64(r.ReplicaID))
	b = appendZigZag(b, 4, r.ReplicaEpoch)
	b = appendNumber(b, 5, uint64(r.MaxWaitMs))
	b = appendNumber(b, 6, uint64(r.MinBytes))
	b = appendNumber(b, 7, uint64(r.MaxBytes))
	b = appendNumber(b, 8, uint64(r.Isolation))
	b = appendString(b, 9, r.RackID)
	b = appendNumber(b, 10, uint64(r.MetadataOffset))
	if x := r.Session; x != nil {
		b = appendNumber(b, 12, x.ID)
		b = appendNumber(b, 13, uint64(x.Epoch))
		for i := range x.Forgotten {
			var mark int
			b, mark = openNested(b, 14)
			b = appendTopicID(b, 1, x.Forgotten[i].TopicID)
			b = appendNumber(b, 2, uint64(x.Forgotten[i].Partition))
			b = closeNested(b, mark)
		}
	}
	if f.files.number != 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 16, protowire.BytesType), f.files.token[:])
		b = appendNumber(b, 17, f.files.number)
	}
	for i := range r.Partitions {
		p := &r.Partitions[i]
		var mark int
		b, mark = openNested(b, 11)
		b = appendTopicID(b, 1, p.TopicID)
		b = appendNumber(b, 2, uint64(p.Partition))
		b = appendZigZag(b, 3, int64(p.CurrentLeaderEpoch))
		b = appendNumber(b, 4, uint64(p.FetchOffset))
		b = appendZigZag(b, 5, int64(p.LastFetchedEpoch))
		b = appendZigZag(b, 6, p.LogStartOffset)
		b = appendNumber(b, 7, uint64(p.MaxBytes))
		b = closeNested(b, mark)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// UnmarshalBuffers reads a frame.
func (f *fetchFrame) UnmarshalBuffers(data mem.BufferSlice) error {
	// A partition takes at least 24 bytes, usually 45.
	*f = fetchFrame{req: &storage.FetchRequest{Partitions: make([]storage.FetchPartition, 0, 1+data.Len()/32)}}
	_, err := decodeFrame(data, 0, f)
	return err
}

func (f *fetchFrame) number(field protowire.Number, v uint64) error {
	switch field {
	case 1:
		f.id = v
	case 2:
		f.cancel = protowire.DecodeBool(v)
	case 3:
		f.req.ReplicaID = zigZag32(v)
	case 4:
		f.req.ReplicaEpoch = protowire.DecodeZigZag(v)
	case 5:
		f.req.MaxWaitMs = int32(v)
	case 6:
		f.req.MinBytes = int32(v)
	case 7:
		f.req.MaxBytes = int32(v)
	case 8:
		f.req.Isolation = int8(v)
	case 10:
		f.req.MetadataOffset = int64(v)
	case 12:
		f.session().ID = v
	case 13:
		f.session().Epoch = int32(v)
	case 17:
		f.files.number = v
	}
	return nil
}

// session is the session of the fetch, which one of its fields has shown to have one.
func (f *fetchFrame) session() *storage.FetchSession {
	if f.req.Session == nil {
		f.req.Session = &storage.FetchSession{}
	}
	return f.req.Session
}

func (f *fetchFrame) bytes(field protowire.Number, b []byte) error {
	switch field {
	case 9:
		return toString(b, &f.req.RackID)
	case 11:
		f.req.Partitions = append(f.req.Partitions, storage.FetchPartition{})
		p := &f.req.Partitions[len(f.req.Partitions)-1]
		return decodeNested(b, (*fetchPartitionDecoder)(p))
	case 16:
		if len(b) != channelTokenBytes {
			return errToken
		}
		copy(f.files.token[:], b)
	case 14:
		x := f.session()
		x.Forgotten = append(x.Forgotten, storage.PartitionKey{})
		return decodeNested(b, (*partitionKeyDecoder)(&x.Forgotten[len(x.Forgotten)-1]))
	}
	return nil
}

// partitionKeyDecoder reads one PartitionKey.
type partitionKeyDecoder storage.PartitionKey

func (d *partitionKeyDecoder) number(field protowire.Number, v uint64) error {
	if field == 2 {
		d.Partition = int32(v)
	}
	return nil
}

func (d *partitionKeyDecoder) bytes(field protowire.Number, b []byte) error {
	if field == 1 {
		return toTopicID(b, &d.TopicID)
	}
	return nil
}

// fetchPartitionDecoder reads one FetchPartition.
type fetchPartitionDecoder storage.FetchPartition

func (d *fetchPartitionDecoder) number(field protowire.Number, v uint64) error {
	switch field {
	case 2:
		d.Partition = int32(v)
	case 3:
		d.CurrentLeaderEpoch = zigZag32(v)
	case 4:
		d.FetchOffset = int64(v)
	case 5:
		d.LastFetchedEpoch = zigZag32(v)
	case 6:
		d.LogStartOffset = protowire.DecodeZigZag(v)
	case 7:
		d.MaxBytes = int32(v)
	}
	return nil
}

func (d *fetchPartitionDecoder) bytes(field protowire.Number, b []byte) error {
	if field == 1 {
		return toTopicID(b, &d.TopicID)
	}
	return nil
}

// fetchResultFrame is a FetchResultFrame: a part of the answer to one fetch.
type fetchResultFrame struct {
	id         uint64
	last       bool
	err        errcode.Code
	partitions []partitionPart
	// payload is the records of the partitions of a frame on its way out; in one that came in, each part has its own.
	payload mem.BufferSlice
}

// partitionPart is what a frame has of a partition.
type partitionPart struct {
	storage.FetchPartitionResult
	size int32
	more bool
	// regions are where the records are in files that were passed.
	regions []passedRegion
}

var _ transport.Message = (*fetchResultFrame)(nil)

// MarshalBuffers gives the payload away with the frame.
func (f *fetchResultFrame) MarshalBuffers() (mem.BufferSlice, error) {
	header := 40
	for i := range f.partitions {
		header += 124 + 24*len(f.partitions[i].AbortedTransactions)
	}
	b := make([]byte, 0, header)
	b = appendNumber(b, 1, f.id)
	b = appendBool(b, 2, f.last)
	b = appendNumber(b, 3, uint64(f.err))
	for i := range f.partitions {
		b = encodePartitionPart(b, &f.partitions[i])
	}
	if n := f.payload.Len(); n > 0 {
		b = protowire.AppendTag(b, payloadField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(n))
	}
	out := append(make(mem.BufferSlice, 0, 1+len(f.payload)), mem.SliceBuffer(b))
	out = append(out, f.payload...)
	f.payload = nil
	return out, nil
}

func encodePartitionPart(b []byte, p *partitionPart) []byte {
	b, mark := openNested(b, 4)
	b = appendTopicID(b, 1, p.TopicID)
	b = appendNumber(b, 2, uint64(p.Partition))
	b = appendNumber(b, 3, uint64(p.Error))
	b = appendNumber(b, 4, uint64(p.HighWatermark))
	b = appendNumber(b, 5, uint64(p.LastStableOffset))
	b = appendZigZag(b, 6, p.LogStartOffset)
	for _, a := range p.AbortedTransactions {
		var inner int
		b, inner = openNested(b, 7)
		b = appendNumber(b, 1, uint64(a.ProducerID))
		b = appendNumber(b, 2, uint64(a.FirstOffset))
		b = closeNested(b, inner)
	}
	b = appendZigZag(b, 8, int64(p.PreferredReadReplica))
	b = appendZigZag(b, 9, int64(p.Diverging.Epoch))
	b = appendZigZag(b, 10, p.Diverging.EndOffset)
	b = appendZigZag(b, 11, int64(p.Leader.ID))
	b = appendZigZag(b, 12, int64(p.Leader.Epoch))
	b = appendNumber(b, 13, uint64(p.size))
	b = appendBool(b, 14, p.more)
	if p.Tiered {
		b = appendBool(b, 15, true)
		b = appendZigZag(b, 16, int64(p.TieredEpoch))
		b = appendNumber(b, 17, uint64(p.LocalLogStart))
	}
	b = appendNumber(b, 18, uint64(p.RemoteEndOffset))
	for _, r := range p.regions {
		var inner int
		b, inner = openNested(b, 19)
		b = appendNumber(b, 1, uint64(r.file))
		b = appendNumber(b, 2, uint64(r.offset))
		b = appendNumber(b, 3, uint64(r.length))
		b = closeNested(b, inner)
	}
	if p.Tiered {
		b = appendZigZag(b, 20, int64(p.TieredLeaderEpoch))
	}
	return closeNested(b, mark)
}

// UnmarshalBuffers reads a frame. Each part then owns its records, as slices of the frame's buffers.
func (f *fetchResultFrame) UnmarshalBuffers(data mem.BufferSlice) error {
	*f = fetchResultFrame{partitions: f.partitions[:0]}
	payload, err := decodeFrame(data, payloadField, f)
	defer payload.Free()
	if err != nil {
		return err
	}
	return f.share(payload)
}

// share gives each part its records.
func (f *fetchResultFrame) share(payload mem.BufferSlice) error {
	c := cursor{buffers: payload, left: payload.Len()}
	total := 0
	for i := range f.partitions {
		if f.partitions[i].size < 0 {
			return errSizes
		}
		total += int(f.partitions[i].size)
	}
	if total != c.left {
		return errSizes
	}
	for i := range f.partitions {
		if size := int(f.partitions[i].size); size > 0 {
			f.partitions[i].Records.Buffers = c.references(size)
		}
	}
	return nil
}

// release frees what the frame still owns.
func (f *fetchResultFrame) release() {
	f.payload.Free()
	f.payload = nil
	for i := range f.partitions {
		f.partitions[i].Records.Release()
	}
	clear(f.partitions)
}

func (f *fetchResultFrame) number(field protowire.Number, v uint64) error {
	switch field {
	case 1:
		f.id = v
	case 2:
		f.last = protowire.DecodeBool(v)
	case 3:
		f.err = errcode.Code(v)
	}
	return nil
}

func (f *fetchResultFrame) bytes(field protowire.Number, b []byte) error {
	if field != 4 {
		return nil
	}
	f.partitions = append(f.partitions, partitionPart{})
	return decodeNested(b, &f.partitions[len(f.partitions)-1])
}

func (p *partitionPart) number(field protowire.Number, v uint64) error {
	switch field {
	case 2:
		p.Partition = int32(v)
	case 3:
		p.Error = errcode.Code(v)
	case 4:
		p.HighWatermark = int64(v)
	case 5:
		p.LastStableOffset = int64(v)
	case 6:
		p.LogStartOffset = protowire.DecodeZigZag(v)
	case 8:
		p.PreferredReadReplica = zigZag32(v)
	case 9:
		p.Diverging.Epoch = zigZag32(v)
	case 10:
		p.Diverging.EndOffset = protowire.DecodeZigZag(v)
	case 11:
		p.Leader.ID = zigZag32(v)
	case 12:
		p.Leader.Epoch = zigZag32(v)
	case 13:
		p.size = int32(v)
	case 14:
		p.more = protowire.DecodeBool(v)
	case 15:
		p.Tiered = protowire.DecodeBool(v)
	case 16:
		p.TieredEpoch = zigZag32(v)
	case 17:
		p.LocalLogStart = int64(v)
	case 18:
		p.RemoteEndOffset = int64(v)
	case 20:
		p.TieredLeaderEpoch = zigZag32(v)
	}
	return nil
}

func (p *partitionPart) bytes(field protowire.Number, b []byte) error {
	switch field {
	case 1:
		return toTopicID(b, &p.TopicID)
	case 7:
		var a abortedDecoder
		if err := decodeNested(b, &a); err != nil {
			return err
		}
		p.AbortedTransactions = append(p.AbortedTransactions, storage.AbortedTransaction(a))
	case 19:
		var r regionDecoder
		if err := decodeNested(b, &r); err != nil {
			return err
		}
		p.regions = append(p.regions, passedRegion(r))
	}
	return nil
}

// regionDecoder reads one PassedRegion.
type regionDecoder passedRegion

func (d *regionDecoder) number(field protowire.Number, v uint64) error {
	switch field {
	case 1:
		d.file = int32(v)
	case 2:
		d.offset = int64(v)
	case 3:
		d.length = int64(v)
	}
	return nil
}

func (d *regionDecoder) bytes(protowire.Number, []byte) error { return nil }

// abortedDecoder reads one AbortedTransaction.
type abortedDecoder storage.AbortedTransaction

func (d *abortedDecoder) number(field protowire.Number, v uint64) error {
	switch field {
	case 1:
		d.ProducerID = int64(v)
	case 2:
		d.FirstOffset = int64(v)
	}
	return nil
}

func (d *abortedDecoder) bytes(protowire.Number, []byte) error { return nil }
