package registry_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
	"chancery/services/objectstore/contract"
	"chancery/services/objectstore/registry"
	"chancery/services/objectstore/segmentobject"
	"chancery/services/objectstore/segmentstore"
	"chancery/services/testkit/s3"
)

// faulty are the faults that a store and the way to it can have; the first of so many requests that can have one gets it.
var faulty = []struct {
	fault s3.Fault
	every int
}{
	{s3.Fault{Name: "slow down", Status: 503, Code: "SlowDown"}, 5},
	{s3.Fault{Name: "internal error", Status: 500, Code: "InternalError"}, 3},
	{s3.Fault{Name: "too many requests", Status: 429, Code: "TooManyRequests"}, 5},
	{s3.Fault{Name: "request timeout", Status: 400, Code: "RequestTimeout"}, 3},
	{s3.Fault{Name: "expired token", Status: 400, Code: "ExpiredToken"}, 3},
	{s3.Fault{Name: "conflict", Status: 409, Code: "ConditionalRequestConflict"}, 5},
	// Not as often as there are requests for a copy that is not there: each attempt would meet it.
	{s3.Fault{Name: "error in the body", Status: 200, Code: "InternalError"}, 7},
	{s3.Fault{Name: "reset before", ResetBefore: true}, 3},
	{s3.Fault{Name: "lost answer", ResetAfter: true}, 3},
	{s3.Fault{Name: "hang", Hang: true}, 20},
	{s3.Fault{Name: "slow first byte", FirstByteDelay: 60 * time.Millisecond}, 2},
	{s3.Fault{Name: "slow connection", BytesPerSecond: 8 << 20}, 2},
	{s3.Fault{Name: "cut body", CutAfter: 300_000}, 2},
	{s3.Fault{Name: "short body", ShortBy: 100_000}, 2},
	{s3.Fault{Name: "flipped byte in an answer", FlipAt: 70_000}, 2},
	{s3.Fault{Name: "flipped byte in a request", FlipRequestAt: 70_000}, 2},
}

// applies says which requests can have a fault.
func applies(f s3.Fault, op string) bool {
	switch {
	case f.CutAfter > 0, f.ShortBy > 0, f.FlipAt > 0:
		return op == "get"
	case f.FlipRequestAt > 0:
		return op == "put" || op == "upload_part"
	case f.Status == 200:
		// S3 has it at the end of an upload; what stands between may have it anywhere.
		return op == "complete_upload" || op == "put" || op == "get"
	case f.Status == 409:
		return op == "put" || op == "complete_upload"
	}
	return true
}

// Under every fault, what was copied is read back byte for byte: nothing wrong, nothing lost. Copies and reads are tried
// again as their jobs do.
func TestFaults(t *testing.T) {
	server := s3.Start(t, false)
	for _, client := range []string{"s3", "minio"} {
		bucket := "faults-" + client
		server.CreateBucket(t, bucket)
		for _, f := range faulty {
			t.Run(client+" "+f.fault.Name, func(t *testing.T) {
				proxy := s3.NewProxy(t, server.Endpoint)
				m := open(t, client, map[string]string{
					"bucket": bucket, "endpoint": proxy.Endpoint, "region": s3.Region, "access.key": s3.AccessKey, "secret.key": s3.SecretKey,
					"put.max.bytes": "2097152", "part.size.bytes": "5242880", "request.timeout.ms": "1000", "read.stall.timeout.ms": "300",
				})
				var mu sync.Mutex
				asked, hurt := 0, 0
				proxy.Script(func(op string, _ *http.Request) s3.Fault {
					mu.Lock()
					defer mu.Unlock()
					if !applies(f.fault, op) {
						return s3.Fault{}
					}
					if asked++; asked%f.every != 1%f.every {
						return s3.Fault{}
					}
					hurt++
					return f.fault
				})
				segments, want := copyAll(t, m)
				readAll(t, m, segments, want)
				if hurt == 0 {
					t.Error("no request was hurt")
				}
			})
		}
	}
}

// copyAll copies some segments, small ones and one in parts.
func copyAll(t *testing.T, m objectstore.RemoteStorageManager) (segments []coldread.Segment, want []byte) {
	t.Helper()
	topic := uuid.Random()
	base := int64(0)
	for _, batches := range []int{10, 55, 5} {
		s, d, log := contract.Batches(t, topic, base, batches, 100_000)
		persist(t, func() error {
			custom, err := m.CopyLogSegmentData(t.Context(), s, d)
			s.Custom = custom
			return err
		})
		segments = append(segments, coldread.Segment{SegmentMetadata: s, FirstOffset: s.BaseOffset, LastOffset: s.EndOffset})
		want = append(want, log...)
		base += int64(batches)
	}
	return segments, want
}

