package storagerpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// A node and its client on one machine share the machine's page cache. The client then gets the records of a fetch as open files
// (storage.FileRegion), which it sends on as a node in its own process would; they do not pass through the streams at all. The
// files travel over a unix socket beside the streams, from one process of a user to another of the same user.
//
// A client that has such a channel says so in each fetch, with a number for what it expects there. The node passes the files
// first and then answers on the stream, saying which part of which file each partition's records are. Whenever anything is in
// the way the records go over the stream instead.

const (
	// channelTokenBytes is the length of a channel's name, which is random.
	channelTokenBytes = 16
	// minPassedBytes is below how many bytes of a partition's records the handling of a file costs more than it saves.
	minPassedBytes = 64 << 10
	// maxPassedFiles is how many files are passed for one fetch; the system's limit for one message is 253.
	maxPassedFiles = 64
	// maxOpenFiles is how many passed files a client has open at a time before it asks for records over the stream again.
	maxOpenFiles = 2048
	// passTimeout bounds the passing, and the wait for files that were announced.
	passTimeout = 5 * time.Second
)

// passedRegion is where a partition's records are in the files that were passed for its fetch.
type passedRegion struct {
	file           int32
	offset, length int64
}

// errNoFiles says that the files of a fetch did not come.
var errNoFiles = errcode.NetworkException.Wrap(errors.New("files that the storage node has passed did not come"))

// fileChannel is a client's end: it takes files and keeps them for the fetches that expect them.
type fileChannel struct {
	token [channelTokenBytes]byte
	conn  passConn
	open  atomic.Int64

	mu       sync.Mutex
	closed   bool
	next     uint64
	expected map[uint64]*expectedFiles
}

// expectedFiles are the files of one fetch.
type expectedFiles struct {
	files []passedFile
	came  chan struct{}
}

func newFileChannel(token [channelTokenBytes]byte, conn passConn) *fileChannel {
	return &fileChannel{token: token, conn: conn, expected: map[uint64]*expectedFiles{}}
}

// alive says whether there is a channel that works.
func (c *fileChannel) alive() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed
}

// expect gives a number for a fetch; 0 when no files are wanted at present.
func (c *fileChannel) expect() uint64 {
	if c == nil || c.open.Load() >= maxOpenFiles {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	c.next++
	c.expected[c.next] = &expectedFiles{came: make(chan struct{})}
	return c.next
}

// forget closes what has come, or will come, for a fetch that has not claimed it.
func (c *fileChannel) forget(id uint64) {
	if c == nil || id == 0 {
		return
	}
	c.mu.Lock()
	e := c.expected[id]
	delete(c.expected, id)
	c.mu.Unlock()
	if e != nil {
		c.drop(e.files)
	}
}

// claim gives the files of a fetch, for which it waits a moment: they come on another socket than their announcement.
func (c *fileChannel) claim(ctx context.Context, id uint64) ([]passedFile, error) {
	c.mu.Lock()
	e := c.expected[id]
	c.mu.Unlock()
	if e == nil {
		return nil, errNoFiles
	}
	t := time.NewTimer(passTimeout)
	defer t.Stop()
	select {
	case <-e.came:
	case <-t.C:
		return nil, errNoFiles
	case <-ctx.Done():
		return nil, errNoFiles
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.expected, id)
	return e.files, nil
}

// receive takes files until the channel ends.
func (c *fileChannel) receive() {
	for {
		id, files, err := c.conn.receive()
		if err != nil {
			c.close()
			return
		}
		c.open.Add(int64(len(files)))
		c.mu.Lock()
		e := c.expected[id]
		known := e != nil && e.files == nil && !c.closed
		if known {
			e.files = files
			close(e.came)
		}
		c.mu.Unlock()
		if !known {
			c.drop(files)
		}
	}
}

func (c *fileChannel) drop(files []passedFile) {
	for _, f := range files {
		c.open.Add(-1)
		_ = f.Close() // only read from
	}
}

// close ends the channel. Fetches that wait for files go on waiting until their time is over, and are then asked again.
func (c *fileChannel) close() {
	c.mu.Lock()
	c.closed = true
	left := c.expected
	c.expected = map[uint64]*expectedFiles{}
	c.mu.Unlock()
	_ = c.conn.Close() // what was not received is lost either way
	for _, e := range left {
		c.drop(e.files)
	}
}

// attach gives the partitions of a result their records, which are in passed files.
func (c *fileChannel) attach(ctx context.Context, id uint64, res *storage.FetchResult, regions map[int][]passedRegion) error {
	if len(regions) == 0 {
		c.forget(id)
		return nil
	}
	if c == nil {
		return errNoFiles
	}
	files, err := c.claim(ctx, id)
	if err != nil {
		return err
	}
	shared := make([]sharedFile, len(files))
	for i, f := range files {
		shared[i].file, shared[i].channel = f, c
		shared[i].holds.Store(1)
	}
	defer func() {
		for i := range shared {
			shared[i].release()
		}
	}()
	for i, list := range regions {
		for _, r := range list {
			if r.file < 0 || int(r.file) >= len(files) || r.offset < 0 || r.length <= 0 || int64(int(r.length)) != r.length {
				return errNoFiles
			}
			s := &shared[r.file]
			s.holds.Add(1)
			res.Partitions[i].Records.Files = append(res.Partitions[i].Records.Files, storage.FileRegion{
				File: s.file, Offset: r.offset, Length: int(r.length), Done: s.release,
			})
		}
	}
	return nil
}

// sharedFile is a passed file that several regions of a result are in.
type sharedFile struct {
	file    passedFile
	channel *fileChannel
	holds   atomic.Int32
}

func (s *sharedFile) release() {
	if s.holds.Add(-1) == 0 {
		s.channel.drop([]passedFile{s.file})
	}
}
