package gateway_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/fake"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// header is the beginning of a frame without its length: key, version, correlation id, client id.
func header(key, version int16) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint16(b, 4)
	return append(b, "test"...)
}

func withLength(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func size(n int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

func TestBrokenFramesCloseTheConnection(t *testing.T) {
	g := serve(t, fake.NewCluster(1), nil)
	for name, b := range map[string][]byte{
		"size 0":                size(0),
		"size -1":               size(-1),
		"size of the least":     size(-1 << 31),
		"size 7":                append(size(7), 0, 3, 0, 0, 0, 0, 0),
		"larger than allowed":   size(100<<20 + 1),
		"HTTP":                  []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":                   {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3},
		"unknown API":           withLength(header(1000, 0)),
		"negative API":          withLength(header(-1, 0)),
		"controller API":        withLength(header(62, 0)),
		"Produce version 0":     withLength(header(0, 0)),
		"Fetch version 19":      withLength(header(1, 19)),
		"Metadata version -1":   withLength(header(3, -1)),
		"array of 2147483647":   withLength(append(header(3, 1), 0x7f, 0xff, 0xff, 0xff)),
		"array of 100 million":  withLength(append(header(3, 9), 0, 0x80, 0x84, 0xaf, 0x5f, 0)),
		"null array in v0":      withLength(append(header(3, 0), 0xff, 0xff, 0xff, 0xff)),
		"string of 32767":       withLength(append(header(3, 1), 0, 0, 0, 1, 0x7f, 0xff, 'a')),
		"null topic":            withLength(append(header(3, 1), 0, 0, 0, 1, 0xff, 0xff)),
		"endless varint":        withLength(append(header(3, 9), 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)),
		"client id cut":         withLength([]byte{0, 3, 0, 1, 0, 0, 0, 1, 0, 9, 'x'}),
		"Fetch of many topics":  withLength(append(header(1, 4), make([]byte, 17)...)),
		"Produce of too many":   withLength(append(header(0, 3), 0xff, 0xff, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff)),
		"Produce, records long": withLength(append(header(0, 3), 0xff, 0xff, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 'a', 0, 0, 0, 1, 0, 0, 0, 0, 0x7f, 0, 0, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, g)
			c.write(b)
			c.closed()
		})
	}
	for name, b := range map[string][]byte{"half a size": {0, 0}, "a size alone": size(1000), "largest size alone": size(100 << 20)} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, g)
			c.write(b)
			c.silent()
		})
	}
	if got := ask[*kmsg.MetadataResponse](dial(t, g), metadataOf(12)); len(got.Brokers) != 1 {
		t.Errorf("brokers: %v", got.Brokers)
	}
}

func TestStrangeButLegalFrames(t *testing.T) {
	g := serve(t, fake.NewCluster(1), nil)
	t.Run("byte by byte", func(t *testing.T) {
		c := dial(t, g)
		req := metadataOf(12)
		for _, b := range c.frame(req) {
			c.write([]byte{b})
		}
		c.sent, c.ids = append(c.sent, req), append(c.ids, c.next)
		c.recv()
	})
	t.Run("trailing bytes", func(t *testing.T) {
		c := dial(t, g)
		for _, v := range []int16{1, 12} {
			req := metadataOf(v, "a")
			b := append(c.frame(req), 1, 2, 3)
			binary.BigEndian.PutUint32(b, uint32(len(b)-4))
			c.write(b)
			c.sent, c.ids = append(c.sent, req), append(c.ids, c.next)
			c.recv()
		}
	})
	t.Run("array of -2", func(t *testing.T) {
		c := dial(t, g)
		c.write(withLength(append(header(3, 1), 0xff, 0xff, 0xff, 0xfe)))
		if _, err := c.readFrame(limit); err != nil {
			t.Error(err)
		}
	})
	t.Run("client ids", func(t *testing.T) {
		c := dial(t, g)
		for _, f := range []*kmsg.RequestFormatter{
			kmsg.NewRequestFormatter(), kmsg.NewRequestFormatter(kmsg.FormatterClientID("")), kmsg.NewRequestFormatter(kmsg.FormatterClientID(string(make([]byte, 30000)))),
		} {
			c.fmt = f
			ask[*kmsg.MetadataResponse](c, metadataOf(1))
			ask[*kmsg.MetadataResponse](c, metadataOf(12))
		}
	})
}

func TestApiVersionsOfTheFuture(t *testing.T) {
	g := serve(t, fake.NewCluster(1), nil)
	for _, v := range []int16{6, 100, 32767, -1} {
		c := dial(t, g)
		b := c.frame(func() kmsg.Request { r := kmsg.NewPtrApiVersionsRequest(); r.Version = 3; return r }())
		binary.BigEndian.PutUint16(b[6:], uint16(v))
		c.write(b)
		got, err := c.readFrame(limit)
		if err != nil {
			t.Fatal(err)
		}
		resp := kmsg.NewPtrApiVersionsResponse()
		if err := resp.ReadFrom(got[4:]); err != nil || resp.ErrorCode != int16(errcode.UnsupportedVersion) || len(resp.ApiKeys) != 1 || resp.ApiKeys[0].MaxVersion != 5 {
			t.Errorf("version %d: %v, %+v", v, err, resp)
		}
		ask[*kmsg.MetadataResponse](c, metadataOf(12))
	}
}

