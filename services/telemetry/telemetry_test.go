package telemetry

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestAdmin(t *testing.T) {
	metrics, err := NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	counter, err := metrics.Meter("test").Int64Counter("chancery_things")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)
	h := NewHistogram("chancery_wait_seconds", "How long.", map[string]string{"api": "Produce"})
	metrics.Registerer().MustRegister(h)
	h.Observe(3 * time.Microsecond)

	missing := errors.New("no metadata yet")
	var mu sync.Mutex
	a := NewAdmin(AdminConfig{Address: "127.0.0.1:0", Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
		Ready: func() error { mu.Lock(); defer mu.Unlock(); return missing }})
	if a.Ready() == nil {
		t.Error("ready before the start")
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	url := "http://" + a.Address()
	if code, body := get(t, url+"/readyz"); code != 503 || !strings.Contains(body, "no metadata yet") {
		t.Errorf("readyz: %d %q", code, body)
	}
	mu.Lock()
	missing = nil
	mu.Unlock()
	for path, want := range map[string]string{
		"/readyz":              "ok",
		"/livez":               "ok",
		"/metrics":             "chancery_things_total 3",
		"/debug/pprof/cmdline": "",
	} {
		if code, body := get(t, url+path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, want %q in %q", path, code, want, body)
		}
	}
	_, body := get(t, url+"/metrics")
	for _, want := range []string{
		`chancery_wait_seconds_bucket{api="Produce",le="2e-06"} 0`,
		`chancery_wait_seconds_bucket{api="Produce",le="4e-06"} 1`,
		`chancery_wait_seconds_count{api="Produce"} 1`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics have no %q", want)
		}
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-a.Failed():
		t.Error("a stop is no failure:", err)
	default:
	}
	if err := metrics.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestProfilesAreForTheSameHost(t *testing.T) {
	handler := loopbackOnly(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for remote, want := range map[string]int{
		"127.0.0.1:1": http.StatusTeapot, "[::1]:1": http.StatusTeapot, "10.0.0.1:1": http.StatusNotFound, "nonsense": http.StatusNotFound,
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)
		r.RemoteAddr = remote
		w := httptest.NewRecorder()
		handler(w, r)
		if w.Code != want {
			t.Errorf("from %s: %d, want %d", remote, w.Code, want)
		}
	}
}

func TestBucketsHoldTheirDurations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "d"))
		b := bucketOf(d)
		if d.Seconds() > bound(b)*1.0000001 {
			t.Fatalf("%v is above its bucket's bound %v s", d, bound(b))
		}
		if b > 0 && d.Seconds() <= bound(b-1)*0.9999999 {
			t.Fatalf("%v fits in the bucket below, up to %v s", d, bound(b-1))
		}
	})
	if got := bucketOf(time.Hour); got != histogramBuckets {
		t.Errorf("an hour is in bucket %d", got)
	}
}

func TestHistogramCountsAll(t *testing.T) {
	h := NewHistogram("x", "", nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 1000 {
				h.Observe(time.Duration(i) * time.Microsecond)
			}
		})
	}
	wg.Wait()
	count, sum, buckets := h.snapshot()
	if count != 4000 || sum < 1.99 || sum > 2.01 || buckets[bound(histogramBuckets-1)] != 4000 {
		t.Errorf("count %d, sum %v, buckets %v", count, sum, buckets)
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log, level, err := NewLogger(&out, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud", "n", 1)
	if s := out.String(); strings.Contains(s, "quiet") || !strings.Contains(s, `"msg":"loud","n":1`) {
		t.Errorf("got %q", s)
	}
	level.Set(slog.LevelInfo)
	if log.Info("heard"); !strings.Contains(out.String(), "heard") {
		t.Error("the level cannot be changed")
	}
	for _, bad := range [][2]string{{"verbose", "text"}, {"info", "xml"}} {
		if _, _, err := NewLogger(&out, bad[0], bad[1]); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	h := NewHistogram("x", "", nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		d := time.Duration(0)
		for pb.Next() {
			d += 977
			h.Observe(d & 0xffffff)
		}
	})
}
