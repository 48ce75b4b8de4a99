package e2e_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"
)

// clientRunTime bounds one client's run with one compression.
const clientRunTime = 3 * time.Minute

// memberTime is how long a member of a group may be silent. A busy machine must not cost one its partitions, which another would
// then read again.
const memberTime = 45 * time.Second

// clientTopicPartitions is the number of partitions of each topic.
const clientTopicPartitions = 4

// TestClients has each client library write records with each compression, keyed and not, with acks 0, 1 and all, while two
// members of a group of the same library read them, and then reads everything again by assignment.
func TestClients(t *testing.T) {
	onEachShape(t, func(t *testing.T, c cluster) {
		for _, cl := range []client{franz{}, saramaClient{}, kafkaGo{}} {
			t.Run(cl.name(), func(t *testing.T) { testClient(t, c, cl) })
		}
		t.Run("confluent-kafka-go", func(t *testing.T) {
			cl, err := newConfluent()
			if err != nil {
				t.Skip(err)
			}
			testClient(t, c, cl)
		})
	})
}

func testClient(t *testing.T, c cluster, cl client) {
	for _, codec := range codecs {
		t.Run(codec, func(t *testing.T) { testClientWithCodec(t, c, cl, codec) })
	}
}

// job is one way to produce.
type job struct {
	source source
	acks   int
}

func testClientWithCodec(t *testing.T, c cluster, cl client, codec string) {
	ctx, cancel := context.WithTimeout(t.Context(), clientRunTime)
	defer cancel()
	adm := admin(t, c.bootstrap)

	var jobs []job
	var topics []string
	// The time keeps the names apart when the tests run again against a cluster that stays.
	name := fmt.Sprintf("clients-%s-%s-%d", cl.name(), codec, time.Now().UnixMilli())
	for _, acks := range []int{0, 1, -1} {
		for _, keys := range []int{0, 50} {
			topic := fmt.Sprintf("%s-acks%d-keys%d", name, acks, keys)
			jobs = append(jobs, job{source{topic: topic, producer: 1, keys: keys}, acks})
			topics = append(topics, topic)
		}
	}
	n := max(1, number(t, "CHANCERY_E2E_RECORDS", 100_000)/len(jobs))
	createTopics(ctx, t, adm, clientTopicPartitions, c.replicas, nil, topics...)

	written, grouped := newHistory(), newHistory()
	held := rules{unordered: unorderedTopics(cl, jobs)}
	var members [2]atomic.Int64
	membersCtx, stopMembers := context.WithCancel(ctx)
	defer stopMembers()
	var group errgroup.Group
	for i := range members {
		group.Go(func() error {
			return cl.join(membersCtx, c.bootstrap, name, topics, func(r consumed) {
				members[i].Add(1)
				grouped.read(r)
			})
		})
	}
	// Members that are there before the first record have no reason to read one twice.
	awaitMembers(ctx, t, adm, name, len(members))

	for _, j := range jobs {
		for _, h := range []*history{written, grouped} {
			h.add(j.source)
			h.sending(j.source, n)
		}
		err := cl.produce(ctx, produceJob{bootstrap: c.bootstrap, source: j.source, n: n, codec: codec, acks: j.acks, acked: func(seq int, at position) {
			written.acked(j.source, seq, at)
			grouped.acked(j.source, seq, at)
		}})
		if err != nil {
			t.Fatalf("produce to %s: %v", j.source.topic, err)
		}
	}
	total := n * len(jobs)
	if acks, _, _ := written.counts(); acks != total {
		t.Fatalf("%d of %d records acknowledged", acks, total)
	}

	awaitReads(ctx, t, grouped, total)
	stopMembers()
	if err := group.Wait(); err != nil {
		t.Errorf("member of the group: %v", err)
	}
	grouped.mustHold(t, held)
	for i := range members {
		if members[i].Load() == 0 {
			t.Errorf("member %d got nothing", i)
		}
	}
	checkCommitted(ctx, t, adm, name, topics, total)

	reads := 0
	err := cl.readAll(ctx, c.bootstrap, topics, clientTopicPartitions, func(r consumed) bool {
		written.read(r)
		reads++
		return reads < total
	})
	if err != nil {
		t.Errorf("read by assignment: %v", err)
	}
	written.mustHold(t, held)
}

// unorderedTopics are those in which the client itself may mix the order up: kafka-go takes any idle connection for the next
// batch, and with acks=0 a connection is idle as soon as the batch before is sent, so two of them race.
func unorderedTopics(cl client, jobs []job) map[string]bool {
	topics := map[string]bool{}
	for _, j := range jobs {
		topics[j.source.topic] = j.acks == 0 && cl == client(kafkaGo{})
	}
	return topics
}

// awaitReads waits until a number of records has been read.
func awaitReads(ctx context.Context, t *testing.T, h *history, n int) {
	t.Helper()
	for {
		_, reads, moved := h.counts()
		if reads >= n {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			t.Fatalf("%d of %d records read in time; %v", reads, n, h.check(rules{}))
		}
	}
}

// checkCommitted sees to it that a group has committed the end of each partition, and that the ends add up.
func checkCommitted(ctx context.Context, t *testing.T, adm *kadm.Client, group string, topics []string, total int) {
	t.Helper()
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil {
		t.Fatalf("fetch offsets: %v", err)
	}
	sum := int64(0)
	for p, end := range endOffsets(ctx, t, adm, topics...) {
		sum += end
		if o, ok := committed.Lookup(p.topic, p.index); end > 0 && (!ok || o.At != end) {
			t.Errorf("%s: committed %d, the end is %d", p, o.At, end)
		}
	}
	if sum != int64(total) {
		t.Errorf("the partitions hold %d records, %d were sent", sum, total)
	}
}