func TestAnswersLeaveInOrder(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	k := dial(t, serve(t, c, nil))
	wait := fetch(12, "a", from(0, 0))
	wait.MaxWaitMillis = 200
	k.send(wait, metadataOf(12, "a"), metadataOf(1))
	k.silent()
	if got := k.recv().(*kmsg.FetchResponse); len(got.Topics) != 1 {
		t.Errorf("fetch: %+v", got)
	}
	k.recv()
	k.recv()
}

func TestTheLastAnswersLeaveBeforeABadRequestCloses(t *testing.T) {
	k := dial(t, serve(t, fake.NewCluster(1), nil))
	k.send(metadataOf(12))
	k.write(withLength(header(1000, 0)))
	k.recv()
	k.closed()
}

// hold keeps the results of a node's appends until they are let go, in any order.
type hold struct {
	mu      sync.Mutex
	arrived chan struct{}
	held    []func()
}

func holdAppends(n *fake.Node) *hold {
	h := &hold{arrived: make(chan struct{}, 1000)}
	n.Hold = func(finish func()) {
		h.mu.Lock()
		h.held = append(h.held, finish)
		h.mu.Unlock()
		h.arrived <- struct{}{}
	}
	return h
}

// await waits until n appends have come.
func (h *hold) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-h.arrived:
		case <-time.After(limit):
			t.Fatal("an append has not come")
		}
	}
}

func (h *hold) finish(i int) {
	h.mu.Lock()
	f := h.held[i]
	h.mu.Unlock()
	f()
}

func TestProducesRunBesideEachOther(t *testing.T) {
	c := fake.NewCluster(1)
	id := c.AddTopic("a", 1)
	h := holdAppends(c.Node(1))
	k := dial(t, serve(t, c, nil))
	k.send(produce(9, "a", 0, batchOf(t, 1, 10, -1)), produce(9, "a", 0, batchOf(t, 2, 10, -1)), produce(9, "a", 0, batchOf(t, 3, 10, -1)), metadataOf(12))
	// All three are on their way though none is done; the metadata request waits.
	h.await(t, 3)
	h.finish(2)
	h.finish(1)
	k.silent()
	h.finish(0)
	for i, want := range []int64{0, 1, 3} {
		if got := k.recv().(*kmsg.ProduceResponse).Topics[0].Partitions[0].BaseOffset; got != want {
			t.Errorf("answer %d has base offset %d, want %d", i, got, want)
		}
	}
	k.recv()
	if end := c.Node(1).End(id, 0); end != 6 {
		t.Errorf("end %d", end)
	}
}

func TestAcksZero(t *testing.T) {
	c := fake.NewCluster(1)
	id := c.AddTopic("a", 1)
	g := serve(t, c, nil)
	k := dial(t, g)
	req := produce(9, "a", 0, batchOf(t, 2, 10, -1))
	req.Acks = 0
	k.write(k.frame(req))
	k.write(k.frame(req))
	ask[*kmsg.MetadataResponse](k, metadataOf(12))
	if end := c.Node(1).End(id, 0); end != 4 {
		t.Errorf("end %d", end)
	}
	bad := produce(9, "a", 7, batchOf(t, 2, 10, -1))
	bad.Acks = 0
	k.write(k.frame(bad))
	k.closed()
}

func TestWholeRequestsAreCarriedOutAfterTheClientHasGone(t *testing.T) {
	c := fake.NewCluster(1)
	id := c.AddTopic("a", 1)
	k := dial(t, serve(t, c, nil))
	b := k.frame(produce(9, "a", 0, batchOf(t, 2, 10, -1)))
	k.write(append(b, b[:len(b)-5]...))
	_ = k.nc.Close()
	deadline, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	node := c.Node(1)
	for node.End(id, 0) != 2 {
		req := &storage.FetchRequest{MaxWaitMs: 100, MinBytes: 1, MaxBytes: 1 << 20, Partitions: []storage.FetchPartition{{TopicID: id, MaxBytes: 1 << 20}}}
		if _, err := node.Fetch(deadline, req); err != nil || deadline.Err() != nil {
			t.Fatal("the whole request was not carried out")
		}
	}
}

func TestIdleConnectionsAreClosedAlsoUnderALongPoll(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	g := serve(t, c, map[string]string{"connections.max.idle.ms": "200"})
	idle, waiting := dial(t, g), dial(t, g)
	poll := fetch(12, "a", from(0, 0))
	poll.MaxWaitMillis = 60000
	waiting.send(poll)
	idle.closed()
	waiting.closed()
}

