package partition

import (
	"chancery/services/storage"
)

// FollowsIn says whether the replica follows in this leader epoch, so that what a fetch in that epoch brought is to be
// taken. Everything else a fetcher brings is out of date.
func (p *Partition) FollowsIn(leaderEpoch int32) bool {
	return p.role == Following && p.leaderEpoch == leaderEpoch
}

// Followed says that a follower's log now ends at logEnd, and what the leader's high watermark is.
//
// The leader's high watermark is bounded by the own log, since only what is here may be shown; it is never taken back
// when a new leader knows less than this follower did: what was committed stays committed.
func (p *Partition) Followed(logEnd, leaderHighWatermark int64) Effects {
	p.logEnd = logEnd
	var out Effects
	if hw := min(leaderHighWatermark, logEnd); hw > p.highWatermark {
		p.highWatermark = hw
		out.HighWatermarkMoved = true
	}
	return out
}

// Truncated says that the log was cut and now ends at logEnd, which is below its start when a batch that has the start inside
// went: then the log begins there, too.
func (p *Partition) Truncated(logEnd int64) Effects {
	p.logStart, p.logEnd = min(p.logStart, logEnd), logEnd
	p.highWatermark = min(p.highWatermark, logEnd)
	return Effects{LookAgain: true}
}

// Restarted says that the log was emptied and goes on at an offset. What is before it, down to the log's start, is in the
// remote tier.
func (p *Partition) Restarted(logStart, logEnd int64) Effects {
	p.logStart, p.highWatermark, p.logEnd = logStart, logEnd, logEnd
	return Effects{LookAgain: true}
}

// TruncateTo finds where a follower's log must be cut when the leader says that the last epoch it shares ends at an offset.
// local is the own log's answer to the question where that epoch ends here (the largest epoch not above it and its end),
// and ok is false when the log knows no such epoch.
//
// When the own log does not have the leader's epoch, everything after the last epoch below it goes, and the next fetch
// asks again with that epoch: the logs come together epoch by epoch, never by the high watermark, which may lag behind
// what was committed.
func (p *Partition) TruncateTo(leader, local storage.EpochEndOffset, ok bool) int64 {
	switch {
	case leader.Epoch < 0 || !ok:
		return min(leader.EndOffset, p.logEnd)
	case local.Epoch != leader.Epoch:
		return min(local.EndOffset, p.logEnd)
	default:
		return min(local.EndOffset, leader.EndOffset, p.logEnd)
	}
}
