package segmentstore

import (
	"context"
	"errors"
	"time"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/segmentobject"
)

// DeleteLogSegmentData deletes the objects of segments, many with one request.
func (m *Manager) DeleteLogSegmentData(ctx context.Context, segments []*objectstore.SegmentMetadata) []error {
	keys := make([]string, len(segments))
	for i, s := range segments {
		key, err := m.ObjectKey(s)
		if err != nil {
			// Without its own metadata, the object is where a copy would put it now.
			key = m.config.Layout.Key(m.config.Prefix, m.config.ClusterID, s)
		}
		keys[i] = key
	}
	return m.DeleteObjects(ctx, keys)
}

// DeleteObjects deletes objects by their keys.
func (m *Manager) DeleteObjects(ctx context.Context, keys []string) []error {
	errs := make([]error, len(keys))
	failed := false
	for begin := 0; begin < len(keys); begin += blob.MaxDelete {
		end := min(begin+blob.MaxDelete, len(keys))
		if m.deleteSome(ctx, keys[begin:end], errs[begin:end]) {
			failed = true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

// deleteSome deletes what one request takes; those keys that failed alone are asked for again alone.
func (m *Manager) deleteSome(ctx context.Context, keys []string, errs []error) (failed bool) {
	fail := func(err error) bool {
		for i := range errs {
			errs[i] = err
		}
		return true
	}
	if err := m.step(StepDeleteBegun); err != nil {
		return fail(err)
	}
	left := make([]int, len(keys))
	for i := range left {
		left[i] = i
	}
	for attempt := 1; len(left) > 0; attempt++ {
		some := make([]string, len(left))
		for i, k := range left {
			some[i] = keys[k]
		}
		var each []error
		var unsure []int
		err := m.do(ctx, "delete", some[0], 0, func(ctx context.Context) error {
			each, unsure = m.store.Delete(ctx, some), nil
			for i, err := range each {
				if errors.Is(err, blob.ErrUnanswered) {
					each[i], unsure = nil, append(unsure, i)
				}
			}
			return allOf(each)
		})
		for _, i := range unsure {
			each[i] = m.isDeleted(ctx, some[i])
		}
		if err != nil {
			for _, k := range left {
				errs[k] = err
			}
			break
		}
		var again []int
		var cause error
		for i, k := range left {
			errs[k] = nil
			if each != nil {
				errs[k] = each[i]
			}
			if errs[k] != nil && objectstore.MayRetry(errs[k]) {
				again, cause = append(again, k), errs[k]
			}
		}
		left = again
		if cause == nil || !m.again(ctx, attempt, cause) || wait(ctx, attempt, cause) != nil {
			break
		}
	}
	for _, err := range errs {
		failed = failed || err != nil
	}
	if err := m.step(StepObjectsDeleted); err != nil {
		return fail(err)
	}
	return failed
}

// isDeleted asks for an object that the answer to its deletion has not named: something between may have answered in the store's
// place. It returns nil when it is gone.
func (m *Manager) isDeleted(ctx context.Context, key string) error {
	switch _, err := m.head(ctx, key); {
	case errors.Is(err, objectstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	return &objectstore.Error{Kind: objectstore.ErrTransient, Op: "delete", Key: key, Err: blob.ErrUnanswered}
}

// allOf is the error of a request for many keys: the error that all of them have, or nil when some were deleted.
func allOf(each []error) error {
	if len(each) == 0 {
		return nil
	}
	for _, err := range each {
		if err == nil {
			return nil
		}
	}
	return each[0]
}

// ObjectKey is the key of a segment's object.
func (m *Manager) ObjectKey(s *objectstore.SegmentMetadata) (string, error) {
	return m.config.Layout.KeyOf(m.config.Prefix, m.config.ClusterID, s)
}

// ListObjects lists the objects of a scope.
func (m *Manager) ListObjects(ctx context.Context, scope objectstore.Scope, visit func(objectstore.Object) error) error {
	keys := m.config.Prefix
	if scope.Former != nil {
		keys = *scope.Former
		if err := segmentobject.CheckPrefix(keys); err != nil {
			return &objectstore.Error{Kind: objectstore.ErrRejected, Op: "list", Key: keys, Err: err}
		}
	}
	prefix := segmentobject.Root(keys, m.config.ClusterID)
	if !scope.TopicID.IsZero() && scope.Partition != objectstore.AllPartitions {
		prefix = m.config.Layout.ListPrefix(keys, m.config.ClusterID, scope.TopicID, scope.Partition)
	}
	for token := ""; ; {
		var page blob.Page
		err := m.do(ctx, "list", prefix, 0, func(ctx context.Context) error {
			var err error
			page, err = m.store.List(ctx, prefix, token)
			return err
		})
		if err != nil {
			return err
		}
		for _, info := range page.Objects {
			o := objectstore.Object{Key: info.Key, SizeBytes: info.Bytes, LastModified: info.LastModified}
			if s, ok := segmentobject.ParseKey(keys, m.config.ClusterID, info.Key); ok {
				o.Segment = s
			}
			if !inScope(scope, o.Segment) {
				continue
			}
			if err := visit(o); err != nil {
				return err
			}
		}
		if page.Next != "" && page.Next == token {
			return &objectstore.Error{Kind: objectstore.ErrTransient, Op: "list", Key: prefix, Err: errors.New("the store gives the same page again and again")}
		}
		if token = page.Next; token == "" {
			return nil
		}
	}
}

func inScope(scope objectstore.Scope, s *objectstore.SegmentMetadata) bool {
	return scope.TopicID.IsZero() ||
		s != nil && s.TopicID == scope.TopicID && (scope.Partition == objectstore.AllPartitions || s.Partition == scope.Partition)
}

// AbortStaleUploads ends uploads that were begun before a time.
func (m *Manager) AbortStaleUploads(ctx context.Context, begunBefore time.Time, dryRun bool) (int, error) {
	store, ok := m.store.(blob.Unfinished)
	if !ok {
		return 0, nil
	}
	var stale []blob.Upload
	prefix := segmentobject.Root(m.config.Prefix, m.config.ClusterID)
	err := m.do(ctx, "list_uploads", prefix, 0, func(ctx context.Context) error {
		stale = nil
		return store.ListUploads(ctx, prefix, func(u blob.Upload) error {
			if u.Begun.Before(begunBefore) {
				stale = append(stale, u)
			}
			return nil
		})
	})
	if err != nil || dryRun {
		return len(stale), err
	}
	for i, u := range stale {
		err := m.do(ctx, "abort_upload", u.Key, 0, func(ctx context.Context) error { return store.AbortUpload(ctx, u.Key, u.UploadID) })
		if err != nil {
			return i, err
		}
	}
	return len(stale), nil
}
