package etcdlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"chancery/controllerd/internal/metalog"
)

const (
	// followPage is how many batches one read of the log takes.
	followPage = 64
	// claimAttempts bounds how often a claim starts again since another one came between.
	claimAttempts = 10
	// reclaimAttempts bounds how often a claim makes room: each late alarm costs one, and each member raises at most one.
	reclaimAttempts = 8
	offsetDigits    = 20
)

// store is the log on top of an etcd client.
type store struct {
	client *clientv3.Client
	prefix string
	id     int32
	// read are the options of reads that may be a little old. A member in this process gives them without asking the
	// others, and never goes back in time.
	read []clientv3.OpOption
	// compact says whether the history of etcd is ours to compact.
	compact bool
	// reclaim makes room when etcd is full; nil when that is not ours to do.
	reclaim func(ctx context.Context) error
}

func (s *store) key(name string) string        { return s.prefix + name }
func (s *store) activeKey() string             { return s.key("ctl/active") }
func (s *store) beatKey() string               { return s.key("ctl/beat") }
func (s *store) manifestKey() string           { return s.key("ctl/snapshot") }
func (s *store) logKey(base int64) string      { return fmt.Sprintf("%slog/%020d", s.prefix, base) }
func (s *store) logEnd() string                { return s.key("log0") }
func (s *store) snapshotPrefix(e int64) string { return fmt.Sprintf("%ssnap/%020d/", s.prefix, e) }

// baseOf reads the base offset from a key of the log.
func (s *store) baseOf(key []byte) (int64, error) {
	digits, ok := strings.CutPrefix(string(key), s.key("log/"))
	if !ok || len(digits) != offsetDigits {
		return 0, fmt.Errorf("%w: key %q", metalog.ErrCorrupt, key)
	}
	return strconv.ParseInt(digits, 10, 64)
}

// ClusterID gives the id that was settled first.
func (s *store) ClusterID(ctx context.Context, proposed string) (string, error) {
	key := s.key("ctl/cluster")
	resp, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, proposed)).
		Else(clientv3.OpGet(key)).
		Commit()
	if err != nil {
		return "", fmt.Errorf("settle the cluster id: %w", err)
	}
	if resp.Succeeded {
		return proposed, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) == 1 {
		return string(kvs[0].Value), nil
	}
	return "", errors.New("settle the cluster id: it vanished")
}

// Claim makes this controller the only one that can append.
func (s *store) Claim(ctx context.Context, address string) (metalog.Term, error) {
	t, err := s.tryClaims(ctx, address)
	// Without a claim nobody could ever make room again, so this must not wait for an operator. Once is not enough: a member
	// that finds itself full while it applies a change raises the alarm on its own, and that can land after it was taken back.
	for attempt := 0; attempt < reclaimAttempts && errors.Is(err, metalog.ErrNoSpace) && s.reclaim != nil; attempt++ {
		if err := s.reclaim(ctx); err != nil {
			return nil, fmt.Errorf("make room in the store of the metadata log: %w", err)
		}
		t, err = s.tryClaims(ctx, address)
	}
	if err != nil {
		return nil, fmt.Errorf("claim the metadata log: %w", err)
	}
	return t, nil
}

func (s *store) tryClaims(ctx context.Context, address string) (*term, error) {
	for range claimAttempts {
		t, err := s.tryClaim(ctx, address)
		if t != nil || err != nil {
			return t, err
		}
	}
	return nil, metalog.ErrFenced
}

