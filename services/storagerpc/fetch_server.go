package storagerpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/transport"
)

const (
	// chunkBytes is how many bytes of records one frame of an answer has at most. Larger frames would only take more
	// memory and hold others up; splitting further costs.
	chunkBytes = 1 << 20
	// chunkSlots is how many chunks of one stream may be in memory: one is read while another is sent. It bounds what a
	// reader that has stopped reading can hold.
	chunkSlots = 2
)

// Fetch serves one stream of fetches.
func (s *Server) Fetch(stream grpc.BidiStreamingServer[storagev1.FetchFrame, storagev1.FetchResultFrame]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	f := &fetchServer{
		server:  s,
		stream:  stream,
		ctx:     ctx,
		cancels: map[uint64]context.CancelFunc{},
		slots:   make(chan struct{}, chunkSlots),
	}
	received := make(chan error, 1)
	go func() { received <- f.receive() }()
	var err error
	select {
	case err = <-received:
	case <-s.closing:
		// The answers to what waits would be empty; readers ask again elsewhere.
		err = errClosing
	}
	cancel()
	f.finish()
	return err
}

// fetchServer is one stream of fetches.
type fetchServer struct {
	server *Server
	stream grpc.ServerStream
	ctx    context.Context
	// sending is held while a frame is sent, slots has an entry for each chunk in memory.
	sending sync.Mutex
	slots   chan struct{}

	mu       sync.Mutex
	finished bool
	running  sync.WaitGroup
	// cancels are of the fetches that the node has not answered.
	cancels map[uint64]context.CancelFunc
}

// finish waits for the fetches to end, and lets none begin.
func (f *fetchServer) finish() {
	f.mu.Lock()
	f.finished = true
	f.mu.Unlock()
	f.running.Wait()
}

func (f *fetchServer) receive() error {
	for {
		var frame fetchFrame
		if err := f.stream.RecvMsg(&frame); err != nil {
			return endOfStream(err)
		}
		if !f.begin(&frame) {
			return nil
		}
	}
}

// begin starts or cancels a fetch; false means that the stream is over.
func (f *fetchServer) begin(frame *fetchFrame) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.finished {
		return false
	}
	if frame.cancel {
		if cancel := f.cancels[frame.id]; cancel != nil {
			cancel()
		}
		return true
	}
	ctx, cancel := context.WithCancel(f.ctx)
	f.cancels[frame.id] = cancel
	id, req, files := frame.id, frame.req, frame.files
	f.running.Go(func() { f.serve(ctx, id, req, files) })
	return true
}

// serve carries out one fetch.
func (f *fetchServer) serve(ctx context.Context, id uint64, req *storage.FetchRequest, files fileTarget) {
	result, err := f.server.node.Fetch(ctx, req)
	f.mu.Lock()
	f.cancels[id]()
	delete(f.cancels, id)
	f.mu.Unlock()
	if err == nil {
		err = f.sendResult(id, result, files)
	}
	result.Release()
	if err == nil || f.ctx.Err() != nil {
		return
	}
	if err := f.sendFrame(&fetchResultFrame{id: id, last: true, err: errcode.Of(err)}); err != nil && f.ctx.Err() == nil {
		f.server.logger.Warn("cannot send the answer to a fetch", "error", err)
	}
}

func (f *fetchServer) sendFrame(frame *fetchResultFrame) error {
	f.sending.Lock()
	defer f.sending.Unlock()
	return f.stream.SendMsg(frame)
}

