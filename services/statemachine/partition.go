package statemachine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/mem"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

const (
	// appendTimeout is how long the leader may wait for its followers. It is long, since a shard whose append has an unknown
	// outcome must be loaded anew; callers are told much earlier that it takes too long.
	appendTimeout = 2 * time.Minute
	// leaderTimeout bounds the search for a leader that takes an append.
	leaderTimeout = 5 * time.Second
	// askTimeout bounds one question to a node while loading, beside the wait for records.
	askTimeout = 10 * time.Second
	// maxDecompressed bounds a batch that is compressed in the log.
	maxDecompressed = 256 << 20
	// fetchWait is how long a node waits for the high watermark to move while loading.
	fetchWait = 500 * time.Millisecond

	retryPause    = 10 * time.Millisecond
	retryPauseMax = 500 * time.Millisecond

	// progressInterval is how often a long load is logged.
	progressInterval = 5 * time.Second

	// newestProduceVersion decides nothing for batches of format 2 outside transactions.
	newestProduceVersion = 13

	earliestTimestamp = -2
	latestTimestamp   = -1
)

// Images is the metadata that a partition's leader is found by.
type Images interface {
	// Image is the newest image.
	Image() metadata.Reader
	// Await waits until the image has reached an offset.
	Await(ctx context.Context, offset int64) error
}

// PartitionConfig is what a Partition needs.
type PartitionConfig struct {
	Topic     string
	TopicID   uuid.UUID
	Partition int32
	// WriterEpoch is the shard's epoch and AssignedAt the metadata offset at which it was known: storage nodes that are
	// behind it must catch up before they answer, so that they refuse the owner before.
	WriterEpoch int32
	AssignedAt  int64
	Images      Images
	// Nodes finds a storage node.
	Nodes  func(id int32) (storage.Node, error)
	Codecs *recordbatch.Codecs
	// LoadSlots bounds how many partitions are read at once: each takes a place in the channel while it reads, but not
	// while it waits for a leader or for the high watermark. Nil means no bound.
	LoadSlots chan struct{}
	// FetchBytes is how much is read at once while loading.
	FetchBytes int32
	Logger     *slog.Logger
}

// Partition is the log of a shard on storage nodes. It follows the partition's leader.
type Partition struct{ config PartitionConfig }

// NewPartition makes a partition.
func NewPartition(c PartitionConfig) *Partition { return &Partition{config: c} }

func (p *Partition) String() string { return fmt.Sprintf("%s-%d", p.config.Topic, p.config.Partition) }

// leader is the partition's leader of the moment.
func (p *Partition) leader() (node storage.Node, epoch int32, image metadata.Reader, err error) {
	image = p.config.Images.Image()
	partition := image.Partition(p.config.TopicID, p.config.Partition)
	if partition == nil {
		return nil, 0, image, errcode.UnknownTopicOrPartition.Wrap(fmt.Errorf("%s is not in the metadata", p))
	}
	if partition.Leader == metadata.NoLeader {
		return nil, 0, image, errcode.LeaderNotAvailable.Wrap(fmt.Errorf("%s has no leader", p))
	}
	node, err = p.config.Nodes(partition.Leader)
	return node, partition.LeaderEpoch, image, err
}

// pause waits for newer metadata than an image's, at most for a time that grows with the attempts.
func (p *Partition) pause(ctx context.Context, image metadata.Reader, attempt int) {
	d := min(retryPause<<min(attempt, 10), retryPauseMax)
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if p.config.Images.Await(ctx, image.Offset()+1) != nil {
		<-ctx.Done()
	}
}

// Append writes batches. The leader refuses them if the shard has another owner, and if the log does not end where it should.
func (p *Partition) Append(ctx context.Context, batches [][]byte, end int64, done func(base int64, err error)) {
	p.appendOnce(ctx, batches, end, func(base int64, err error) {
		if !retriable(err) {
			done(base, err)
			return
		}
		// This is rare, and the callback must not block.
		go p.appendAgain(ctx, batches, end, err, done)
	})
}

