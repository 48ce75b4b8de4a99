// Package marker has the markers written that end transactions in partitions.
//
// It owns the requests to the leaders of partitions and to the owners of group shards: which markers go together, and that each
// comes again until it is written. It must never decide that a transaction ends, nor how.
package marker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/metadata"
	"chancery/services/storage"
)

const (
	// requestVersion is the version of WriteTxnMarkers that names the transaction version.
	requestVersion = 2
	// maxInFlight bounds the requests to one destination. What comes meanwhile goes out together. It is not small, since a
	// request ends with its slowest partition.
	maxInFlight = 16
	// maxMarkers bounds one request.
	maxMarkers = 1000
	// The pause before a marker that was not written is sent again grows between these, and ends when the metadata changes.
	retryPause    = 20 * time.Millisecond
	retryPauseMax = time.Second
	// watchAfter is how long a request is under way before anybody looks whether its node still leads.
	watchAfter = time.Second
	// unknownGrace is how long a partition that is in no metadata is looked for, when another instance has begun to end the
	// transaction: it may have known newer metadata.
	unknownGrace = 3 * time.Second
)

// Partition is a partition by its topic's name.
type Partition struct {
	Topic     string
	Partition int32
}

// Marker is what ends one transaction.
type Marker struct {
	TransactionalID  string
	ProducerID       int64
	ProducerEpoch    int16
	CoordinatorEpoch int32
	Commit           bool
	// Version is the transaction.version by which the transaction ends.
	Version    int16
	Partitions []Partition
	// Resumed says that another instance may have begun with it.
	Resumed bool
	// Wanted says whether the marker is still this instance's business.
	Wanted func() bool
	// Done is called once, when every partition has its marker.
	Done func()
}

