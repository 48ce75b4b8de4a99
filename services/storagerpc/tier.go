package storagerpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/storage"
	"chancery/services/transport"
)

// TierRead is the answer to a read from the remote tier: the ReadResponse of proto/tiering/v1, with records that are not copied.
// Whoever has received one releases its records.
type TierRead struct {
	// Records are in buffers only.
	Records             storage.Records
	AbortedTransactions []storage.AbortedTransaction
	// EndOffset is the offset after the last record.
	EndOffset int64
}

var _ transport.Message = (*TierRead)(nil)

// recordsField is the number of the records in a ReadResponse.
const recordsField = 1

// MarshalBuffers gives the records away, behind the other fields.
func (r *TierRead) MarshalBuffers() (mem.BufferSlice, error) {
	b := appendNumber(make([]byte, 0, 32+24*len(r.AbortedTransactions)), 3, uint64(r.EndOffset))
	for _, a := range r.AbortedTransactions {
		var mark int
		b, mark = openNested(b, 2)
		b = appendNumber(b, 1, uint64(a.ProducerID))
		b = appendNumber(b, 2, uint64(a.FirstOffset))
		b = closeNested(b, mark)
	}
	records := r.Records.Buffers
	r.Records.Buffers = nil
	if n := records.Len(); n > 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, recordsField, protowire.BytesType), uint64(n))
	}
	return append(mem.BufferSlice{mem.SliceBuffer(b)}, records...), nil
}

// UnmarshalBuffers reads an answer, whose records are then parts of the buffers.
func (r *TierRead) UnmarshalBuffers(data mem.BufferSlice) error {
	r.Records.Release()
	*r = TierRead{}
	payload, err := decodeFrame(data, recordsField, r)
	if err != nil {
		payload.Free()
		return err
	}
	r.Records.Buffers = payload
	return nil
}

func (r *TierRead) number(field protowire.Number, v uint64) error {
	if field == 3 {
		r.EndOffset = int64(v)
	}
	return nil
}

func (r *TierRead) bytes(field protowire.Number, b []byte) error {
	if field != 2 {
		return nil
	}
	var a abortedDecoder
	if err := decodeNested(b, &a); err != nil {
		return err
	}
	r.AbortedTransactions = append(r.AbortedTransactions, storage.AbortedTransaction(a))
	return nil
}

// ReadTier asks the tiering instance at the other end of a connection.
func ReadTier(ctx context.Context, conn transport.Conn, req *tieringv1.ReadRequest) (*TierRead, error) {
	out := &TierRead{}
	if err := conn.Invoke(ctx, tieringv1.Tiering_Read_FullMethodName, req, out); err != nil {
		out.Records.Release() // they may have come before the error
		return nil, err
	}
	return out, nil
}

// Tiering is the service of a tiering instance.
type Tiering interface {
	// Read gives the records away.
	Read(ctx context.Context, req *tieringv1.ReadRequest) (*TierRead, error)
	FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error)
}

// RegisterTiering offers a tiering instance.
func RegisterTiering(r grpc.ServiceRegistrar, s Tiering) {
	desc := grpc.ServiceDesc{
		ServiceName: tieringv1.Tiering_ServiceDesc.ServiceName, HandlerType: (*Tiering)(nil), Metadata: tieringv1.Tiering_ServiceDesc.Metadata,
		Methods: []grpc.MethodDesc{
			unary("Read", tieringv1.Tiering_Read_FullMethodName, s.Read),
			unary("FindOffset", tieringv1.Tiering_FindOffset_FullMethodName, s.FindOffset),
		},
	}
	r.RegisterService(&desc, s)
}

// unary describes a method as generated code does.
func unary[Q, A any](name, fullName string, method func(context.Context, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(s any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := new(Q)
		if err := decode(req); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) { return method(ctx, req.(*Q)) }
		if interceptor == nil {
			return handle(ctx, req)
		}
		return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: s, FullMethod: fullName}, handle)
	}}
}
