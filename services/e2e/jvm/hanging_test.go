//go:build jvm

package jvm

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestHangingTransactions: of transactions that no coordinator knows to be open, in which a partition waits for a marker that never comes,
// Kafka's tool says the same as it does of Apache Kafka, and ends them.
func TestHangingTransactions(t *testing.T) {
	k := installTools(t)
	reference := newKafka(t, k)
	reference.start(t)
	want := newHanging(t, k, reference.bootstrap).transcript()
	reference.stop(t)
	for _, expected := range []string{`Could not find any open transactions starting at offset 1 on partition hanging-0`, `hanging 0 P1 0 -1 0 TIME 60`} {
		if !strings.Contains(want, expected) {
			t.Fatalf("Apache Kafka says:\n%s\nand not %q", want, expected)
		}
	}
	for _, shape := range []struct {
		name  string
		start func(*testing.T) server
	}{{"all", startAll}, {"playground", startPlayground}} {
		t.Run(shape.name, func(t *testing.T) {
			if got := newHanging(t, k, shape.start(t).bootstrap).transcript(); got != want {
				t.Fatalf("%s\nApache Kafka says:\n%s", got, want)
			}
		})
	}
}

// hanging is a partition with two transactions that nobody will end: one of a producer that has a transactional id, and one of a
// producer that no coordinator has ever heard of.
type hanging struct {
	t         *testing.T
	tools     *tools
	bootstrap string
	leader    int32
	producers []*kmsg.InitProducerIDResponse
	said      strings.Builder
}

func newHanging(t *testing.T, k *tools, bootstrap string) *hanging {
	t.Helper()
	h := &hanging{t: t, tools: k, bootstrap: bootstrap}
	makeTopic(t, bootstrap, "hanging", 1, 1, nil)
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	topics, err := admin(t, bootstrap).ListTopics(ctx, "hanging")
	if err != nil {
		t.Fatal(err)
	}
	h.leader = topics["hanging"].Partitions[0].Leader
	verify := func(on bool) {
		k.run(t, "", configsTool, "--bootstrap-server", bootstrap, "--alter", "--entity-type", "brokers", "--entity-default",
			"--add-config", fmt.Sprintf("transaction.partition.verification.enable=%t", on)).ok()
	}
	verify(false)
	id := "forgotten"
	h.open(ctx, &id)
	h.open(ctx, nil)
	verify(true)
	return h
}

// open writes a batch of a transaction that was never begun, an hour old, as an older producer does whose request was late. Where the
// setting is not known to the node yet, it comes again.
func (h *hanging) open(ctx context.Context, transactionalID *string) {
	h.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(h.bootstrap))
	if err != nil {
		h.t.Fatal(err)
	}
	defer client.Close()
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID, init.TransactionTimeoutMillis = transactionalID, 60_000
	var producer *kmsg.InitProducerIDResponse
	await(h.t, "a producer id", func() bool {
		producer, err = init.RequestWith(ctx, client)
		return err == nil && producer.ErrorCode == 0
	})
	h.producers = append(h.producers, producer)
	name := "unheard-of"
	if transactionalID != nil {
		name = *transactionalID
	}
	produce := kmsg.NewPtrProduceRequest()
	produce.TransactionID, produce.Acks, produce.TimeoutMillis = &name, -1, 10_000
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "hanging"
	topic.Partitions = []kmsg.ProduceRequestTopicPartition{{Partition: 0, Records: lateBatch(producer)}}
	produce.Topics = append(produce.Topics, topic)
	await(h.t, "a hanging transaction", func() bool {
		answer, err := client.Broker(int(h.leader)).RetriableRequest(ctx, pinned{produce})
		if err != nil {
			h.t.Fatal(err)
		}
		err = kerr.ErrorForCode(answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
		if err != nil {
			h.t.Logf("not yet: %v", err)
		}
		return err == nil
	})
}

// lateBatch is a batch with one record of a transaction, an hour old.
func lateBatch(p *kmsg.InitProducerIDResponse) []byte {
	const (
		transactional = 1 << 4
		sizeBytes     = 12 // up to behind the field of the size, which does not count itself
		checkedFrom   = 21 // what follows the checksum
	)
	at := time.Now().Add(-time.Hour - 30*time.Second).UnixMilli()
	record := kmsg.NewRecord()
	record.Value = []byte("late")
	fields := record.AppendTo(nil)[1:] // without the length, which is 0 and takes a byte
	record.Length = int32(len(fields))
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: transactional, FirstTimestamp: at, MaxTimestamp: at,
		ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, NumRecords: 1, Records: record.AppendTo(nil),
	}
	bytes := batch.AppendTo(nil)
	binary.BigEndian.PutUint32(bytes[8:], uint32(len(bytes)-sizeBytes))
	binary.BigEndian.PutUint32(bytes[checkedFrom-4:], crc32.Checksum(bytes[checkedFrom:], crc32.MakeTable(crc32.Castagnoli)))
	return bytes
}

