package storagerpc

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/transport"
)

// defaultAppendBudget bounds the record batches that wait in a node to be written or acknowledged.
const defaultAppendBudget = 256 << 20

// ServerConfig is how a node is served.
type ServerConfig struct {
	// Pool is where the buffers that files are read into come from.
	Pool *transport.Pool
	// AppendBudget bounds the bytes of unanswered appends of all clients; nil means one of 256 MiB. Followers' fetches, on
	// which appends wait, take nothing from it.
	AppendBudget *transport.Budget
	// Address is the one under which clients reach the node. Those on the same machine then get records as open files; empty
	// for none of that.
	Address string
	Logger  *slog.Logger
}

// Server offers a node to other processes.
type Server struct {
	storagev1.UnimplementedStorageServer
	node   storage.Node
	pool   *transport.Pool
	budget *transport.Budget
	logger *slog.Logger
	files  fileChannels

	closing   chan struct{}
	once      sync.Once
	stopFiles context.CancelFunc
}

// Register offers a node on a gRPC server.
func Register(r grpc.ServiceRegistrar, node storage.Node, config ServerConfig) *Server {
	if config.AppendBudget == nil {
		config.AppendBudget = transport.NewBudget(defaultAppendBudget)
	}
	s := &Server{
		node:    node,
		pool:    config.Pool,
		budget:  config.AppendBudget,
		logger:  config.Logger,
		closing: make(chan struct{}),
	}
	storagev1.RegisterStorageServer(r, s)
	if config.Address != "" {
		ctx, stop := context.WithCancel(context.Background())
		s.stopFiles = stop
		if err := s.files.listenFiles(ctx, config.Address); err != nil {
			s.logger.Info("records go to clients on this machine over the network", "error", err)
		}
	}
	return s
}

// Close ends the streams once what they have taken is answered, so that the gRPC server can stop. The node goes on
// answering until then.
func (s *Server) Close() {
	s.once.Do(func() {
		close(s.closing)
		if s.stopFiles != nil {
			s.stopFiles()
		}
		s.files.close()
	})
}

// ListOffsets asks the node.
func (s *Server) ListOffsets(ctx context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	return s.node.ListOffsets(ctx, req)
}

// OffsetForLeaderEpoch asks the node.
func (s *Server) OffsetForLeaderEpoch(ctx context.Context, req *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error) {
	return s.node.OffsetForLeaderEpoch(ctx, req)
}

// DeleteRecords asks the node.
func (s *Server) DeleteRecords(ctx context.Context, req *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error) {
	return s.node.DeleteRecords(ctx, req)
}

// Handle asks the node.
func (s *Server) Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	return s.node.Handle(ctx, req)
}

// DescribeTier asks the node.
func (s *Server) DescribeTier(ctx context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error) {
	return s.node.DescribeTier(ctx, req)
}

// UpdateTier asks the node.
func (s *Server) UpdateTier(ctx context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	return s.node.UpdateTier(ctx, req)
}

// DescribeSegment asks the node.
func (s *Server) DescribeSegment(ctx context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error) {
	return s.node.DescribeSegment(ctx, req)
}

// ReadSegment asks the node.
func (s *Server) ReadSegment(ctx context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	return s.node.ReadSegment(ctx, req)
}

// errClosing is what a client sees when the node stops.
var errClosing = errcode.NetworkException.Wrap(errors.New("storage node is stopping"))

// Append serves one stream of appends.
func (s *Server) Append(stream grpc.BidiStreamingServer[storagev1.AppendFrame, storagev1.AppendResultFrame]) error {
	results := newResultQueue()
	received := make(chan error, 1)
	go func() { received <- s.receiveAppends(stream, results) }()
	sent := make(chan error, 1)
	go func() { sent <- results.send(stream) }()
	var err error
	select {
	case err = <-received:
	case <-s.closing:
		err = errClosing
	case <-stream.Context().Done():
		err = stream.Context().Err()
	}
	results.finish()
	return errors.Join(err, <-sent)
}

// receiveAppends gives the node the appends of a stream, in order, until the client closes it.
func (s *Server) receiveAppends(stream grpc.ServerStream, results *resultQueue) error {
	var frame appendFrame
	for {
		if err := stream.RecvMsg(&frame); err != nil {
			return endOfStream(err)
		}
		for i, a := range frame.appends {
			taken, err := s.budget.Acquire(stream.Context(), int64(recordBytes(a.req)))
			if err != nil || !results.expect() {
				if err == nil {
					s.budget.Release(taken)
				}
				for _, rest := range frame.appends[i:] {
					releaseRecords(rest.req)
				}
				return errors.Join(err, stream.Context().Err())
			}
			s.node.Append(a.req, func(r *storage.AppendResult) {
				s.budget.Release(taken)
				results.put(numberedResult{id: a.id, result: r})
			})
		}
		frame.drop()
	}
}
