package replica

import (
	"time"

	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
)

// Home is where a replica lives after a move.
type Home struct {
	Dir *logdir.Dir
	// Log is nil when the replica has lost its log on the way. It is out of reach then.
	Log *log.Log
}

// Move lets a replica move to another log directory. change runs between all other events, so that nothing is written
// meanwhile; it gets the present log and gives the new home, or false when the replica stays. The result is that of change; it
// is false as well for a replica that is out of reach.
func (r *Replica) Move(change func(present *log.Log) (Home, bool)) bool {
	moved := false
	r.Do(func() {
		if !r.usable() {
			return
		}
		var to Home
		if to, moved = change(r.Log()); !moved {
			return
		}
		if to.Log == nil {
			r.home.Store(&home{to.Dir, r.Log()})
			r.goOffline()
			return
		}
		to.Log.SetConfig(r.config)
		to.Log.SetRemoteEndOffset(r.Log().RemoteEndOffset())
		r.home.Store(&home{to.Dir, to.Log})
		to.Log.SetHighWatermark(r.machine.HighWatermark())
		r.publish()
	})
	return moved
}

// Throttled says whether the topic's configs put the copying of this partition under the quotas of leaders or followers, for
// this node.
func (r *Replica) Throttled() (asLeader, asFollower bool) {
	return r.leaderThrottled.Load(), r.followerThrottled.Load()
}

// CountReplicated counts what a follower's fetch took from here against the quota of leaders.
func (r *Replica) CountReplicated(now time.Time, bytes int) {
	if bytes > 0 && r.leaderThrottled.Load() {
		r.env.LeaderQuota.Record(now, bytes)
	}
}