// readAll reads everything back as a consumer does.
func readAll(t *testing.T, m objectstore.RemoteStorageManager, segments []coldread.Segment, want []byte) {
	t.Helper()
	r, err := coldread.New(m, coldread.DefaultConfig(), coldread.Deps{Meter: noop.Meter{}, Logger: deps().Logger})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	end := segments[len(segments)-1].LastOffset
	for offset := int64(0); offset <= end; {
		persist(t, func() error {
			result, err := r.Read(t.Context(), coldread.ReadRequest{Segments: segments, Offset: offset, MaxBytes: 1 << 20, MinOneBatch: true})
			if err != nil {
				return err
			}
			defer result.Records.Release()
			data, err := result.Records.ReadAll()
			if err != nil || len(data) == 0 || !bytes.HasPrefix(want, data) {
				t.Fatalf("at offset %d: %d bytes that are wrong, %v", offset, len(data), err)
			}
			want, offset = want[len(data):], result.NextOffset
			return nil
		})
	}
	if len(want) > 0 {
		t.Errorf("%d bytes are lost", len(want))
	}
}

// persist does something until it works, as jobs and consumers do, however slow the machine is. Every failure must be one that
// says so.
func persist(t *testing.T, do func() error) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil {
			return
		}
		if objectstore.KindName(err) == "other" || errors.Is(err, objectstore.ErrRejected) {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
		if attempt > 3 {
			// The breaker lets the next one through after a while.
			timer := time.NewTimer(50 * time.Millisecond)
			select {
			case <-timer.C:
			case <-t.Context().Done():
				timer.Stop()
				t.Fatal(err)
			}
		}
	}
}

// While a store is away, requests fail at once; when it is back, they work again.
func TestOutage(t *testing.T) {
	server := s3.Start(t, false)
	server.CreateBucket(t, "outage")
	proxy := s3.NewProxy(t, server.Endpoint)
	m := open(t, "s3", map[string]string{
		"bucket": "outage", "endpoint": proxy.Endpoint, "region": s3.Region, "access.key": s3.AccessKey, "secret.key": s3.SecretKey,
	})
	s, d, log := contract.Segment(uuid.Random(), 0, 10_000)
	contract.Copy(t, m, s, d)
	proxy.Down(true)
	for range 3 {
		if _, err := m.FetchIndexes(t.Context(), s); !errors.Is(err, objectstore.ErrTransient) {
			t.Errorf("while the store is away: %v", err)
		}
	}
	asked := proxy.Requests("")
	begun := time.Now()
	for range 50 {
		if _, err := m.FetchIndexes(t.Context(), s); !errors.Is(err, objectstore.ErrTransient) {
			t.Errorf("while the store is away: %v", err)
		}
	}
	// On a machine that is so slow that the reads take long, a request now and then looks whether the store is back.
	took := time.Since(begun)
	if n := proxy.Requests("") - asked; n > 20+int(took/(250*time.Millisecond)) {
		t.Errorf("50 reads made %d requests in %s", n, took)
	}
	proxy.Down(false)
	persist(t, func() error {
		_, err := m.FetchIndexes(t.Context(), s)
		return err
	})
	if got := contract.Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
		t.Error("the bytes differ")
	}
}

// A bit that flips on the store's disk, and an object that is cut there, give errors and never other records.
func TestDamageOnDisk(t *testing.T) {
	server := s3.Start(t, false)
	server.CreateBucket(t, "damage")
	m := open(t, "s3", map[string]string{
		"bucket": "damage", "endpoint": server.Endpoint, "region": s3.Region, "access.key": s3.AccessKey, "secret.key": s3.SecretKey,
	})
	s, d, log := contract.Batches(t, uuid.Random(), 0, 30, 100_000)
	contract.Copy(t, m, s, d)
	key, err := m.(objectstore.Inventory).ObjectKey(s)
	if err != nil {
		t.Fatal(err)
	}
	file := server.File("damage", key)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	segments := []coldread.Segment{{SegmentMetadata: s, FirstOffset: 0, LastOffset: s.EndOffset}}
	for name, change := range map[string]func([]byte) []byte{
		"flipped":     func(b []byte) []byte { b[1<<20+500] ^= 4; return b },
		"cut":         func(b []byte) []byte { return b[:1<<20+500] },
		"without end": func(b []byte) []byte { return b[:len(b)-1] },
		"empty":       func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, change(bytes.Clone(whole)), 0o644); err != nil {
				t.Fatal(err)
			}
			r, err := coldread.New(m, coldread.DefaultConfig(), coldread.Deps{Meter: noop.Meter{}, Logger: deps().Logger})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			failed := 0
			for offset := int64(0); offset <= s.EndOffset; offset++ {
				result, err := r.Read(t.Context(), coldread.ReadRequest{Segments: segments, Offset: offset, MaxBytes: 1, MinOneBatch: true})
				if errors.Is(err, objectstore.ErrCorrupt) {
					failed++
					continue
				}
				if err != nil {
					t.Fatal(offset, err)
				}
				data, err := result.Records.ReadAll()
				size := len(log) / 30
				if err != nil || !bytes.Equal(data, log[int(offset)*size:int(offset+1)*size]) {
					t.Fatalf("offset %d: %d bytes that are wrong, %v", offset, len(data), err)
				}
			}
			if failed == 0 || name == "flipped" && failed > 12 {
				t.Errorf("%d of 30 batches were refused", failed)
			}
		})
	}
}

