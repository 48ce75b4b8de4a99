package lifecycle_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"chancery/services/lifecycle"
)

// fake notes what happens to it in a journal that all fakes of a test share.
type fake struct {
	name     string
	journal  *[]string
	startErr error
	stopErr  error
	readyErr error
	failed   chan error
}

func (f *fake) Start(context.Context) error {
	*f.journal = append(*f.journal, "start "+f.name)
	return f.startErr
}

func (f *fake) Stop(ctx context.Context) error {
	*f.journal = append(*f.journal, "stop "+f.name)
	return errors.Join(f.stopErr, ctx.Err())
}

func (f *fake) Failed() <-chan error { return f.failed }
func (f *fake) Ready() error         { return f.readyErr }

func group(fakes ...*fake) (*lifecycle.Group, *[]string) {
	journal := &[]string{}
	g := lifecycle.NewGroup(slog.New(slog.DiscardHandler))
	for _, f := range fakes {
		f.journal = journal
		g.Add(f.name, f)
	}
	return g, journal
}

func expect(t *testing.T, journal *[]string, want string) {
	t.Helper()
	if got := strings.Join(*journal, ", "); got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestOrder(t *testing.T) {
	g, journal := group(&fake{name: "a"}, &fake{name: "b", stopErr: errors.New("stuck")}, &fake{name: "c"})
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := g.Stop(t.Context())
	if err == nil || !strings.Contains(err.Error(), "stop b: stuck") {
		t.Fatalf("got %v, want the error of b", err)
	}
	expect(t, journal, "start a, start b, start c, stop c, stop b, stop a")
}

func TestFailedStartStopsThoseBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // The others are stopped in order even when the start was given up.
	g, journal := group(&fake{name: "a"}, &fake{name: "b", startErr: errors.New("port in use")}, &fake{name: "c"})
	err := g.Start(ctx)
	if err == nil || err.Error() != "start b: port in use" {
		t.Fatalf("got %v, want only the error of b", err)
	}
	expect(t, journal, "start a, start b, stop a")
}

func TestFirstFailureIsTheGroups(t *testing.T) {
	a, b := &fake{name: "a", failed: make(chan error, 1)}, &fake{name: "b"}
	g, _ := group(a, b)
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.failed <- errors.New("disk gone")
	if err := <-g.Failed(); err.Error() != "a failed: disk gone" {
		t.Fatalf("got %v", err)
	}
	if err := g.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestReadyNamesWhoIsNot(t *testing.T) {
	a, b, c := &fake{name: "a"}, &fake{name: "b", readyErr: errors.New("fenced")}, &fake{name: "c", readyErr: errors.New("loading")}
	g, _ := group(a, b, c)
	if got := strings.Split(g.Ready().Error(), "\n"); !slices.Equal(got, []string{"b: fenced", "c: loading"}) {
		t.Fatalf("got %q", got)
	}
	b.readyErr, c.readyErr = nil, nil
	if err := g.Ready(); err != nil {
		t.Fatal(err)
	}
}
