package segmentstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/segmentobject"
)

// The names of the steps of a copy and of a deletion, for Deps.Step.
const (
	StepCopyBegun      = "copy-begun"
	StepUploadCreated  = "upload-created"
	StepPartUploaded   = "part-uploaded"
	StepPartsUploaded  = "parts-uploaded"
	StepCopyDone       = "copy-done"
	StepDeleteBegun    = "delete-begun"
	StepObjectsDeleted = "objects-deleted"
)

// Steps are the names of all steps.
var Steps = []string{
	StepCopyBegun, StepUploadCreated, StepPartUploaded, StepPartsUploaded, StepCopyDone, StepDeleteBegun, StepObjectsDeleted,
}

// copyDeadlineFactor is how much longer than one request a whole copy may take.
const copyDeadlineFactor = 4

// The names of an object's metadata.
const (
	metaCRC       = "crc32c"
	metaTopic     = "topic"
	metaPartition = "partition"
	metaOffsets   = "offsets"
)

// CopyLogSegmentData checks a segment and puts it into the store as one object.
func (m *Manager) CopyLogSegmentData(ctx context.Context, s *objectstore.SegmentMetadata, d *objectstore.SegmentData) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, copyDeadlineFactor*m.timeout(s.SizeBytes))
	defer cancel()
	if err := m.step(StepCopyBegun); err != nil {
		return nil, err
	}
	key := m.config.Layout.Key(m.config.Prefix, m.config.ClusterID, s)
	o, custom, blocks, err := m.object(ctx, key, s, d)
	if err != nil {
		return nil, fmt.Errorf("copy segment %s: %w", s.ID, err)
	}
	requests := int64(1)
	if multipart, ok := m.store.(blob.Multipart); ok && s.SizeBytes > m.config.PutMaxBytes {
		requests = 2 + (o.Bytes-1)/m.partBytes(o.Bytes) + 1
		err = m.putParts(ctx, multipart, o, blocks)
	} else {
		err = m.put(ctx, o)
	}
	if err == nil {
		m.metrics.topics.add(s.Topic, "put", o.Bytes, requests)
		err = m.verify(ctx, s, o)
	}
	if err == nil {
		err = m.step(StepCopyDone)
	}
	if err != nil {
		return nil, fmt.Errorf("copy segment %s: %w", s.ID, err)
	}
	return custom, nil
}

// verify reads the end of an object that was put, which says what the whole should be: the local copy is deleted for it, so the
// store's word is not enough.
func (m *Manager) verify(ctx context.Context, s *objectstore.SegmentMetadata, o blob.PutObject) error {
	for attempt := 1; ; attempt++ {
		err := m.verifyOnce(ctx, s, o)
		if !errors.Is(err, objectstore.ErrNotFound) {
			return err
		}
		// Some stores show new objects a little late.
		if attempt >= m.config.Attempts || wait(ctx, attempt, err) != nil {
			return &objectstore.Error{Kind: objectstore.ErrTransient, Op: "put", Key: o.Key, Err: errors.New("the store has taken the object, and does not have it")}
		}
	}
}

func (m *Manager) verifyOnce(ctx context.Context, s *objectstore.SegmentMetadata, o blob.PutObject) error {
	r := &rangeReader{m: m, ctx: ctx, key: o.Key, topic: s.Topic, at: o.Bytes - segmentobject.FooterBytes, end: o.Bytes, objectBytes: o.Bytes}
	defer r.Close()
	footer := make([]byte, segmentobject.FooterBytes)
	if _, err := io.ReadFull(r, footer); err != nil {
		return err
	}
	want := make([]byte, segmentobject.FooterBytes)
	if _, err := o.Body.ReadAt(want, o.Bytes-segmentobject.FooterBytes); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(footer, want) {
		return &objectstore.Error{Kind: objectstore.ErrCorrupt, Op: "put", Key: o.Key, Err: errors.New("the store has taken the object, and has another one")}
	}
	return nil
}

