// Package metalog is the contract of the metadata log: an ordered sequence of batches of records that survives the loss
// of a minority of controllers, and that only one controller at a time can append to.
//
// It owns the interface, the form of a batch and the errors. It must never know what the records mean, nor what keeps
// them.
package metalog

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"chancery/services/kafka/uuid"
)

// The errors of a log.
var (
	// ErrFenced says that another controller has claimed the log since; nothing was done.
	ErrFenced = errors.New("another controller has claimed the metadata log")
	// ErrUnknown says that it is unknown whether the change was made. Only a new claim can tell.
	ErrUnknown = errors.New("the outcome of a change of the metadata log is unknown")
	// ErrNoSnapshot says that there is no snapshot yet; the log then reaches back to offset 0.
	ErrNoSnapshot = errors.New("no snapshot of the metadata log")
	// ErrClosed says that the log was closed.
	ErrClosed = errors.New("the metadata log is closed")
	// ErrStaticVoters says that the voters cannot be changed through this log.
	ErrStaticVoters = errors.New("the voters of this metadata log cannot be changed here")
	// ErrNoVoter says that the quorum has no such voter.
	ErrNoVoter = errors.New("the quorum has no such voter")
	// ErrNoSpace says that the store is full; nothing was done.
	ErrNoSpace = errors.New("the store of the metadata log is full")
)

// TruncatedError says that the log no longer has an offset, only those from Start on; what was before is in the snapshot.
type TruncatedError struct{ Start int64 }

// Error tells where the log starts.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("the metadata log starts at offset %d", e.Start)
}

// Holder is who has claimed the log.
type Holder struct {
	// Epoch counts claims; the first is 1. It is what Kafka calls the controller epoch.
	Epoch int32 `json:"epoch"`
	ID    int32 `json:"id"`
	// Address is where other services reach the controller.
	Address string `json:"address"`
}

// Event is something that happened to the log: exactly one field is set.
type Event struct {
	// Batch is a batch that is durable.
	Batch *Batch
	// Holder is a new claim.
	Holder *Holder
}

// Log is the metadata log as one controller sees it. All methods may be called from any goroutine.
type Log interface {
	Reader
	Leader
	Quorum
	// ClusterID gives the id of the cluster. The first caller ever settles it, by what it proposes.
	ClusterID(ctx context.Context, proposed string) (string, error)
	// Failed tells, once, of a failure that the log cannot heal; the process should then stop.
	Failed() <-chan error
	// Close leaves the quorum, within the context's time.
	Close(ctx context.Context) error
}

// Quorum is the part of a log that knows its voters.
type Quorum interface {
	// Voters are the members of the quorum.
	Voters(ctx context.Context) ([]Voter, error)
	// Members are all members as a new one must know them. Nil says that the given controller is not admitted.
	Members(ctx context.Context, id int32, directoryID uuid.UUID) ([]Member, error)
	// AddVoter admits a controller and returns when it is a voter. When that does not come about within the context's time,
	// it is not admitted after all.
	AddVoter(ctx context.Context, v NewVoter) error
	// RemoveVoter takes a voter out of the quorum, be it the leader.
	RemoveVoter(ctx context.Context, id int32, directoryID uuid.UUID) error
}

// Reader is the part of a log that every controller uses.
type Reader interface {
	// InContact says whether this controller's view of the log is live, so that others may rely on it.
	InContact() bool
	// Follow gives what happens to the log: first the present holder, if there is one, and the batches from an offset on,
	// which must be the base of a batch or the end of the log, then what comes. It ends with an error: a *TruncatedError when
	// the offset is gone, the context's error, or another.
	Follow(ctx context.Context, from int64) iter.Seq2[Event, error]
	// Snapshot opens the last snapshot.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// Leader is the part of a log that says who should append to it.
type Leader interface {
	// Leadership gives true when this controller should claim the log, and false when it should stand down. It tells of the
	// present state first, and only of the last state to a slow reader. There is one reader.
	Leadership() <-chan bool
	// Claim makes this controller the only one that can append, and fences all earlier claims.
	Claim(ctx context.Context, address string) (Term, error)
}

// Term is the time of one claim. Append is called by one goroutine at a time, PutSnapshot by one, too; the two may run at
// once.
type Term interface {
	// Epoch is that of the claim.
	Epoch() int32
	// EndOffset is the offset after the last batch that the log had when it was claimed.
	EndOffset() int64
	// Append puts a batch at the end of the log and returns when it is durable. After an error the term is over: the batch
	// must not be tried again in it. A fenced or refused batch is not in the log, after ErrUnknown it may be.
	Append(ctx context.Context, b Batch) error
	// PutSnapshot stores a snapshot, in place of the one before the last, and drops the part of the log that is older than the
	// last two.
	PutSnapshot(ctx context.Context, s SnapshotInfo, records iter.Seq[[]byte]) error
}

// SnapshotInfo says which part of the log a snapshot stands for.
type SnapshotInfo struct {
	// EndOffset is the offset after the last record in it.
	EndOffset int64
	// Epoch is the epoch of that record's batch.
	Epoch int32
}

// Snapshot is a stored snapshot.
type Snapshot struct {
	SnapshotInfo
	// Records are the records that make the state, in order; it is read once.
	Records iter.Seq2[[]byte, error]
}

// Voter is a member of the quorum.
type Voter struct {
	ID int32
	// DirectoryID is that of the directory in which it keeps the log; zero while unknown.
	DirectoryID uuid.UUID
	// Leader says whether the quorum's own leader is this member.
	Leader bool
}

// NewVoter is a controller that shall be a voter.
type NewVoter struct {
	ID          int32
	DirectoryID uuid.UUID
	// Address is where the other voters will reach it: "host:port".
	Address string
}

// Member is a member of the quorum by its name there and its address.
type Member struct{ Name, Address string }
