package log

import "sync/atomic"

// OpenFiles bounds how many logs of a process keep the files of their active segment open from one append to the next: a
// node may have more partitions that are written to than the files that it may open. The others open them for each
// append. Any goroutine may use it; nil has no bound.
type OpenFiles struct {
	most int64
	kept atomic.Int64
}

// NewOpenFiles lets as many logs keep their files; each has up to three.
func NewOpenFiles(logs int) *OpenFiles { return &OpenFiles{most: int64(logs)} }

func (o *OpenFiles) take() bool {
	if o == nil {
		return true
	}
	if o.kept.Add(1) > o.most {
		o.kept.Add(-1)
		return false
	}
	return true
}

func (o *OpenFiles) give() {
	if o != nil {
		o.kept.Add(-1)
	}
}

// settleFiles decides, after an append, whether the active segment's files stay open. The lock is held.
func (l *Log) settleFiles(s *segment) {
	if l.keepsFiles || l.closed.Load() {
		return
	}
	if l.keepsFiles = l.openFiles.take(); !l.keepsFiles && s.refs.Load() == 1 {
		s.closeFiles()
	}
}

// yieldFiles lets another log keep its files open instead. The lock is held.
func (l *Log) yieldFiles() {
	if l.keepsFiles {
		l.keepsFiles = false
		l.openFiles.give()
	}
}
