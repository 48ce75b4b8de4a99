package storagerpc

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/storage"
	"chancery/services/transport"
)

// copyingInstance answers with the generated message, for comparison.
type copyingInstance struct {
	tieringv1.UnimplementedTieringServer
	records mem.Buffer
}

func (i copyingInstance) Read(context.Context, *tieringv1.ReadRequest) (*tieringv1.ReadResponse, error) {
	return &tieringv1.ReadResponse{Records: mem.BufferSlice{i.records}.Materialize()}, nil
}

// BenchmarkTierRead hands 1 MiB from a tiering instance to a gateway: by reference and as the generated message does, in one process
// and between two ends of a TCP connection, and beside that over a unix socket.
func BenchmarkTierRead(b *testing.B) {
	const size = 1 << 20
	pool := transport.NewPool()
	buffer, _ := pool.Buffer(size)
	byReference := func(r grpc.ServiceRegistrar) func() {
		return RegisterTiering(r, tieringInstance{buffer}, "", discard()).Close
	}
	byCopy := func(r grpc.ServiceRegistrar) func() {
		tieringv1.RegisterTieringServer(r, copyingInstance{records: buffer})
		return func() {}
	}
	readReference := func(b *testing.B, c transport.Conn) int {
		got, err := ReadTier(b.Context(), c, &tieringv1.ReadRequest{MaxBytes: size})
		if err != nil {
			b.Fatal(err)
		}
		defer got.Records.Release()
		return got.Records.Len()
	}
	readCopy := func(b *testing.B, c transport.Conn) int {
		got, err := tieringv1.NewTieringClient(c).Read(b.Context(), &tieringv1.ReadRequest{})
		if err != nil {
			b.Fatal(err)
		}
		records := storage.Records{Buffers: mem.BufferSlice{mem.SliceBuffer(got.GetRecords())}}
		return records.Len()
	}
	for _, how := range []struct {
		name     string
		register func(grpc.ServiceRegistrar) func()
		read     func(*testing.B, transport.Conn) int
	}{{"reference", byReference, readReference}, {"message", byCopy, readCopy}} {
		run := func(name string, c transport.Conn) {
			b.Run(name+"/"+how.name, func(b *testing.B) {
				b.SetBytes(size)
				b.ReportAllocs()
				for range b.N {
					if n := how.read(b, c); n != size {
						b.Fatalf("%d bytes", n)
					}
				}
			})
		}
		channel := transport.NewLocal(pool).Channel("tiering")
		how.register(channel)
		run("one process", channel)
		conn, stop := dialTier(b, pool, how.register)
		run("TCP", conn)
		stop()
	}
	served := func(r grpc.ServiceRegistrar) func() {
		return RegisterTiering(r, tieringInstance{buffer}, "benchmark", discard()).Close
	}
	conn, stop := dialTier(b, pool, served)
	defer stop()
	beside := &tierConn{Conn: conn, address: "benchmark", pool: pool}
	b.Run("unix socket", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for range b.N {
			if n := readReference(b, beside); n != size {
				b.Fatalf("%d bytes", n)
			}
		}
	})
	beside.records.close()
}

// dialTier starts a server on TCP and connects to it.
func dialTier(t testing.TB, pool *transport.Pool, register func(grpc.ServiceRegistrar) func()) (conn transport.Conn, stop func()) {
	t.Helper()
	server, err := transport.NewServer("127.0.0.1:0", transport.Options{Pool: pool}, discard())
	if err != nil {
		t.Fatal(err)
	}
	unregister := register(server)
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err = transport.NewDialer(transport.Options{Pool: pool}, nil).Dial(server.Address())
	if err != nil {
		t.Fatal(err)
	}
	return conn, func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		unregister()
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
}
