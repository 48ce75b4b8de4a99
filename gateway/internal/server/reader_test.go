package server

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"chancery/services/transport"
)

// pieces is a connection that gives its bytes in pieces of given sizes.
type pieces struct {
	net.Conn
	left  []byte
	sizes []byte
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := len(p.left)
	if len(p.sizes) > 0 {
		n = min(n, int(p.sizes[0])+1)
		p.sizes = p.sizes[1:]
	}
	n = copy(b, p.left[:n])
	p.left = p.left[n:]
	return n, nil
}

func testReader(nc net.Conn, max int32) *frameReader {
	r := newFrameReader(nc)
	r.chunks, r.buffers, r.max, r.budget = new(chunkPool), transport.NewDebugPool(), max, transport.NewBudget(1<<30)
	r.received = func(int) {}
	return r
}

// FuzzFrames cuts any stream, coming in any pieces, into frames, and compares them with the plain way of doing so.
func FuzzFrames(f *testing.F) {
	frame := func(key byte, size int) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(size))
		return append(append(b, 0, key), make([]byte, size-2)...)
	}
	f.Add(append(frame(0, 100), frame(3, 50)...), []byte{0, 3, 1, 200})
	f.Add(append(frame(3, 40000), frame(0, 70000)...), []byte{255})
	f.Fuzz(func(t *testing.T, stream, sizes []byte) {
		const limit = 1 << 20
		r := testReader(&pieces{left: stream, sizes: sizes}, limit)
		rest := stream
		for {
			got, err := r.next(t.Context())
			if err != nil {
				break
			}
			size := int(binary.BigEndian.Uint32(rest))
			if size < 8 || size > limit || size > len(rest)-4 || !bytes.Equal(got.bytes(), rest[4:4+size]) {
				t.Fatalf("a frame of %d bytes that is not there", len(got.bytes()))
			}
			if (got.buffer != nil) != (rest[4] == 0 && rest[5] == 0) {
				t.Fatal("a frame in the wrong kind of memory")
			}
			rest = rest[4+size:]
			r.budget.Release(got.taken)
			if got.buffer != nil {
				got.buffer.Free()
			}
		}
		if len(rest) >= 4 {
			if size := int32(binary.BigEndian.Uint32(rest)); size >= 8 && size <= limit && int(size) <= len(rest)-4 {
				t.Fatalf("a frame of %d bytes was not found", size)
			}
		}
		r.close()
		if r.chunk != nil {
			t.Fatal("the chunk is kept")
		}
	})
}

func TestAWaitingReaderHoldsNoBuffer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	r := testReader(nc, 1<<20)
	frame := append([]byte{0, 0, 0, 8}, 0, 3, 0, 0, 0, 0, 0, 1)
	if _, err := client.Write(append(frame, frame...)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r.chunk != nil {
		t.Error("a buffer is held after the last frame")
	}
	_ = nc.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := r.next(t.Context()); err == nil {
		t.Fatal("a frame out of nothing")
	}
	if r.chunk != nil {
		t.Error("a buffer is held after the wait")
	}
}
