package storagerpc

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	storagev1 "chancery/proto/storage/v1"
	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
	"chancery/services/transport"
)

// chopped lays bytes out in buffers of several sizes, so that fields straddle them.
func chopped(t *rapid.T, b []byte) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		n := min(len(b), rapid.SampledFrom([]int{0, 1, 2, 7, 100, 5000, 16384}).Draw(t, "piece"))
		out = append(out, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	return out
}

func drawID(t *rapid.T) uuid.UUID {
	id, _ := uuid.FromBytes(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "topic"))
	return id
}

func drawRecords(t *rapid.T) storage.Buffers {
	if rapid.Bool().Draw(t, "null") {
		return nil
	}
	records := storage.Buffers{}
	for _, b := range rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 3000), 0, 3).Draw(t, "records") {
		records = append(records, mem.SliceBuffer(b))
	}
	return records
}

func drawAppend(t *rapid.T) numberedAppend {
	req := &storage.AppendRequest{
		Acks:            rapid.SampledFrom([]int16{-1, 0, 1, 7}).Draw(t, "acks"),
		TimeoutMs:       rapid.Int32().Draw(t, "timeout"),
		MetadataOffset:  rapid.Int64().Draw(t, "metadata"),
		WriterEpoch:     rapid.Int32().Draw(t, "writer"),
		APIVersion:      rapid.Int16().Draw(t, "version"),
		TransactionalID: rapid.String().Draw(t, "txn"),
		CheckEndOffset:  rapid.Bool().Draw(t, "check"),
	}
	for range rapid.IntRange(0, 5).Draw(t, "partitions") {
		req.Partitions = append(req.Partitions, storage.PartitionAppend{TopicID: drawID(t), Partition: rapid.Int32().Draw(t, "partition"), Records: drawRecords(t), EndOffset: rapid.Int64().Draw(t, "end")})
	}
	return numberedAppend{id: rapid.Uint64().Draw(t, "id"), req: req}
}

func toProtoAppends(appends []numberedAppend) *storagev1.AppendFrame {
	frame := &storagev1.AppendFrame{}
	for _, a := range appends {
		p := &storagev1.Append{Id: a.id, Acks: int32(a.req.Acks), TimeoutMs: a.req.TimeoutMs, MetadataOffset: a.req.MetadataOffset,
			WriterEpoch: a.req.WriterEpoch, ApiVersion: int32(a.req.APIVersion), TransactionalId: a.req.TransactionalID,
			CheckEndOffset: a.req.CheckEndOffset}
		for i := range a.req.Partitions {
			part := &a.req.Partitions[i]
			size := int32(-1)
			if part.Records != nil {
				size = int32(part.Records.Len())
			}
			p.Partitions = append(p.Partitions, &storagev1.AppendPartition{TopicId: bytes.Clone(part.TopicID[:]), Partition: part.Partition, Size: size, EndOffset: part.EndOffset})
			frame.Payload = append(frame.Payload, part.Records.Materialize()...)
		}
		frame.Appends = append(frame.Appends, p)
	}
	return frame
}

func marshal(t *rapid.T, m transport.Message) []byte {
	data, err := m.MarshalBuffers()
	if err != nil {
		t.Fatal(err)
	}
	return data.Materialize()
}

func sameMessage(t *rapid.T, got, want proto.Message) {
	if !proto.Equal(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

func TestAppendFrameIsTheProtobufMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var frame appendFrame
		for range rapid.IntRange(0, 4).Draw(t, "appends") {
			frame.appends = append(frame.appends, drawAppend(t))
		}
		want := toProtoAppends(frame.appends)
		wire := marshal(t, &frame)
		var got storagev1.AppendFrame
		if err := proto.Unmarshal(wire, &got); err != nil {
			t.Fatal(err)
		}
		sameMessage(t, &got, want)

		// Either side's bytes read back alike, wherever the buffers' borders are.
		theirs, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{wire, theirs} {
			var back appendFrame
			if err := back.UnmarshalBuffers(chopped(t, b)); err != nil {
				t.Fatal(err)
			}
			sameMessage(t, toProtoAppends(back.appends), want)
		}
	})
}