// appendAgain looks for a leader that takes batches which are known not to be in the log.
func (p *Partition) appendAgain(ctx context.Context, batches [][]byte, end int64, err error, done func(base int64, err error)) {
	type result struct {
		base int64
		err  error
	}
	results := make(chan result, 1)
	deadline := time.Now().Add(leaderTimeout)
	for attempt := 0; retriable(err) && time.Now().Before(deadline) && ctx.Err() == nil; attempt++ {
		p.pause(ctx, p.config.Images.Image(), attempt)
		p.appendOnce(ctx, batches, end, func(base int64, err error) { results <- result{base, err} })
		r := <-results
		if r.err == nil {
			done(r.base, nil)
			return
		}
		err = r.err
	}
	done(0, err)
}

// appendOnce asks the leader of the moment.
func (p *Partition) appendOnce(_ context.Context, batches [][]byte, end int64, done func(base int64, err error)) {
	node, _, image, err := p.leader()
	if err != nil {
		done(0, err)
		return
	}
	req := &storage.AppendRequest{
		Acks:           storage.AcksAll,
		TimeoutMs:      int32(appendTimeout.Milliseconds()),
		MetadataOffset: max(image.Offset(), p.config.AssignedAt),
		WriterEpoch:    p.config.WriterEpoch,
		CheckEndOffset: true,
		APIVersion:     newestProduceVersion,
		Partitions:     make([]storage.PartitionAppend, len(batches)),
	}
	next := end
	for i, b := range batches {
		req.Partitions[i] = storage.PartitionAppend{
			TopicID:   p.config.TopicID,
			Partition: p.config.Partition,
			Records:   storage.Buffers{mem.SliceBuffer(b)},
			EndOffset: next,
		}
		next += int64(recordbatch.Header(b).Count())
	}
	node.Append(req, func(result *storage.AppendResult) {
		base, err := p.judge(result, len(batches), end)
		done(base, err)
	})
}

// judge says what became of an append. Of several batches all are in the log, or none; anything else is not known.
func (p *Partition) judge(result *storage.AppendResult, batches int, end int64) (int64, error) {
	if len(result.Partitions) != batches {
		return 0, fmt.Errorf("%w: a result for %d batches instead of %d", ErrOutcomeUnknown, len(result.Partitions), batches)
	}
	first := p.judgeBatch(&result.Partitions[0])
	if first == nil && result.Partitions[0].BaseOffset != end {
		return 0, fmt.Errorf("%w: appended at %d instead of %d", ErrOutcomeUnknown, result.Partitions[0].BaseOffset, end)
	}
	for i := 1; i < batches; i++ {
		r := &result.Partitions[i]
		if first != nil && r.Error == errcode.OffsetOutOfRange && !r.OutcomeUnknown {
			continue // the batch before it is not there
		}
		err := p.judgeBatch(r)
		switch {
		case errors.Is(err, ErrFenced), errors.Is(err, ErrOutcomeUnknown) && !errors.Is(first, ErrFenced):
			first = err
		case (err == nil) != (first == nil) && !errors.Is(first, ErrFenced):
			return 0, fmt.Errorf("%w: a part of the batches was refused: %w", ErrOutcomeUnknown, errors.Join(first, err))
		}
	}
	if first != nil {
		return 0, first
	}
	return end, nil
}

// judgeBatch says what became of one batch.
func (p *Partition) judgeBatch(r *storage.PartitionAppendResult) error {
	switch {
	case r.Error == errcode.None:
		return nil
	case r.Error == errcode.NotCoordinator:
		return fmt.Errorf("%w: epoch %d is refused", ErrFenced, p.config.WriterEpoch)
	case r.OutcomeUnknown, r.Error == errcode.NotEnoughReplicasAfterAppend, r.Error == errcode.OffsetOutOfRange:
		return fmt.Errorf("%w: %s %s", ErrOutcomeUnknown, r.Error.Name(), r.ErrorMessage)
	}
	return &errcode.Error{Code: r.Error, Text: r.ErrorMessage}
}

