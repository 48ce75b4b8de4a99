package tiering

import (
	"testing"

	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
	"chancery/services/objectstore/quota"
)

// The quotas of the remote tier are those of the properties, until the cluster has others.
func TestLimitsFollowTheCluster(t *testing.T) {
	const (
		copying  = "remote.log.manager.copy.max.bytes.per.second"
		fetching = "remote.log.manager.fetch.max.bytes.per.second"
	)
	s := newSettings(Config{Properties: map[string]string{copying: "1000"}})
	// expect passes a large piece, if it may pass, and says whether the next one has to wait.
	expect := func(when string, copied, fetched bool) {
		t.Helper()
		for name, x := range map[string]struct {
			limiter *quota.Limiter
			want    bool
		}{"copies": {s.copying, copied}, "reads": {s.fetching, fetched}} {
			if x.limiter.ThrottleTime() == 0 {
				if err := x.limiter.Wait(t.Context(), 1<<20); err != nil {
					t.Fatal(err)
				}
			}
			if got := x.limiter.ThrottleTime() > 0; got != x.want {
				t.Errorf("%s: %s are throttled %v, want %v", when, name, got, x.want)
			}
		}
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
