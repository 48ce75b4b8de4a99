package e2e_test

import (
	"fmt"
	"maps"
	"slices"
)

// anomaly is a kind of what transactions must never show. Kafka keeps the log of each partition in one order and makes each
// transaction visible in all its partitions or in none, but at its own moment in each: two transactions at the same time may be
// interleaved differently in two partitions, and a reader may see one of them in a partition before it sees it in another. Such are
// no anomalies here. What is left of Adya's kinds is G1 (aborted, intermediate and dirty reads, and cycles of transactions that have
// read one another), and of G0, what contradicts the order in which transactions have followed each other.
type anomaly string

const (
	// unknownRead is a read of a transaction that nobody has begun.
	unknownRead anomaly = "unknown read"
	// abortedRead is a read of an aborted transaction (G1a), dirtyRead one of a transaction that its writer had not yet begun to commit.
	abortedRead anomaly = "aborted read"
	dirtyRead   anomaly = "dirty read"
	// tornRead is a transaction that is there in a part of its partitions, or more than once in one (G1b, seen from the end).
	tornRead anomaly = "torn read"
	// lostWrite is a committed transaction that is not there.
	lostWrite anomaly = "lost write"
	// changedRead is a place in a partition at which two transactions were read.
	changedRead anomaly = "changed read"
	// backwardRead is a reader that goes back in a partition.
	backwardRead anomaly = "backward read"
	// wrongOrder is a partition in which a transaction stands behind one that was begun after its end, or after it by the same writer (G0).
	wrongOrder anomaly = "wrong order"
	// consumedTwice and skipped are records that a writer has read in two of its committed transactions, or in none up to the last one.
	consumedTwice anomaly = "consumed twice"
	skipped       anomaly = "skipped"
	// cycle is a number of transactions each of which was read by, or was over before, the next one, and the last before the first (G1c).
	cycle anomaly = "cycle"
)

// finding is one anomaly that was found.
type finding struct {
	anomaly
	text string
}

func (f finding) String() string { return string(f.anomaly) + ": " + f.text }

// moment is a place in the order in which a history was told; 0 is for what has not happened.
type moment int

// observed is one record that was read.
type observed struct {
	partition int32
	offset    int64
	// id is the transaction that wrote it.
	id string
	at moment
}

// told is what is known of one transaction.
type told struct {
	writer string
	// number counts the writer's transactions.
	number               int
	begun, ending, ended moment
	outcome              outcome
	// reads are what the transaction has consumed.
	reads []observed
}

// serialHistory is what was seen of transactions, each of which writes one record to each of some partitions. It decides in the end whether
// an order could have given it. It is pure: who tells it things one after the other gets the same findings.
type serialHistory struct {
	partitions int
	now        moment
	told       map[string]*told
	writers    map[string][]string
	// reads are those of readers outside transactions, by the reader's name.
	reads map[string][]observed
}

func newSerialHistory(partitions int) *serialHistory {
	return &serialHistory{partitions: partitions, told: map[string]*told{}, writers: map[string][]string{}, reads: map[string][]observed{}}
}

func (h *serialHistory) tick() moment {
	h.now++
	return h.now
}

// begin notes that a writer begins a transaction.
func (h *serialHistory) begin(writer, id string) {
	h.told[id] = &told{writer: writer, number: len(h.writers[writer]), begun: h.tick()}
	h.writers[writer] = append(h.writers[writer], id)
}

// committing notes that a transaction is about to be committed: from now on it may be seen.
func (h *serialHistory) committing(id string) {
	h.told[id].ending, h.told[id].outcome = h.tick(), unclear
}

// aborting notes that a transaction will be aborted, whatever becomes of the attempt.
func (h *serialHistory) aborting(id string) { h.told[id].outcome = aborted }

// end notes that a commit was acknowledged.
func (h *serialHistory) end(id string) { h.told[id].ended, h.told[id].outcome = h.tick(), committed }

// read notes what a reader has got.
func (h *serialHistory) read(reader string, partition int32, offset int64, id string) {
	h.reads[reader] = append(h.reads[reader], observed{partition, offset, id, h.tick()})
}