// retriable says whether another attempt may find the right leader.
func retriable(err error) bool {
	if err == nil || errors.Is(err, ErrFenced) || errors.Is(err, ErrOutcomeUnknown) {
		return false
	}
	switch errcode.Of(err) {
	case errcode.NotLeaderOrFollower, errcode.FencedLeaderEpoch, errcode.UnknownLeaderEpoch, errcode.LeaderNotAvailable,
		errcode.UnknownTopicOrPartition, errcode.UnknownTopicId, errcode.BrokerNotAvailable, errcode.NetworkException,
		errcode.KafkaStorageError, errcode.ReplicaNotAvailable:
		return true
	}
	return false
}

// load is the state of a Load.
type load struct {
	each func(recordbatch.Header, *recordbatch.Record) error
	// next is the next offset to read. It holds across leaders: what was read was below the high watermark.
	next int64
	// end is where the log ended at the leader that is read from, and bytes what was read.
	end     int64
	bytes   int64
	logged  time.Time
	codecs  *recordbatch.Codecs
	started bool
}

// Load reads the partition.
//
// It first asks the leader where its log ends. The leader answers when it knows the shard's epoch, so that nothing of an
// earlier owner comes after. Then it reads up to there; since only what is below the high watermark is given to readers, all
// of it is durable then. When the leader changes, the new one's end counts.
func (p *Partition) Load(ctx context.Context, each func(recordbatch.Header, *recordbatch.Record) error) (int64, error) {
	l := &load{each: each, logged: time.Now(), codecs: p.config.Codecs}
	for attempt := 0; ; attempt++ {
		before := l.next
		image := p.config.Images.Image() // before the attempt: what comes meanwhile is reason enough for the next one
		err := p.loadFromLeader(ctx, l)
		var broken *brokenError
		switch {
		case err == nil:
			return l.end, nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.As(err, &broken):
			return 0, broken.error
		}
		if l.next > before {
			attempt = 0
		}
		if attempt%16 == 3 {
			p.config.Logger.Warn("shard cannot be loaded yet", slog.String("shard", p.String()), slog.Any("error", err))
		}
		p.pause(ctx, image, attempt)
	}
}

// brokenError is a failure that another attempt does not cure: the bytes in the log make no sense.
type brokenError struct{ error }

