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
	for quiet := time.After(silence + 2*beatInterval); quiet != nil; {
		select {
		case l := <-two.Leadership():
			if l {
				t.Fatal("the second one leads although the first lives")
			}
		case <-quiet:
			quiet = nil
		}
	}

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
	begin = time.Now()
	leads(t, three)
	if took := time.Since(begin); took > silence {
		t.Fatalf("after a farewell it took %s", took)
	}
}
