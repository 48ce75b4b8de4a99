package keeper

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	storagev1 "chancery/proto/storage/v1"
)

const (
	// sourceChunk is how much is asked for at once.
	sourceChunk = 1 << 20
	// sourceChunks is how many chunks a copy keeps: one for each part that a store uploads at the same time, and some to read
	// again.
	sourceChunks = 8
)

// source is the records of a leader's segment as an io.ReaderAt, read in chunks whose checksums the leader gives. A store reads
// it in pieces of any size, also more than once.
type source struct {
	ctx  context.Context // of the one copy that the source is made for
	pass *Pass
	base int64
	size int64

	mu     sync.Mutex
	chunks map[int64]*chunk
	// order is by age, the oldest first.
	order []int64
	err   error
}

type chunk struct {
	once sync.Once
	data []byte
	err  error
}

func newSource(ctx context.Context, p *Pass, base, size int64) *source {
	return &source{ctx: ctx, pass: p, base: base, size: size, chunks: map[int64]*chunk{}}
}

// ReadAt is part of io.ReaderAt.
func (s *source) ReadAt(b []byte, at int64) (int, error) {
	n := 0
	for n < len(b) {
		if at >= s.size {
			return n, io.EOF
		}
		data, err := s.chunk(at - at%sourceChunk)
		if err != nil {
			return n, err
		}
		k := copy(b[n:], data[at%sourceChunk:])
		n, at = n+k, at+int64(k)
	}
	return n, nil
}

// chunk gives the chunk at a position.
func (s *source) chunk(at int64) ([]byte, error) {
	s.mu.Lock()
	c := s.chunks[at]
	if c == nil {
		c = &chunk{}
		s.chunks[at] = c
		if s.order = append(s.order, at); len(s.order) > sourceChunks {
			delete(s.chunks, s.order[0])
			s.order = s.order[1:]
		}
	}
	s.mu.Unlock()
	c.once.Do(func() { c.data, c.err = s.fetch(at) })
	if c.err != nil {
		s.mu.Lock()
		s.err = c.err
		if s.chunks[at] == c {
			delete(s.chunks, at)
		}
		s.mu.Unlock()
	}
	return c.data, c.err
}

func (s *source) fetch(at int64) ([]byte, error) {
	p := s.pass
	id := p.Partition.TopicID
	length := min(sourceChunk, s.size-at)
	if err := p.Env.Pace.wait(s.ctx, length); err != nil {
		return nil, err
	}
	resp, err := p.Node.ReadSegment(s.ctx, &storagev1.ReadSegmentRequest{
		TopicId: id[:], Partition: p.Partition.Partition, LeaderEpoch: p.leader.epoch, BaseOffset: s.base, Position: at, Length: int32(length),
	})
	if err != nil {
		return nil, err
	}
	p.Env.Pace.heard(time.Now(), resp.GetProducedPerSecond())
	if int64(len(resp.GetData())) != length || crc32.Checksum(resp.GetData(), castagnoli) != resp.GetCrc32C() {
		return nil, fmt.Errorf("%d bytes at %d of segment %d were damaged on the way", length, at, s.base)
	}
	return resp.GetData(), nil
}

// refused is why the leader did not give the records; nil when it did.
func (s *source) refused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
