package storagerpc

import (
	"context"
	"log/slog"
	"sync"
	"time"

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
	// passed is how many bytes of records were passed beside the answer.
	passed int64
}

var _ transport.Message = (*TierRead)(nil)

// recordsField is the number of the records in a ReadResponse.
const recordsField = 1

// MarshalBuffers gives the records away, behind the other fields.
func (r *TierRead) MarshalBuffers() (mem.BufferSlice, error) {
	b := appendNumber(make([]byte, 0, 48+24*len(r.AbortedTransactions)), 3, uint64(r.EndOffset))
	b = appendNumber(b, 4, uint64(r.passed))
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
	switch field {
	case 3:
		r.EndOffset = int64(v)
	case 4:
		r.passed = int64(v)
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
	var channel *recordChannel
	if t, ok := conn.(*tierConn); ok && req.GetMaxBytes() >= minPassedRecords {
		channel = t.channel()
	}
	number := channel.expect()
	req.RecordChannel, req.RecordNumber = nil, number
	if number != 0 {
		req.RecordChannel = channel.token[:]
	}
	out := &TierRead{}
	err := conn.Invoke(ctx, tieringv1.Tiering_Read_FullMethodName, req, out)
	switch {
	case err == nil && out.passed == 0:
		channel.forget(number)
	case err == nil && number == 0:
		err = errNoRecords
	case err == nil:
		out.Records.Buffers, err = channel.claim(ctx, number, out.passed)
	default:
		channel.forget(number)
	}
	if err != nil {
		out.Records.Release() // they may have come before the error
		return nil, err
	}
	return out, nil
}

// TierDialer makes the channels to tiering instances: connections with a channel for records beside them, where the instance
// is on this machine.
type TierDialer struct {
	Dialer interface {
		Dial(address string) (transport.Conn, error)
		Pool() *transport.Pool
	}
}

// Dial makes a channel to an address.
func (d TierDialer) Dial(address string) (transport.Conn, error) {
	conn, err := d.Dialer.Dial(address)
	if err != nil {
		return nil, err
	}
	if _, ok := conn.(*transport.Channel); ok {
		return conn, nil
	}
	return &tierConn{Conn: conn, address: address, pool: d.Dialer.Pool()}, nil
}

// tierConn is a connection to a tiering instance.
type tierConn struct {
	transport.Conn
	address string
	pool    *transport.Pool

	mu      sync.Mutex
	closed  bool
	records *recordChannel
	// dialled is when a channel was last looked for.
	dialled time.Time
}

// channelPause is how often a channel for records is looked for, which there is not when the instance is on another machine.
const channelPause = time.Second

// channel gives the channel for records; nil when there is none.
func (c *tierConn) channel() *recordChannel {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records.alive() {
		return c.records
	}
	if c.closed || time.Since(c.dialled) < channelPause {
		return nil
	}
	c.dialled = time.Now()
	opened, err := dialRecords(c.address, c.pool)
	if err != nil {
		return nil // the usual case: the instance is elsewhere
	}
	c.records = opened
	go opened.receive()
	return opened
}

// Close ends the connection and the channel.
func (c *tierConn) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.records != nil {
		c.records.close()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// Tiering is the service of a tiering instance.
type Tiering interface {
	// Read gives the records away.
	Read(ctx context.Context, req *tieringv1.ReadRequest) (*TierRead, error)
	FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error)
}

// TierServer offers a tiering instance to other processes.
type TierServer struct {
	tiering Tiering
	records recordChannels
	stop    context.CancelFunc
}

// RegisterTiering offers a tiering instance. Clients on this machine that know it by the address get records over a unix socket;
// an empty one is for none of that.
func RegisterTiering(r grpc.ServiceRegistrar, t Tiering, address string, logger *slog.Logger) *TierServer {
	s := &TierServer{tiering: t}
	desc := grpc.ServiceDesc{
		ServiceName: tieringv1.Tiering_ServiceDesc.ServiceName, HandlerType: (*Tiering)(nil), Metadata: tieringv1.Tiering_ServiceDesc.Metadata,
		Methods: []grpc.MethodDesc{
			unary("Read", tieringv1.Tiering_Read_FullMethodName, s.Read),
			unary("FindOffset", tieringv1.Tiering_FindOffset_FullMethodName, s.FindOffset),
		},
	}
	r.RegisterService(&desc, s)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	if address != "" {
		if err := s.records.listen(ctx, address); err != nil {
			logger.Info("records go to clients on this machine over the network", "error", err)
		}
	}
	return s
}

// Close ends the channels for records.
func (s *TierServer) Close() {
	s.stop()
	s.records.close()
}

// Read asks the instance, and passes the records beside the answer where the client takes them there.
func (s *TierServer) Read(ctx context.Context, req *tieringv1.ReadRequest) (*TierRead, error) {
	out, err := s.tiering.Read(ctx, req)
	if err != nil || !s.records.pass(req.GetRecordChannel(), req.GetRecordNumber(), out.Records.Buffers) {
		return out, err
	}
	out.passed = int64(out.Records.Len())
	out.Records.Release()
	return out, nil
}

// FindOffset asks the instance.
func (s *TierServer) FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
	return s.tiering.FindOffset(ctx, req)
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
