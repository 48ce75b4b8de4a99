package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/testkit"
)

const (
	// answerTime bounds the wait for an answer, or for the end of a connection.
	answerTime = 10 * time.Second
	// badInputSeed makes the random frames the same ones in each run.
	badInputSeed = 20260131
	// mostMemory bounds what a process may need while it is shown large numbers: far below what these claim.
	mostMemory = 1 << 30
)

// rawConn is a connection on which a test sends what it wants.
type rawConn struct {
	t *testing.T
	net.Conn
}

func dialRaw(t *testing.T, address string) *rawConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		t.Fatal(err)
	}
	return &rawConn{t, c}
}

// send writes bytes. The server may have closed the connection already, which the reading side will see.
func (c *rawConn) send(data []byte) {
	_, _ = c.Write(data)
}

// readFrame gives the next answer without its length.
func (c *rawConn) readFrame() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c, frame)
	return frame, err
}

// mustClose fails the test unless the server closes the connection without an answer.
func (c *rawConn) mustClose(what string) {
	c.t.Helper()
	frame, err := c.readFrame()
	var timeout net.Error
	switch {
	case err == nil:
		c.t.Errorf("%s: answered with %d bytes, want the end of the connection", what, len(frame))
	case errors.As(err, &timeout) && timeout.Timeout():
		c.t.Errorf("%s: the connection stays open without an answer", what)
	}
}

// settle reads until the server has closed the connection or has nothing more to say.
func (c *rawConn) settle() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, c)
}

// framed puts the length before a frame.
func framed(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// header is a request header of version 1.
func header(key, version int16, correlation int32) []byte {
	h := binary.BigEndian.AppendUint16(nil, uint16(key))
	h = binary.BigEndian.AppendUint16(h, uint16(version))
	h = binary.BigEndian.AppendUint32(h, uint32(correlation))
	return append(binary.BigEndian.AppendUint16(h, 4), "test"...)
}

// TestBadInput shows a server what no proper client sends. It answers with the right error or closes the connection, and
// goes on serving others with little memory.
func TestBadInput(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{})
	b := badInput{a.Bootstrap, a.Admin, newClient(t, []string{a.Bootstrap})}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	createTopics(ctx, t, kadm.NewClient(b.client), 1, 1, nil, "bad-input")
	for _, c := range []struct {
		name string
		run  func(*testing.T, badInput)
	}{
		{"frame sizes", testFrameSizes},
		{"cut frames", testCutFrames},
		{"random bytes", testRandomBytes},
		{"random bodies", testRandomBodies},
		{"damaged requests", testDamagedRequests},
		{"large counts", testLargeCounts},
		{"unknown APIs", testUnknownAPIs},
		{"unknown version of ApiVersions", testUnknownAPIVersions},
		{"byte by byte", testByteByByte},
		{"damaged batches", testDamagedBatches},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, b)
			b.mustServe(ctx, t)
		})
	}
}

type badInput struct {
	address string
	admin   string
	client  *kgo.Client
}

// mustServe writes and reads a record as a proper client does, and looks at the memory.
func (b badInput) mustServe(ctx context.Context, t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	written, err := b.client.ProduceSync(ctx, &kgo.Record{Topic: "bad-input", Value: []byte(t.Name())}).First()
	if err != nil {
		t.Fatalf("the server does not serve any more: %v", err)
	}
	reader := newClient(t, []string{b.address}, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"bad-input": {0: kgo.NewOffset().At(written.Offset)}}))
	fetches := reader.PollFetches(ctx)
	if records := fetches.Records(); len(records) == 0 || string(records[0].Value) != t.Name() {
		t.Fatalf("read %d records: %v", len(records), fetches.Err())
	}
	if bytes := b.memory(ctx, t); bytes > mostMemory {
		t.Errorf("the process holds %d MiB", bytes>>20)
	}
}

func (b badInput) memory(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.admin+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if text, ok := strings.CutPrefix(line, "process_resident_memory_bytes "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				t.Fatal(err)
			}
			return int64(n)
		}
	}
	t.Fatal("no process_resident_memory_bytes in the metrics")
	return 0
}

