package e2e_test

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"chancery/services/testkit"
	"chancery/services/testkit/s3"
)

// storeFaults are what one of five requests to the store gets.
var storeFaults = []s3.Fault{
	{Status: 503, Code: "SlowDown"}, {Status: 500, Code: "InternalError"}, {Status: 400, Code: "ExpiredToken"}, {ResetBefore: true},
	{ResetAfter: true}, {CutAfter: 200_000}, {FlipAt: 100_000}, {ShortBy: 1000}, {FirstByteDelay: 100 * time.Millisecond},
}

// TestTieringStoreFails copies to a store, and reads from it, that fails in every way, is away for a while, and comes back. Whoever
// produces notices nothing; what was acknowledged is read back byte for byte; in the end the store has what the metadata says.
func TestTieringStoreFails(t *testing.T) {
	server := s3.Start(t, false)
	server.CreateBucket(t, "segments")
	proxy := s3.NewProxy(t, server.Endpoint)
	properties := map[string]string{
		"remote.log.storage.manager.class.name": "s3", "rsm.config.bucket": "segments", "rsm.config.endpoint": proxy.Endpoint,
		"rsm.config.region": s3.Region, "rsm.config.access.key": s3.AccessKey, "rsm.config.secret.key": s3.SecretKey,
		"rsm.config.request.timeout.ms": "2000", "rsm.config.read.stall.timeout.ms": "1000",
		// With so little memory most of what is read comes from the store.
		"rsm.config.cache.memory.bytes": "8388608",
	}
	maps.Copy(properties, tieringOn)
	a := testkit.StartAll(t, testkit.AllOptions{Properties: properties})
	bootstrap := []string{a.Bootstrap}
	const topic = "tiered-to-a-bad-store"
	tieredTopic(t, bootstrap, topic, 1, 1, nil)
	w := startTieredWriter(t, bootstrap, topic, 1)
	random := rand.New(rand.NewPCG(1, 2))
	proxy.Script(func(op string, _ *http.Request) s3.Fault {
		if random.IntN(5) > 0 {
			return s3.Fault{}
		}
		f := storeFaults[random.IntN(len(storeFaults))]
		if (f.CutAfter > 0 || f.FlipAt > 0 || f.ShortBy > 0) && op != "get" {
			return s3.Fault{}
		}
		return f
	})
	awaitOffset(t, bootstrap, topic, 0, earliestLocal, 1)

	proxy.Down(true)
	w.await(w.count()+400, "acknowledgements while the store is away")
	tiered := offsetAt(t, bootstrap, topic, 0, latestTiered)
	proxy.Down(false)
	awaitOffset(t, bootstrap, topic, 0, latestTiered, tiered+400)

	w.end()
	w.read(bootstrap, 0, offsetAt(t, bootstrap, topic, 0, latest))
	proxy.Script(nil)
	for _, args := range [][]string{{"--repair", "--older-than", "0s"}, nil} {
		args = append([]string{"tiering", "fsck", "--admin", a.Admin}, args...)
		if out, err := exec.CommandContext(t.Context(), testkit.Binary(t), args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	t.Logf("%d records, %d requests to the store", w.count(), proxy.Requests(""))
}