// pinned is a Produce request of the last version whose transactions are not begun by it.
type pinned struct{ *kmsg.ProduceRequest }

func (pinned) MaxVersion() int16 { return 11 }

// say calls the tool and notes what it says, with the same words for what differs from run to run.
func (h *hanging) say(args ...string) {
	h.t.Helper()
	h.said.WriteString("$ " + strings.Join(args, " ") + "\n")
	r := h.tools.run(h.t, "", transactionsTool, append([]string{"--bootstrap-server", h.bootstrap}, args...)...)
	for line := range strings.Lines(r.output) {
		if !loggedLine.MatchString(line) {
			h.said.WriteString(h.normal(strings.Fields(line)) + "\n")
		}
	}
	fmt.Fprintf(&h.said, "exit %d\n", r.exit)
}

// loggedLine is what clients log that an earlier call of the tool has left open, and timestamp one of today.
var (
	loggedLine = regexp.MustCompile(`^\[20\d\d-`)
	timestamp  = regexp.MustCompile(`^1\d{12}$`)
)

// normal is a line of the tool in which the ids of the producers, times and durations are always the same.
func (h *hanging) normal(words []string) string {
	idColumn, durationColumn := 0, -1 // as in the table of describe-producers
	if len(words) > 0 && words[0] == "hanging" {
		idColumn, durationColumn = 2, 7
	}
	for i, word := range words {
		switch {
		case timestamp.MatchString(word):
			words[i] = "TIME"
		case i == durationColumn && word == "61":
			words[i] = "60"
		case i == idColumn && len(words) > 5:
			for p, producer := range h.producers {
				if word == strconv.FormatInt(producer.ProducerID, 10) {
					words[i] = fmt.Sprintf("P%d", p+1)
				}
			}
		}
	}
	return strings.Join(words, " ")
}

// transcript is what the tool says of the two, and does to them.
func (h *hanging) transcript() string {
	h.t.Helper()
	describe := func() { h.say("describe-producers", "--topic", "hanging", "--partition", "0") }
	find := func() { h.say("find-hanging", "--topic", "hanging") }
	h.say("find-hanging")
	h.say("find-hanging", "--partition", "0")
	describe()
	find()
	h.say("find-hanging", "--topic", "hanging", "--partition", "0")
	h.say("find-hanging", "--topic", "hanging", "--max-transaction-timeout", "120")
	before := h.said.Len()
	h.say("find-hanging", "--broker-id", strconv.Itoa(int(h.leader)))
	h.forgetNode(before)

	h.say("forceTerminateTransaction", "--transactionalId", "forgotten")
	find()
	h.say("abort", "--topic", "hanging", "--partition", "0")
	h.say("abort", "--topic", "hanging", "--partition", "0", "--producer-id", "1234")
	first := h.producers[0]
	before = h.said.Len()
	h.say("abort", "--topic", "hanging", "--partition", "0", "--producer-id", strconv.FormatInt(first.ProducerID, 10),
		"--producer-epoch", strconv.Itoa(int(first.ProducerEpoch)), "--coordinator-epoch", "-1")
	h.forgetNode(before)
	describe()
	find()
	h.say("abort", "--topic", "hanging", "--partition", "0", "--start-offset", "0")
	h.say("abort", "--topic", "hanging", "--partition", "0", "--start-offset", "1")
	describe()
	find()
	h.say("abort", "--topic", "hanging", "--partition", "0", "--start-offset", "1")
	h.stable()
	return h.said.String()
}

// forgetNode takes the call itself out of what was said since: it has a number of the cluster in it.
func (h *hanging) forgetNode(since int) {
	said := h.said.String()
	_, rest, _ := strings.Cut(said[since:], "\n")
	h.said.Reset()
	h.said.WriteString(said[:since] + rest)
}

// stable notes how far the partition can be read, when nothing is open any more.
func (h *hanging) stable() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), stateTime)
	defer cancel()
	adm := admin(h.t, h.bootstrap)
	stable, err := adm.ListCommittedOffsets(ctx, "hanging")
	if err != nil {
		h.t.Fatal(err)
	}
	end, err := adm.ListEndOffsets(ctx, "hanging")
	if err != nil {
		h.t.Fatal(err)
	}
	s, _ := stable.Lookup("hanging", 0)
	e, _ := end.Lookup("hanging", 0)
	fmt.Fprintf(&h.said, "stable to %d of %d\n", s.Offset, e.Offset)
}
