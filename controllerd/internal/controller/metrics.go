package controller

import (
	"slices"
	"sync/atomic"

	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
	"chancery/services/telemetry"
)

// Metrics is what a controller counts.
type Metrics struct {
	// UncleanElections are leaders that were elected out of the ISR, ELRElections those that were eligible though not in it.
	UncleanElections atomic.Int64
	ELRElections     atomic.Int64
	// TimedOutMembers are members that were fenced, or forgotten, since they were silent.
	TimedOutMembers atomic.Int64
	// Terms are the times that this controller became the active one.
	Terms atomic.Int64
	// Operations are the requests that were decided, FailedOperations those of them that broke off.
	Operations       atomic.Int64
	FailedOperations atomic.Int64
	// QueueTime is how long requests waited for their turn, ProcessingTime how long deciding took.
	QueueTime      *telemetry.Histogram
	ProcessingTime *telemetry.Histogram
}

// NewMetrics makes metrics that start at zero.
func NewMetrics() *Metrics {
	return &Metrics{
		QueueTime:      telemetry.NewHistogram("chancery_controller_event_queue_time_seconds", "Time that requests wait for their turn.", nil),
		ProcessingTime: telemetry.NewHistogram("chancery_controller_event_queue_processing_time_seconds", "Time that a decision takes.", nil),
	}
}

// countElections counts the elections in records that are about to be applied to an image.
func (m *Metrics) countElections(image *metadata.Image, records []metarecord.Record) {
	for _, r := range records {
		c, ok := r.(*metarecord.PartitionChangeRecord)
		if !ok || c.Leader < 0 {
			continue
		}
		if c.LeaderRecoveryState == metarecord.Recovering {
			m.UncleanElections.Add(1)
			continue
		}
		if p := image.Partition(c.TopicID, c.PartitionID); p != nil && p.Leader != c.Leader && slices.Contains(p.ELR, c.Leader) {
			m.ELRElections.Add(1)
		}
	}
}
