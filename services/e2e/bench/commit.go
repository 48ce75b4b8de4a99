package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// offsetsPartitions is Kafka's default of offsets.topic.num.partitions, by which groups are placed.
const offsetsPartitions = 50

// commitLoad commits one offset with each request, as clients do that assign partitions themselves. Each connection is a
// group, with several requests in flight.
type commitLoad struct {
	topic                 string
	connections, inFlight int
	// shards is over how many partitions of __consumer_offsets the groups spread.
	shards int
}

func (l commitLoad) run(ctx context.Context, bootstrap []string, t *tally) error {
	if err := ensureTopic(ctx, bootstrap, l.topic); err != nil {
		return err
	}
	if err := ensureGroups(ctx, bootstrap); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for i := range l.connections {
		c, err := dial(ctx, bootstrap[i%len(bootstrap)])
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { c.Close() })
		request := l.request(groupOfShard(i, i%l.shards), int32(i%topicPartitions))
		answer, err := firstAnswer(c, request)
		if err != nil {
			return ended(ctx, err)
		}
		sent := make(chan time.Time, l.inFlight)
		g.Go(func() error { return ended(ctx, l.send(ctx, c, request, sent)) })
		g.Go(func() error { return ended(ctx, l.receive(c, answer, sent, t)) })
	}
	return g.Wait()
}

// ensureGroups has the cluster make its internal topic, which looking for a coordinator does.
func ensureGroups(ctx context.Context, bootstrap []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...))
	if err != nil {
		return err
	}
	defer cl.Close()
	_ = kadm.NewClient(cl).FindGroupCoordinators(ctx, "bench")
	return nil
}

const commitVersion = 8

func (l commitLoad) request(group string, partition int32) []byte {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = commitVersion, group, -1
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = l.topic
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch = partition, 1, -1
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return frame(req, 0)
}

// groupOfShard finds the name of an i-th group that lives in a shard.
func groupOfShard(i, shard int) string {
	for n := 0; ; n++ {
		name := fmt.Sprintf("bench-%d-%d", i, n)
		// Kafka takes the hash of Java's strings without its sign.
		var h uint32
		for _, c := range []byte(name) {
			h = 31*h + uint32(c)
		}
		if int(h&0x7fffffff)%offsetsPartitions == shard {
			return name
		}
	}
}

// firstAnswer repeats a request until it succeeds, since the coordinator may still have to load, and gives the answer.
func firstAnswer(c *conn, request []byte) ([]byte, error) {
	for {
		if _, err := c.Write(request); err != nil {
			return nil, err
		}
		f, err := c.readFrame()
		if err != nil {
			return nil, err
		}
		if commitError(f) == 0 {
			return bytes.Clone(f), nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// commitError is the error code of the answer's only partition.
func commitError(f []byte) int16 {
	resp := kmsg.NewPtrOffsetCommitResponse()
	resp.Version = commitVersion
	if err := resp.ReadFrom(f[flexibleResponseHeader:]); err != nil || len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		return -1
	}
	return resp.Topics[0].Partitions[0].ErrorCode
}

// correlationAt is where the correlation id is in a request's frame.
const correlationAt = 8

// send writes as many requests at once as there is room for.
func (l commitLoad) send(ctx context.Context, c *conn, request []byte, sent chan<- time.Time) error {
	var run []byte
	for correlation := uint32(1); ; {
		run = run[:0]
		for room := true; room; {
			now := time.Now()
			if len(run) == 0 {
				select {
				case sent <- now:
				case <-ctx.Done():
					return nil
				}
			} else {
				select {
				case sent <- now:
				default:
					room = false
					continue
				}
			}
			run = append(run, request...)
			binary.BigEndian.PutUint32(run[len(run)-len(request)+correlationAt:], correlation)
			correlation++
		}
		if _, err := c.Write(run); err != nil {
			return err
		}
	}
}

// receive compares answers with the first one, which costs less than decoding them.
func (l commitLoad) receive(c *conn, expected []byte, sent <-chan time.Time, t *tally) error {
	const correlationSize = 4
	for correlation := uint32(1); ; correlation++ {
		f, err := c.readFrame()
		if err != nil {
			return err
		}
		if len(f) < correlationSize || binary.BigEndian.Uint32(f) != correlation {
			return fmt.Errorf("answer %x where that to request %d was due", f, correlation)
		}
		if !bytes.Equal(f[correlationSize:], expected[correlationSize:]) {
			t.failed(commitError(f))
		}
		t.request(time.Since(<-sent))
	}
}
