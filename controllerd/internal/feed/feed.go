// Package feed is the committed end of the metadata log in one controller: the image after the last durable batch, the last
// batches for those who follow, and what followers have applied.
//
// It owns what other services see. It must never hold anything that is not durable on a quorum.
package feed

import (
	"context"
	"fmt"
	"sort"
	"sync"

	controllerv1 "chancery/proto/controller/v1"

	"google.golang.org/protobuf/proto"

	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// ringBytes is how much of the log is kept for followers; who is further behind gets a snapshot.
const ringBytes = 64 << 20

// frame is a batch as followers get it, encoded once for all of them.
type frame struct {
	base, end int64
	epoch     int32
	encoded   transport.Encoded
}

// Feed is fed by one goroutine that follows the log and, in the active controller, by the one that appends; whichever
// comes first. Its other methods may be called from any goroutine.
type Feed struct {
	mu     sync.Mutex
	loader *metadata.Loader
	// loaded says that there is a state at all: an empty log's, a snapshot's, or a later one.
	loaded bool
	image  *metadata.Image
	// inTransaction says that the log ends within a transaction.
	inTransaction bool
	// ring are the last batches, without gaps; startEpoch is the epoch of the batch before the first.
	ring       []frame
	ringSize   int
	start      int64
	startEpoch int32
	holder     metalog.Holder
	// timestampMs is the time of the last batch.
	timestampMs int64
	// changed is closed and replaced whenever something above changes.
	changed chan struct{}
	// grown is how many bytes of log have come since the last snapshot.
	grown int64
	// snapshot is the last one that was encoded for followers.
	snapshot *encodedSnapshot
	limit    int
}

// New makes a feed without a state.
func New() *Feed {
	return &Feed{changed: make(chan struct{}), image: metadata.Empty(""), limit: ringBytes}
}

// Reset gives the feed a state: the image of a snapshot, or of an empty log. The log goes on at the offset after it, after a
// batch of the given epoch. Followers that have not come this far begin anew.
func (f *Feed) Reset(image *metadata.Image, epoch int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loader = metadata.NewLoader(image)
	f.image, f.loaded, f.inTransaction = image, true, false
	f.ring, f.ringSize, f.snapshot = nil, 0, nil
	f.start, f.startEpoch = image.Offset()+1, epoch
	f.grown = 0
	f.signalLocked()
}

func (f *Feed) signalLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Offer adds a durable batch. One that is there already is ignored; a gap is an error, after which the feed needs a Reset.
// The records may be given by who has decoded them already.
func (f *Feed) Offer(b *metalog.Batch, records []metarecord.Record) error {
	if records == nil {
		var err error
		if records, err = metarecord.DecodeAll(b.Records); err != nil {
			return fmt.Errorf("batch at offset %d: %w", b.BaseOffset, err)
		}
	}
	encoded, err := encode(&controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_Batch{Batch: &controllerv1.Batch{
		BaseOffset: b.BaseOffset, Epoch: b.Epoch, TimestampMs: b.TimestampMs, Records: b.Records,
	}}})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.loaded || b.BaseOffset < f.nextLocked() {
		return nil
	}
	if err := f.loader.Add(b.BaseOffset, b.Epoch, records); err != nil {
		f.loaded = false
		return err
	}
	f.inTransaction = transactionOpen(f.inTransaction, records)
	if delta := f.loader.Take(); delta != nil {
		f.image = delta.Image()
	}
	f.timestampMs = b.TimestampMs
	f.ring = append(f.ring, frame{b.BaseOffset, b.EndOffset(), b.Epoch, encoded})
	f.ringSize += len(encoded)
	f.grown += int64(len(encoded))
	f.trimLocked()
	f.signalLocked()
	return nil
}

// trimLocked drops what is too much, but never the newest batch.
func (f *Feed) trimLocked() {
	n := 0
	for ; f.ringSize > f.limit && n < len(f.ring)-1; n++ {
		f.ringSize -= len(f.ring[n].encoded)
		f.start, f.startEpoch = f.ring[n].end, f.ring[n].epoch
	}
	if n == 0 {
		return
	}
	// The slice moves in one array until that is used up; clearing gives the batches themselves back at once.
	clear(f.ring[:n])
	f.ring = f.ring[n:]
	if f.snapshot != nil && f.snapshot.end < f.start {
		f.snapshot = nil
	}
}

func transactionOpen(open bool, records []metarecord.Record) bool {
	for _, r := range records {
		switch r.(type) {
		case *metarecord.BeginTransactionRecord:
			open = true
		case *metarecord.EndTransactionRecord, *metarecord.AbortTransactionRecord:
			open = false
		}
	}
	return open
}

func (f *Feed) nextLocked() int64 {
	if len(f.ring) == 0 {
		return f.start
	}
	return f.ring[len(f.ring)-1].end
}

func (f *Feed) epochLocked() int32 {
	if len(f.ring) == 0 {
		return f.startEpoch
	}
	return f.ring[len(f.ring)-1].epoch
}

// SetHolder takes note of a claim.
func (f *Feed) SetHolder(h metalog.Holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.Epoch <= f.holder.Epoch {
		return
	}
	f.holder = h
	f.signalLocked()
}

