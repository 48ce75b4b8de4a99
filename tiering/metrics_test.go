package tiering

import (
	"testing"

	"chancery/services/kafka/remotelog"
	"chancery/services/metadata"
	"chancery/services/objectstore"
	"chancery/tiering/internal/keeper"
)

// countingStore is a store that counts by topic.
type countingStore struct {
	objectstore.RemoteStorageManager
	topics map[string]bool
}

func (s countingStore) KeepTopics(wanted func(string) bool) {
	for topic := range s.topics {
		if !wanted(topic) {
			delete(s.topics, topic)
		}
	}
}

// TestSeriesEndWithTheirTopic: what was counted for a topic that is gone stays as long as something of it is left in the remote
// tier, and not longer.
func TestSeriesEndWithTheirTopic(t *testing.T) {
	store := countingStore{topics: map[string]bool{"deleted": true}}
	p := remotelog.Partition{Partition: 3}
	s := &Server{store: store, tasks: map[remotelog.Partition]*task{p: {topic: "deleted"}}}
	s.image.Store(metadata.Empty("cluster"))
	m := &keeper.Metrics{}
	m.Of("deleted").CopyBytes.Add(5)
	if got := m.Keep(s.wantedTopics()); len(got) != 1 || got["deleted"].CopyBytes.Load() != 5 || len(store.topics) != 1 {
		t.Fatal(got, store.topics)
	}
	delete(s.tasks, p)
	if got := m.Keep(s.wantedTopics()); len(got) != 0 || len(store.topics) != 0 {
		t.Fatal(got, store.topics)
	}
}