func toProtoResults(results []numberedResult) *storagev1.AppendResultFrame {
	frame := &storagev1.AppendResultFrame{}
	for _, r := range results {
		p := &storagev1.AppendResult{Id: r.id}
		for _, part := range r.result.Partitions {
			q := &storagev1.AppendPartitionResult{TopicId: bytes.Clone(part.TopicID[:]), Partition: part.Partition, ErrorCode: int32(part.Error),
				ErrorMessage: part.ErrorMessage, BaseOffset: part.BaseOffset, LogAppendTimeMs: part.LogAppendTimeMs, LogStartOffset: part.LogStartOffset,
				LeaderId: part.Leader.ID, LeaderEpoch: part.Leader.Epoch, OutcomeUnknown: part.OutcomeUnknown}
			for _, e := range part.RecordErrors {
				q.RecordErrors = append(q.RecordErrors, &storagev1.RecordError{BatchIndex: e.BatchIndex, Message: e.Message})
			}
			p.Partitions = append(p.Partitions, q)
		}
		frame.Results = append(frame.Results, p)
	}
	return frame
}

func TestAppendResultFrameIsTheProtobufMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var frame appendResultFrame
		for range rapid.IntRange(0, 4).Draw(t, "results") {
			result := &storage.AppendResult{}
			for range rapid.IntRange(0, 4).Draw(t, "partitions") {
				p := storage.PartitionAppendResult{TopicID: drawID(t), Partition: rapid.Int32().Draw(t, "partition"),
					Error: errcode.Code(rapid.Int16().Draw(t, "error")), ErrorMessage: rapid.String().Draw(t, "message"),
					BaseOffset: rapid.Int64().Draw(t, "base"), LogAppendTimeMs: rapid.Int64().Draw(t, "time"),
					LogStartOffset: rapid.Int64().Draw(t, "start"), OutcomeUnknown: rapid.Bool().Draw(t, "unknown"),
					Leader: storage.CurrentLeader{ID: rapid.Int32().Draw(t, "leader"), Epoch: rapid.Int32().Draw(t, "epoch")}}
				for range rapid.IntRange(0, 2).Draw(t, "record errors") {
					p.RecordErrors = append(p.RecordErrors, storage.RecordError{BatchIndex: rapid.Int32().Draw(t, "index"), Message: rapid.String().Draw(t, "message")})
				}
				result.Partitions = append(result.Partitions, p)
			}
			frame.results = append(frame.results, numberedResult{id: rapid.Uint64().Draw(t, "id"), result: result})
		}
		want := toProtoResults(frame.results)
		wire := marshal(t, &frame)
		var got storagev1.AppendResultFrame
		if err := proto.Unmarshal(wire, &got); err != nil {
			t.Fatal(err)
		}
		sameMessage(t, &got, want)
		var back appendResultFrame
		if err := back.UnmarshalBuffers(chopped(t, wire)); err != nil {
			t.Fatal(err)
		}
		sameMessage(t, toProtoResults(back.results), want)
	})
}

