package tiering

import (
	"testing"

	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

// The quotas of the remote tier are those of the properties, until the cluster has others.
func TestLimitsFollowTheCluster(t *testing.T) {
	const (
		copying  = "remote.log.manager.copy.max.bytes.per.second"
		fetching = "remote.log.manager.fetch.max.bytes.per.second"
	)
	s := newSettings(Config{Properties: map[string]string{copying: "1000"}})
	expect := func(when string, copied, fetched bool) {
		t.Helper()
		if got := s.copying.ThrottleTime() > 0; got != copied {
			t.Errorf("%s: copies are throttled %v, want %v", when, got, copied)
		}
		if got := s.fetching.ThrottleTime() > 0; got != fetched {
			t.Errorf("%s: reads are throttled %v, want %v", when, got, fetched)
		}
	}
	expect("before anything has passed", false, false)
	if err := s.copying.Wait(t.Context(), 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.fetching.Wait(t.Context(), 1<<20); err != nil {
		t.Fatal(err)
	}
	expect("by the properties", true, false)

	limits := func(values map[string]string) *metadata.Image {
		delta := metadata.NewDelta(metadata.Empty("cluster"))
		for name, value := range values {
			err := delta.Apply(1, 1, &metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: name, Value: &value})
			if err != nil {
				t.Fatal(err)
			}
		}
		return delta.Image()
	}
	s.setLimits(limits(map[string]string{copying: "1000000000", fetching: "1000"}))
	expect("by the cluster", false, true)
	s.setLimits(limits(nil))
	expect("by the properties again", true, false)
}
