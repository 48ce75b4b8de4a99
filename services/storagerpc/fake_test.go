package storagerpc

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/storage"
	"chancery/services/transport"
)

// fakeNode is a storage node whose behaviour a test sets.
type fakeNode struct {
	storage.Tier
	onAppend func(*storage.AppendRequest, func(*storage.AppendResult))
	onFetch  func(context.Context, *storage.FetchRequest) (*storage.FetchResult, error)
	onList   func(*storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error)
}

func (n *fakeNode) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	n.onAppend(req, done)
}

func (n *fakeNode) Fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	return n.onFetch(ctx, req)
}

func (n *fakeNode) ListOffsets(_ context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	return n.onList(req)
}

func (n *fakeNode) OffsetForLeaderEpoch(context.Context, *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error) {
	return &storagev1.OffsetForLeaderEpochResponse{}, nil
}

func (n *fakeNode) DeleteRecords(context.Context, *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error) {
	return &storagev1.DeleteRecordsResponse{}, nil
}

func (n *fakeNode) Handle(context.Context, *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	return &storagev1.HandleResponse{}, nil
}

// accept answers an append as a leader that wrote everything at offset 7, and frees the records.
func accept(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	result := &storage.AppendResult{Partitions: make([]storage.PartitionAppendResult, len(req.Partitions))}
	for i := range req.Partitions {
		p := &req.Partitions[i]
		result.Partitions[i] = storage.PartitionAppendResult{TopicID: p.TopicID, Partition: p.Partition,
			BaseOffset: 7, LogAppendTimeMs: -1, Leader: storage.NoLeader}
		p.Records.Free()
	}
	done(result)
}

// fixture is a node behind a server, and a client of it.
type fixture struct {
	client     *Client
	rpcServer  *Server
	grpcServer *transport.Server
	clientPool *transport.Pool
	serverPool *transport.Pool
	address    string
	stopped    sync.Once
}

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// serve starts a node at an address and a client of it; pools count what is lent unless it is a benchmark.
func serve(t testing.TB, address string, node storage.Node) *fixture {
	t.Helper()
	f := &fixture{clientPool: transport.NewDebugPool(), serverPool: transport.NewDebugPool()}
	if _, ok := t.(*testing.B); ok {
		f.clientPool, f.serverPool = transport.NewPool(), transport.NewPool()
	}
	var err error
	f.grpcServer, err = transport.NewServer(address, transport.Options{Pool: f.serverPool}, discard())
	if err != nil {
		t.Fatal(err)
	}
	f.rpcServer = Register(f.grpcServer, node, ServerConfig{Pool: f.serverPool, Logger: discard()})
	if err := f.grpcServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.address = f.grpcServer.Address()
	dialer := transport.NewDialer(transport.Options{Pool: f.clientPool}, nil)
	f.client, err = NewClient(f.address, ClientConfig{Dialer: dialer, Logger: discard()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.client.Close()
		f.stopServer()
	})
	return f
}

func serveTCP(t testing.TB, node storage.Node) *fixture {
	t.Helper()
	return serve(t, "127.0.0.1:0", node)
}

func (f *fixture) stopServer() {
	f.stopped.Do(func() {
		f.rpcServer.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = f.grpcServer.Stop(ctx)
	})
}

// pooled makes records of n bytes, each of the given value, in a buffer of the pool.
func pooled(pool *transport.Pool, n int, value byte) storage.Buffers {
	buffer, b := pool.Buffer(n)
	for i := range b {
		b[i] = value
	}
	return storage.Buffers{buffer}
}

// segment is a file with n bytes.
func segment(t testing.TB, n int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "00000000000000000000.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	return f
}
