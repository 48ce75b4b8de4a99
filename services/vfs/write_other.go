//go:build !linux

package vfs

func (f osFile) WriteBuffers(buffers [][]byte, offset int64) (int64, error) {
	var written int64
	for _, b := range buffers {
		n, err := f.WriteAt(b, offset+written)
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (f osFile) Reserve(int64) error { return nil }
