package e2e_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// story tells a history of transactions over two partitions.
type story struct{ *serialHistory }

func (s story) begin(ids ...string) {
	for _, id := range ids {
		s.serialHistory.begin(id[:1], id)
	}
}

// commit commits transactions, and writes lets one be committed whose writer hears nothing.
func (s story) commit(ids ...string) {
	for _, id := range ids {
		s.committing(id)
		s.end(id)
	}
}

// log has a reader read what a partition has, from offset 0.
func (s story) log(partition int32, ids ...string) {
	for offset, id := range ids {
		s.read("reader", partition, int64(offset), id)
	}
}

// both has both partitions be the same.
func (s story) both(ids ...string) {
	s.log(0, ids...)
	s.log(1, ids...)
}

// TestAnomaliesAreFound: the checker finds each anomaly, and none where Apache Kafka permits what it sees. The first letter of a
// transaction is its writer.
func TestAnomaliesAreFound(t *testing.T) {
	cases := []struct {
		name string
		tell func(s story)
		want []anomaly
	}{
		{"one after the other", func(s story) {
			s.begin("a1")
			s.commit("a1")
			s.begin("b1")
			s.commit("b1")
			s.both("a1", "b1")
		}, nil},
		{"concurrent ones interleave differently", func(s story) {
			s.begin("a1", "b1")
			s.commit("a1", "b1")
			s.log(0, "a1", "b1")
			s.log(1, "b1", "a1")
		}, nil},
		{"a reader sees one in a partition before it sees it in another", func(s story) {
			s.begin("a1", "b1")
			s.commit("a1")
			s.read("reader", 0, 0, "a1")
			s.commit("b1")
			s.read("reader", 1, 0, "b1")
			s.read("reader", 1, 1, "a1")
			s.read("reader", 0, 1, "b1")
		}, nil},
		{"an aborted one is not there", func(s story) {
			s.begin("a1", "a2")
			s.aborting("a1")
			s.commit("a2")
			s.both("a2")
		}, nil},
		{"one of whose commit nothing is known is there", func(s story) {
			s.begin("a1")
			s.committing("a1")
			s.both("a1")
		}, nil},
		{"or is not", func(s story) {
			s.begin("a1")
			s.committing("a1")
			s.both()
		}, nil},
		{"nobody's record", func(s story) { s.both("x1") }, []anomaly{unknownRead, unknownRead}},
		{"G1a: an aborted one is read", func(s story) {
			s.begin("a1")
			s.aborting("a1")
			s.both("a1")
		}, []anomaly{abortedRead, abortedRead}},
		{"G1a: in a transaction", func(s story) {
			s.begin("a1", "b1")
			s.aborting("a1")
			s.consume("b1", 0, 0, "a1")
			s.aborting("b1")
		}, []anomaly{abortedRead}},
		{"an open one is read", func(s story) {
			s.begin("a1")
			s.log(0, "a1")
			s.commit("a1")
			s.log(1, "a1")
		}, []anomaly{dirtyRead}},
		{"one that is never ended is read", func(s story) {
			s.begin("a1")
			s.both("a1")
		}, []anomaly{dirtyRead, dirtyRead}},
		{"G1b: a part is missing", func(s story) {
			s.begin("a1")
			s.commit("a1")
			s.log(0, "a1")
		}, []anomaly{tornRead}},
		{"a part is there twice", func(s story) {
			s.begin("a1")
			s.commit("a1")
			s.log(0, "a1", "a1")
		}, []anomaly{tornRead, wrongOrder}},
		{"all of it is there twice", func(s story) {
			s.begin("a1")
			s.committing("a1")
			s.both("a1", "a1")
		}, []anomaly{tornRead, wrongOrder, wrongOrder}},
		{"a committed one is missing", func(s story) {
			s.begin("a1", "b1")
			s.commit("a1", "b1")
			s.both("b1")
		}, []anomaly{lostWrite}},
		{"two readers differ", func(s story) {
			s.begin("a1", "b1", "c1")
			s.commit("a1", "b1")
			s.both("a1", "b1")
			s.consume("c1", 0, 0, "b1")
		}, []anomaly{changedRead}},
		{"a reader goes back", func(s story) {
			s.begin("a1", "b1")
			s.commit("a1", "b1")
			s.read("reader", 0, 1, "b1")
			s.read("reader", 0, 0, "a1")
			s.log(1, "a1", "b1")
		}, []anomaly{backwardRead}},
		{"G0: before one that was over", func(s story) {
			s.begin("a1")
			s.commit("a1")
			s.begin("b1")
			s.commit("b1")
			s.log(0, "a1", "b1")
			s.log(1, "b1", "a1")
		}, []anomaly{wrongOrder}},
		{"G0: of one writer", func(s story) {
			s.begin("a1")
			s.committing("a1")
			s.begin("a2")
			s.commit("a2")
			s.log(0, "a2", "a1")
			s.log(1, "a1", "a2")
		}, []anomaly{wrongOrder}},
		{"one reads another", func(s story) {
			s.begin("a1", "b1")
			s.commit("a1")
			s.consume("b1", 0, 0, "a1")
			s.commit("b1")
			s.both("a1", "b1")
		}, nil},
		{"G1c: two read each other", func(s story) {
			s.begin("a1", "b1")
			s.consume("a1", 0, 0, "b1")
			s.committing("a1")
			s.consume("b1", 1, 0, "a1")
			s.end("a1")
			s.commit("b1")
			s.log(0, "b1", "a1")
			s.log(1, "a1", "b1")
		}, []anomaly{dirtyRead, cycle}},
		{"G1c: over one that was over", func(s story) {
			s.begin("a1", "c1")
			s.consume("a1", 0, 2, "b1")
			s.commit("a1")
			s.begin("b1")
			s.commit("b1", "c1")
			s.both("a1", "c1", "b1")
		}, []anomaly{dirtyRead, skipped, skipped, cycle}},
		{"no cycle with one that was aborted", func(s story) {
			s.begin("a1", "b1")
			s.committing("b1")
			s.consume("a1", 0, 0, "b1")
			s.aborting("a1")
			s.end("b1")
			s.both("b1")
		}, nil},
		{"what was consumed is consumed again after an abort", func(s story) {
			s.begin("a1", "b1", "b2")
			s.commit("a1")
			s.consume("b1", 0, 0, "a1")
			s.aborting("b1")
			s.consume("b2", 0, 0, "a1")
			s.commit("b2")
			s.both("a1", "b2")
		}, nil},
		{"consumed twice", func(s story) {
			s.begin("a1", "b1", "b2")
			s.commit("a1")
			s.consume("b1", 0, 0, "a1")
			s.commit("b1")
			s.consume("b2", 0, 0, "a1")
			s.commit("b2")
			s.both("a1", "b1", "b2")
		}, []anomaly{consumedTwice}},
		{"skipped", func(s story) {
			s.begin("a1", "a2", "b1")
			s.commit("a1", "a2")
			s.consume("b1", 0, 1, "a2")
			s.commit("b1")
			s.both("a1", "a2", "b1")
		}, []anomaly{skipped}},
		{"perhaps consumed by one of whose commit nothing is known", func(s story) {
			s.begin("a1", "a2", "b1", "b2")
			s.commit("a1", "a2")
			s.consume("b1", 0, 0, "a1")
			s.committing("b1")
			s.consume("b2", 0, 1, "a2")
			s.commit("b2")
			s.both("a1", "a2", "b2")
		}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := story{newSerialHistory(2)}
			c.tell(s)
			findings := s.check()
			var got []anomaly
			for _, f := range findings {
				got = append(got, f.anomaly)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("got %v, want %v", findings, c.want)
			}
		})
	}
}

