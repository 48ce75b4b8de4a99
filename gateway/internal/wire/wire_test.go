package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"google.golang.org/grpc/mem"

	"chancery/services/storage"
)

func FuzzHeader(f *testing.F) {
	f.Add([]byte{0, 3, 0, 9, 0, 0, 0, 1, 0, 1, 'x', 0}, true)
	f.Add([]byte{0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff}, false)
	f.Fuzz(func(t *testing.T, b []byte, flexible bool) {
		h, err := ParseHeader(b, flexible, nil)
		if err != nil {
			return
		}
		if h.Size > len(b) {
			t.Fatalf("a header of %d bytes in %d", h.Size, len(b))
		}
		if again, err := ParseHeader(b[:h.Size], flexible, h.ClientID); err != nil || again.Size != h.Size || again.ClientID != h.ClientID {
			t.Fatalf("read again: %+v, %v", again, err)
		}
	})
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, b, ops []byte) {
		r := NewReader(b)
		for _, op := range ops {
			before := r.Left()
			switch op % 11 {
			case 0:
				r.Int8()
			case 1:
				r.Int16()
			case 2:
				r.Int32()
			case 3:
				r.Int64()
			case 4:
				r.UUID()
			case 5:
				r.Uvarint()
			case 6:
				r.String(op&16 != 0)
			case 7:
				r.NullableString(op&16 != 0)
			case 8:
				if at, size := r.Span(op&16 != 0); size > 0 && !r.Failed() && at+size > len(b) {
					t.Fatalf("a span to %d of %d", at+size, len(b))
				}
			case 9:
				if n := r.Count(op&16 != 0, 2); n*2 > r.Left() {
					t.Fatalf("%d elements in %d bytes", n, r.Left())
				}
			case 10:
				r.SkipTags()
			}
			if r.Left() < 0 || r.Left() > before || r.Offset() > len(b) {
				t.Fatalf("%d bytes left of %d", r.Left(), before)
			}
		}
	})
}

func TestMessageKeepsThePlacesOfRecords(t *testing.T) {
	var pool Pool
	for range 2 { // the second one is used again
		m := pool.New(7, true)
		released := 0
		m.OnRelease(func() { released++ })
		records := func(s string) storage.Records {
			return storage.Records{Buffers: storage.Buffers{mem.SliceBuffer(s)}}
		}
		m.AddRecords(storage.Records{})
		m.B = append(m.B, "ab"...)
		m.AddRecords(records("XYZ"))
		m.AddRecords(records("W"))
		m.B = append(m.B, "c"...)
		m.Seal()
		var got []byte
		m.Pieces(func(b []byte, r *storage.Records) bool {
			if r != nil {
				b = r.Buffers.Materialize()
			}
			got = append(got, b...)
			return true
		})
		if want := []byte("\x00\x00\x00\x0c\x00\x00\x00\x07\x00abXYZWc"); !bytes.Equal(got, want) || m.Len() != len(want) || m.Plain() {
			t.Errorf("%q, want %q", got, want)
		}
		if binary.BigEndian.Uint32(got) != uint32(len(got)-4) {
			t.Error("the length is wrong")
		}
		if m.Release(); released != 1 {
			t.Errorf("released %d times", released)
		}
	}
}