func TestOldConnectionsAreClosedBetweenRequests(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	h := holdAppends(c.Node(1))
	now := newClock()
	k := dial(t, serveAt(t, now.now, c, map[string]string{"connection.max.age.ms": "100"}))
	k.send(produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	h.await(t, 1)
	now.advance(time.Second)
	k.silent()
	k.silent()
	h.finish(0)
	k.recv()
	k.closed()
}

func TestConnectionsPerAddress(t *testing.T) {
	g := serve(t, fake.NewCluster(1), map[string]string{"max.connections.per.ip": "2"})
	a, b := dial(t, g), dial(t, g)
	ask[*kmsg.MetadataResponse](a, metadataOf(1))
	ask[*kmsg.MetadataResponse](b, metadataOf(1))
	dial(t, g).closed()
	_ = a.nc.Close()
	// The place is free once the gateway has seen the end of the connection.
	for end := time.Now().Add(limit); ; {
		k := dial(t, g)
		k.write(k.frame(metadataOf(1)))
		if _, err := k.readFrame(limit); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the place of a closed connection is not given to another")
		}
	}
}

func TestConnectionsAltogether(t *testing.T) {
	g := serve(t, fake.NewCluster(1), map[string]string{"max.connections": "1"})
	a := dial(t, g)
	ask[*kmsg.MetadataResponse](a, metadataOf(1))
	b := dial(t, g)
	b.send(metadataOf(1))
	b.silent()
	_ = a.nc.Close()
	b.recv()
}

func TestStopAnswersWhatIsInFlight(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	h := holdAppends(c.Node(1))
	g := start(t, c, nil)
	idle, busy, waiting := dial(t, g), dial(t, g), dial(t, g)
	ask[*kmsg.MetadataResponse](idle, metadataOf(1))
	busy.send(produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	h.await(t, 1)
	poll := fetch(12, "a", from(0, 1))
	poll.MaxWaitMillis = 60000
	waiting.send(poll)
	waiting.silent()
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop(t.Context()) }()
	idle.closed()
	if got := waiting.recv().(*kmsg.FetchResponse); got.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Errorf("a long poll was ended with an error: %+v", got)
	}
	waiting.closed()
	busy.silent()
	h.finish(0)
	if got := busy.recv().(*kmsg.ProduceResponse).Topics[0].Partitions[0]; got.ErrorCode != 0 {
		t.Errorf("produce was ended with an error: %+v", got)
	}
	busy.closed()
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
	if nc, err := net.Dial("tcp", g.Addresses()["PLAINTEXT"]); err == nil {
		_ = nc.Close()
		t.Error("a stopped gateway accepts connections")
	}
}

func TestStopDoesNotWaitForEver(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	h := holdAppends(c.Node(1))
	g := start(t, c, nil)
	k := dial(t, g)
	k.send(produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	h.await(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), silence)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop(ctx) }()
	k.closed()
	h.finish(0)
	if err := <-stopped; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: %v", err)
	}
}

func TestLargeFetchesComeFromTheFile(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1, 1)
	f, err := os.CreateTemp(t.TempDir(), "segment")
	if err != nil {
		t.Fatal(err)
	}
	c.Node(1).KeepInFile(f)
	k := dial(t, serve(t, c, nil))
	small, large := batchOf(t, 3, 100, -1), batchOf(t, 3, 400_000, -1)
	for range 3 {
		ask[*kmsg.ProduceResponse](k, produce(9, "a", 0, large))
		ask[*kmsg.ProduceResponse](k, produce(9, "a", 1, small))
	}
	req := fetch(12, "a", from(0, 0), from(1, 0))
	req.Topics[0].Partitions[0].PartitionMaxBytes = 10 << 20
	for range 3 {
		k.send(req, metadataOf(12), req)
		for i := range 3 {
			resp := k.recv()
			if i == 1 {
				continue
			}
			parts := resp.(*kmsg.FetchResponse).Topics[0].Partitions
			if len(parts[0].RecordBatches) != 3*len(large) || len(parts[1].RecordBatches) != 3*len(small) {
				t.Fatalf("%d and %d bytes", len(parts[0].RecordBatches), len(parts[1].RecordBatches))
			}
			if got := parts[0].RecordBatches[2*len(large):]; binary.BigEndian.Uint64(got) != 6 {
				t.Errorf("the third batch begins at %d", binary.BigEndian.Uint64(got))
			}
		}
	}
}

func TestATornSegmentClosesTheConnection(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	f, err := os.CreateTemp(t.TempDir(), "segment")
	if err != nil {
		t.Fatal(err)
	}
	node := c.Node(1)
	node.KeepInFile(f)
	k := dial(t, serve(t, c, nil))
	ask[*kmsg.ProduceResponse](k, produce(9, "a", 0, batchOf(t, 3, 400_000, -1)))
	node.AfterRead = func() { _ = f.Truncate(0) }
	k.send(fetch(12, "a", from(0, 0)))
	if _, err := k.readFrame(limit); err == nil || !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		t.Errorf("want the answer cut, got %v", err)
	}
}
