package keeper

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
)

// awayStore is a store that can go away.
type awayStore struct {
	objectstore.RemoteStorageManager
	away bool
}

func (s *awayStore) failure(key string) error {
	return &objectstore.Error{Kind: objectstore.ErrTransient, Op: "put", Key: key, Err: fmt.Errorf("first\nsecond")}
}

func (s *awayStore) CopyLogSegmentData(ctx context.Context, m *objectstore.SegmentMetadata, d *objectstore.SegmentData) ([]byte, error) {
	if s.away {
		return nil, s.failure(m.ID.String())
	}
	return s.RemoteStorageManager.CopyLogSegmentData(ctx, m, d)
}

func (s *awayStore) DeleteLogSegmentData(ctx context.Context, list []*objectstore.SegmentMetadata) []error {
	if !s.away {
		return s.RemoteStorageManager.DeleteLogSegmentData(ctx, list)
	}
	errs := make([]error, len(list))
	for i := range list {
		errs[i] = s.failure(list[i].ID.String())
	}
	return errs
}

// TestStoreAwayForAnHour: what is announced and never copied does not pile up, the reason in metrics stays one of a few, and
// the first pass after the store is back copies.
func TestStoreAwayForAnHour(t *testing.T) {
	w := newWorld(t)
	store := &awayStore{RemoteStorageManager: w.env.Store, away: true}
	w.env.Store = store
	w.leader.grow(25)
	w.config.FileDeleteDelayMs = 60_000
	reasons := map[string]bool{}
	var lag Lag
	for range 120 {
		if err := w.pass().Run(t.Context(), &lag); err == nil {
			t.Fatal("a store that is away took a segment")
		}
		reasons[lag.Reason] = true
		if lag.KnownSegments > maxFailedCopies || lag.RemoteSegments != 0 || lag.CopySegments != 2 || lag.DeleteSegments != lag.KnownSegments {
			t.Fatalf("%+v", lag)
		}
		if lag.Failure == "" || strings.Contains(lag.Failure, "\n") {
			t.Fatalf("%q is not a line that says what failed", lag.Failure)
		}
		w.now = w.now.Add(30 * time.Second)
	}
	if len(reasons) > 2 || !reasons["the copy failed: transient"] {
		t.Fatal(reasons)
	}
	store.away = false
	if err := w.pass().Run(t.Context(), &lag); err != nil {
		t.Fatal(err)
	}
	if lag.RemoteSegments != 2 || lag.CopySegments != 0 || lag.Reason != "" || lag.Failure != "" || lag.KnownSegments != 2 {
		t.Fatalf("%+v", lag)
	}
	w.checkBucket()
}

// TestLagWhileCopying: a pass that copies for long shows how far it is.
func TestLagWhileCopying(t *testing.T) {
	w := newWorld(t)
	w.env.NewID = uuid.Random
	w.leader.grow(47)
	p := w.pass()
	var seen []string
	p.Report = func(l Lag) {
		if text := fmt.Sprint(l.CopySegments, l.RemoteSegments); len(seen) == 0 || seen[len(seen)-1] != text {
			seen = append(seen, text)
		}
	}
	var lag Lag
	if err := p.Run(t.Context(), &lag); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, ", "); got != "4 0, 3 1, 2 2, 1 3, 0 4" {
		t.Fatal(got)
	}
}

// TestRemovalThatFails: a partition that is gone shows what is left of it, and why.
func TestRemovalThatFails(t *testing.T) {
	w := newWorld(t)
	store := &awayStore{RemoteStorageManager: w.env.Store}
	w.env.Store = store
	w.leader.grow(25)
	w.mustRun()
	store.away = true
	var lag Lag
	if err := w.pass().Remove(t.Context(), &lag); err == nil || lag.DeleteSegments != 2 || lag.RemoteSegments != 0 || lag.Failure == "" {
		t.Fatalf("%v: %+v", err, lag)
	}
	store.away = false
	if err := w.pass().Remove(t.Context(), &lag); err != nil || lag != (Lag{}) {
		t.Fatalf("%v: %+v", err, lag)
	}
}