func toProtoFetch(f *fetchFrame) *storagev1.FetchFrame {
	r := f.req
	frame := &storagev1.FetchFrame{Id: f.id, Cancel: f.cancel, ReplicaId: r.ReplicaID, ReplicaEpoch: r.ReplicaEpoch, MaxWaitMs: r.MaxWaitMs,
		MinBytes: r.MinBytes, MaxBytes: r.MaxBytes, Isolation: int32(r.Isolation), RackId: r.RackID, MetadataOffset: r.MetadataOffset}
	for _, p := range r.Partitions {
		frame.Partitions = append(frame.Partitions, &storagev1.FetchPartition{TopicId: bytes.Clone(p.TopicID[:]), Partition: p.Partition,
			CurrentLeaderEpoch: p.CurrentLeaderEpoch, FetchOffset: p.FetchOffset, LastFetchedEpoch: p.LastFetchedEpoch,
			LogStartOffset: p.LogStartOffset, MaxBytes: p.MaxBytes})
	}
	if f.files.number != 0 {
		frame.FileChannel, frame.FileNumber = bytes.Clone(f.files.token[:]), f.files.number
	}
	if x := r.Session; x != nil {
		frame.SessionId, frame.SessionEpoch = x.ID, x.Epoch
		for _, k := range x.Forgotten {
			frame.Forgotten = append(frame.Forgotten, &storagev1.PartitionKey{TopicId: bytes.Clone(k.TopicID[:]), Partition: k.Partition})
		}
	}
	return frame
}

func TestFetchFrameIsTheProtobufMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := fetchFrame{id: rapid.Uint64().Draw(t, "id"), cancel: rapid.Bool().Draw(t, "cancel"), req: &storage.FetchRequest{
			ReplicaID: rapid.Int32().Draw(t, "replica"), ReplicaEpoch: rapid.Int64().Draw(t, "epoch"), MaxWaitMs: rapid.Int32().Draw(t, "wait"),
			MinBytes: rapid.Int32().Draw(t, "min"), MaxBytes: rapid.Int32().Draw(t, "max"), Isolation: rapid.Int8().Draw(t, "isolation"),
			RackID: rapid.String().Draw(t, "rack"), MetadataOffset: rapid.Int64().Draw(t, "metadata")}}
		for range rapid.IntRange(0, 5).Draw(t, "partitions") {
			frame.req.Partitions = append(frame.req.Partitions, storage.FetchPartition{TopicID: drawID(t), Partition: rapid.Int32().Draw(t, "partition"),
				CurrentLeaderEpoch: rapid.Int32().Draw(t, "leader epoch"), FetchOffset: rapid.Int64().Draw(t, "offset"),
				LastFetchedEpoch: rapid.Int32().Draw(t, "fetched epoch"), LogStartOffset: rapid.Int64().Draw(t, "start"), MaxBytes: rapid.Int32().Draw(t, "bytes")})
		}
		if rapid.Bool().Draw(t, "with a channel") {
			frame.files = fileTarget{[channelTokenBytes]byte(drawID(t)), max(1, rapid.Uint64().Draw(t, "number"))}
		}
		if rapid.Bool().Draw(t, "in a session") {
			x := &storage.FetchSession{ID: max(1, rapid.Uint64().Draw(t, "session")), Epoch: rapid.Int32().Draw(t, "session epoch")}
			for range rapid.IntRange(0, 3).Draw(t, "forgotten") {
				x.Forgotten = append(x.Forgotten, storage.PartitionKey{TopicID: drawID(t), Partition: rapid.Int32().Draw(t, "forgotten partition")})
			}
			frame.req.Session = x
		}
		wire := marshal(t, &frame)
		var got storagev1.FetchFrame
		if err := proto.Unmarshal(wire, &got); err != nil {
			t.Fatal(err)
		}
		sameMessage(t, &got, toProtoFetch(&frame))
		var back fetchFrame
		if err := back.UnmarshalBuffers(chopped(t, wire)); err != nil {
			t.Fatal(err)
		}
		sameMessage(t, toProtoFetch(&back), &got)
	})
}

