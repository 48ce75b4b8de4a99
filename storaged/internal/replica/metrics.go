package replica

import "sync/atomic"

// Metrics counts what replicas do. The Waiting ones go up and down, all others only grow.
type Metrics struct {
	BytesIn, MessagesIn                     atomic.Int64
	BytesOut                                atomic.Int64
	ReplicationBytesIn, ReplicationBytesOut atomic.Int64
	ProducePartitions                       atomic.Int64
	FailedProducePartitions                 atomic.Int64
	ConsumerFetches, FollowerFetches        atomic.Int64
	FailedFetchPartitions                   atomic.Int64
	ISRShrinks, ISRExpands                  atomic.Int64
	FailedISRUpdates                        atomic.Int64
	WaitingProduces, WaitingDeletes         atomic.Int64
	Truncations, ReplicaFetchErrors         atomic.Int64
}