// tryClaim gives no term and no error when another claim came between.
func (s *store) tryClaim(ctx context.Context, address string) (*term, error) {
	current, err := s.client.Get(ctx, s.activeKey())
	if err != nil {
		return nil, outcome(err)
	}
	holder := metalog.Holder{Epoch: 1, ID: s.id, Address: address}
	var revision int64
	if len(current.Kvs) == 1 {
		var last metalog.Holder
		if err := json.Unmarshal(current.Kvs[0].Value, &last); err != nil {
			return nil, fmt.Errorf("%w: claim: %w", metalog.ErrCorrupt, err)
		}
		holder.Epoch, revision = last.Epoch+1, current.Kvs[0].ModRevision
	}
	value, err := json.Marshal(holder)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(s.activeKey()), "=", revision)).
		Then(clientv3.OpPut(s.activeKey(), string(value)),
			clientv3.OpGet(s.key("log/"), clientv3.WithLastKey()...)).
		Commit()
	if err != nil {
		return nil, outcome(err)
	}
	if !resp.Succeeded {
		return nil, nil
	}
	t := &term{store: s, epoch: holder.Epoch, revision: resp.Header.Revision, last: -1}
	if kvs := resp.Responses[1].GetResponseRange().GetKvs(); len(kvs) == 1 {
		b, err := metalog.DecodeBatch(kvs[0].Value)
		if err != nil {
			return nil, err
		}
		t.last, t.start = b.BaseOffset, b.EndOffset()
	}
	t.next = t.start
	return t, nil
}

// outcome says what an error of etcd means for a change: all but two leave it open whether it was made.
func outcome(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrGRPCNoSpace):
		return errors.Join(metalog.ErrNoSpace, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge) || errors.Is(err, rpctypes.ErrGRPCRequestTooLarge):
		return err
	}
	return errors.Join(metalog.ErrUnknown, err)
}

// term is one claim.
type term struct {
	store *store
	epoch int32
	// revision is that of ctl/active; it changes with the next claim.
	revision int64
	// start is the end of the log when it was claimed.
	start int64

	mu sync.Mutex
	// next is where the next append goes, -1 after an error. last is the base of the newest batch, -1 for none.
	next, last int64
}

func (t *term) Epoch() int32     { return t.epoch }
func (t *term) EndOffset() int64 { return t.start }

// claimed is the comparison that fences.
func (t *term) claimed() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(t.store.activeKey()), "=", t.revision)
}

// Append puts a batch at the end of the log.
func (t *term) Append(ctx context.Context, b metalog.Batch) error {
	next, last := t.begin()
	if next < 0 {
		return fmt.Errorf("append after an error: %w", metalog.ErrFenced)
	}
	if b.BaseOffset != next || b.Epoch != t.epoch || len(b.Records) == 0 {
		return fmt.Errorf("batch at offset %d of epoch %d with %d records does not fit offset %d of epoch %d",
			b.BaseOffset, b.Epoch, len(b.Records), next, t.epoch)
	}
	key := t.store.logKey(b.BaseOffset)
	compares := []clientv3.Cmp{t.claimed(), clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}
	if last >= 0 {
		compares = append(compares, clientv3.Compare(clientv3.CreateRevision(t.store.logKey(last)), ">", 0))
	}
	resp, err := t.store.client.Txn(ctx).If(compares...).Then(clientv3.OpPut(key, string(b.Encode()))).Commit()
	if err != nil {
		return fmt.Errorf("append at offset %d: %w", b.BaseOffset, outcome(err))
	}
	if !resp.Succeeded {
		return fmt.Errorf("append at offset %d: %w", b.BaseOffset, metalog.ErrFenced)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next, t.last = b.EndOffset(), b.BaseOffset
	return nil
}

// begin takes the place of the next append; until it is given back, the term counts as failed.
func (t *term) begin() (next, last int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, last = t.next, t.last
	t.next = -1
	return next, last
}

// Follow gives the holder, the batches from an offset on, and what comes.
func (s *store) Follow(ctx context.Context, from int64) iter.Seq2[metalog.Event, error] {
	return func(yield func(metalog.Event, error) bool) {
		f := follower{store: s, next: from, yield: yield}
		for {
			revision, err := f.catchUp(ctx)
			if err == nil {
				err = f.watch(ctx, revision+1)
			}
			var compacted compactedError
			switch {
			case errors.Is(err, errStopped):
				return
			case errors.As(err, &compacted):
				// The history up to where we are is gone, the batches are still there.
			default:
				if ctx.Err() != nil {
					err = ctx.Err()
				}
				yield(metalog.Event{}, err)
				return
			}
		}
	}
}

// errStopped ends a Follow whose reader wants no more.
var errStopped = errors.New("stopped")

// compactedError says that a watch began before the history that etcd still has.
type compactedError struct{ error }

type follower struct {
	store *store
	// next is the base of the next batch, epoch that of the last claim told.
	next  int64
	epoch int32
	yield func(metalog.Event, error) bool
}

// catchUp gives what is in the log, and the revision up to which it has looked.
func (f *follower) catchUp(ctx context.Context) (int64, error) {
	s := f.store
	resp, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(s.activeKey(), s.read...),
		clientv3.OpGet(s.logKey(f.next), append([]clientv3.OpOption{clientv3.WithRange(s.logEnd()), clientv3.WithLimit(followPage)}, s.read...)...),
	).Commit()
	if err != nil {
		return 0, fmt.Errorf("read the metadata log: %w", err)
	}
	revision := resp.Header.Revision
	for _, kv := range resp.Responses[0].GetResponseRange().GetKvs() {
		if err := f.holder(kv.Value); err != nil {
			return 0, err
		}
	}
	page := (*clientv3.GetResponse)(resp.Responses[1].GetResponseRange())
	if len(page.Kvs) == 0 {
		return revision, f.checkEnd(ctx)
	}
	for {
		for _, kv := range page.Kvs {
			if err := f.batch(kv.Value); err != nil {
				return 0, err
			}
		}
		if !page.More {
			return revision, nil
		}
		options := append([]clientv3.OpOption{clientv3.WithRange(s.logEnd()), clientv3.WithLimit(followPage), clientv3.WithRev(revision)}, s.read...)
		if page, err = s.client.Get(ctx, s.logKey(f.next), options...); err != nil {
			if errors.Is(err, rpctypes.ErrCompacted) {
				return 0, compactedError{err}
			}
			return 0, fmt.Errorf("read the metadata log: %w", err)
		}
	}
}