// loadFromLeader reads on, from the leader of the moment, to the end of its log.
func (p *Partition) loadFromLeader(ctx context.Context, l *load) error {
	if p.config.LoadSlots != nil {
		select {
		case p.config.LoadSlots <- struct{}{}:
			defer func() { <-p.config.LoadSlots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	node, epoch, _, err := p.leader()
	if err != nil {
		return err
	}
	if l.end, err = p.listOffset(ctx, node, epoch, latestTimestamp, true); err != nil {
		return err
	}
	if !l.started {
		// The log may not begin at 0.
		if l.next, err = p.listOffset(ctx, node, epoch, earliestTimestamp, false); err != nil {
			return err
		}
		l.started = true
	}
	for l.next < l.end {
		if err := p.fetch(ctx, l, node, epoch); err != nil {
			return err
		}
		if now := time.Now(); now.Sub(l.logged) >= progressInterval {
			l.logged = now
			p.config.Logger.Info("shard is loading", slog.String("shard", p.String()), slog.Int64("offset", l.next),
				slog.Int64("end", l.end), slog.Int64("bytes", l.bytes))
		}
	}
	return nil
}

func (p *Partition) listOffset(ctx context.Context, node storage.Node, epoch int32, timestamp int64, logEnd bool) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	resp, err := node.ListOffsets(ctx, &storagev1.ListOffsetsRequest{
		ReplicaId:      storage.ConsumerReplicaID,
		MetadataOffset: max(p.config.Images.Image().Offset(), p.config.AssignedAt),
		TimeoutMs:      int32(askTimeout.Milliseconds()),
		Partitions: []*storagev1.ListOffsetsPartition{{
			TopicId:            p.config.TopicID[:],
			Partition:          p.config.Partition,
			CurrentLeaderEpoch: epoch,
			Timestamp:          timestamp,
			LogEnd:             logEnd,
		}},
	})
	if err != nil {
		return 0, err
	}
	if len(resp.GetPartitions()) != 1 {
		return 0, fmt.Errorf("%s: offsets of %d partitions", p, len(resp.GetPartitions()))
	}
	r := resp.GetPartitions()[0]
	if code := errcode.Code(r.GetErrorCode()); code != errcode.None {
		return 0, code.Err()
	}
	return r.GetOffset(), nil
}

// fetch reads some records.
func (p *Partition) fetch(ctx context.Context, l *load, node storage.Node, epoch int32) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout+fetchWait)
	defer cancel()
	result, err := node.Fetch(ctx, &storage.FetchRequest{
		ReplicaID:      storage.ConsumerReplicaID,
		ReplicaEpoch:   -1,
		MaxWaitMs:      int32(fetchWait.Milliseconds()),
		MinBytes:       1,
		MaxBytes:       p.config.FetchBytes,
		Isolation:      storage.ReadUncommitted,
		MetadataOffset: max(p.config.Images.Image().Offset(), p.config.AssignedAt),
		Partitions: []storage.FetchPartition{{
			TopicID:            p.config.TopicID,
			Partition:          p.config.Partition,
			CurrentLeaderEpoch: epoch,
			FetchOffset:        l.next,
			LastFetchedEpoch:   -1,
			LogStartOffset:     -1,
			MaxBytes:           p.config.FetchBytes,
		}},
	})
	if err != nil {
		return err
	}
	defer result.Release()
	if len(result.Partitions) != 1 {
		return fmt.Errorf("%s: records of %d partitions", p, len(result.Partitions))
	}
	r := &result.Partitions[0]
	switch {
	case r.Error == errcode.OffsetOutOfRange && l.next < r.LogStartOffset:
		// Records were deleted since the load began: they are not needed.
		l.next = r.LogStartOffset
		return nil
	case r.Error != errcode.None:
		return r.Error.Err()
	}
	if r.Records.Len() == 0 {
		if r.HighWatermark < l.end {
			return fmt.Errorf("the high watermark is %d, the log's end %d", r.HighWatermark, l.end)
		}
		// Nothing is left up to the end: compaction has taken the last records.
		l.next = l.end
		return nil
	}
	run, err := r.Records.ReadAll()
	if err != nil {
		return err
	}
	l.bytes += int64(len(run))
	return l.replay(run)
}

// replay gives the records of a run of batches, those before next left out.
func (l *load) replay(run []byte) error {
	batches := recordbatch.Iterate(run)
	progress := false
	for batches.Next() {
		h := batches.Header()
		if h.Magic() != recordbatch.Magic {
			return &brokenError{fmt.Errorf("batch at offset %d has format %d", h.BaseOffset(), h.Magic())}
		}
		if !batches.CheckCRC() {
			return fmt.Errorf("batch at offset %d: %w", h.BaseOffset(), errcode.CorruptMessage.Err())
		}
		if err := l.replayBatch(h, batches.Bytes()); err != nil {
			return err
		}
		l.next = max(l.next, h.NextOffset())
		progress = true
	}
	if err := batches.Err(); err != nil {
		return err
	}
	if !progress {
		return errors.New("the node has sent a part of a batch only")
	}
	return nil
}

func (l *load) replayBatch(h recordbatch.Header, batch []byte) error {
	records := l.codecs.Records(batch, maxDecompressed)
	for records.Next() {
		r := records.Record()
		if r.Offset < l.next {
			continue
		}
		if err := l.each(h, r); err != nil {
			return &brokenError{err}
		}
	}
	if err := records.Err(); err != nil {
		return &brokenError{fmt.Errorf("batch at offset %d: %w", h.BaseOffset(), err)}
	}
	return nil
}
