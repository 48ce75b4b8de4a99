package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A record under test says in its value who wrote it and as what: "topic/producer/sequence|filler". So a checker knows
// each record that it meets.

// source is one writer to one topic. Its records have the sequence numbers 0, 1, 2, ...
type source struct {
	topic    string
	producer int
	// keys is how many different keys the records have; 0 for records without a key.
	keys int
}

const valueBytes = 100

func (s source) key(seq int) []byte {
	if s.keys == 0 {
		return nil
	}
	return fmt.Appendf(nil, "key-%d", seq%s.keys)
}

func (s source) value(seq int) []byte {
	v := fmt.Appendf(make([]byte, 0, valueBytes), "%s/%d/%d|", s.topic, s.producer, seq)
	for i := len(v); i < valueBytes; i++ {
		v = append(v, byte('a'+(i+seq)%17))
	}
	return v
}

// parseValue takes a value apart; the record is as it was written only if its source gives the same value again.
func parseValue(v []byte) (topic string, producer, seq int, err error) {
	head, _, ok := bytes.Cut(v, []byte{'|'})
	parts := strings.Split(string(head), "/")
	if !ok || len(parts) != 3 {
		return "", 0, 0, fmt.Errorf("value %q is none of ours", v)
	}
	producer, producerErr := strconv.Atoi(parts[1])
	seq, seqErr := strconv.Atoi(parts[2])
	if err := errors.Join(producerErr, seqErr); err != nil {
		return "", 0, 0, fmt.Errorf("value %q is none of ours: %w", v, err)
	}
	return parts[0], producer, seq, nil
}

// position is where a record is; offset -1 says that only the acknowledgement is known.
type position struct {
	partition int32
	offset    int64
}

// consumed is a record as a consumer got it.
type consumed struct {
	topic     string
	partition int32
	offset    int64
	key       []byte
	value     []byte
}

// history is what happened to the records of some sources: which were sent, which were acknowledged and where, and what
// was consumed, in the order of consumption within each partition.
type history struct {
	mu      sync.Mutex
	sources map[string]map[int]*sourceHistory
	reads   []consumed
	// moved is closed and replaced with each acknowledgement or read, for those who wait for progress.
	moved chan struct{}
	acks  int
}

type sourceHistory struct {
	source source
	sent   int
	acked  map[int]position
}

func newHistory() *history {
	return &history{sources: map[string]map[int]*sourceHistory{}, moved: make(chan struct{})}
}

func (h *history) add(s source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sources[s.topic] == nil {
		h.sources[s.topic] = map[int]*sourceHistory{}
	}
	h.sources[s.topic][s.producer] = &sourceHistory{source: s, acked: map[int]position{}}
}

// sending notes that the records below n are on their way: whether they arrive is open until they are acknowledged.
func (h *history) sending(s source, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sh := h.sources[s.topic][s.producer]
	sh.sent = max(sh.sent, n)
}

func (h *history) acked(s source, seq int, at position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sources[s.topic][s.producer].acked[seq] = at
	h.acks++
	h.move()
}

func (h *history) read(c consumed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads = append(h.reads, c)
	h.move()
}

func (h *history) move() {
	close(h.moved)
	h.moved = make(chan struct{})
}

// counts are the numbers of acknowledgements and reads, and a channel that closes when one of them grows.
func (h *history) counts() (acks, reads int, moved <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acks, len(h.reads), h.moved
}

// rules are what a history is held to.
type rules struct {
	// duplicates allows a record to be in the log more than once, as producers without idempotence may cause.
	duplicates bool
	// reordered allows a producer's records to be in another order than they were sent in.
	reordered bool
	// unordered are topics in which a producer's records may be in another order than they were sent in.
	unordered map[string]bool
	// reread allows consumers to get a record again, as a group does when a member is lost before it has committed.
	reread bool
}

// maxComplaints keeps a broken run readable.
const maxComplaints = 10