// A copy in parts, or a deletion, that is cut off at any step leaves nothing that a deletion with the same metadata and the
// end of stale uploads do not remove.
func TestCrashAtEachStep(t *testing.T) {
	server := s3.Start(t, false)
	for _, client := range []string{"s3", "minio"} {
		bucket := "crash-" + client
		server.CreateBucket(t, bucket)
		values := make(map[string]string)
		for key, value := range map[string]string{
			"bucket": bucket, "endpoint": server.Endpoint, "region": s3.Region, "access.key": s3.AccessKey, "secret.key": s3.SecretKey,
			"put.max.bytes": "2097152", "part.size.bytes": "5242880",
		} {
			values[prefix+key] = value
		}
		config, err := registry.Parse(values, prefix, "cluster")
		if err != nil {
			t.Fatal(err)
		}
		start := func(t *testing.T, d segmentstore.Deps) objectstore.InventoryManager {
			m, err := registry.Stores().Open(t.Context(), client, config, d)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			return m.(objectstore.InventoryManager)
		}
		for _, step := range segmentstore.Steps {
			t.Run(client+" "+step, func(t *testing.T) {
				crash := errors.New("crash")
				var crashed atomic.Bool // parts are uploaded side by side
				d := deps()
				d.Step = func(name string) error {
					if name == step {
						crashed.Store(true)
					}
					if crashed.Load() {
						return crash
					}
					return nil
				}
				m := start(t, d)
				s, data, _ := contract.Segment(uuid.Random(), 0, 6<<20)
				custom, err := m.CopyLogSegmentData(t.Context(), s, data)
				if err != nil && !errors.Is(err, crash) {
					t.Fatal(err)
				}
				s.Custom = custom
				m.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s})
				if !crashed.Load() {
					t.Fatal("the step never came")
				}
				after := start(t, deps())
				if errs := after.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); errs != nil {
					t.Fatal(errs)
				}
				later := time.Now().Add(time.Hour)
				if _, err := after.AbortStaleUploads(t.Context(), later, false); err != nil {
					t.Fatal(err)
				}
				if n, err := after.AbortStaleUploads(t.Context(), later, true); n > 0 || err != nil {
					t.Errorf("%d uploads are left, %v", n, err)
				}
				err = after.ListObjects(t.Context(), objectstore.Scope{}, func(o objectstore.Object) error {
					t.Errorf("%s is left", o.Key)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A bucket that is not there is no object that is not there: what is read is not taken for expired, nor what is deleted for
// gone.
func TestBucketAway(t *testing.T) {
	server := s3.Start(t, false)
	for _, client := range []string{"s3", "minio"} {
		t.Run(client, func(t *testing.T) {
			bucket := "away-" + client
			settings := map[string]string{
				"bucket": bucket, "endpoint": server.Endpoint, "region": s3.Region, "access.key": s3.AccessKey, "secret.key": s3.SecretKey,
			}
			m := open(t, client, settings)
			s, d, log := contract.Segment(uuid.Random(), 0, 10_000)
			s.Custom = (&segmentobject.Custom{TailBytes: 500}).Encode()
			if _, err := m.CopyLogSegmentData(t.Context(), s, d); !errors.Is(err, objectstore.ErrRejected) {
				t.Errorf("copy: %v", err)
			}
			if _, err := m.FetchLogSegment(t.Context(), s, 0, 10); !errors.Is(err, objectstore.ErrRejected) {
				t.Errorf("read: %v", err)
			}
			if _, err := m.FetchIndexes(t.Context(), s); !errors.Is(err, objectstore.ErrRejected) {
				t.Errorf("indexes: %v", err)
			}
			if errs := m.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); len(errs) != 1 || !errors.Is(errs[0], objectstore.ErrRejected) {
				t.Errorf("delete: %v", errs)
			}
			server.CreateBucket(t, bucket)
			contract.Copy(t, m, s, d)
			if got := contract.Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
				t.Error("the bytes differ")
			}
		})
	}
}

// Credentials that have expired are read anew from their file, without a restart.
func TestRenewedCredentials(t *testing.T) {
	server := s3.Start(t, false)
	server.CreateBucket(t, "renewed")
	for _, client := range []string{"s3", "minio"} {
		t.Run(client, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "credentials")
			keys := func(access, secret string) {
				text := "[default]\naws_access_key_id = " + access + "\naws_secret_access_key = " + secret + "\n"
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			keys("an-old-key", "an-old-secret")
			m := open(t, client, map[string]string{
				"bucket": "renewed", "endpoint": server.Endpoint, "region": s3.Region, "credentials.file": file,
			})
			s, d, log := contract.Segment(uuid.Random(), 0, 10_000)
			if _, err := m.CopyLogSegmentData(t.Context(), s, d); !errors.Is(err, objectstore.ErrCredentials) {
				t.Errorf("with old credentials: %v", err)
			}
			keys(s3.AccessKey, s3.SecretKey)
			contract.Copy(t, m, s, d)
			if got := contract.Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
				t.Error("the bytes differ")
			}
		})
	}
}