// consume notes what a transaction has got.
func (h *serialHistory) consume(by string, partition int32, offset int64, id string) {
	h.told[by].reads = append(h.told[by].reads, observed{partition, offset, id, h.tick()})
}

// check looks for anomalies, when each of the readers has read everything.
func (h *serialHistory) check() []finding {
	c := &serialCheck{serialHistory: h, log: map[int32]map[int64]string{}}
	for _, reader := range slices.Sorted(maps.Keys(h.reads)) {
		c.visible(h.reads[reader])
		c.judge(reader, h.reads[reader])
		c.whole(reader, h.reads[reader])
	}
	for _, id := range slices.Sorted(maps.Keys(h.told)) {
		c.visible(h.told[id].reads)
		c.judge(id, h.told[id].reads)
	}
	c.order()
	for _, writer := range slices.Sorted(maps.Keys(h.writers)) {
		c.consumption(writer)
	}
	c.cycles()
	return c.findings
}

// serialCheck is one look at a history.
type serialCheck struct {
	*serialHistory
	// log is who wrote what was seen of each partition.
	log      map[int32]map[int64]string
	findings []finding
}

func (c *serialCheck) found(a anomaly, format string, args ...any) {
	c.findings = append(c.findings, finding{a, fmt.Sprintf(format, args...)})
}

// visible puts reads into the log.
func (c *serialCheck) visible(reads []observed) {
	for _, r := range reads {
		if c.log[r.partition] == nil {
			c.log[r.partition] = map[int64]string{}
		}
		if before, known := c.log[r.partition][r.offset]; known && before != r.id {
			c.found(changedRead, "%d of partition %d is %s and %s", r.offset, r.partition, before, r.id)
			continue
		}
		c.log[r.partition][r.offset] = r.id
	}
}

// judge looks at each read by itself, and that none of a reader's goes back.
func (c *serialCheck) judge(reader string, reads []observed) {
	next := map[int32]int64{}
	for _, r := range reads {
		if r.offset < next[r.partition] {
			c.found(backwardRead, "%s reads %d of partition %d after %d", reader, r.offset, r.partition, next[r.partition]-1)
		}
		next[r.partition] = r.offset + 1
		switch t := c.told[r.id]; {
		case t == nil:
			c.found(unknownRead, "%s reads %s at %d of partition %d", reader, r.id, r.offset, r.partition)
		case t.outcome == aborted:
			c.found(abortedRead, "%s reads %s at %d of partition %d", reader, r.id, r.offset, r.partition)
		case t.ending == 0 || r.at < t.ending:
			c.found(dirtyRead, "%s reads %s at %d of partition %d", reader, r.id, r.offset, r.partition)
		}
	}
}

// whole looks whether a reader has seen each transaction in all its partitions once, or nowhere.
func (c *serialCheck) whole(reader string, reads []observed) {
	seen := map[string][]int32{}
	for _, r := range reads {
		seen[r.id] = append(seen[r.id], r.partition)
	}
	for _, id := range slices.Sorted(maps.Keys(c.told)) {
		partitions := seen[id]
		slices.Sort(partitions)
		if n := len(partitions); n == 0 && c.told[id].outcome == committed {
			c.found(lostWrite, "%s never reads %s", reader, id)
		} else if distinct := len(slices.Compact(slices.Clone(partitions))); n > 0 && (n != c.partitions || distinct != n) {
			c.found(tornRead, "%s reads %s in the partitions %v", reader, id, partitions)
		}
	}
}

// order looks whether the order in each partition agrees with that in which transactions have followed each other.
func (c *serialCheck) order() {
	for _, p := range slices.Sorted(maps.Keys(c.log)) {
		// What stands behind: the transaction that was over first, and the first one of each writer.
		firstOver := ""
		first := map[string]string{}
		for _, offset := range slices.Backward(slices.Sorted(maps.Keys(c.log[p]))) {
			id := c.log[p][offset]
			t := c.told[id]
			if t == nil {
				continue
			}
			if o := c.told[firstOver]; o != nil && o.ended < t.begun {
				c.found(wrongOrder, "%s at %d of partition %d stands before %s, which was over before", id, offset, p, firstOver)
			}
			if later := first[t.writer]; later != "" && c.told[later].number <= t.number {
				c.found(wrongOrder, "%s at %d of partition %d stands before %s of the same writer", id, offset, p, later)
			}
			if o := c.told[firstOver]; t.ended != 0 && (o == nil || t.ended < o.ended) {
				firstOver = id
			}
			first[t.writer] = id
		}
	}
}