// check says what in the history breaks the rules.
func (h *history) check(r rules) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &checker{rules: r, history: h, places: map[place]bool{}, copies: map[recordID]int{}, last: map[partition]int64{},
		lastSeq: map[line]int{}, keys: map[keyID]int32{}}
	for _, read := range h.reads {
		c.look(read)
	}
	for topic, producers := range h.sources {
		for _, sh := range producers {
			c.lookForLost(topic, sh)
		}
	}
	return c.complaints
}

type checker struct {
	rules      rules
	history    *history
	complaints []string
	// places are those that were read; copies counts the places of each record.
	places map[place]bool
	copies map[recordID]int
	// last is the last offset of each partition, lastSeq the last sequence number of each producer in each partition.
	last    map[partition]int64
	lastSeq map[line]int
	// keys are the partitions of the keys.
	keys map[keyID]int32
}

type partition struct {
	topic string
	index int32
}

func (p partition) String() string { return fmt.Sprintf("%s-%d", p.topic, p.index) }

type place struct {
	partition partition
	offset    int64
}

type recordID struct {
	topic         string
	producer, seq int
}

// line is what one producer wrote to one partition, where order counts.
type line struct {
	partition partition
	producer  int
}

type keyID struct {
	topic    string
	producer int
	key      string
}

func (c *checker) complain(format string, args ...any) {
	if len(c.complaints) == maxComplaints {
		c.complaints = append(c.complaints, "and more")
	}
	if len(c.complaints) < maxComplaints {
		c.complaints = append(c.complaints, fmt.Sprintf(format, args...))
	}
}

func (c *checker) look(read consumed) {
	topic, producer, seq, err := parseValue(read.value)
	sh := c.history.sources[read.topic][producer]
	switch {
	case err != nil:
		c.complain("%s-%d offset %d: %v", read.topic, read.partition, read.offset, err)
		return
	case topic != read.topic || sh == nil || seq >= sh.sent:
		c.complain("%s-%d offset %d: record %d of producer %d for %s was never sent here", read.topic, read.partition, read.offset, seq, producer, topic)
		return
	case !bytes.Equal(read.value, sh.source.value(seq)) || !bytes.Equal(read.key, sh.source.key(seq)):
		c.complain("%s-%d offset %d: record %d of producer %d has changed", read.topic, read.partition, read.offset, seq, producer)
		return
	}
	partition := partition{read.topic, read.partition}
	here := place{partition, read.offset}
	if c.places[here] {
		if !c.rules.reread {
			c.complain("%s offset %d was read twice", partition, read.offset)
		}
		return
	}
	c.places[here] = true
	if last, ok := c.last[partition]; ok && read.offset <= last && !c.rules.reread {
		c.complain("%s: offset %d was read after %d", partition, read.offset, last)
	}
	c.last[partition] = read.offset
	c.lookAtOrder(partition, producer, seq, read)
	id := recordID{read.topic, producer, seq}
	if c.copies[id]++; c.copies[id] == 2 && !c.rules.duplicates {
		c.complain("%s: record %d of producer %d is in the log twice, again at offset %d", partition, seq, producer, read.offset)
	}
	if ack, ok := sh.acked[seq]; ok && ack.offset >= 0 && ack != (position{read.partition, read.offset}) && !c.rules.duplicates {
		c.complain("record %d of producer %d was acknowledged at %s-%d offset %d and read at %s offset %d", seq, producer, read.topic, ack.partition, ack.offset, partition, read.offset)
	}
}

func (c *checker) lookAtOrder(partition partition, producer, seq int, read consumed) {
	line := line{partition, producer}
	if last, ok := c.lastSeq[line]; ok && seq <= last && !c.rules.reordered && !c.rules.unordered[read.topic] && !c.rules.duplicates && !c.rules.reread {
		c.complain("%s: record %d of producer %d comes after its record %d", partition, seq, producer, last)
	}
	c.lastSeq[line] = seq
	if len(read.key) == 0 {
		return
	}
	key := keyID{read.topic, producer, string(read.key)}
	if p, ok := c.keys[key]; ok && p != read.partition {
		c.complain("%s: key %q is also in partition %d", partition, read.key, p)
	}
	c.keys[key] = read.partition
}