// checkEnd makes sure that the log ends where the reader begins.
func (f *follower) checkEnd(ctx context.Context) error {
	last, err := f.store.client.Get(ctx, f.store.key("log/"), append(clientv3.WithLastKey(), f.store.read...)...)
	if err != nil {
		return fmt.Errorf("read the metadata log: %w", err)
	}
	var end int64
	if len(last.Kvs) == 1 {
		b, err := metalog.DecodeBatch(last.Kvs[0].Value)
		if err != nil {
			return err
		}
		end = b.EndOffset()
	}
	// A batch may have come since the page was read: then the watch gives it.
	if f.next > end {
		return fmt.Errorf("follow from offset %d, but the log ends at %d", f.next, end)
	}
	return nil
}

func (f *follower) holder(value []byte) error {
	var h metalog.Holder
	if err := json.Unmarshal(value, &h); err != nil {
		return fmt.Errorf("%w: claim: %w", metalog.ErrCorrupt, err)
	}
	if h.Epoch <= f.epoch {
		return nil
	}
	f.epoch = h.Epoch
	if !f.yield(metalog.Event{Holder: &h}, nil) {
		return errStopped
	}
	return nil
}

func (f *follower) batch(value []byte) error {
	b, err := metalog.DecodeBatch(value)
	if err != nil {
		return err
	}
	if b.BaseOffset < f.next {
		return nil
	}
	if b.BaseOffset > f.next {
		return &metalog.TruncatedError{Start: b.BaseOffset}
	}
	f.next = b.EndOffset()
	if !f.yield(metalog.Event{Batch: b}, nil) {
		return errStopped
	}
	return nil
}

// watch gives what comes from a revision on.
func (f *follower) watch(ctx context.Context, revision int64) error {
	s := f.store
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Truncation deletes keys; that is no news to a follower.
	watch := s.client.Watch(ctx, s.key("ctl/"), clientv3.WithRange(s.logEnd()), clientv3.WithRev(revision),
		clientv3.WithFilterDelete(), clientv3.WithFragment())
	active, logPrefix := s.activeKey(), s.key("log/")
	for resp := range watch {
		if err := resp.Err(); err != nil {
			if resp.CompactRevision > 0 {
				return compactedError{err}
			}
			return fmt.Errorf("watch the metadata log: %w", err)
		}
		for _, e := range resp.Events {
			var err error
			switch key := string(e.Kv.Key); {
			case key == active:
				err = f.holder(e.Kv.Value)
			case strings.HasPrefix(key, logPrefix):
				err = f.batch(e.Kv.Value)
			}
			if err != nil {
				return err
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return metalog.ErrClosed
}