// consumption looks whether a writer that commits what it has consumed with its transactions has consumed everything once. A
// transaction of whose commit nothing is known may have done it.
func (c *serialCheck) consumption(writer string) {
	by := map[int32]map[int64]string{}
	maybe := map[int32]map[int64]bool{}
	last := map[int32]int64{}
	for _, id := range c.writers[writer] {
		for _, r := range c.told[id].reads {
			if by[r.partition] == nil {
				by[r.partition], maybe[r.partition] = map[int64]string{}, map[int64]bool{}
			}
			switch c.told[id].outcome {
			case unclear:
				maybe[r.partition][r.offset] = true
			case committed:
				if other := by[r.partition][r.offset]; other != "" {
					c.found(consumedTwice, "%d of partition %d by %s and %s", r.offset, r.partition, other, id)
				}
				by[r.partition][r.offset] = id
				last[r.partition] = max(last[r.partition], r.offset)
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(by)) {
		for _, offset := range slices.Sorted(maps.Keys(c.log[p])) {
			if offset < last[p] && by[p][offset] == "" && !maybe[p][offset] {
				c.found(skipped, "%d of partition %d by %s", offset, p, writer)
			}
		}
	}
}

// cycles looks for transactions that come before themselves. One comes before another that has consumed of it, that is begun after
// its end, or that is a later one of its writer. The second kind goes over the moments at which transactions end, as otherwise there
// would be as many as pairs.
func (c *serialCheck) cycles() {
	counts := slices.DeleteFunc(slices.Sorted(maps.Keys(c.told)), func(id string) bool {
		return c.told[id].outcome != committed && c.told[id].outcome != unclear
	})
	after := map[string][]string{}
	var ends []string // by the moment
	for _, id := range counts {
		if c.told[id].ended != 0 {
			ends = append(ends, id)
		}
	}
	slices.SortFunc(ends, func(a, b string) int { return int(c.told[a].ended - c.told[b].ended) })
	endOf := func(id string) string { return "the end of " + id }
	for i, id := range ends {
		after[id] = append(after[id], endOf(id))
		if i+1 < len(ends) {
			after[endOf(id)] = append(after[endOf(id)], endOf(ends[i+1]))
		}
	}
	lastOf := map[string]string{}
	slices.SortFunc(counts, func(a, b string) int { return int(c.told[a].begun - c.told[b].begun) })
	for _, id := range counts {
		t := c.told[id]
		if before, _ := slices.BinarySearchFunc(ends, t.begun, func(e string, at moment) int { return int(c.told[e].ended - at) }); before > 0 {
			after[endOf(ends[before-1])] = append(after[endOf(ends[before-1])], id)
		}
		if last := lastOf[t.writer]; last != "" {
			after[last] = append(after[last], id)
		}
		lastOf[t.writer] = id
		for _, r := range t.reads {
			if r.id != id {
				after[r.id] = append(after[r.id], id)
			}
		}
	}
	if path := findCycle(counts, after); path != nil {
		c.found(cycle, "%v", path)
	}
}

// findCycle gives the nodes of a cycle in a graph, nil when there is none.
func findCycle(from []string, edges map[string][]string) []string {
	const onPath, finished = 1, 2
	state := map[string]int{}
	for _, start := range from {
		if state[start] != 0 {
			continue
		}
		path, next := []string{start}, []int{0}
		state[start] = onPath
		for len(path) > 0 {
			top := len(path) - 1
			node := path[top]
			if next[top] == len(edges[node]) {
				state[node] = finished
				path, next = path[:top], next[:top]
				continue
			}
			to := edges[node][next[top]]
			next[top]++
			switch state[to] {
			case onPath:
				return append(path[slices.Index(path, to):], to)
			case 0:
				state[to] = onPath
				path, next = append(path, to), append(next, 0)
			}
		}
	}
	return nil
}
