package tiering

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"chancery/services/objectstore"
)

// lateStore is a store that answers from some request on.
type lateStore struct {
	objectstore.InventoryManager
	failures int
}

func (s *lateStore) ListObjects(context.Context, objectstore.Scope, func(objectstore.Object) error) error {
	if s.failures--; s.failures >= 0 {
		return &objectstore.Error{Kind: objectstore.ErrRejected, Op: "list", Key: "v1/", Code: "NoSuchBucket", Err: errors.New("create the bucket")}
	}
	return nil
}

// TestProbe: a store that cannot be used is told of once at the start, and again when it can be.
func TestProbe(t *testing.T) {
	for _, failures := range []int{0, 5} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			s := &Server{store: &lateStore{failures: failures}, deps: Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
			s.probe(t.Context())
			told, lines := strings.Contains(log.String(), "create the bucket"), strings.Count(log.String(), "\n")
			if told != (failures > 0) || lines != 2*min(failures, 1) {
				t.Errorf("%d failures: %s", failures, log.String())
			}
		})
	}
}