// object reads the segment's log once, to compute its checksums and to compare them with what they should be, and puts log
// and indexes together. Nothing of the log stays in memory. blocks are the checksums of the log's blocks.
func (m *Manager) object(ctx context.Context, key string, s *objectstore.SegmentMetadata, d *objectstore.SegmentData) (o blob.PutObject, custom []byte, blocks []uint32, err error) {
	x := d.Indexes
	var sums segmentobject.Summer
	if err := readLog(ctx, d.Log, s.SizeBytes, &sums); err != nil {
		return o, nil, nil, err
	}
	x.BlockCRCs, x.SegmentCRC = sums.Sums()
	if d.HasCRC && x.SegmentCRC != d.CRC32C {
		m.metrics.crcFailed(ctx, "local")
		return o, nil, nil, fmt.Errorf("%w: the log's checksum is %08x, want %08x", objectstore.ErrCorrupt, x.SegmentCRC, d.CRC32C)
	}
	tail, err := segmentobject.EncodeTail(s.ID, s.SizeBytes, &x)
	if err != nil {
		return o, nil, nil, fmt.Errorf("%w: %w", objectstore.ErrRejected, err)
	}
	o = blob.PutObject{
		Key:      key,
		Body:     &joined{first: d.Log, firstBytes: s.SizeBytes, second: tail},
		Bytes:    s.SizeBytes + int64(len(tail)),
		LogBytes: s.SizeBytes,
		CRC32C:   segmentobject.CombineChecksums(x.SegmentCRC, segmentobject.Checksum(tail), int64(len(tail))),
		IfAbsent: m.config.IfAbsent,
	}
	o.Metadata = map[string]string{
		metaCRC:       checksumText(o.CRC32C),
		metaTopic:     s.Topic,
		metaPartition: strconv.Itoa(int(s.Partition)),
		metaOffsets:   fmt.Sprintf("%d-%d", s.BaseOffset, s.EndOffset),
	}
	c := segmentobject.Custom{TailBytes: uint32(len(tail)), SegmentCRC: x.SegmentCRC, LastLeaderEpoch: s.LastLeaderEpoch(), Layout: m.config.Layout, Prefix: m.config.Prefix}
	return o, c.Encode(), x.BlockCRCs, nil
}

// checksumText is a checksum for people, and for confirm.
func checksumText(crc uint32) string { return fmt.Sprintf("%08x", crc) }

// readLog gives all of a log to w.
func readLog(ctx context.Context, log io.ReaderAt, size int64, w io.Writer) error {
	buf := make([]byte, min(size, 256<<10))
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", objectstore.ErrTransient, err)
		}
		n, err := log.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		if n == 0 && err == nil {
			err = io.ErrNoProgress
		}
		if n == 0 {
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: the log ends at %d, want %d bytes", objectstore.ErrCorrupt, at, size)
			}
			return fmt.Errorf("%w: read the log at %d: %w", objectstore.ErrTransient, at, err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// put makes an object in one request.
func (m *Manager) put(ctx context.Context, o blob.PutObject) error {
	err := m.do(ctx, "put", o.Key, o.Bytes, func(ctx context.Context) error {
		m.metrics.moved(ctx, "put", o.Bytes)
		return m.store.Put(ctx, o)
	})
	if errors.Is(err, blob.ErrExists) {
		return m.confirm(ctx, o)
	}
	return err
}

// confirm looks whether the object in the store is the one that was to be put: then an earlier attempt has succeeded and only
// its answer was lost.
func (m *Manager) confirm(ctx context.Context, o blob.PutObject) error {
	info, err := m.head(ctx, o.Key)
	if err != nil {
		return err
	}
	if crc, ok := info.Metadata[metaCRC]; info.Bytes != o.Bytes || ok && crc != o.Metadata[metaCRC] {
		return &objectstore.Error{
			Kind: objectstore.ErrCorrupt, Op: "head", Key: o.Key,
			Err: fmt.Errorf("there is another object, of %d bytes with checksum %s, want %d and %s", info.Bytes, crc, o.Bytes, o.Metadata[metaCRC]),
		}
	}
	return nil
}

func (m *Manager) head(ctx context.Context, key string) (info blob.Info, err error) {
	err = m.do(ctx, "head", key, 0, func(ctx context.Context) error {
		info, err = m.store.Head(ctx, key)
		return err
	})
	return info, err
}

// uploadRounds is how often an upload in parts is begun.
const uploadRounds = 3

// putParts makes an object in parts.
func (m *Manager) putParts(ctx context.Context, store blob.Multipart, o blob.PutObject, blocks []uint32) error {
	for round := 1; ; round++ {
		err := m.putPartsOnce(ctx, store, o, blocks)
		if err == nil || round == uploadRounds || !errors.Is(err, blob.ErrConflict) {
			return err
		}
		if wait(ctx, round, err) != nil {
			return err
		}
	}
}

func (m *Manager) putPartsOnce(ctx context.Context, store blob.Multipart, o blob.PutObject, blocks []uint32) error {
	var uploadID string
	err := m.do(ctx, "create_upload", o.Key, 0, func(ctx context.Context) error {
		var err error
		uploadID, err = store.CreateUpload(ctx, o)
		return err
	})
	if err != nil {
		return err
	}
	err = m.step(StepUploadCreated)
	var parts []blob.Part
	if err == nil {
		parts, err = m.uploadParts(ctx, store, uploadID, o, blocks)
	}
	if err == nil {
		err = m.complete(ctx, store, uploadID, parts, o)
	}
	if err != nil && !errors.Is(err, errStopped) {
		m.abort(ctx, o.Key, uploadID)
	}
	return err
}

// abort ends an upload that has failed. What it cannot end, AbortStaleUploads finds later.
func (m *Manager) abort(ctx context.Context, key, uploadID string) {
	store, ok := m.store.(blob.Unfinished)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.config.RequestTimeout)
	defer cancel()
	// It is tried also when the breaker lets nothing through: it was the failures of this very upload that opened it.
	begun := time.Now()
	err := store.AbortUpload(ctx, key, uploadID)
	m.metrics.requested(ctx, "abort_upload", err, time.Since(begun))
	if err != nil {
		m.deps.Logger.Warn("an unfinished upload stays in the object store until the sweeper finds it", "key", key, "upload", uploadID, "error", err)
	}
}

