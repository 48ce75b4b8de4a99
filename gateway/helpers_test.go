package gateway_test

import (
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway"
	"chancery/gateway/internal/fake"
	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// silence is how long a test waits to see that nothing comes.
const silence = 50 * time.Millisecond

// limit bounds every wait for something that must come.
const limit = 10 * time.Second

// clock is a gateway's time, which stands still but for what a test lets pass.
type clock struct {
	began  time.Time
	passed atomic.Int64
}

func newClock() *clock { return &clock{began: time.Now()} }

func (c *clock) now() time.Time          { return c.began.Add(time.Duration(c.passed.Load())) }
func (c *clock) advance(d time.Duration) { c.passed.Add(int64(d)) }

// start runs a gateway on a free port.
func start(t testing.TB, c *fake.Cluster, properties map[string]string) *gateway.Gateway {
	t.Helper()
	return startAt(t, nil, c, properties)
}

// startAt runs a gateway with a clock; nil means the system's.
func startAt(t testing.TB, now func() time.Time, c *fake.Cluster, properties map[string]string) *gateway.Gateway {
	t.Helper()
	all := map[string]string{"listeners": "PLAINTEXT://127.0.0.1:0"}
	for k, v := range properties {
		all[k] = v
	}
	g, err := gateway.New(gateway.Config{NodeID: 1, Properties: all, Version: "test"}, gateway.Deps{
		Image: func() metadata.Reader { return c.Image() }, Await: c.Await, Storage: c.Storage, Controller: c, Tiering: c,
		Buffers: transport.NewDebugPool(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// serve runs a gateway that is stopped at the end of the test.
func serve(t testing.TB, c *fake.Cluster, properties map[string]string) *gateway.Gateway {
	t.Helper()
	return serveAt(t, nil, c, properties)
}

// serveAt runs a gateway with a clock, and stops it at the end of the test.
func serveAt(t testing.TB, now func() time.Time, c *fake.Cluster, properties map[string]string) *gateway.Gateway {
	t.Helper()
	g := startAt(t, now, c, properties)
	t.Cleanup(func() {
		if err := g.Stop(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("stop: %v", err)
		}
	})
	return g
}

// client is a client that sends any request and reads answers as they come.
type client struct {
	t    testing.TB
	nc   net.Conn
	fmt  *kmsg.RequestFormatter
	next int32
	// sent are the requests whose answers are due.
	sent []kmsg.Request
	ids  []int32
}

func dial(t testing.TB, g *gateway.Gateway) *client {
	t.Helper()
	nc, err := net.Dial("tcp", g.Addresses()["PLAINTEXT"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return &client{t: t, nc: nc, fmt: kmsg.NewRequestFormatter(kmsg.FormatterClientID("test"))}
}

// frame encodes a request without sending it.
func (c *client) frame(req kmsg.Request) []byte {
	c.next++
	return c.fmt.AppendRequest(nil, req, c.next)
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.nc.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// send sends requests together.
func (c *client) send(reqs ...kmsg.Request) {
	c.t.Helper()
	var all []byte
	for _, r := range reqs {
		all = append(all, c.frame(r)...)
		c.sent = append(c.sent, r)
		c.ids = append(c.ids, c.next)
	}
	c.write(all)
}

// readFrame reads an answer; io.EOF when the connection is closed.
func (c *client) readFrame(wait time.Duration) ([]byte, error) {
	_ = c.nc.SetReadDeadline(time.Now().Add(wait))
	var size [4]byte
	if _, err := io.ReadFull(c.nc, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c.nc, b)
	return b, err
}

// recv reads the answer to the oldest request.
func (c *client) recv() kmsg.Response {
	c.t.Helper()
	b, err := c.readFrame(limit)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	req, id := c.sent[0], c.ids[0]
	c.sent, c.ids = c.sent[1:], c.ids[1:]
	if got := int32(binary.BigEndian.Uint32(b)); got != id {
		c.t.Fatalf("the answer has correlation id %d, want %d", got, id)
	}
	b = b[4:]
	if req.IsFlexible() && req.Key() != 18 {
		b = b[1:]
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(b); err != nil {
		c.t.Fatalf("%T v%d: %v", resp, req.GetVersion(), err)
	}
	if again := resp.AppendTo(nil); string(again) != string(b) {
		c.t.Fatalf("%T v%d has other bytes than its fields: %x, want %x", resp, req.GetVersion(), b, again)
	}
	return resp
}

// ask sends a request and reads its answer.
func ask[R kmsg.Response](c *client, req kmsg.Request) R {
	c.t.Helper()
	c.send(req)
	return c.recv().(R)
}

// silent makes sure that nothing comes.
func (c *client) silent() {
	c.t.Helper()
	if b, err := c.readFrame(silence); err == nil {
		c.t.Fatalf("an answer came too early: %x", b)
	} else if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
		c.t.Fatalf("want silence, got %v", err)
	}
}

// closed makes sure that the gateway closes the connection.
func (c *client) closed() {
	c.t.Helper()
	_, err := c.readFrame(limit)
	if err == nil {
		c.t.Fatal("want the connection closed, got an answer")
	}
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		c.t.Fatal("the connection is still open")
	}
}

// batchOf makes a batch of n records with values of some size; producer -1 is none.
func batchOf(t testing.TB, n, size int, producer int64) []byte {
	t.Helper()
	b := recordbatch.NewBuilder(nil, recordbatch.BatchOptions{
		ProducerID: producer, ProducerEpoch: -1, BaseSequence: -1,
		AppendTimeMs: recordbatch.NoTimestamp, DeleteHorizonMs: recordbatch.NoTimestamp,
	})
	for range n {
		b.Append(1000, nil, make([]byte, size))
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// produce is a request for one partition of a topic, by name.
func produce(version int16, topic string, partition int32, records []byte) *kmsg.ProduceRequest {
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, records
	x := kmsg.NewProduceRequestTopic()
	x.Topic, x.Partitions = topic, []kmsg.ProduceRequestTopicPartition{p}
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, -1, 5000
	req.Topics = []kmsg.ProduceRequestTopic{x}
	return req
}

// from is where to read in a partition.
func from(partition int32, offset int64) kmsg.FetchRequestTopicPartition {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, 1<<20
	return p
}

// fetch is a request without a session for partitions of a topic, by name.
func fetch(version int16, topic string, partitions ...kmsg.FetchRequestTopicPartition) *kmsg.FetchRequest {
	x := kmsg.NewFetchRequestTopic()
	x.Topic, x.Partitions = topic, partitions
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxBytes, req.MaxWaitMillis, req.SessionEpoch = version, 1, 50<<20, 0, -1
	req.Topics = []kmsg.FetchRequestTopic{x}
	return req
}

// metadataOf asks for topics by name.
func metadataOf(version int16, topics ...string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = version, []kmsg.MetadataRequestTopic{}
	for _, t := range topics {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: &t})
	}
	return req
}
