package group

import (
	"log/slog"
	"time"

	"chancery/services/metadata"
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
	// ProducerIDExpiration is how long a producer is remembered after its last transaction.
	ProducerIDExpiration time.Duration
	// MaxBatchBytes is the largest record batch that the log takes; what has to be written at once must fit in.
	MaxBatchBytes int
	// NewUUID makes the random part of a member id, NewID a whole one in Kafka's text form of ids.
	NewUUID func() string
	NewID   func() string
	// Image is the metadata that the machine begins with.
	Image metadata.Reader
	// Background does work that takes long beside the machine, and brings it the command that comes of it.
	Background func(work func() Command)
	// Consumer is the settings of consumer groups.
	Consumer ConsumerConfig
	Logger   *slog.Logger
}

// ConsumerConfig is the settings of consumer groups.
type ConsumerConfig struct {
	// MaxSize is the most members of a group.
	MaxSize int
	// Assignors are the names of the assignors that members may prefer. The first one is used when nobody prefers one.
	Assignors []string
	// Upgrade and Downgrade allow that a group changes its type while members are in it.
	Upgrade, Downgrade bool
	// RegexRefreshInterval is after which time the topics of regular expressions are looked up again in any case.
	RegexRefreshInterval time.Duration
	// Settings are those of a group by some metadata, with its own configs counted in.
	Settings func(image metadata.Reader, id string) ConsumerSettings
}

// ConsumerSettings are the settings of one consumer group.
type ConsumerSettings struct {
	// SessionTimeout is after which silence a member is taken for dead, HeartbeatInterval how often it is to speak.
	SessionTimeout, HeartbeatInterval time.Duration
	// AssignmentInterval is the shortest time between two target assignments.
	AssignmentInterval time.Duration
}

// Effects is what the machine wants done.
type Effects = statemachine.Effects[*Record, Reply]

// Ticket is a caller that waits for an answer.
type Ticket = statemachine.Ticket