// toProtoFetchResult takes the payload from the frame or, of one that was read, from its parts.
func toProtoFetchResult(f *fetchResultFrame) *storagev1.FetchResultFrame {
	frame := &storagev1.FetchResultFrame{Id: f.id, Last: f.last, ErrorCode: int32(f.err), Payload: f.payload.Materialize()}
	for i := range f.partitions {
		p := &f.partitions[i]
		q := &storagev1.FetchPartitionResult{TopicId: bytes.Clone(p.TopicID[:]), Partition: p.Partition, ErrorCode: int32(p.Error),
			HighWatermark: p.HighWatermark, LastStableOffset: p.LastStableOffset, LogStartOffset: p.LogStartOffset,
			PreferredReadReplica: p.PreferredReadReplica, DivergingEpoch: p.Diverging.Epoch, DivergingEndOffset: p.Diverging.EndOffset,
			LeaderId: p.Leader.ID, LeaderEpoch: p.Leader.Epoch, Size: p.size, More: p.more}
		for _, a := range p.AbortedTransactions {
			q.AbortedTransactions = append(q.AbortedTransactions, &storagev1.AbortedTransaction{ProducerId: a.ProducerID, FirstOffset: a.FirstOffset})
		}
		for _, x := range p.regions {
			q.Regions = append(q.Regions, &storagev1.PassedRegion{File: x.file, Offset: x.offset, Length: x.length})
		}
		frame.Partitions = append(frame.Partitions, q)
		frame.Payload = append(frame.Payload, p.Records.Buffers.Materialize()...)
	}
	return frame
}

func TestFetchResultFrameIsTheProtobufMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := fetchResultFrame{id: rapid.Uint64().Draw(t, "id"), last: rapid.Bool().Draw(t, "last"), err: errcode.Code(rapid.Int16().Draw(t, "error"))}
		for range rapid.IntRange(0, 5).Draw(t, "partitions") {
			records := drawRecords(t)
			frame.payload = append(frame.payload, records...)
			p := partitionPart{size: int32(records.Len()), more: rapid.Bool().Draw(t, "more"), FetchPartitionResult: storage.FetchPartitionResult{
				TopicID: drawID(t), Partition: rapid.Int32().Draw(t, "partition"), Error: errcode.Code(rapid.Int16().Draw(t, "error")),
				HighWatermark: rapid.Int64().Draw(t, "hw"), LastStableOffset: rapid.Int64().Draw(t, "lso"), LogStartOffset: rapid.Int64().Draw(t, "start"),
				PreferredReadReplica: rapid.Int32().Draw(t, "preferred"), Diverging: storage.EpochEndOffset{Epoch: rapid.Int32().Draw(t, "epoch"), EndOffset: rapid.Int64().Draw(t, "end")},
				Leader: storage.CurrentLeader{ID: rapid.Int32().Draw(t, "leader"), Epoch: rapid.Int32().Draw(t, "leader epoch")}}}
			for range rapid.IntRange(0, 2).Draw(t, "aborted") {
				p.AbortedTransactions = append(p.AbortedTransactions, storage.AbortedTransaction{ProducerID: rapid.Int64().Draw(t, "producer"), FirstOffset: rapid.Int64().Draw(t, "first")})
			}
			for range rapid.IntRange(0, 2).Draw(t, "regions") {
				p.regions = append(p.regions, passedRegion{rapid.Int32().Draw(t, "file"), rapid.Int64().Draw(t, "offset"), rapid.Int64().Draw(t, "length")})
			}
			frame.partitions = append(frame.partitions, p)
		}
		want := toProtoFetchResult(&frame)
		wire := marshal(t, &frame)
		var got storagev1.FetchResultFrame
		if err := proto.Unmarshal(wire, &got); err != nil {
			t.Fatal(err)
		}
		sameMessage(t, &got, want)
		var back fetchResultFrame
		if err := back.UnmarshalBuffers(chopped(t, wire)); err != nil {
			t.Fatal(err)
		}
		sameMessage(t, toProtoFetchResult(&back), want)
	})
}

// agrees says how our reading of some bytes must compare with that of the generated type: what theirs refuses ours
// refuses; what ours takes is the same message. Ours refuses more: ids of other lengths, and sizes that do not add up.
func agrees(t *testing.T, data []byte, ours error, theirs error, same func() bool) {
	t.Helper()
	if theirs != nil && ours == nil {
		t.Errorf("%x was taken, but is no such message: %v", data, theirs)
	}
	if theirs == nil && ours == nil && !same() {
		t.Errorf("%x was misread", data)
	}
}