// Config is what a Sender needs.
type Config struct {
	Image func() metadata.Reader
	Await func(ctx context.Context, offset int64) error
	// Nodes finds a storage node.
	Nodes func(id int32) (storage.Node, error)
	// Group takes a request to the owner of a group shard.
	Group func(ctx context.Context, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
	// Timeout bounds one request.
	Timeout time.Duration
	Logger  *slog.Logger
}

// destination is where markers go: a storage node, or the owner of a group shard.
type destination struct {
	group bool
	id    int32
}

// part is one partition of a marker on its way.
type part struct {
	*pending
	partition Partition
	attempts  int
}

// pending is a marker on its way.
type pending struct {
	Marker
	began time.Time
	mu    sync.Mutex
	left  int
}

// Sender sends markers. Its methods may be called from any goroutine.
type Sender struct {
	config Config
	ctx    context.Context // ends all requests; it is not a request's
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	queues  map[destination]*queue
	running sync.WaitGroup
}

type queue struct {
	waiting  []part
	inFlight int
}

// New makes a sender.
func New(c Config) *Sender {
	s := &Sender{config: c, queues: map[destination]*queue{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close ends all requests. Markers that are not written are dropped: the transactions' next owner writes them.
func (s *Sender) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
}

// Send has a marker written. It returns at once.
func (s *Sender) Send(m Marker) {
	p := &pending{Marker: m, left: len(m.Partitions), began: time.Now()}
	parts := make([]part, len(m.Partitions))
	for i, partition := range m.Partitions {
		parts[i] = part{pending: p, partition: partition}
	}
	s.route(parts)
}

// route puts parts where they go by the newest metadata.
func (s *Sender) route(parts []part) {
	image := s.config.Image()
	var later []part
	byDestination := map[destination][]part{}
	for _, p := range parts {
		if !p.Wanted() {
			continue
		}
		d, found := s.find(image, p)
		switch found {
		case there:
			byDestination[d] = append(byDestination[d], p)
		case gone:
			s.config.Logger.Info("a partition with a marker to come is gone", slog.String("topic", p.partition.Topic),
				slog.Int("partition", int(p.partition.Partition)), slog.String("transactional_id", p.TransactionalID))
			p.done()
		case unclear:
			later = append(later, p)
		}
	}
	for d, list := range byDestination {
		s.put(d, list)
	}
	s.retry(later)
}

type whereabouts int8

const (
	there whereabouts = iota
	gone
	unclear
)

func (s *Sender) find(image metadata.Reader, p part) (destination, whereabouts) {
	topic := image.TopicByName(p.partition.Topic)
	if topic == nil || p.partition.Partition < 0 || int(p.partition.Partition) >= len(topic.Partitions) {
		if p.Resumed && time.Since(p.began) < unknownGrace {
			return destination{}, unclear
		}
		return destination{}, gone
	}
	if p.partition.Topic == internaltopic.ConsumerOffsets {
		return destination{group: true, id: p.partition.Partition}, there
	}
	if leader := topic.Partitions[p.partition.Partition].Leader; leader != metadata.NoLeader {
		return destination{id: leader}, there
	}
	return destination{}, unclear
}

// put queues parts for a destination.
func (s *Sender) put(d destination, parts []part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	q := s.queues[d]
	if q == nil {
		q = &queue{}
		s.queues[d] = q
	}
	q.waiting = append(q.waiting, parts...)
	if q.inFlight < maxInFlight {
		q.inFlight++
		s.running.Go(func() { s.work(d, q) })
	}
}

// work sends what waits for a destination until nothing does.
func (s *Sender) work(d destination, q *queue) {
	for {
		s.mu.Lock()
		n := min(len(q.waiting), maxMarkers)
		if n == 0 || s.closed {
			if q.inFlight--; q.inFlight == 0 {
				delete(s.queues, d)
			}
			s.mu.Unlock()
			return
		}
		batch := q.waiting[:n:n]
		q.waiting = q.waiting[n:]
		s.mu.Unlock()
		s.send(d, batch)
	}
}

// send sends parts and looks what became of each.
func (s *Sender) send(d destination, batch []part) {
	codes, err := s.request(d, batch)
	var again []part
	for i, p := range batch {
		code := errcode.NetworkException
		if err == nil {
			code = codes[i]
		}
		switch {
		case code == errcode.None, code == errcode.UnsupportedForMessageFormat:
			p.done()
			continue
		case code == errcode.InvalidProducerEpoch:
			// The producer has gone on in this partition: nothing of the transaction can be open there.
			s.config.Logger.Warn("a marker is too late", s.about(p, code)...)
			p.done()
			continue
		case code == errcode.TransactionCoordinatorFenced, !retriable(code):
			s.config.Logger.Warn("a marker is refused", s.about(p, code)...)
			p.attempts += 10 // there is no hurry
		}
		p.attempts++
		again = append(again, p)
	}
	if err != nil && s.ctx.Err() == nil {
		s.config.Logger.Debug("markers cannot be written yet", slog.Any("error", err))
	}
	s.retry(again)
}

func (s *Sender) about(p part, code errcode.Code) []any {
	return []any{
		slog.String("transactional_id", p.TransactionalID), slog.Int64("producer_id", p.ProducerID),
		slog.String("topic", p.partition.Topic), slog.Int("partition", int(p.partition.Partition)), slog.String("code", code.Name()),
	}
}

// retriable says whether a code tells that the marker may be written in a moment.
func retriable(code errcode.Code) bool {
	switch code {
	case errcode.UnknownTopicOrPartition, errcode.NotLeaderOrFollower, errcode.NotEnoughReplicas, errcode.NotEnoughReplicasAfterAppend,
		errcode.RequestTimedOut, errcode.KafkaStorageError, errcode.NetworkException, errcode.NotCoordinator,
		errcode.CoordinatorNotAvailable, errcode.CoordinatorLoadInProgress, errcode.BrokerNotAvailable, errcode.LeaderNotAvailable:
		return true
	}
	return false
}

// done notes that one partition has its marker.
func (p part) done() {
	p.mu.Lock()
	p.left--
	last := p.left == 0
	p.mu.Unlock()
	if last {
		p.Done()
	}
}

// retry routes parts again after a pause, or when the metadata has changed.
func (s *Sender) retry(parts []part) {
	if len(parts) == 0 {
		return
	}
	attempts := parts[0].attempts
	for _, p := range parts {
		attempts = min(attempts, p.attempts)
	}
	offset := s.config.Image().Offset()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, min(retryPause<<min(attempts, 10), retryPauseMax))
		defer cancel()
		if s.config.Await(ctx, offset+1) != nil {
			<-ctx.Done()
		}
		if s.ctx.Err() == nil {
			s.route(parts)
		}
	})
}

