package etcdlog

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"chancery/controllerd/internal/metalog"
	"chancery/controllerd/internal/metalog/metalogtest"
)

// startEtcd starts an etcd as others run it, and gives its client address.
func startEtcd(t *testing.T) string {
	t.Helper()
	address := freeAddresses(t, 1)[0]
	c := Config{ID: 1, Dir: filepath.Join(t.TempDir(), "etcd"), Token: "elsewhere", Logger: testLogger(t), UnsafeNoFsync: true}
	config, err := embedConfig(c, newZapLogger(c.Logger, new(atomic.Bool), func(err error) { t.Error(err) }))
	if err != nil {
		t.Fatal(err)
	}
	config.ListenClientUrls = []url.URL{{Scheme: "http", Host: address}}
	config.AdvertiseClientUrls = config.ListenClientUrls
	e, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return address
}

func connect(t *testing.T, address, prefix string, id int32) *External {
	t.Helper()
	e, err := Connect(ExternalConfig{ID: id, Endpoints: []string{address}, Prefix: prefix, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeExternal(t, e) })
	return e
}

func closeExternal(t *testing.T, e *External) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	_ = e.Close(ctx)
}

func TestExternalConformance(t *testing.T) {
	address := startEtcd(t)
	metalogtest.Run(t, func(t *testing.T) (one, two metalog.Log) {
		prefix := "/" + t.Name()
		return connect(t, address, prefix, 1), connect(t, address, prefix, 2)
	})
}

// leads waits until a controller should claim the log.
func leads(t *testing.T, e *External) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case l := <-e.Leadership():
			if l {
				return
			}
		case <-deadline:
			t.Fatal("it never leads")
		}
	}
}

func TestExternalTakeover(t *testing.T) {
	address := startEtcd(t)
	one := connect(t, address, "/x", 1)
	leads(t, one)
	term, err := one.Claim(t.Context(), "one:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := term.Append(t.Context(), metalogtest.Batch(term, 0, 3)); err != nil {
		t.Fatal(err)
	}
	two := connect(t, address, "/x", 2)

	// Silence without a farewell.
	one.cancel()
	one.loops.Wait()
	begin := time.Now()
	leads(t, two)
	next, err := two.Claim(t.Context(), "two:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("took over after %s", time.Since(begin))
	if next.EndOffset() != 3 || next.Epoch() != term.Epoch()+1 {
		t.Fatalf("end %d of epoch %d", next.EndOffset(), next.Epoch())
	}
	if err := term.Append(t.Context(), metalogtest.Batch(term, 3, 1)); !errors.Is(err, metalog.ErrFenced) {
		t.Fatalf("got %v, want fenced", err)
	}

	// A farewell.
	three := connect(t, address, "/x", 3)
	closeExternal(t, two)
	leads(t, three)
}

// TestExternalLeadership goes through what a controller hears of the active one, and when it leads by that.
func TestExternalLeadership(t *testing.T) {
	began := time.Now()
	claim := []byte(`{"id":1,"epoch":5}`)
	for _, x := range []struct {
		name  string
		hears func(*External)
		at    time.Duration
		leads bool
	}{
		{"nothing, without contact", func(e *External) { e.contact = began.Add(-2 * silence) }, 0, false},
		{"that there is no claim", func(e *External) { e.heard(func() {}) }, 0, true},
		{"a claim", func(e *External) { e.hear(claim) }, 0, false},
		{"signs of life", func(e *External) { e.hear(claim); e.sign(nil) }, silence, false},
		{"silence", func(e *External) { e.hear(claim); e.sign(nil) }, silence + 1, true},
		{"a farewell", func(e *External) { e.hear(claim); e.sign([]byte(farewell)) }, 0, true},
		{"a claim after a farewell", func(e *External) {
			e.hear(claim)
			e.sign([]byte(farewell))
			e.hear([]byte(`{"id":3,"epoch":6}`))
		}, 0, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			e := &External{logger: testLogger(t), leadership: make(chan bool, 1)}
			x.hears(e)
			// The clock of what was heard, and of the contact with etcd, which goes on.
			if !e.seen.IsZero() {
				e.seen = began
			}
			if e.contact.After(began) {
				e.contact = began.Add(x.at)
			}
			e.settle(began.Add(x.at))
			if e.leads != x.leads {
				t.Errorf("leads: %t", e.leads)
			}
		})
	}
}
