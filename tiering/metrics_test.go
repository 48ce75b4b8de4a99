package tiering

import (
	"net/http/httptest"
	"strings"
	"testing"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/remotelog"
	"chancery/services/metadata"
	"chancery/services/objectstore"
	"chancery/services/telemetry"
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

// TestMetricsOfWork: what was copied and read is in the metrics, by topic.
func TestMetricsOfWork(t *testing.T) {
	copied(t, func(w *world) {
		all, err := telemetry.NewMetrics()
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMetrics(all.Meter("tiering"), w.s)
		if err != nil {
			t.Fatal(err)
		}
		w.expectRead("the first", 0, errcode.None, at(0))
		w.round()
		answer := httptest.NewRecorder()
		all.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		topic := w.s.image.Load().Topic(tieredID).Name
		for _, want := range []string{
			`remote_copy_requests_total{topic="` + topic + `"} 6`, `remote_fetch_requests_total{topic="` + topic + `"} 1`, `remote_copy_errors_total{topic="` + topic + `"} 0`,
			`remote_log_metadata_count{partition="0",topic="` + topic + `"} 2`, `remote_log_reader_avg_idle_percent 100`,
		} {
			if !strings.Contains(answer.Body.String(), want) {
				t.Errorf("no %s in\n%s", want, answer.Body.String())
			}
		}
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
}