// request sends parts in one request and gives a code for each.
func (s *Sender) request(d destination, batch []part) ([]errcode.Code, error) {
	req, places := assemble(batch)
	ctx, cancel := context.WithTimeout(s.ctx, s.config.Timeout)
	defer cancel()
	if !d.group {
		defer time.AfterFunc(watchAfter, func() { s.watch(ctx, cancel, d, batch) }).Stop()
	}
	envelope := &commonv1.Envelope{
		ApiKey: int32(req.Key()), ApiVersion: requestVersion, Body: req.AppendTo(nil),
		MetadataOffset: s.config.Image().Offset(), Trusted: true,
	}
	reply, err := s.ask(ctx, d, envelope)
	if err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	resp.Version = requestVersion
	if err := resp.ReadFrom(reply.GetBody()); err != nil {
		return nil, fmt.Errorf("answer to WriteTxnMarkers: %w", err)
	}
	codes := make([]errcode.Code, len(batch))
	for i, at := range places {
		codes[i] = errcode.UnknownServerError
		if at.marker < len(resp.Markers) && at.topic < len(resp.Markers[at.marker].Topics) {
			if t := resp.Markers[at.marker].Topics[at.topic]; at.partition < len(t.Partitions) && t.Partitions[at.partition].Partition == batch[i].partition.Partition {
				codes[i] = errcode.Code(t.Partitions[at.partition].ErrorCode)
			}
		}
	}
	return codes, nil
}

// watch ends a request to a node that leads none of its partitions any more: it may be paused, and never answer.
func (s *Sender) watch(ctx context.Context, cancel context.CancelFunc, d destination, batch []part) {
	for {
		image := s.config.Image()
		leads := slices.ContainsFunc(batch, func(p part) bool {
			now, found := s.find(image, p)
			return found == there && now == d
		})
		if !leads {
			cancel()
			return
		}
		if s.config.Await(ctx, image.Offset()+1) != nil {
			return
		}
	}
}

func (s *Sender) ask(ctx context.Context, d destination, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	if d.group {
		return s.config.Group(ctx, d.id, e)
	}
	node, err := s.config.Nodes(d.id)
	if err != nil {
		return nil, err
	}
	resp, err := node.Handle(ctx, &storagev1.HandleRequest{Envelope: e})
	return resp.GetReply(), err
}

// place is where a part stands in a request, and its answer in the response.
type place struct{ marker, topic, partition int }

// assemble makes one request of parts: a marker for each transaction, with its topics.
func assemble(batch []part) (*kmsg.WriteTxnMarkersRequest, []place) {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Version = requestVersion
	places := make([]place, len(batch))
	markers := map[*pending]int{}
	type topicOf struct {
		marker int
		name   string
	}
	topics := map[topicOf]int{}
	for i, p := range batch {
		m, known := markers[p.pending]
		if !known {
			m = len(req.Markers)
			markers[p.pending] = m
			out := kmsg.NewWriteTxnMarkersRequestMarker()
			out.ProducerID, out.ProducerEpoch, out.Committed = p.ProducerID, p.ProducerEpoch, p.Commit
			out.CoordinatorEpoch, out.TransactionVersion = p.CoordinatorEpoch, int8(p.Version)
			req.Markers = append(req.Markers, out)
		}
		list := &req.Markers[m].Topics
		t, known := topics[topicOf{m, p.partition.Topic}]
		if !known {
			t = len(*list)
			topics[topicOf{m, p.partition.Topic}] = t
			out := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			out.Topic = p.partition.Topic
			*list = append(*list, out)
		}
		places[i] = place{m, t, len((*list)[t].Partitions)}
		(*list)[t].Partitions = append((*list)[t].Partitions, p.partition.Partition)
	}
	return req, places
}
