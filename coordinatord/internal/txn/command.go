package txn

import (
	"regexp"

	"chancery/services/kafka/errcode"
)

// Command is what the machine can be asked: one of the types below. What a command is answered with stands beside it.
type Command interface{ command() }

// Reply is the answer to a command.
type Reply any

// Producer is a producer id with an epoch.
type Producer struct {
	ID    int64
	Epoch int16
}

// Init gives a producer its id and epoch, and fences the one before. It is answered with InitReply.
type Init struct {
	ID        string
	TimeoutMs int32
	// Expected is what the producer has already; nil for a new one.
	Expected *Producer
	// NewProducerID is a producer id that nobody has, or NoProducerID.
	NewProducerID int64
}

// InitReply is the answer to Init.
type InitReply struct {
	Code     errcode.Code
	Producer Producer
	// NeedsID says that nothing was done: the command is to be sent again with a NewProducerID.
	NeedsID bool
}

// Add adds partitions to a transaction, which begins with the first ones. It is answered with an errcode.Code.
type Add struct {
	ID         string
	Producer   Producer
	Partitions []Partition
	// Version is the transaction.version by which the client speaks.
	Version int16
}

// Verify asks whether partitions are in a transaction, answered with VerifyReply.
type Verify struct {
	ID         string
	Producer   Producer
	Partitions []Partition
}

// VerifyReply has a code for the whole question, or else one for each partition in the order of the command.
type VerifyReply struct {
	Code  errcode.Code
	Codes []errcode.Code
}

// End commits or aborts a transaction, answered with EndReply when it can not be undone any more; the markers follow.
type End struct {
	ID       string
	Producer Producer
	Commit   bool
	// Version is the transaction.version by which the client speaks.
	Version int16
	// NewProducerID is a producer id that nobody has, or NoProducerID.
	NewProducerID int64
}

// EndReply is the answer to End and Abandon. Producer is what the producer goes on with.
type EndReply struct {
	Code     errcode.Code
	Producer Producer
	// NeedsID says that nothing was done: the command is to be sent again with a NewProducerID.
	NeedsID bool
}

// Abandon aborts a transaction that has taken too long, and fences its producer. It is answered with EndReply.
type Abandon struct {
	ID            string
	Producer      Producer
	NewProducerID int64
}

// MarkersWritten says that all markers of a transaction are where they belong. It is answered with nil.
type MarkersWritten struct {
	ID       string
	Producer Producer
}

// List asks for transactions, answered with []Listed. Empty filters let everything pass.
type List struct {
	// ByState says that States filters, even if none of them is known.
	ByState     bool
	States      []string
	ProducerIDs []int64
	// LongerThanMs leaves out the transactions that have run for no longer; negative for none.
	LongerThanMs int64
	// Pattern must match the whole id; nil for none.
	Pattern *regexp.Regexp
}

// Listed is a transaction in a list.
type Listed struct {
	ID         string
	ProducerID int64
	State      string
}

// Describe asks for a transaction, answered with *Transaction, nil when there is none.
type Describe struct{ ID string }

// Count asks how much there is, answered with Counts.
type Count struct{}

// Counts is what metrics show of a shard.
type Counts struct{ IDs, Ongoing, Ending int }

func (*Init) command()           {}
func (*Add) command()            {}
func (*Verify) command()         {}
func (*End) command()            {}
func (*Abandon) command()        {}
func (*MarkersWritten) command() {}
func (*List) command()           {}
func (*Describe) command()       {}
func (*Count) command()          {}
