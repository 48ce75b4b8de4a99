package recordbatch

import (
	"bytes"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// frame compresses with a window of a size, which the frame's header asks the decoder for.
func frame(t *testing.T, window int, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(window), zstd.WithSingleSegment(false), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	// Two writes with a flush between them keep the encoder from choosing a smaller window.
	for _, p := range [][]byte{data[:len(data)/2], data[len(data)/2:]} {
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var head zstd.Header
	if err := head.Decode(out.Bytes()); err != nil || head.WindowSize != uint64(window) {
		t.Fatalf("the frame asks for %d bytes, %v", head.WindowSize, err)
	}
	return out.Bytes()
}

// Batches that ask for large windows are read, a few at a time; a large window behind a small one is not.
func TestLargeWindowsTakeTurns(t *testing.T) {
	c := NewCodecs()
	data := bytes.Repeat([]byte("record"), 1000)
	large, small := frame(t, 64<<20, data), frame(t, 1<<20, data)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 3 {
				if got, err := c.Decompress(nil, Zstd, large, 1<<20); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				if got, err := c.Decompress(nil, Zstd, small, 1<<20); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
		})
	}
	all.Wait()
	if len(c.large) != 0 {
		t.Errorf("%d large windows are still taken", len(c.large))
	}
	if _, err := c.Decompress(nil, Zstd, append(bytes.Clone(small), large...), 1<<20); err == nil {
		t.Error("a large window came behind a small one")
	}
	if len(c.large) != 0 {
		t.Errorf("%d large windows are still taken", len(c.large))
	}
}