func (c *checker) lookForLost(topic string, sh *sourceHistory) {
	for seq := range sh.sent {
		ack, ok := sh.acked[seq]
		if !ok {
			continue
		}
		if c.copies[recordID{topic, sh.source.producer, seq}] == 0 {
			c.complain("%s: record %d of producer %d was acknowledged (partition %d, offset %d) and is lost", topic, seq, sh.source.producer, ack.partition, ack.offset)
		}
	}
}

// mustHold fails the test with what breaks the rules.
func (h *history) mustHold(t *testing.T, r rules) {
	t.Helper()
	if complaints := h.check(r); len(complaints) > 0 {
		t.Errorf("the cluster broke its promises:\n%s", strings.Join(complaints, "\n"))
	}
}

// TestHistory sees to it that the checker finds what it is there for.
func TestHistory(t *testing.T) {
	s := source{topic: "t", producer: 1, keys: 3}
	record := func(partition int32, offset int64, seq int) consumed {
		return consumed{topic: "t", partition: partition, offset: offset, key: s.key(seq), value: s.value(seq)}
	}
	changed := record(0, 0, 0)
	changed.value = slices.Clone(changed.value)
	changed.value[len(changed.value)-1]++
	cases := []struct {
		name  string
		acked map[int]position
		reads []consumed
		rules rules
		want  string
	}{
		{name: "all well", acked: map[int]position{0: {0, 0}, 1: {1, 0}, 2: {2, -1}},
			reads: []consumed{record(0, 0, 0), record(1, 0, 1), record(2, 0, 2)}},
		{name: "unacknowledged records may be there or not", acked: map[int]position{0: {0, 0}}, reads: []consumed{record(0, 0, 0), record(0, 1, 3)}},
		{name: "lost", acked: map[int]position{0: {0, 0}, 1: {1, 0}}, reads: []consumed{record(0, 0, 0)}, want: "record 1 of producer 1 was acknowledged"},
		{name: "duplicate", reads: []consumed{record(0, 0, 0), record(0, 1, 0)}, want: "in the log twice"},
		{name: "duplicate allowed", reads: []consumed{record(0, 0, 0), record(0, 1, 0)}, rules: rules{duplicates: true}},
		{name: "elsewhere", acked: map[int]position{0: {0, 7}}, reads: []consumed{record(0, 0, 0)}, want: "acknowledged at t-0 offset 7 and read at t-0 offset 0"},
		{name: "reordered", reads: []consumed{record(0, 0, 3), record(0, 1, 0)}, want: "record 0 of producer 1 comes after its record 3"},
		{name: "reordered allowed", reads: []consumed{record(0, 0, 3), record(0, 1, 0)}, rules: rules{reordered: true}},
		{name: "read twice", reads: []consumed{record(0, 0, 0), record(0, 0, 0)}, want: "was read twice"},
		{name: "read twice allowed", reads: []consumed{record(0, 0, 0), record(0, 0, 0)}, rules: rules{reread: true}},
		{name: "backwards", reads: []consumed{record(0, 5, 0), record(0, 4, 3)}, want: "offset 4 was read after 5"},
		{name: "never sent", reads: []consumed{record(0, 0, 10)}, want: "never sent here"},
		{name: "changed", reads: []consumed{changed}, want: "has changed"},
		{name: "foreign", reads: []consumed{{topic: "t", value: []byte("x")}}, want: "none of ours"},
		{name: "key in two partitions", reads: []consumed{record(0, 0, 0), record(1, 0, 3)}, want: "is also in partition 0"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := newHistory()
			h.add(s)
			h.sending(s, 10)
			for seq, at := range c.acked {
				h.acked(s, seq, at)
			}
			for _, r := range c.reads {
				h.read(r)
			}
			got := strings.Join(h.check(c.rules), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
