package segmentstore

import "testing"

// TestKeepTopics: what was counted for a topic goes with it, and counts again from nothing.
func TestKeepTopics(t *testing.T) {
	m := &Manager{metrics: &metrics{}}
	m.metrics.topics.add("a", "put", 10, 1)
	m.metrics.topics.add("a", "put", 10, 3)
	m.metrics.topics.add("b", "get", 5, 1)
	if got := *m.metrics.topics.counts[topicOp{"a", "put"}]; got != (topicCount{20, 4}) {
		t.Fatal(got)
	}
	m.KeepTopics(func(topic string) bool { return topic == "b" })
	if n := len(m.metrics.topics.counts); n != 1 {
		t.Fatal(n)
	}
}
