package controllerd_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"chancery/services/telemetry"
)

func TestMetrics(t *testing.T) {
	c := newCluster(t, 1)
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	c.metrics = metrics
	c.startAll()
	c.startNode(1)
	if topic := createTopic(c, "a", 3, 1); topic.ErrorCode != 0 {
		t.Fatalf("%+v", topic)
	}
	recorder := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	body := recorder.Body.String()
	values := map[string]string{}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ = strings.Cut(name, "{")
		values[name] = value
	}
	for name, want := range map[string]string{
		"active_controller_count": "1", "active_broker_count": "1", "fenced_broker_count": "0", "global_topic_count": "1",
		"global_partition_count": "3", "offline_partitions_count": "0", "preferred_replica_imbalance_count": "0",
		"unclean_leader_elections_total": "0", "new_active_controllers_total": "1", "current_leader": "1",
	} {
		if got := values["chancery_controller_"+name]; got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	for _, name := range []string{"event_queue_time_seconds_count", "last_applied_record_offset", "finalized_level"} {
		if !strings.Contains(body, "chancery_controller_"+name) {
			t.Errorf("there is no %s", name)
		}
	}
}