func inTwo(data []byte) mem.BufferSlice {
	half := len(data) / 2
	return mem.BufferSlice{mem.SliceBuffer(data[:half]), mem.SliceBuffer(data[half:])}
}

func FuzzAppendFrame(f *testing.F) {
	seed, _ := proto.Marshal(&storagev1.AppendFrame{Payload: []byte("abc"), Appends: []*storagev1.Append{{Id: 300, Acks: -1,
		Partitions: []*storagev1.AppendPartition{{TopicId: make([]byte, 16), Partition: 1, Size: 3}}}}})
	f.Add(seed)
	f.Add([]byte("\x7a\x03abc\x7a\x01x\x0b\x0c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours appendFrame
		var theirs storagev1.AppendFrame
		oursErr, theirsErr := ours.UnmarshalBuffers(inTwo(data)), proto.Unmarshal(data, &theirs)
		agrees(t, data, oursErr, theirsErr, func() bool {
			if len(ours.appends) != len(theirs.GetAppends()) {
				return false
			}
			var payload []byte
			for i, a := range ours.appends {
				b := theirs.GetAppends()[i]
				if a.id != b.GetId() || a.req.TransactionalID != b.GetTransactionalId() || a.req.TimeoutMs != b.GetTimeoutMs() || len(a.req.Partitions) != len(b.GetPartitions()) {
					return false
				}
				for j := range a.req.Partitions {
					payload = append(payload, a.req.Partitions[j].Records.Materialize()...)
				}
			}
			return bytes.Equal(payload, theirs.GetPayload())
		})
	})
}

func FuzzAppendResultFrame(f *testing.F) {
	seed, _ := proto.Marshal(&storagev1.AppendResultFrame{Results: []*storagev1.AppendResult{{Id: 1,
		Partitions: []*storagev1.AppendPartitionResult{{TopicId: make([]byte, 16), ErrorCode: -1, BaseOffset: -1}}}}})
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours appendResultFrame
		var theirs storagev1.AppendResultFrame
		oursErr, theirsErr := ours.UnmarshalBuffers(inTwo(data)), proto.Unmarshal(data, &theirs)
		agrees(t, data, oursErr, theirsErr, func() bool {
			for i, r := range ours.results {
				if r.id != theirs.GetResults()[i].GetId() || len(r.result.Partitions) != len(theirs.GetResults()[i].GetPartitions()) {
					return false
				}
				for j, p := range r.result.Partitions {
					q := theirs.GetResults()[i].GetPartitions()[j]
					if p.BaseOffset != q.GetBaseOffset() || p.Leader.ID != q.GetLeaderId() || p.ErrorMessage != q.GetErrorMessage() {
						return false
					}
				}
			}
			return true
		})
	})
}

func FuzzFetchFrame(f *testing.F) {
	seed, _ := proto.Marshal(&storagev1.FetchFrame{Id: 1, RackId: "r", Partitions: []*storagev1.FetchPartition{{TopicId: make([]byte, 16), FetchOffset: 5}}})
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours fetchFrame
		var theirs storagev1.FetchFrame
		oursErr, theirsErr := ours.UnmarshalBuffers(inTwo(data)), proto.Unmarshal(data, &theirs)
		agrees(t, data, oursErr, theirsErr, func() bool {
			return ours.id == theirs.GetId() && ours.cancel == theirs.GetCancel() && ours.req.RackID == theirs.GetRackId() &&
				ours.req.ReplicaEpoch == theirs.GetReplicaEpoch() && len(ours.req.Partitions) == len(theirs.GetPartitions())
		})
	})
}

