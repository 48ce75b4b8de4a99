package keeper

import (
	"log/slog"
	"sync/atomic"

	"chancery/services/kafka/remotelog"
	"chancery/tiering/internal/remotestate"
)

// Lag is how far the remote tier is behind a partition. It belongs to the partition's passes, which come one after the other.
type Lag struct {
	// CopySegments and CopyBytes are closed segments that are not remote yet; Reason is why.
	CopySegments, CopyBytes int64
	Reason                  string
	// DeleteSegments and DeleteBytes are segments whose deletion has begun.
	DeleteSegments, DeleteBytes int64
	// RemoteSegments and RemoteBytes are what the remote tier has, and is about to delete.
	RemoteSegments, RemoteBytes int64
}

func (l *Lag) note(segments []Local, remoteEnd int64, reason string) {
	l.CopySegments, l.CopyBytes, l.Reason = 0, 0, ""
	for i, s := range segments {
		if s.EndOffset > remoteEnd && i+1 < len(segments) {
			l.CopySegments++
			l.CopyBytes += s.SizeBytes
		}
	}
	if l.CopySegments > 0 {
		l.Reason = reason
	}
}

func (l *Lag) noteRemote(v *remotestate.View) {
	l.RemoteSegments, l.RemoteBytes = int64(len(v.Segments)), 0
	for _, e := range v.Segments {
		if e.State != remotelog.CopyStarted {
			l.RemoteBytes += int64(e.SizeBytes)
		}
	}
}

// Metrics counts what passes do.
type Metrics struct {
	Copies, CopyBytes, CopyErrors  atomic.Int64
	Deletes, DeleteErrors, Expires atomic.Int64
}

// note logs a failed copy.
func (m *Metrics) note(logger *slog.Logger, text, partition string, s *remotelog.Segment, err error) {
	logger.Warn(text, "partition", partition, "segment", s.ID, "base_offset", s.StartOffset, "error", err)
}
