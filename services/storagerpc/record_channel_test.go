package storagerpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"testing"

	"google.golang.org/grpc"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/storage"
	"chancery/services/transport"
)

// patternInstance answers with as many bytes as were asked for, in several buffers.
type patternInstance struct {
	tieringInstance
	pool *transport.Pool
}

func pattern(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i * 7 >> 3)
	}
	return out
}

func (i patternInstance) Read(_ context.Context, req *tieringv1.ReadRequest) (*TierRead, error) {
	out := &TierRead{EndOffset: req.GetFetchOffset() + 1, AbortedTransactions: []storage.AbortedTransaction{{ProducerID: 3, FirstOffset: 4}}}
	for data := pattern(int(req.GetMaxBytes())); len(data) > 0; {
		buffer, b := i.pool.Buffer(min(len(data), 700_000))
		data = data[copy(b, data):]
		out.Records.Buffers = append(out.Records.Buffers, buffer)
	}
	return out, nil
}

// Records of an instance on the same machine come over the socket where that pays, and in the answer otherwise.
func TestRecordsComeOverTheSocket(t *testing.T) {
	pool := transport.NewDebugPool()
	var served *TierServer
	conn, stop := dialTier(t, pool, func(r grpc.ServiceRegistrar) func() {
		served = RegisterTiering(r, patternInstance{pool: pool}, t.Name(), discard())
		return served.Close
	})
	beside := &tierConn{Conn: conn, address: t.Name(), pool: pool}
	read := func(n int) {
		t.Helper()
		got, err := ReadTier(t.Context(), beside, &tieringv1.ReadRequest{FetchOffset: 5, MaxBytes: int32(n)})
		if err != nil {
			t.Fatal(err)
		}
		defer got.Records.Release()
		all, err := got.Records.ReadAll()
		if err != nil || !bytes.Equal(all, pattern(n)) || got.EndOffset != 6 || len(got.AbortedTransactions) != 1 {
			t.Errorf("%d bytes of %d, %+v, %v", len(all), n, got, err)
		}
	}
	if beside.channel() == nil {
		stop()
		t.Skip("this system has no such sockets")
	}
	// The instance learns of the channel beside the connection: until then records come in the answer.
	for range 10_000 {
		served.records.mu.Lock()
		known := len(served.records.byToken)
		served.records.mu.Unlock()
		if known > 0 {
			break
		}
		read(minPassedRecords)
	}
	before := beside.records.next
	for _, n := range []int{1, minPassedRecords - 1, minPassedRecords, 1 << 20, 3<<20 + 17} {
		read(n)
	}
	if n := beside.records.next - before; n != 3 || len(beside.records.expected) != 0 {
		t.Errorf("%d numbers were given for three large reads, %d are left", n, len(beside.records.expected))
	}
	got, err := served.Read(t.Context(), &tieringv1.ReadRequest{MaxBytes: 1 << 20, RecordChannel: beside.records.token[:], RecordNumber: 999})
	if err != nil || got.passed != 1<<20 || got.Records.Len() != 0 {
		t.Errorf("%d bytes were passed to a number, %d are in the answer, %v", got.passed, got.Records.Len(), err)
	}
	read(1 << 20) // behind what nobody has claimed
	// Without the channel the same records come in the answer.
	served.records.close()
	for range 3 {
		read(1 << 20)
	}
	stop()
	beside.records.close()
	if n := pool.Outstanding(); n != 0 {
		t.Errorf("%d buffers are lent after the last release", n)
	}
}

// A read that was given up, a channel that ends, and lengths that are none cost no more than that read.
func TestRecordsThatDoNotCome(t *testing.T) {
	record := func(number uint64, n uint64, data []byte) []byte {
		b := binary.BigEndian.AppendUint64(nil, number)
		return append(binary.BigEndian.AppendUint64(b, n), data...)
	}
	data := pattern(100_000)
	for name, tt := range map[string]struct {
		sent []byte
		want bool
	}{
		"as expected":             {record(2, 100_000, data), true},
		"after another's":         {append(record(7, 3, []byte("abc")), record(2, 100_000, data)...), true},
		"twice":                   {append(record(2, 100_000, data), record(2, 100_000, data)...), true},
		"after a given-up read's": {append(record(1, 100_000, data), record(2, 100_000, data)...), true},
		"cut short":               {record(2, 100_000, data[:70_000]), false},
		"fewer":                   {record(2, 70_000, data[:70_000]), false},
		"no length":               {record(2, maxPassedRecords+1, nil), false},
		"nothing":                 {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := transport.NewDebugPool()
			ours, theirs := net.Pipe()
			c := newRecordChannel([channelTokenBytes]byte{}, ours, pool)
			given, number := c.expect(), c.expect()
			c.forget(given)
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.receive()
			}()
			_, _ = theirs.Write(tt.sent) // what the other end no longer wants is not taken
			_ = theirs.Close()
			<-done
			got, err := c.claim(t.Context(), number, int64(len(data)))
			if (err == nil) != tt.want || tt.want && !bytes.Equal(got.Materialize(), data) {
				t.Errorf("%d bytes, %v", got.Len(), err)
			}
			got.Free()
			if _, err := c.claim(t.Context(), number, int64(len(data))); err == nil {
				t.Error("records were claimed twice")
			}
			if n := pool.Outstanding(); n != 0 || c.alive() || c.expect() != 0 {
				t.Errorf("%d buffers are lent after the end, alive: %v", n, c.alive())
			}
		})
	}
}

// A read whose time is over does not wait for its records, which are then nobody's.
func TestRecordsAreGivenUp(t *testing.T) {
	pool := transport.NewDebugPool()
	ours, theirs := net.Pipe()
	c := newRecordChannel([channelTokenBytes]byte{}, ours, pool)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.receive()
	}()
	number := c.expect()
	header := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, number), 4000)
	if _, err := theirs.Write(header); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.claim(ctx, number, 4000); err == nil {
		t.Error("records came before they were sent")
	}
	if _, err := theirs.Write(make([]byte, 4000)); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	<-done
	if n := pool.Outstanding(); n != 0 {
		t.Errorf("%d buffers are lent", n)
	}
}

// A channel may be closed when the last bytes of a read have come and nobody has them yet.
func TestRecordsComeBesideTheEnd(t *testing.T) {
	pool := transport.NewDebugPool()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	c := newRecordChannel([channelTokenBytes]byte{}, ours, pool)
	number := c.expect()
	e := c.expected[number]
	buffer, _ := pool.Buffer(4000)
	c.close()
	c.deliver(number, e, storage.Buffers{buffer})
	if _, err := c.claim(t.Context(), number, 4000); err == nil {
		t.Error("records came after the end")
	}
	if n := pool.Outstanding(); n != 0 {
		t.Errorf("%d buffers are lent", n)
	}
}
