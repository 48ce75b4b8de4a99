package group

import (
	"log/slog"
	"time"

	"chancery/services/statemachine"
)

// newMemberJoinTimeout bounds how long a member that has no heartbeat yet may wait in its first JoinGroup: if its client is
// gone, it would otherwise stay for ever.
const newMemberJoinTimeout = 5 * time.Minute

// Config is the settings of groups, and what the machine cannot make by itself.
type Config struct {
	// InitialRebalanceDelay is how long the first rebalance of an empty group waits for more members.
	InitialRebalanceDelay time.Duration
	// MaxSize is the most members of a group.
	MaxSize int
	// OffsetMetadataMaxBytes bounds the note beside an offset, in UTF-16 units as in Kafka.
	OffsetMetadataMaxBytes int
	// OffsetsRetention is how long offsets are kept when the group has no members.
	OffsetsRetention time.Duration
	// OffsetsRetentionCheckInterval is how often expired offsets and empty groups are looked for.
	OffsetsRetentionCheckInterval time.Duration
	// MaxBatchBytes is the largest record batch that the log takes; what has to be written at once must fit in.
	MaxBatchBytes int
	// NewUUID makes the random part of a member id.
	NewUUID func() string
	Logger  *slog.Logger
}

// Effects is what the machine wants done.
type Effects = statemachine.Effects[*Record, Reply]

// Ticket is a caller that waits for an answer.
type Ticket = statemachine.Ticket