// State is the feed at one moment.
type State struct {
	Image *metadata.Image
	// Next is the offset of the next batch; Epoch is that of the last one.
	Next  int64
	Epoch int32
	// InTransaction says that the log ends within a transaction.
	InTransaction bool
	// Loaded says that there is a state at all.
	Loaded bool
	Holder metalog.Holder
	// TimestampMs is the time of the last batch, 0 while unknown.
	TimestampMs int64
	// Changed is closed when anything has changed.
	Changed <-chan struct{}
}

// State gives the present state.
func (f *Feed) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return State{f.image, f.nextLocked(), f.epochLocked(), f.inTransaction, f.loaded, f.holder, f.timestampMs, f.changed}
}

// Image is the image after the last durable batch.
func (f *Feed) Image() *metadata.Image { return f.State().Image }

// Await waits until the state is as wanted.
func (f *Feed) Await(ctx context.Context, wanted func(State) bool) (State, error) {
	for {
		s := f.State()
		if wanted(s) {
			return s, nil
		}
		select {
		case <-s.Changed:
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// EpochAt is the epoch of the batch at a base offset. False says that no such batch is known.
func (f *Feed) EpochAt(base int64) (int32, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.findLocked(base)
	if i >= len(f.ring) || f.ring[i].base != base {
		return 0, false
	}
	return f.ring[i].epoch, true
}

// findLocked is the index of the first batch at or after an offset.
func (f *Feed) findLocked(base int64) int {
	return sort.Search(len(f.ring), func(i int) bool { return f.ring[i].base >= base })
}

// GrownBytes is how much log has come since the last snapshot.
func (f *Feed) GrownBytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.grown
}

// Snapshotted takes note that a snapshot was stored when the log had grown by some bytes.
func (f *Feed) Snapshotted(grown int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grown -= min(grown, f.grown)
}

func encode(m *controllerv1.FollowMetadataResponse) (transport.Encoded, error) {
	b, err := proto.Marshal(m)
	return transport.Encoded(b), err
}

// encodedSnapshot is a snapshot as followers get it.
type encodedSnapshot struct {
	// end is the offset after the snapshot, which is where the log goes on.
	end    int64
	frames []transport.Encoded
}

// snapshotChunkBytes is how large a chunk of a snapshot becomes.
const snapshotChunkBytes = 512 << 10

func encodeSnapshot(image *metadata.Image) (*encodedSnapshot, error) {
	s := &encodedSnapshot{end: image.Offset() + 1}
	add := func(m *controllerv1.FollowMetadataResponse) error {
		b, err := encode(m)
		s.frames = append(s.frames, b)
		return err
	}
	err := add(&controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_SnapshotBegin{
		SnapshotBegin: &controllerv1.SnapshotBegin{ClusterId: image.ClusterID(), Offset: image.Offset(), Epoch: image.Epoch()},
	}})
	if err != nil {
		return nil, err
	}
	chunk, size := &controllerv1.SnapshotChunk{}, 0
	flush := func() error {
		err := add(&controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_SnapshotChunk{SnapshotChunk: chunk}})
		chunk, size = &controllerv1.SnapshotChunk{}, 0
		return err
	}
	for r := range image.Records() {
		b := metarecord.Encode(r)
		chunk.Records, size = append(chunk.Records, b), size+len(b)
		if size >= snapshotChunkBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	if size > 0 {
		if err := flush(); err != nil {
			return nil, err
		}
	}
	return s, add(&controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_SnapshotEnd{SnapshotEnd: &controllerv1.SnapshotEnd{}}})
}

// snapshotFor gives an encoded snapshot from which a follower can go on with the ring.
func (f *Feed) snapshotFor() (*encodedSnapshot, error) {
	f.mu.Lock()
	cached, image, loaded := f.snapshot, f.image, f.loaded
	f.mu.Unlock()
	if !loaded {
		return nil, errNotLoaded
	}
	if cached != nil {
		return cached, nil
	}
	// Two followers may both encode at once; that costs time and nothing else.
	s, err := encodeSnapshot(image)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.end >= f.start {
		f.snapshot = s
	}
	return s, nil
}

// begin says where a follower begins: at its offset in the ring, or with a snapshot.
func (f *Feed) begin(from int64, lastEpoch int32) (needSnapshot bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Only a snapshot names the cluster, so who starts from nothing gets one, be it empty.
	if from <= 0 || from < f.start || from > f.nextLocked() {
		return true
	}
	i := f.findLocked(from)
	if i < len(f.ring) && f.ring[i].base != from {
		return true
	}
	before := f.startEpoch
	if i > 0 {
		before = f.ring[i-1].epoch
	}
	return lastEpoch != before
}

// after gives the batches from an offset on, at most a few at a time. False says that the ring no longer has the offset.
func (f *Feed) after(from int64) ([]frame, State, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := State{f.image, f.nextLocked(), f.epochLocked(), f.inTransaction, f.loaded, f.holder, f.timestampMs, f.changed}
	if from < f.start || from > s.Next {
		return nil, s, false
	}
	i := f.findLocked(from)
	if i < len(f.ring) && f.ring[i].base != from {
		return nil, s, false
	}
	return append([]frame(nil), f.ring[i:min(i+framesAtOnce, len(f.ring))]...), s, true
}

// framesAtOnce is how many batches are taken from the ring at a time.
const framesAtOnce = 16