// partBytes is the size of the parts of an object: as configured, or as large as it has to be.
func (m *Manager) partBytes(objectBytes int64) int64 {
	least := (objectBytes + maxParts - 1) / maxParts
	least = (least + objectstore.BlockBytes - 1) / objectstore.BlockBytes * objectstore.BlockBytes
	return max(m.config.PartBytes, least)
}

// uploadParts uploads all parts of an object, a few at a time.
func (m *Manager) uploadParts(ctx context.Context, store blob.Multipart, uploadID string, o blob.PutObject, blocks []uint32) ([]blob.Part, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	size := m.partBytes(o.Bytes)
	parts := make([]blob.Part, (o.Bytes+size-1)/size)
	next := make(chan int, len(parts))
	for i := range parts {
		next <- i
	}
	close(next)
	var running sync.WaitGroup
	for range min(m.config.PartConcurrency, len(parts)) {
		running.Go(func() {
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				part, err := m.part(o, blocks, int64(i)*size, size)
				if err == nil {
					parts[i], err = m.uploadPart(ctx, store, uploadID, int32(i+1), part)
				}
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return nil, kinded("upload_part", o.Key, context.Cause(ctx))
	}
	return parts, m.step(StepPartsUploaded)
}

func (m *Manager) uploadPart(ctx context.Context, store blob.Multipart, uploadID string, number int32, o blob.PutObject) (part blob.Part, err error) {
	err = m.do(ctx, "upload_part", o.Key, o.Bytes, func(ctx context.Context) error {
		m.metrics.moved(ctx, "put", o.Bytes)
		part, err = store.UploadPart(ctx, uploadID, number, o)
		return err
	})
	if err == nil {
		err = m.step(StepPartUploaded)
	}
	return part, err
}

// part is a part of an object. Its checksum is put together from those of its blocks, so that the log is not read once
// more; only the last part, with the indexes, is read.
func (m *Manager) part(o blob.PutObject, blocks []uint32, start, size int64) (blob.PutObject, error) {
	p := blob.PutObject{Key: o.Key, Bytes: min(size, o.Bytes-start)}
	p.Body = io.NewSectionReader(o.Body, start, p.Bytes)
	first := start / objectstore.BlockBytes
	if last := (start + p.Bytes) / objectstore.BlockBytes; start+p.Bytes < o.Bytes && last < int64(len(blocks)) {
		for _, crc := range blocks[first:last] {
			p.CRC32C = segmentobject.CombineChecksums(p.CRC32C, crc, objectstore.BlockBytes)
		}
		return p, nil
	}
	var sums segmentobject.Summer
	if _, err := io.Copy(&sums, io.NewSectionReader(o.Body, start, p.Bytes)); err != nil {
		return p, fmt.Errorf("%w: read the log: %w", objectstore.ErrTransient, err)
	}
	_, p.CRC32C = sums.Sums()
	return p, nil
}

// complete makes the object of its parts.
func (m *Manager) complete(ctx context.Context, store blob.Multipart, uploadID string, parts []blob.Part, o blob.PutObject) error {
	err := m.do(ctx, opComplete, o.Key, o.Bytes, func(ctx context.Context) error {
		return store.CompleteUpload(ctx, uploadID, parts, o)
	})
	// The answer of an attempt that succeeded may have been lost. Stores answer the next in different ways, so the object
	// itself is asked.
	if errors.Is(err, objectstore.ErrNotFound) || errors.Is(err, blob.ErrExists) {
		err = m.confirm(ctx, o)
		if errors.Is(err, objectstore.ErrNotFound) {
			return &objectstore.Error{Kind: objectstore.ErrTransient, Op: opComplete, Key: o.Key, Err: fmt.Errorf("the upload is gone: %w", blob.ErrConflict)}
		}
		return err
	}
	return err
}

// joined is two runs of bytes one behind the other.
type joined struct {
	first      io.ReaderAt
	firstBytes int64
	second     []byte
}

// ReadAt is part of io.ReaderAt.
func (j *joined) ReadAt(p []byte, at int64) (n int, err error) {
	if at < j.firstBytes {
		n, err = j.first.ReadAt(p[:min(int64(len(p)), j.firstBytes-at)], at)
		if at+int64(n) < j.firstBytes {
			if err == nil && n < len(p) {
				err = io.ErrNoProgress
			}
			if n == len(p) {
				err = nil
			}
			return n, err
		}
	}
	if n == len(p) {
		return n, nil
	}
	from := at + int64(n) - j.firstBytes
	if from >= int64(len(j.second)) {
		return n, io.EOF
	}
	n += copy(p[n:], j.second[from:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