// sendResult sends a result in chunks, but for what it passes as files.
func (f *fetchServer) sendResult(id uint64, result *storage.FetchResult, files fileTarget) error {
	c := chunker{partitions: result.Partitions, passed: f.server.files.pass(files, result.Partitions)}
	for {
		select {
		case f.slots <- struct{}{}:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
		frame := &fetchResultFrame{id: id}
		err := c.next(frame, f.server.pool)
		if err == nil {
			err = f.sendFrame(frame)
		}
		frame.release()
		<-f.slots
		if err != nil || frame.last {
			return err
		}
	}
}

// chunker cuts a result into frames. It reads the records of files as it goes.
type chunker struct {
	partitions []storage.FetchPartitionResult
	// partition is the one under way, offset how many bytes of its records have been cut off already.
	partition int
	offset    int
	// passed is where the records of partitions are that were passed in files; nil when none were.
	passed [][]passedRegion
}

// length is how many bytes of a partition's records go into frames.
func (c *chunker) length(partition int) int {
	if c.passed != nil && c.passed[partition] != nil {
		return 0
	}
	return c.partitions[partition].Records.Len()
}

// next fills a frame with the next chunk.
func (c *chunker) next(frame *fetchResultFrame, pool *transport.Pool) error {
	frame.partitions = make([]partitionPart, 0, len(c.partitions)-c.partition)
	from := *c
	room := chunkBytes
	for c.partition < len(c.partitions) && room > 0 {
		p := &c.partitions[c.partition]
		left := c.length(c.partition) - c.offset
		n := min(left, room)
		room -= n
		part := partitionPart{FetchPartitionResult: *p, size: int32(n), more: n < left}
		part.Records = storage.Records{}
		if c.passed != nil {
			part.regions = c.passed[c.partition]
		}
		if c.offset > 0 {
			part.AbortedTransactions = nil // they went out with the first part
		}
		frame.partitions = append(frame.partitions, part)
		if part.more {
			c.offset += n
			break
		}
		c.partition++
		c.offset = 0
	}
	frame.last = c.partition == len(c.partitions)
	return from.read(frame, pool, chunkBytes-room)
}

// read fills the payload of a frame that begins where the chunker stands: references to buffers, and one new buffer for
// everything that comes from files.
func (c *chunker) read(frame *fetchResultFrame, pool *transport.Pool, total int) error {
	if total == 0 {
		return nil
	}
	fromFiles := 0
	for i := range frame.partitions {
		if frame.partitions[i].size > 0 && len(c.partitions[c.partition+i].Records.Files) > 0 {
			fromFiles += int(frame.partitions[i].size)
		}
	}
	if fromFiles == total {
		// The usual case: one buffer is the whole payload.
		buffer, b := pool.Buffer(total)
		frame.payload = append(frame.payload, buffer)
		for i := range frame.partitions {
			n := int(frame.partitions[i].size)
			if n == 0 {
				continue
			}
			if err := readFiles(b[:n], c.partitions[c.partition+i].Records.Files, c.skip(i)); err != nil {
				return err
			}
			b = b[n:]
		}
		return nil
	}
	for i := range frame.partitions {
		n := int(frame.partitions[i].size)
		records := &c.partitions[c.partition+i].Records
		if n == 0 {
			continue
		}
		if len(records.Files) == 0 {
			at := cursor{buffers: records.Buffers, left: records.Buffers.Len()}
			at.advance(c.skip(i))
			frame.payload = append(frame.payload, at.references(n)...)
			continue
		}
		buffer, b := pool.Buffer(n)
		frame.payload = append(frame.payload, buffer)
		if err := readFiles(b, records.Files, c.skip(i)); err != nil {
			return err
		}
	}
	return nil
}

// skip is how many bytes of a frame's partition have been sent before: only the first can have been begun.
func (c *chunker) skip(i int) int {
	if i == 0 {
		return c.offset
	}
	return 0
}

// readFiles fills b from file regions, leaving out their first skip bytes.
func readFiles(b []byte, files []storage.FileRegion, skip int) error {
	for i := range files {
		f := &files[i]
		if skip >= f.Length {
			skip -= f.Length
			continue
		}
		n := min(f.Length-skip, len(b))
		if read, err := f.File.ReadAt(b[:n], f.Offset+int64(skip)); read < n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return errcode.KafkaStorageError.Wrap(fmt.Errorf("read %s at %d: %w", f.File.Name(), f.Offset+int64(skip), err))
		}
		b = b[n:]
		skip = 0
		if len(b) == 0 {
			return nil
		}
	}
	return nil
}
