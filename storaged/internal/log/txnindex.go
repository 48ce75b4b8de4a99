package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"chancery/services/vfs"
)

const abortedTxnBytes = 34

// abortedTxn is an aborted transaction as the transaction index of the segment with its marker has it.
type abortedTxn struct {
	producerID int64
	first      int64
	// last is the offset of the marker.
	last int64
	// lastStable is the last stable offset once this transaction was out of the way: no reader below it needs to look at
	// later entries.
	lastStable int64
}

func appendAbortedTxn(b []byte, t abortedTxn) []byte {
	b = binary.BigEndian.AppendUint16(b, 0)
	for _, v := range [...]int64{t.producerID, t.first, t.last, t.lastStable} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func parseAbortedTxns(data []byte, base int64) ([]abortedTxn, error) {
	if len(data)%abortedTxnBytes != 0 {
		return nil, fmt.Errorf("%w: a transaction index of %d bytes has no whole entries", errIndex, len(data))
	}
	out := make([]abortedTxn, 0, len(data)/abortedTxnBytes)
	for ; len(data) > 0; data = data[abortedTxnBytes:] {
		field := func(i int) int64 { return int64(binary.BigEndian.Uint64(data[2+8*i:])) }
		t := abortedTxn{producerID: field(0), first: field(1), last: field(2), lastStable: field(3)}
		if version := binary.BigEndian.Uint16(data); version != 0 {
			return nil, fmt.Errorf("%w: version %d of an aborted transaction", errIndex, version)
		}
		if t.last < base || len(out) > 0 && t.last <= out[len(out)-1].last {
			return nil, fmt.Errorf("%w: aborted transactions out of order", errIndex)
		}
		out = append(out, t)
	}
	return out, nil
}

// loadAbortedTxns reads a segment's transaction index; no file is an empty one.
func loadAbortedTxns(fsys vfs.FS, path string, base int64) ([]abortedTxn, error) {
	data, err := fsys.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseAbortedTxns(data, base)
}

// writeAbortedTxn puts an entry behind the n that are in the file, and syncs nothing.
func writeAbortedTxn(fsys vfs.FS, path string, n int, t abortedTxn) error {
	f, err := fsys.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(appendAbortedTxn(make([]byte, 0, abortedTxnBytes), t), int64(n*abortedTxnBytes))
	return errors.Join(err, f.Close())
}

// cutAbortedTxns keeps n entries of the file.
func cutAbortedTxns(fsys vfs.FS, path string, n int) error {
	f, err := fsys.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(n*abortedTxnBytes)), f.Close())
}
