package segmentstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

// FetchLogSegment reads a range of a segment's log. A connection that breaks or stalls is replaced from the last good byte
// on; the reader sees nothing of it.
func (m *Manager) FetchLogSegment(ctx context.Context, s *objectstore.SegmentMetadata, start, end int64) (io.ReadCloser, error) {
	end = min(end, s.SizeBytes)
	if start < 0 || start > end {
		return nil, &objectstore.Error{Kind: objectstore.ErrRejected, Op: "get", Key: s.ID.String(), Err: fmt.Errorf("range %d to %d of a log of %d bytes", start, end, s.SizeBytes)}
	}
	key, custom, err := m.copied(s)
	if err != nil {
		return nil, err
	}
	r := &rangeReader{m: m, ctx: ctx, key: key, topic: s.Topic, at: start, end: end, objectBytes: s.SizeBytes + int64(custom.TailBytes)}
	if start == end {
		return r, nil
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	return r, nil
}

// copied is where the object of a finished copy is.
func (m *Manager) copied(s *objectstore.SegmentMetadata) (string, segmentobject.Custom, error) {
	c, err := segmentobject.DecodeCustom(s.Custom)
	if err != nil {
		return "", c, fmt.Errorf("segment %s: %w", s.ID, err)
	}
	key, err := m.config.Layout.KeyOf(m.config.Prefix, m.config.ClusterID, s)
	return key, c, err
}

// FetchIndexes reads what follows the log.
func (m *Manager) FetchIndexes(ctx context.Context, s *objectstore.SegmentMetadata) (*objectstore.Indexes, error) {
	key, c, err := m.copied(s)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		x, err := m.fetchTail(ctx, key, s, c)
		// A damage on the way is gone when the bytes come once more.
		if !errors.Is(err, objectstore.ErrCorrupt) || attempt == 2 {
			return x, err
		}
		m.metrics.crcFailed(ctx, "index")
	}
}

func (m *Manager) fetchTail(ctx context.Context, key string, s *objectstore.SegmentMetadata, c segmentobject.Custom) (*objectstore.Indexes, error) {
	size := s.SizeBytes + int64(c.TailBytes)
	r := &rangeReader{m: m, ctx: ctx, key: key, topic: s.Topic, at: s.SizeBytes, end: size, objectBytes: size}
	defer r.Close()
	tail := make([]byte, c.TailBytes)
	if _, err := io.ReadFull(r, tail); err != nil {
		return nil, err
	}
	x, err := segmentobject.DecodeTail(s.ID, s.SizeBytes, tail)
	if err == nil && x.SegmentCRC != c.SegmentCRC {
		err = fmt.Errorf("%w: the segment's checksum is %08x, want %08x", objectstore.ErrCorrupt, x.SegmentCRC, c.SegmentCRC)
	}
	if err != nil {
		return nil, &objectstore.Error{Kind: objectstore.ErrCorrupt, Op: "get", Key: key, Err: err}
	}
	return x, nil
}

// rangeReader reads a range of an object with as many requests as it takes.
type rangeReader struct {
	m           *Manager
	ctx         context.Context
	key         string
	topic       string
	at, end     int64
	objectBytes int64
	// failures counts attempts in a row that gave not a byte.
	failures int
	body     io.ReadCloser
	request  context.Context
	cancel   context.CancelCauseFunc
	stall    *time.Timer
	begun    time.Time
	got      int64
	closed   bool
}

var errStalled = errors.New("no byte came for too long")

// open makes a request for what is left of the range.
func (r *rangeReader) open() error {
	for {
		err := r.openOnce()
		if err == nil {
			return nil
		}
		r.failures++
		if !r.m.again(r.ctx, r.failures, err) {
			return err
		}
		r.m.metrics.retried(r.ctx, "get")
		if wait(r.ctx, r.failures, err) != nil {
			return err
		}
	}
}

func (r *rangeReader) openOnce() error {
	if err := r.m.enter(r.ctx, "get", r.key); err != nil {
		return err
	}
	r.request, r.cancel = context.WithCancelCause(r.ctx)
	cancel := r.cancel
	r.stall = time.AfterFunc(r.m.config.StallTimeout, func() { cancel(errStalled) })
	r.begun, r.got = time.Now(), 0
	body, size, err := r.m.store.Get(r.request, r.key, r.at, r.end)
	r.stall.Stop()
	if err == nil && size >= 0 && size != r.objectBytes {
		err = errors.Join(&objectstore.Error{
			Kind: objectstore.ErrCorrupt, Op: "get", Key: r.key, Err: fmt.Errorf("the object has %d bytes, want %d", size, r.objectBytes),
		}, body.Close())
	}
	if err != nil {
		return r.finish(err)
	}
	r.m.metrics.firstByte(r.ctx, "get", time.Since(r.begun))
	r.body = body
	return nil
}

// finish ends a request, and gives the error a kind.
func (r *rangeReader) finish(err error) error {
	if err != nil && errors.Is(context.Cause(r.request), errStalled) {
		err = &objectstore.Error{Kind: objectstore.ErrTransient, Op: "get", Key: r.key, Err: errStalled}
	}
	err = kinded("get", r.key, err)
	r.m.metrics.requested(r.ctx, "get", err, time.Since(r.begun))
	r.m.metrics.moved(r.ctx, "get", r.got)
	r.m.metrics.topics.add(r.topic, "get", r.got, 1)
	r.m.leave(r.ctx, err)
	r.cancel(nil)
	return err
}

// Read is part of io.Reader.
func (r *rangeReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if r.at == r.end {
			return 0, io.EOF
		}
		if r.closed {
			return 0, io.ErrClosedPipe
		}
		if r.body == nil {
			if err := r.open(); err != nil {
				return 0, err
			}
		}
		r.stall.Reset(r.m.config.StallTimeout)
		n, err := r.body.Read(p[:min(int64(len(p)), r.end-r.at)])
		r.stall.Stop()
		r.at += int64(n)
		r.got += int64(n)
		if n > 0 {
			r.failures = 0
			if r.at == r.end {
				r.succeed()
			}
			return n, nil
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: %d bytes are missing", io.ErrUnexpectedEOF, r.end-r.at)
		}
		err = r.fail(err)
		r.failures++
		if !r.m.again(r.ctx, r.failures, err) {
			return 0, err
		}
		r.m.metrics.retried(r.ctx, "get")
		if wait(r.ctx, r.failures, err) != nil {
			return 0, err
		}
	}
}

// fail ends the current request with an error, which gets a kind.
func (r *rangeReader) fail(err error) error {
	err = r.finish(err)
	r.closeBody()
	return err
}

// succeed ends the current request, of which enough was read.
func (r *rangeReader) succeed() {
	if r.finish(nil) == nil {
		r.closeBody()
	}
}

func (r *rangeReader) closeBody() {
	r.body.Close()
	r.body = nil
}

// Close ends the request in flight.
func (r *rangeReader) Close() error {
	r.closed = true
	if r.body != nil {
		r.succeed()
	}
	return nil
}
