package server

import (
	"io"
	"net"
	"syscall"

	"chancery/gateway/internal/wire"
	"chancery/services/storage"
)

const (
	// smallRegion is up to which size a region of a file is read and written with what is around it: a call less, and for
	// so little no dearer than sendfile.
	smallRegion = 16 << 10
	// maxVector is how many pieces the system takes at once.
	maxVector = 1024
	// maxVectorBytes is how much is collected before it is written.
	maxVectorBytes = 1 << 20
)

// responseWriter writes messages to a connection: small pieces together, large regions of files by the kernel alone.
type responseWriter struct {
	nc net.Conn
	// raw is nil when the connection is no socket; then regions of files are copied.
	raw    syscall.RawConn
	chunks *chunkPool
	// sent is told how many bytes went out.
	sent func(n int)

	messages []*wire.Message
	vector   [][]byte
	bytes    int
	// scratch are the chunks that hold regions which were read; used is how much of the last one is.
	scratch []*[]byte
	used    int
}

func newResponseWriter(nc net.Conn, chunks *chunkPool, sent func(int)) responseWriter {
	w := responseWriter{nc: nc, chunks: chunks, sent: sent}
	if sc, ok := nc.(syscall.Conn); ok && canSendfile {
		if raw, err := sc.SyscallConn(); err == nil {
			w.raw = raw
		}
	}
	return w
}

// add puts a message behind those that are to be written. It stays the caller's.
func (w *responseWriter) add(m *wire.Message) { w.messages = append(w.messages, m) }

// flush writes all messages.
func (w *responseWriter) flush() error {
	var err error
	for _, m := range w.messages {
		m.Pieces(func(b []byte, records *storage.Records) bool {
			if records == nil {
				err = w.piece(b)
			} else {
				err = w.records(records)
			}
			return err == nil
		})
		if err != nil {
			break
		}
	}
	if err == nil {
		err = w.write(false)
	}
	clear(w.messages)
	w.messages = w.messages[:0]
	w.reset()
	return err
}

// piece collects bytes that stay valid until they have been written.
func (w *responseWriter) piece(b []byte) error {
	w.vector = append(w.vector, b)
	w.bytes += len(b)
	if len(w.vector) >= maxVector || w.bytes >= maxVectorBytes {
		return w.write(true)
	}
	return nil
}

func (w *responseWriter) records(r *storage.Records) error {
	for _, b := range r.Buffers {
		if err := w.piece(b.ReadOnlyData()); err != nil {
			return err
		}
	}
	for i := range r.Files {
		if err := w.region(&r.Files[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *responseWriter) region(f *storage.FileRegion) error {
	if w.raw == nil || f.Length <= smallRegion {
		return w.copyRegion(f)
	}
	if err := w.write(true); err != nil {
		return err
	}
	return w.sendfile(f)
}

// copyRegion reads a region and collects it.
func (w *responseWriter) copyRegion(f *storage.FileRegion) error {
	for at := 0; at < f.Length; {
		b := w.room(f.Length - at)
		n, err := f.File.ReadAt(b, f.Offset+int64(at))
		if n < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		at += n
		if err := w.piece(b); err != nil {
			return err
		}
	}
	return nil
}

// room gives up to n bytes of scratch memory.
func (w *responseWriter) room(n int) []byte {
	if len(w.scratch) == 0 || w.used == chunkSize {
		w.scratch = append(w.scratch, w.chunks.get())
		w.used = 0
	}
	last := *w.scratch[len(w.scratch)-1]
	n = min(n, chunkSize-w.used)
	b := last[w.used : w.used+n]
	w.used += n
	return b
}

// write writes what was collected; more says that something follows at once.
func (w *responseWriter) write(more bool) error {
	if len(w.vector) == 0 {
		return nil
	}
	n := w.bytes
	var err error
	switch {
	case more && w.raw != nil:
		err = w.writeMore()
	case len(w.vector) == 1:
		_, err = w.nc.Write(w.vector[0])
	default:
		// WriteTo takes the slice apart, so it gets a header of its own.
		buffers := net.Buffers(w.vector)
		_, err = buffers.WriteTo(w.nc)
	}
	if err == nil {
		w.sent(n)
	}
	w.reset()
	return err
}

// reset forgets what was collected.
func (w *responseWriter) reset() {
	clear(w.vector)
	w.vector, w.bytes, w.used = w.vector[:0], 0, 0
	for _, b := range w.scratch {
		w.chunks.put(b)
	}
	w.scratch = w.scratch[:0]
}