func FuzzFetchResultFrame(f *testing.F) {
	seed, _ := proto.Marshal(&storagev1.FetchResultFrame{Id: 1, Last: true, Payload: []byte("abc"), Partitions: []*storagev1.FetchPartitionResult{
		{TopicId: make([]byte, 16), Size: 3, AbortedTransactions: []*storagev1.AbortedTransaction{{ProducerId: 1}}}}})
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours fetchResultFrame
		var theirs storagev1.FetchResultFrame
		oursErr, theirsErr := ours.UnmarshalBuffers(inTwo(data)), proto.Unmarshal(data, &theirs)
		agrees(t, data, oursErr, theirsErr, func() bool {
			return ours.id == theirs.GetId() && ours.last == theirs.GetLast() && len(ours.partitions) == len(theirs.GetPartitions())
		})
	})
}

func FuzzTierRead(f *testing.F) {
	seed, _ := proto.Marshal(&tieringv1.ReadResponse{Records: []byte("abc"), EndOffset: 7, AbortedTransactions: []*tieringv1.AbortedTransaction{{ProducerId: 1, FirstOffset: 2}}})
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours TierRead
		var theirs tieringv1.ReadResponse
		oursErr, theirsErr := ours.UnmarshalBuffers(inTwo(data)), proto.Unmarshal(data, &theirs)
		agrees(t, data, oursErr, theirsErr, func() bool {
			for i, a := range theirs.GetAbortedTransactions() {
				if ours.AbortedTransactions[i] != (storage.AbortedTransaction{ProducerID: a.GetProducerId(), FirstOffset: a.GetFirstOffset()}) {
					return false
				}
			}
			return bytes.Equal(ours.Records.Buffers.Materialize(), theirs.GetRecords()) && ours.EndOffset == theirs.GetEndOffset() &&
				len(ours.AbortedTransactions) == len(theirs.GetAbortedTransactions())
		})
	})
}

// tieringInstance answers every read with the same buffer.
type tieringInstance struct{ records mem.Buffer }

func (i tieringInstance) Read(_ context.Context, req *tieringv1.ReadRequest) (*TierRead, error) {
	i.records.Ref()
	return &TierRead{
		Records: storage.Records{Buffers: mem.BufferSlice{i.records}}, EndOffset: req.GetFetchOffset() + 1,
		AbortedTransactions: []storage.AbortedTransaction{{ProducerID: 3, FirstOffset: 4}},
	}, nil
}

func (i tieringInstance) FindOffset(_ context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
	return &tieringv1.FindOffsetResponse{Found: true, Offset: req.GetTimestampMs()}, nil
}

// In one process the records of a read are the very buffer that the instance has given.
func TestTierReadIsNotCopied(t *testing.T) {
	pool := transport.NewDebugPool()
	buffer, data := pool.Buffer(1 << 20)
	copy(data, "records")
	local := transport.NewLocal(pool)
	channel := local.Channel("tiering")
	defer RegisterTiering(channel, tieringInstance{buffer}, "", discard()).Close()
	got, err := ReadTier(t.Context(), channel, &tieringv1.ReadRequest{FetchOffset: 5})
	if err != nil {
		t.Fatal(err)
	}
	if b := got.Records.Buffers; len(b) != 1 || &b[0].ReadOnlyData()[0] != &data[0] || b.Len() != 1<<20 || got.EndOffset != 6 || len(got.AbortedTransactions) != 1 {
		t.Errorf("%d buffers of %d bytes, %+v", len(b), b.Len(), got)
	}
	found, err := tieringv1.NewTieringClient(channel).FindOffset(t.Context(), &tieringv1.FindOffsetRequest{TimestampMs: 9})
	if err != nil || found.GetOffset() != 9 {
		t.Errorf("%v %v", found, err)
	}
	got.Records.Release()
	buffer.Free()
	if n := pool.Outstanding(); n != 0 {
		t.Errorf("%d buffers are lent after the last release", n)
	}
}