// TestSerialHistoriesHaveNoAnomalies: a broker that carries out transactions with an order of its own for each partition, and shows them when
// they are committed, is never blamed; and when two neighbours that followed each other are exchanged in a partition, it is.
func TestSerialHistoriesHaveNoAnomalies(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newSerialHistory(2)
		var logs [2][]string
		var open []string
		var positions [3][2]int
		began := map[string][2]int{}
		visible := func(p int) int {
			for i, id := range logs[p] {
				if slices.Contains(open, id) {
					return i
				}
			}
			return len(logs[p])
		}
		for n := range rapid.IntRange(1, 30).Draw(rt, "transactions") {
			writer := rapid.IntRange(0, 2).Draw(rt, "writer")
			name := fmt.Sprintf("w%d", writer)
			if i := slices.IndexFunc(open, func(id string) bool { return h.told[id].writer == name }); i >= 0 {
				id := open[i]
				h.committing(id)
				open = slices.Delete(open, i, i+1)
				h.end(id)
			}
			id := fmt.Sprintf("%d", n)
			h.begin(name, id)
			began[id] = [2]int{len(logs[0]), len(logs[1])}
			for p := range 2 {
				for end := visible(p); positions[writer][p] < end; positions[writer][p]++ {
					at := positions[writer][p]
					h.consume(id, int32(p), int64(at), logs[p][at])
				}
				// Anything that is open may stand behind.
				at := len(logs[p])
				for at > began[id][p] && slices.Contains(open, logs[p][at-1]) && rapid.Bool().Draw(rt, "earlier") {
					at--
				}
				logs[p] = slices.Insert(logs[p], at, id)
			}
			open = append(open, id)
		}
		for _, id := range open {
			h.committing(id)
			h.end(id)
		}
		for p := range 2 {
			for at, id := range logs[p] {
				h.read("reader", int32(p), int64(at), id)
			}
		}
		if findings := h.check(); len(findings) > 0 {
			rt.Fatalf("%v: %v", logs, findings)
		}
		for p := range 2 {
			for i := 1; i < len(logs[p]); i++ {
				a, b := h.told[logs[p][i-1]], h.told[logs[p][i]]
				if a.ended < b.begun {
					reads := h.reads["reader"]
					at := p*len(logs[0]) + i
					reads[at-1].id, reads[at].id = reads[at].id, reads[at-1].id
					if findings := h.check(); !slices.ContainsFunc(findings, func(f finding) bool { return f.anomaly == wrongOrder }) {
						rt.Fatalf("%v with %d and %d of partition %d exchanged: %v", logs, i-1, i, p, findings)
					}
					return
				}
			}
		}
	})
}
