package node

import (
	"time"

	"chancery/services/kafka/configdef"
	"chancery/storaged/internal/throttle"
)

// quotas are the bounds on copying: what leaders here give to followers that are not in sync (leader.replication.throttled.rate),
// what followers here take (follower.replication.throttled.rate), both for the partitions that their topics' configs name
// (KIP-73), and what moves between log directories copy (replica.alter.log.dirs.io.max.bytes.per.second).
type quotas struct {
	leader, follower, moves *throttle.Quota
}

func newQuotas(c *configdef.Node) quotas {
	replication := func() *throttle.Quota {
		return throttle.New(c.Int("replication.quota.window.num"), time.Duration(c.Int("replication.quota.window.size.seconds"))*time.Second)
	}
	q := quotas{leader: replication(), follower: replication(), moves: throttle.New(
		c.Int("alter.log.dirs.replication.quota.window.num"), time.Duration(c.Int("alter.log.dirs.replication.quota.window.size.seconds"))*time.Second)}
	q.configure(c)
	return q
}

// configure takes new bounds.
func (q *quotas) configure(c *configdef.Node) {
	q.leader.SetBound(c.Long("leader.replication.throttled.rate"))
	q.follower.SetBound(c.Long("follower.replication.throttled.rate"))
	q.moves.SetBound(c.Long("replica.alter.log.dirs.io.max.bytes.per.second"))
}

// Throttle is how much a kind of copying did and may do.
type Throttle struct {
	Name string
	// Bytes were counted since the start; Rate and Bound are in bytes per second.
	Bytes, Rate, Bound int64
}

// Throttles describes the quotas of copying.
func (n *Node) Throttles() []Throttle {
	now := time.Now()
	describe := func(name string, q *throttle.Quota) Throttle {
		return Throttle{Name: name, Bytes: q.Total(), Rate: int64(q.Rate(now)), Bound: q.Bound()}
	}
	return []Throttle{describe("leader", n.quotas.leader), describe("follower", n.quotas.follower), describe("log_dirs", n.quotas.moves)}
}