func testFrameSizes(t *testing.T, b badInput) {
	for _, size := range []uint32{0xffffffff, 0x80000000, 0x7fffffff, 100<<20 + 1, 3, 0} {
		c := dialRaw(t, b.address)
		c.send(binary.BigEndian.AppendUint32(nil, size))
		if size <= 3 {
			c.send(make([]byte, size))
		}
		c.mustClose(fmt.Sprintf("a frame of %d bytes", int32(size)))
	}
}

func testCutFrames(t *testing.T, b badInput) {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	whole := kmsg.NewRequestFormatter(kmsg.FormatterClientID("cut")).AppendRequest(nil, req, 1)
	for n := range whole {
		// The client goes away in the middle of a frame.
		c := dialRaw(t, b.address)
		c.send(whole[:n])
		c.settle()
		// The frame says that it is whole, and its content is cut.
		if n < 5 {
			continue
		}
		c = dialRaw(t, b.address)
		c.send(framed(whole[4:n]))
		c.settle()
	}
}

func testRandomBytes(t *testing.T, b badInput) {
	rng := rand.New(rand.NewPCG(badInputSeed, 1))
	for range 500 {
		c := dialRaw(t, b.address)
		body := randomBytes(rng, rng.IntN(300))
		if rng.IntN(2) == 0 {
			body = framed(body)
		}
		c.send(body)
		c.settle()
	}
}

func randomBytes(rng *rand.Rand, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(rng.Uint32())
	}
	return out
}

// servedVersions asks which APIs are served in which versions.
func servedVersions(t *testing.T, b badInput) []kmsg.ApiVersionsResponseApiKey {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, b.client)
	if err != nil {
		t.Fatal(err)
	}
	return resp.ApiKeys
}

func testRandomBodies(t *testing.T, b badInput) {
	rng := rand.New(rand.NewPCG(badInputSeed, 2))
	for _, api := range servedVersions(t, b) {
		for version := api.MinVersion; version <= api.MaxVersion; version++ {
			for range 5 {
				c := dialRaw(t, b.address)
				c.send(framed(append(header(api.ApiKey, version, 1), randomBytes(rng, rng.IntN(200))...)))
				c.settle()
			}
		}
	}
}

// testDamagedRequests takes a proper request of each API and changes a few bytes of it.
func testDamagedRequests(t *testing.T, b badInput) {
	rng := rand.New(rand.NewPCG(badInputSeed, 3))
	formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID("damage"))
	for _, api := range servedVersions(t, b) {
		req := kmsg.RequestForKey(api.ApiKey)
		if req == nil || api.MaxVersion > req.MaxVersion() {
			continue
		}
		req.SetVersion(api.MaxVersion)
		whole := formatter.AppendRequest(nil, req, 1)
		for range 20 {
			damaged := bytes.Clone(whole)
			for range 1 + rng.IntN(3) {
				// The size and the API stay, so that the damage is found inside.
				if at := 8 + rng.IntN(len(damaged)-8); at < len(damaged) {
					damaged[at] = byte(rng.Uint32())
				}
			}
			c := dialRaw(t, b.address)
			c.send(damaged)
			c.settle()
		}
	}
}

// testLargeCounts claims arrays of two thousand million entries in small frames.
func testLargeCounts(t *testing.T, b badInput) {
	for _, api := range servedVersions(t, b) {
		for version := api.MinVersion; version <= api.MaxVersion; version++ {
			for _, body := range [][]byte{
				{0x7f, 0xff, 0xff, 0xff}, {0, 0x7f, 0xff, 0xff, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff, 0x07}, {0, 0xff, 0xff, 0xff, 0xff, 0x07},
				bytes.Repeat([]byte{0x7f, 0xff, 0xff, 0xff}, 20), bytes.Repeat([]byte{0xff, 0xff, 0xff, 0xff, 0x07}, 20),
			} {
				c := dialRaw(t, b.address)
				c.send(framed(append(header(api.ApiKey, version, 1), body...)))
				c.settle()
			}
		}
	}
}

func testUnknownAPIs(t *testing.T, b badInput) {
	for _, api := range []struct{ key, version int16 }{{9999, 0}, {-1, 0}, {3, 999}, {3, -1}, {0, 0}, {1, 99}, {7, 0}} {
		c := dialRaw(t, b.address)
		c.send(framed(header(api.key, api.version, 1)))
		c.mustClose(fmt.Sprintf("API %d version %d", api.key, api.version))
	}
}

