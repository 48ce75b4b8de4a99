package log

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"chancery/services/storage"
)

// epochs is the history of leader epochs: where each one begins. It grows in both fields.
type epochs []epochStart

type epochStart struct {
	epoch int32
	start int64
}

// assign notes that an epoch begins at an offset, and says whether that was news. Entries that contradict it go: the
// leader's word is newer.
func (e *epochs) assign(epoch int32, start int64) bool {
	if epoch < 0 || start < 0 {
		return false
	}
	s := *e
	if n := len(s); n > 0 && s[n-1].epoch == epoch && start >= s[n-1].start {
		return false
	}
	n := len(s)
	for n > 0 && (s[n-1].epoch >= epoch || s[n-1].start >= start) {
		n--
	}
	// A new slice, since readers may hold the old one.
	*e = append(append(make(epochs, 0, n+1), s[:n]...), epochStart{epoch, start})
	return true
}

// truncateFromEnd forgets epochs that begin at an offset or after it, and says whether there were any.
func (e *epochs) truncateFromEnd(end int64) bool {
	s := *e
	n := len(s)
	for n > 0 && s[n-1].start >= end {
		n--
	}
	*e = s[:n:n]
	return n < len(s)
}

// truncateFromStart lets the history begin at an offset: the epoch that is current there begins there.
func (e *epochs) truncateFromStart(start int64) bool {
	s := *e
	n := 0
	for n < len(s) && s[n].start <= start {
		n++
	}
	if n == 0 || n == 1 && s[0].start == start {
		return false
	}
	out := append(epochs{{s[n-1].epoch, start}}, s[n:]...)
	*e = out
	return true
}

func (e epochs) latest() int32 {
	if len(e) == 0 {
		return -1
	}
	return e[len(e)-1].epoch
}

// endOffsetFor finds the largest epoch that is not above the asked one, and where it ends, as KIP-101 and KIP-279 have
// it. For an epoch older than all of the history it is that epoch, with the start of the history as its end.
func (e epochs) endOffsetFor(epoch int32, logEnd int64) storage.EpochEndOffset {
	if epoch < 0 || len(e) == 0 || epoch > e.latest() {
		return storage.NoDivergence
	}
	if epoch == e.latest() {
		return storage.EpochEndOffset{Epoch: epoch, EndOffset: logEnd}
	}
	above := sort.Search(len(e), func(i int) bool { return e[i].epoch > epoch })
	found := epoch
	if above > 0 {
		found = e[above-1].epoch
	}
	return storage.EpochEndOffset{Epoch: found, EndOffset: e[above].start}
}

// forOffset is the epoch that is current at an offset; -1 for one before the history.
func (e epochs) forOffset(offset int64) int32 {
	above := sort.Search(len(e), func(i int) bool { return e[i].start > offset })
	if above == 0 {
		return -1
	}
	return e[above-1].epoch
}

// encode writes the checkpoint: version, number of entries, and a line for each.
func (e epochs) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "0\n%d\n", len(e))
	for _, x := range e {
		fmt.Fprintf(&b, "%d %d\n", x.epoch, x.start)
	}
	return b.Bytes()
}

// parseEpochs reads a checkpoint. An empty file is an empty history: Kafka leaves one in a new partition.
func parseEpochs(data []byte) (epochs, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if data[len(data)-1] != '\n' {
		return nil, errors.New("the last line is cut off")
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if lines[0] != "0" {
		return nil, fmt.Errorf("version %q, want 0", lines[0])
	}
	if len(lines) == 1 {
		return nil, nil
	}
	n, err := strconv.Atoi(lines[1])
	if err != nil || n != len(lines)-2 {
		return nil, fmt.Errorf("%d entries, the file says %q", len(lines)-2, lines[1])
	}
	var out epochs
	for _, line := range lines[2:] {
		var x epochStart
		epoch, start, ok := strings.Cut(line, " ")
		v, err1 := strconv.ParseInt(epoch, 10, 32)
		w, err2 := strconv.ParseInt(strings.TrimSpace(start), 10, 64)
		if !ok || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("line %q is not an epoch and an offset", line)
		}
		x.epoch, x.start = int32(v), w
		out.assign(x.epoch, x.start)
	}
	return out, nil
}
