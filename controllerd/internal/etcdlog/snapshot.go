package etcdlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"chancery/controllerd/internal/metalog"
)

const (
	// chunkBytes is how large a chunk of a snapshot becomes, well below what etcd takes in one request.
	chunkBytes = 512 << 10
	// deleteSlice is how many batches one transaction deletes.
	deleteSlice = 1000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifest is the value of ctl/snapshot.
type manifest struct {
	End    int64  `json:"end"`
	Epoch  int32  `json:"epoch"`
	Chunks int    `json:"chunks"`
	Bytes  int64  `json:"bytes"`
	CRC    uint32 `json:"crc"`
	// Previous is the snapshot before this one, which is kept too.
	Previous *manifest `json:"previous,omitempty"`
}

func (s *store) readManifest(ctx context.Context) (*manifest, error) {
	resp, err := s.client.Get(ctx, s.manifestKey(), s.read...)
	if err != nil {
		return nil, fmt.Errorf("read the snapshot's manifest: %w", err)
	}
	if len(resp.Kvs) == 0 {
		return nil, nil
	}
	m := &manifest{}
	if err := json.Unmarshal(resp.Kvs[0].Value, m); err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", metalog.ErrCorrupt, err)
	}
	return m, nil
}

func (s *store) chunkKey(end int64, chunk int) string {
	return fmt.Sprintf("%s%05d", s.snapshotPrefix(end), chunk)
}

// Snapshot opens the last snapshot. Reading it fails when it is replaced twice meanwhile; then it is opened again.
func (s *store) Snapshot(ctx context.Context) (metalog.Snapshot, error) {
	m, err := s.readManifest(ctx)
	if err != nil {
		return metalog.Snapshot{}, err
	}
	if m == nil {
		return metalog.Snapshot{}, metalog.ErrNoSnapshot
	}
	return metalog.Snapshot{
		SnapshotInfo: metalog.SnapshotInfo{EndOffset: m.End, Epoch: m.Epoch},
		Records:      func(yield func([]byte, error) bool) { s.readChunks(ctx, m, yield) },
	}, nil
}