func testUnknownAPIVersions(t *testing.T, b badInput) {
	c := dialRaw(t, b.address)
	c.send(framed(header(int16(kmsg.ApiVersions), 999, 77)))
	frame, err := c.readFrame()
	if err != nil {
		t.Fatal(err)
	}
	if correlation := binary.BigEndian.Uint32(frame); correlation != 77 {
		t.Errorf("correlation id %d", correlation)
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	if err := resp.ReadFrom(frame[4:]); err != nil {
		t.Fatal(err)
	}
	if resp.ErrorCode != kerr.UnsupportedVersion.Code {
		t.Errorf("error %d, want UNSUPPORTED_VERSION", resp.ErrorCode)
	}
	// The connection lives on, so that the client can try again.
	c.send(framed(header(int16(kmsg.ApiVersions), 0, 78)))
	if frame, err := c.readFrame(); err != nil || binary.BigEndian.Uint32(frame) != 78 {
		t.Errorf("no answer after the refusal: %v", err)
	}
}

func testByteByByte(t *testing.T, b badInput) {
	c := dialRaw(t, b.address)
	if err := c.Conn.(*net.TCPConn).SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	for _, x := range framed(header(int16(kmsg.ApiVersions), 0, 5)) {
		c.send([]byte{x})
	}
	if frame, err := c.readFrame(); err != nil || binary.BigEndian.Uint32(frame) != 5 {
		t.Errorf("no answer to a request that came byte by byte: %v", err)
	}
}

// produceRaw sends bytes as the records of a partition and gives the partition's error.
func produceRaw(ctx context.Context, t *testing.T, b badInput, records []byte) error {
	t.Helper()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 5000
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "bad-input"
	id, err := topicID(ctx, b.client, topic.Topic)
	if err != nil {
		t.Fatal(err)
	}
	topic.TopicID = id
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = records
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, b.client)
	if err != nil {
		t.Fatal(err)
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

func topicID(ctx context.Context, cl *kgo.Client, topic string) ([16]byte, error) {
	topics, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	if err != nil {
		return [16]byte{}, err
	}
	return topics[topic].ID, topics[topic].Err
}

func testDamagedBatches(t *testing.T, b badInput) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	good := rawBatch([]byte("hello"))
	if err := produceRaw(ctx, t, b, good); err != nil {
		t.Fatalf("a good batch: %v", err)
	}
	change := func(at int, value byte) []byte {
		out := bytes.Clone(good)
		out[at] = value
		return out
	}
	for _, c := range []struct {
		name    string
		records []byte
		want    error
	}{
		{"a wrong checksum", change(17, good[17]^0xff), kerr.CorruptMessage},
		{"a changed record", change(len(good)-2, good[len(good)-2]^0xff), kerr.CorruptMessage},
		// A batch that is longer than its bytes is none at all.
		{"a cut batch", good[:len(good)-3], kerr.InvalidRecord},
		{"a cut header", good[:30], kerr.InvalidRecord},
		{"two batches", append(bytes.Clone(good), good...), kerr.InvalidRecord},
		{"a wrong count of records", withCRC(change(60, 9)), kerr.InvalidRecord},
		{"a base offset", withCRC(change(7, 3)), kerr.InvalidRecord},
		{"an unknown compression", withCRC(change(22, 7)), nil},
		{"gzip that is none", withCRC(change(22, 1)), nil},
		{"a control batch", withCRC(change(22, 0x20)), kerr.InvalidRecord},
	} {
		err := produceRaw(ctx, t, b, c.records)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	rng := rand.New(rand.NewPCG(badInputSeed, 4))
	for range 300 {
		damaged := bytes.Clone(good)
		damaged[12+rng.IntN(len(damaged)-12)] ^= byte(1 + rng.IntN(255))
		// The checksum covers what comes behind it; the epoch before it is the broker's to set.
		if err := produceRaw(ctx, t, b, damaged); err == nil && !bytes.Equal(damaged[16:], good[16:]) {
			t.Errorf("a damaged batch was accepted: %x", damaged)
		}
	}
}
