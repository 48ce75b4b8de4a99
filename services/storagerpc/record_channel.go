package storagerpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/transport"
)

// A tiering instance and its client on one machine pass the records of large reads over a unix socket beside their gRPC
// connection: a fifth of what the bytes cost in frames of 16 KiB with windows. The client opens the socket and names it; in each
// read it says the name, and a number for what it expects there. The instance writes number, length and records, and
// answers the call with how many bytes it has passed. Whenever anything is in the way the records are in the answer instead.

const (
	// minPassedRecords is below how many bytes a second socket costs more than it saves.
	minPassedRecords = 64 << 10
	// recordPiece is the largest buffer that passed records come in.
	recordPiece = 1 << 20
	// recordHeader is the number and the length, big endian.
	recordHeader = 16
	// maxPassedRecords is above every read: a larger number is no length.
	maxPassedRecords = 1 << 30
)

// errNoRecords says that passed records did not come.
var errNoRecords = errcode.NetworkException.Wrap(errors.New("records that the tiering instance has passed did not come"))

// recordChannel is a client's end: it takes records and keeps them for the reads that expect them.
type recordChannel struct {
	token [channelTokenBytes]byte
	conn  net.Conn
	pool  *transport.Pool

	mu       sync.Mutex
	closed   bool
	next     uint64
	expected map[uint64]*expectedRecords
}

// expectedRecords are the records of one read.
type expectedRecords struct {
	// taken says that they have begun to come.
	taken   bool
	records storage.Buffers
	came    chan struct{}
}

func newRecordChannel(token [channelTokenBytes]byte, conn net.Conn, pool *transport.Pool) *recordChannel {
	return &recordChannel{token: token, conn: conn, pool: pool, expected: map[uint64]*expectedRecords{}}
}

func (c *recordChannel) alive() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed
}

// expect gives a number for a read; 0 when nothing can come.
func (c *recordChannel) expect() uint64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	c.next++
	c.expected[c.next] = &expectedRecords{came: make(chan struct{})}
	return c.next
}

// forget frees what has come, or will come, for a read that has not claimed it.
func (c *recordChannel) forget(number uint64) {
	if number == 0 {
		return
	}
	c.mu.Lock()
	e := c.expected[number]
	delete(c.expected, number)
	var records storage.Buffers
	if e != nil {
		records, e.records = e.records, nil
	}
	c.mu.Unlock()
	records.Free()
}

// claim gives the records of a read, for which it waits a moment: they may end after the answer that announces them.
func (c *recordChannel) claim(ctx context.Context, number uint64, bytes int64) (storage.Buffers, error) {
	c.mu.Lock()
	e := c.expected[number]
	c.mu.Unlock()
	if e == nil {
		return nil, errNoRecords
	}
	t := time.NewTimer(passTimeout)
	defer t.Stop()
	select {
	case <-e.came:
	case <-t.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	records := e.records
	e.records = nil
	delete(c.expected, number)
	c.mu.Unlock()
	if int64(records.Len()) != bytes {
		records.Free()
		return nil, errNoRecords
	}
	return records, nil
}

// receive takes records until the channel ends.
func (c *recordChannel) receive() {
	defer c.close()
	var header [recordHeader]byte
	for {
		if _, err := io.ReadFull(c.conn, header[:]); err != nil {
			return
		}
		number, bytes := binary.BigEndian.Uint64(header[:]), binary.BigEndian.Uint64(header[8:])
		if bytes > maxPassedRecords {
			return
		}
		c.mu.Lock()
		e := c.expected[number]
		wanted := e != nil && !e.taken
		if wanted {
			e.taken = true
		}
		c.mu.Unlock()
		if !wanted {
			// Nobody waits any more, or never did.
			if _, err := io.CopyN(io.Discard, c.conn, int64(bytes)); err != nil {
				return
			}
			continue
		}
		records, err := c.take(int(bytes))
		if err != nil {
			return
		}
		c.deliver(number, e, records)
	}
}

// deliver hands records to the read that expects them, unless it has been given up meanwhile, or told by close that nothing comes.
func (c *recordChannel) deliver(number uint64, e *expectedRecords, records storage.Buffers) {
	c.mu.Lock()
	known := !c.closed && c.expected[number] == e
	if known {
		e.records = records
		close(e.came)
	}
	c.mu.Unlock()
	if !known {
		records.Free()
	}
}

// take reads records from the socket.
func (c *recordChannel) take(bytes int) (storage.Buffers, error) {
	records := make(storage.Buffers, 0, (bytes+recordPiece-1)/recordPiece)
	for bytes > 0 {
		buffer, b := c.pool.Buffer(min(bytes, recordPiece))
		records = append(records, buffer)
		if _, err := io.ReadFull(c.conn, b); err != nil {
			records.Free()
			return nil, err
		}
		bytes -= len(b)
	}
	return records, nil
}

// close ends the channel, and the wait of those who expect records.
func (c *recordChannel) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	_ = c.conn.Close() // what was not received is lost either way
	for _, e := range c.expected {
		if e.records == nil {
			close(e.came)
		}
	}
}

// recordChannels are the instance's ends of the channels of its clients.
type recordChannels struct{ channelEnds[net.Conn] }

// pass writes records to the client that expects them, and says whether it has. The records stay the caller's.
func (c *recordChannels) pass(name []byte, number uint64, records storage.Buffers) bool {
	bytes := records.Len()
	if number == 0 || len(name) != channelTokenBytes || bytes < minPassedRecords || bytes > maxPassedRecords {
		return false
	}
	token := [channelTokenBytes]byte(name)
	e := c.get(token)
	if e == nil {
		return false
	}
	if err := sendRecords(e, number, uint64(bytes), records); err != nil {
		c.remove(token)
		return false
	}
	return true
}

func sendRecords(e *channelEnd[net.Conn], number, bytes uint64, records []mem.Buffer) error {
	var header [recordHeader]byte
	binary.BigEndian.PutUint64(header[:], number)
	binary.BigEndian.PutUint64(header[8:], bytes)
	vector := make(net.Buffers, 0, 1+len(records))
	vector = append(vector, header[:])
	for _, b := range records {
		vector = append(vector, b.ReadOnlyData())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.conn.SetWriteDeadline(time.Now().Add(passTimeout)); err != nil {
		return err
	}
	_, err := vector.WriteTo(e.conn)
	return err
}