func (s *store) readChunks(ctx context.Context, m *manifest, yield func([]byte, error) bool) {
	var crc uint32
	for chunk := range m.Chunks {
		records, sum, err := s.readChunk(ctx, m.End, chunk, crc)
		if err != nil {
			yield(nil, err)
			return
		}
		crc = sum
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
	if crc != m.CRC {
		yield(nil, fmt.Errorf("%w: snapshot at offset %d: checksum", metalog.ErrCorrupt, m.End))
	}
}

func (s *store) readChunk(ctx context.Context, end int64, chunk int, crc uint32) ([][]byte, uint32, error) {
	resp, err := s.client.Get(ctx, s.chunkKey(end, chunk), s.read...)
	if err != nil {
		return nil, 0, fmt.Errorf("read a snapshot: %w", err)
	}
	if len(resp.Kvs) != 1 {
		return nil, 0, fmt.Errorf("%w: snapshot at offset %d has no chunk %d", metalog.ErrCorrupt, end, chunk)
	}
	records, err := metalog.SplitRecords(resp.Kvs[0].Value)
	return records, crc32.Update(crc, castagnoli, resp.Kvs[0].Value), err
}

// PutSnapshot writes the chunks, then the manifest, then drops what is not needed any more. Each step is fenced.
func (t *term) PutSnapshot(ctx context.Context, info metalog.SnapshotInfo, records iter.Seq[[]byte]) error {
	before, err := t.store.readManifest(ctx)
	if err != nil {
		return err
	}
	if before != nil && before.End >= info.EndOffset {
		return nil
	}
	// An attempt that was cut off may have left chunks of this very snapshot, even more than there will be now.
	if err := t.commit(ctx, clientv3.OpDelete(t.store.snapshotPrefix(info.EndOffset), clientv3.WithPrefix())); err != nil {
		return err
	}
	m := &manifest{End: info.EndOffset, Epoch: info.Epoch}
	if err := t.putChunks(ctx, m, records); err != nil {
		return err
	}
	if before != nil {
		older := *before
		older.Previous = nil
		m.Previous = &older
	}
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := t.commit(ctx, clientv3.OpPut(t.store.manifestKey(), string(value))); err != nil {
		return err
	}
	if m.Previous == nil {
		return nil
	}
	return t.truncate(ctx, m.Previous.End)
}

func (t *term) putChunks(ctx context.Context, m *manifest, records iter.Seq[[]byte]) error {
	var chunk []byte
	put := func() error {
		m.CRC = crc32.Update(m.CRC, castagnoli, chunk)
		m.Bytes += int64(len(chunk))
		err := t.commit(ctx, clientv3.OpPut(t.store.chunkKey(m.End, m.Chunks), string(chunk)))
		m.Chunks++
		chunk = chunk[:0]
		return err
	}
	for r := range records {
		if len(chunk) > 0 && len(chunk)+len(r) > chunkBytes {
			if err := put(); err != nil {
				return err
			}
		}
		chunk = metalog.AppendRecord(chunk, r)
	}
	if len(chunk) == 0 {
		return nil
	}
	return put()
}

// commit makes one change unless the claim was lost.
func (t *term) commit(ctx context.Context, op clientv3.Op) error {
	_, err := t.commitAt(ctx, op)
	return err
}

func (t *term) commitAt(ctx context.Context, op clientv3.Op) (revision int64, err error) {
	resp, err := t.store.client.Txn(ctx).If(t.claimed()).Then(op).Commit()
	if err != nil {
		return 0, fmt.Errorf("store a snapshot: %w", outcome(err))
	}
	if !resp.Succeeded {
		return 0, fmt.Errorf("store a snapshot: %w", metalog.ErrFenced)
	}
	return resp.Header.Revision, nil
}

// truncate drops the log below an offset, all snapshots that end below it, and etcd's history.
func (t *term) truncate(ctx context.Context, below int64) error {
	t.mu.Lock()
	last := t.last
	t.mu.Unlock()
	deleteRange := func(ctx context.Context, op clientv3.Op) (int64, error) { return t.commitAt(ctx, op) }
	if err := t.store.dropLog(ctx, below, last, deleteRange); err != nil {
		return err
	}
	first, end := t.store.key("snap/"), t.store.snapshotPrefix(below)
	revision, err := t.commitAt(ctx, clientv3.OpDelete(first, clientv3.WithRange(end)))
	if err != nil {
		return err
	}
	return t.store.compactTo(ctx, revision)
}

// dropLog deletes the batches that end at below or before, but never the newest one, whose base is last.
func (s *store) dropLog(ctx context.Context, below, last int64, deleteRange func(context.Context, clientv3.Op) (int64, error)) error {
	// A batch ends at or before an offset when the one after it begins there or before; the newest has none after it.
	end := min(below, last)
	for {
		resp, err := s.client.Get(ctx, s.logKey(0), clientv3.WithRange(s.logKey(end)), clientv3.WithLimit(deleteSlice), clientv3.WithKeysOnly())
		if err != nil {
			return fmt.Errorf("truncate the metadata log: %w", err)
		}
		if len(resp.Kvs) == 0 {
			return nil
		}
		to := string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		if _, err := deleteRange(ctx, clientv3.OpDelete(s.logKey(0), clientv3.WithRange(to))); err != nil {
			return err
		}
	}
}

func (s *store) compactTo(ctx context.Context, revision int64) error {
	if !s.compact {
		return nil
	}
	if _, err := s.client.Compact(ctx, revision); err != nil {
		return fmt.Errorf("compact the metadata log: %w", err)
	}
	return nil
}

// makeRoom drops the log below the last snapshot without a claim, when a claim cannot be had for want of room. It deletes
// nothing that anybody needs: the snapshot is durable.
func (s *store) makeRoom(ctx context.Context) error {
	m, err := s.readManifest(ctx)
	if err != nil {
		return err
	}
	if m == nil {
		return errors.New("there is no snapshot, so nothing can be dropped")
	}
	newest, err := s.client.Get(ctx, s.key("log/"), append(clientv3.WithLastKey(), clientv3.WithKeysOnly())...)
	if err != nil {
		return err
	}
	var revision int64
	if len(newest.Kvs) == 1 {
		last, err := s.baseOf(newest.Kvs[0].Key)
		if err != nil {
			return err
		}
		err = s.dropLog(ctx, m.End, last, func(ctx context.Context, op clientv3.Op) (int64, error) {
			resp, err := s.client.Do(ctx, op)
			if err != nil {
				return 0, fmt.Errorf("truncate the metadata log: %w", err)
			}
			revision = resp.Del().Header.Revision
			return revision, nil
		})
		if err != nil {
			return err
		}
	}
	if revision == 0 {
		revision = newest.Header.Revision
	}
	if _, err = s.client.Compact(ctx, revision, clientv3.WithCompactPhysical()); errors.Is(err, rpctypes.ErrCompacted) {
		return nil // An earlier attempt got this far.
	}
	return err
}
