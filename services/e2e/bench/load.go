package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// conn is a connection that speaks frames.
type conn struct {
	net.Conn
	in  *bufio.Reader
	buf []byte
}

func dial(ctx context.Context, addr string) (*conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, in: bufio.NewReaderSize(c, 64<<10)}, nil
}

func frame(req kmsg.Request, correlation int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, req, correlation)
}

// readFrame gives the next answer without its length; it is valid until the next call.
func (c *conn) readFrame() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	_, err := io.ReadFull(c.in, c.buf[:n])
	return c.buf[:n], err
}

// flexibleResponseHeader is the correlation id and an empty tag buffer.
const flexibleResponseHeader = 5

// ended tells whether an error only means that the measurement is over.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// share gives the i-th of n connections its part of the topic's partitions.
func share(i, n int) []int32 {
	var mine []int32
	for p := int32(0); p < topicPartitions; p++ {
		if int(p)%n == i {
			mine = append(mine, p)
		}
	}
	return mine
}

// produceLoad sends the same batch over and over, several requests in flight on each connection.
type produceLoad struct {
	topic                   string
	connections, inFlight   int
	batchBytes, recordBytes int
	partitionsPerRequest    int
}

func (l produceLoad) run(ctx context.Context, bootstrap []string, t *tally) error {
	if err := ensureTopic(ctx, bootstrap, l.topic); err != nil {
		return err
	}
	batch := buildBatch(l.batchBytes, l.recordBytes)
	g, ctx := errgroup.WithContext(ctx)
	for i := range l.connections {
		c, err := dial(ctx, bootstrap[i%len(bootstrap)])
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { c.Close() })
		sent := make(chan time.Time, l.inFlight)
		g.Go(func() error { return l.send(ctx, c, batch, share(i, l.connections), sent) })
		g.Go(func() error { return l.receive(ctx, c, len(batch), sent, t) })
	}
	return g.Wait()
}

func (l produceLoad) send(ctx context.Context, c *conn, batch []byte, partitions []int32, sent chan<- time.Time) error {
	next := 0
	for correlation := int32(0); ; correlation++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = 9, -1, 30000
		topic := kmsg.NewProduceRequestTopic()
		topic.Topic = l.topic
		for range l.partitionsPerRequest {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition, p.Records = partitions[next%len(partitions)], batch
			next++
			topic.Partitions = append(topic.Partitions, p)
		}
		req.Topics = append(req.Topics, topic)
		f := frame(req, correlation)
		select {
		case sent <- time.Now():
		case <-ctx.Done():
			return nil
		}
		if _, err := c.Write(f); err != nil {
			return ended(ctx, err)
		}
	}
}

func (l produceLoad) receive(ctx context.Context, c *conn, batchBytes int, sent <-chan time.Time, t *tally) error {
	for {
		f, err := c.readFrame()
		if err != nil {
			return ended(ctx, err)
		}
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = 9
		if err := resp.ReadFrom(f[flexibleResponseHeader:]); err != nil {
			return err
		}
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				if p.ErrorCode != 0 {
					t.failed(p.ErrorCode)
					continue
				}
				t.bytes.Add(int64(batchBytes))
			}
		}
		t.request(time.Since(<-sent))
	}
}

// fetchLoad reads a topic from its start, again and again.
type fetchLoad struct {
	topic                             string
	connections, partitionsPerRequest int
}

func (l fetchLoad) run(ctx context.Context, bootstrap []string, t *tally) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range l.connections {
		c, err := dial(ctx, bootstrap[i%len(bootstrap)])
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { c.Close() })
		g.Go(func() error { return ended(ctx, l.read(c, share(i, l.connections), t)) })
	}
	return g.Wait()
}

func (l fetchLoad) read(c *conn, partitions []int32, t *tally) error {
	offsets := map[int32]int64{}
	for correlation := int32(0); ; correlation++ {
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 12, -1, 500, 1, 50<<20
		topic := kmsg.NewFetchRequestTopic()
		topic.Topic = l.topic
		for j := range l.partitionsPerRequest {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition = partitions[(int(correlation)*l.partitionsPerRequest+j)%len(partitions)]
			p.CurrentLeaderEpoch, p.FetchOffset, p.PartitionMaxBytes = -1, offsets[p.Partition], 1<<20
			topic.Partitions = append(topic.Partitions, p)
		}
		req.Topics = append(req.Topics, topic)
		start := time.Now()
		if _, err := c.Write(frame(req, correlation)); err != nil {
			return err
		}
		f, err := c.readFrame()
		if err != nil {
			return err
		}
		t.request(time.Since(start))
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = 12
		if err := resp.ReadFrom(f[flexibleResponseHeader:]); err != nil {
			return err
		}
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				if p.ErrorCode != 0 {
					t.failed(p.ErrorCode)
					continue
				}
				t.bytes.Add(int64(len(p.RecordBatches)))
				offsets[p.Partition] = nextOffset(p.RecordBatches)
			}
		}
	}
}

// nextOffset is the offset after the last whole batch; 0, the start again, where there is none.
func nextOffset(batches []byte) int64 {
	var next int64
	for len(batches) >= 61 {
		n := int(binary.BigEndian.Uint32(batches[8:])) + 12
		if n > len(batches) {
			break
		}
		next = int64(binary.BigEndian.Uint64(batches)) + int64(binary.BigEndian.Uint32(batches[23:])) + 1
		batches = batches[n:]
	}
	return next
}

// endToEndLoad sends records at a fixed rate and measures until they are consumed, from the moment each was due, so
// that a stall is not forgiven.
type endToEndLoad struct {
	topic                       string
	bytesPerSecond, recordBytes int
}

func (l endToEndLoad) run(ctx context.Context, bootstrap []string, t *tally) error {
	if err := ensureTopic(ctx, bootstrap, l.topic); err != nil {
		return err
	}
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.DefaultProduceTopic(l.topic), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumeTopics(l.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer consumer.Close()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.consume(ctx, consumer, t) })
	g.Go(func() error { return l.produce(ctx, producer) })
	return g.Wait()
}

func (l endToEndLoad) produce(ctx context.Context, cl *kgo.Client) error {
	interval := time.Duration(float64(l.recordBytes) / float64(l.bytesPerSecond) * float64(time.Second))
	start := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		due := start.Add(time.Duration(i) * interval)
		if d := time.Until(due); d > 50*time.Microsecond {
			time.Sleep(d)
		}
		value := make([]byte, l.recordBytes)
		binary.BigEndian.PutUint64(value, uint64(due.UnixNano()))
		cl.Produce(ctx, &kgo.Record{Value: value}, nil)
	}
	return nil
}

func (l endToEndLoad) consume(ctx context.Context, cl *kgo.Client, t *tally) error {
	for ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("consume: %w", err)
		}
		now := time.Now().UnixNano()
		t.requests.Add(1)
		fetches.EachRecord(func(r *kgo.Record) {
			t.bytes.Add(int64(len(r.Value)))
			t.latency(time.Duration(now - int64(binary.BigEndian.Uint64(r.Value))))
		})
	}
	return nil
}
