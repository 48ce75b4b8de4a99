//go:build cgo

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// newConfluent makes the client of confluent-kafka-go.
func newConfluent() (client, error) { return confluent{}, nil }

// confluent is github.com/confluentinc/confluent-kafka-go, which is librdkafka.
type confluent struct{}

func (confluent) name() string { return "confluent-kafka-go" }

func (confluent) produce(ctx context.Context, j produceJob) error {
	p, err := kafka.NewProducer(&kafka.ConfigMap{
		"bootstrap.servers": strings.Join(j.bootstrap, ","), "compression.codec": j.codec, "acks": j.acks, "enable.idempotence": j.acks == -1,
		"linger.ms": 5, "queue.buffering.max.messages": 1_000_000,
	})
	if err != nil {
		return err
	}
	defer p.Close()
	done := make(chan error, 1)
	go func() { done <- j.collect(ctx, p.Events()) }()
	for seq := range j.n {
		m := &kafka.Message{TopicPartition: kafka.TopicPartition{Topic: &j.source.topic, Partition: kafka.PartitionAny},
			Key: j.source.key(seq), Value: j.source.value(seq), Opaque: seq}
		if err := p.Produce(m, nil); err != nil {
			return err
		}
	}
	return <-done
}

// collect takes the reports of all messages.
func (j produceJob) collect(ctx context.Context, events <-chan kafka.Event) error {
	var first error
	for reports := 0; reports < j.n; {
		select {
		case e := <-events:
			m, ok := e.(*kafka.Message)
			if !ok {
				continue
			}
			reports++
			if err := m.TopicPartition.Error; err != nil {
				first = cmpErr(first, err)
				continue
			}
			at := position{m.TopicPartition.Partition, int64(m.TopicPartition.Offset)}
			if j.acks == 0 {
				at.offset = -1
			}
			j.acked(m.Opaque.(int), at)
		case <-ctx.Done():
			return errors.Join(first, ctx.Err())
		}
	}
	return first
}

func (confluent) consumer(bootstrap []string, group string) (*kafka.Consumer, error) {
	return kafka.NewConsumer(&kafka.ConfigMap{"bootstrap.servers": strings.Join(bootstrap, ","), "group.id": group, "auto.offset.reset": "earliest",
		"heartbeat.interval.ms": 500, "fetch.wait.max.ms": 200})
}

func (c confluent) readAll(ctx context.Context, bootstrap, topics []string, partitions int32, each func(consumed) bool) error {
	consumer, err := c.consumer(bootstrap, "e2e-unused")
	if err != nil {
		return err
	}
	var assignment []kafka.TopicPartition
	for _, topic := range topics {
		for p := range partitions {
			assignment = append(assignment, kafka.TopicPartition{Topic: &topic, Partition: p, Offset: kafka.OffsetBeginning})
		}
	}
	if err := consumer.Assign(assignment); err != nil {
		return errors.Join(err, consumer.Close())
	}
	err = poll(ctx, consumer, each)
	return errors.Join(err, consumer.Close())
}

func (c confluent) join(ctx context.Context, bootstrap []string, group string, topics []string, each func(consumed)) error {
	consumer, err := c.consumer(bootstrap, group)
	if err != nil {
		return err
	}
	if err := consumer.SubscribeTopics(topics, nil); err != nil {
		return errors.Join(err, consumer.Close())
	}
	err = poll(ctx, consumer, func(r consumed) bool { each(r); return true })
	if errors.Is(err, context.Canceled) {
		var failed kafka.Error
		if _, err = consumer.Commit(); errors.As(err, &failed) && failed.Code() == kafka.ErrNoOffset {
			err = nil // Everything is committed already.
		}
	}
	return errors.Join(err, consumer.Close())
}

// pollMs is how long one poll waits before it looks at the context.
const pollMs = 100

func poll(ctx context.Context, consumer *kafka.Consumer, each func(consumed) bool) error {
	for ctx.Err() == nil {
		switch e := consumer.Poll(pollMs).(type) {
		case *kafka.Message:
			if e.TopicPartition.Error != nil {
				return e.TopicPartition.Error
			}
			if !each(consumed{*e.TopicPartition.Topic, e.TopicPartition.Partition, int64(e.TopicPartition.Offset), e.Key, e.Value}) {
				return nil
			}
		case kafka.Error:
			if e.IsFatal() {
				return fmt.Errorf("librdkafka: %w", e)
			}
		}
	}
	return ctx.Err()
}

// joinWithConfluent adds a member of the consumer protocol to the group of a topic, which bears the topic's name. It tells what the
// member gets and gives up; the function that it returns lets the member leave.
func joinWithConfluent(ctx context.Context, bootstrap []string, topic string, owned func(partitions map[string][]int32, gets bool)) (leave func() error, err error) {
	consumer, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": strings.Join(bootstrap, ","), "group.id": topic, "group.protocol": "consumer", "fetch.wait.max.ms": 200,
	})
	if err != nil {
		return nil, err
	}
	rebalanced := func(c *kafka.Consumer, e kafka.Event) error {
		switch e := e.(type) {
		case kafka.AssignedPartitions:
			owned(byTopic(e.Partitions), true)
			return c.IncrementalAssign(e.Partitions)
		case kafka.RevokedPartitions:
			owned(byTopic(e.Partitions), false)
			return c.IncrementalUnassign(e.Partitions)
		}
		return nil
	}
	if err := consumer.SubscribeTopics([]string{topic}, rebalanced); err != nil {
		return nil, errors.Join(err, consumer.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := poll(ctx, consumer, func(consumed) bool { return true })
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		done <- errors.Join(err, consumer.Close())
	}()
	return func() error {
		cancel()
		return <-done
	}, nil
}

func byTopic(list []kafka.TopicPartition) map[string][]int32 {
	partitions := map[string][]int32{}
	for _, p := range list {
		partitions[*p.Topic] = append(partitions[*p.Topic], p.Partition)
	}
	return partitions
}
