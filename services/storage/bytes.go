package storage

import (
	"io"
	"os"

	"google.golang.org/grpc/mem"
)

// Buffers is a run of bytes in one or more reference-counted buffers. Rules of ownership:
//
//   - One owner. Whoever holds a Buffers frees it once, with Free, or hands it on.
//   - The bytes are immutable from the moment they are shared: offsets and epochs go into a copy of the batch header.
//   - Whoever keeps bytes past a call takes a reference (Ref on each buffer, or Slice) and frees it.
//   - Never assume one contiguous slice, unless the code materialises it below 16 KiB.
type Buffers = mem.BufferSlice

// FileRegion is a part of an open segment file. The file stays open, also when the segment is deleted meanwhile, until
// Release is called.
type FileRegion struct {
	File   *os.File
	Offset int64
	Length int
	// Done gives back the hold on the file; nil when there is none.
	Done func()
}

// Records is a run of whole record batches on its way out: file regions, which the kernel can send by itself, or
// buffers. At most one of the two is set. The zero value is "no records".
type Records struct {
	Files   []FileRegion
	Buffers Buffers
}

// Len is the number of bytes.
func (r *Records) Len() int {
	n := r.Buffers.Len()
	for i := range r.Files {
		n += r.Files[i].Length
	}
	return n
}

// Release frees the buffers and gives back the files. It may be called twice.
func (r *Records) Release() {
	for i := range r.Files {
		if d := r.Files[i].Done; d != nil {
			d()
		}
	}
	r.Files = nil
	r.Buffers.Free()
	r.Buffers = nil
}

// ReadAll copies the bytes out. It is for readers that look inside (followers, coordinators), not for the way to a client.
func (r *Records) ReadAll() ([]byte, error) {
	if len(r.Files) == 0 {
		return r.Buffers.Materialize(), nil
	}
	out := make([]byte, r.Len())
	if err := r.readFiles(out); err != nil {
		return nil, err
	}
	return out, nil
}

// ReadInto copies the bytes, which are as many as Len says, to a slice of that length.
func (r *Records) ReadInto(to []byte) error {
	if len(r.Files) == 0 {
		r.Buffers.CopyTo(to)
		return nil
	}
	return r.readFiles(to)
}

func (r *Records) readFiles(to []byte) error {
	for _, f := range r.Files {
		n, err := f.File.ReadAt(to[:f.Length], f.Offset)
		if n < f.Length {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		to = to[n:]
	}
	return nil
}
