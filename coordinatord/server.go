// Package coordinatord is the coordinator service: it owns some shards of the internal topics, keeps their state machines
// and answers the requests about groups and transactions that belong to them.
//
// It owns which shards run here, and their loops. It must never serve a shard that the metadata gives to another
// instance, nor keep anything that is not in a shard's log.
//
// Metrics, all with the attributes "topic" and "shard": chancery_coordinator_commands, _records, _batches, _rollbacks, _loads
// (counters); chancery_coordinator_load_duration_ms, _loaded_records (of the last load), _groups, _members, _offsets,
// _transactional_ids, _transactions_ongoing, _transactions_ending (gauges); and chancery_coordinator_shards with the attributes
// "topic" and "state" (loading, serving).
package coordinatord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/handler"
	"chancery/coordinatord/internal/marker"
	"chancery/coordinatord/internal/txn"
	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	coordinatorv1 "chancery/proto/coordinator/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/clients/transactionclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/lifecycle"
	"chancery/services/metadata"
	"chancery/services/statemachine"
	"chancery/services/statemachine/shards"
)

var _ lifecycle.Service = (*Server)(nil)

const (
	// handOverTimeout bounds how long Stop waits for the controller to give the shards to others.
	handOverTimeout = 5 * time.Second
	// countTimeout bounds the questions to the shards for metrics.
	countTimeout = time.Second
)

// shard is a shard of groups.
type shard = statemachine.Shard[group.Command, *group.Record, group.Reply]

// Server is one instance of the coordinator. Its methods may be called from any goroutine.
type Server struct {
	config   Config
	settings settings
	deps     Deps
	handler  *handler.Handler
	member   *controllerclient.Member
	codecs   *recordbatch.Codecs
	slots    chan struct{}
	metrics  *metrics

	// image is the newest image that has been published here; it may be ahead of Deps.Metadata.Image.
	image atomic.Pointer[metadata.Image]
	// gone are the topics that this instance has seen go, the last maxGone of them.
	gone goneTopics

	groups *groupShards
	// background waits for what shards have done beside them.
	background         sync.WaitGroup
	transactions       *transactionShards
	transactionHandler *handler.Transactions
	markers            *marker.Sender
	producerIDs        *controllerclient.ProducerIDs
	// life ends with Stop; it is what work that belongs to no request goes by.
	life context.Context
	end  context.CancelFunc
	// questions are those about transactions in which offsets are committed.
	questions *transactionclient.Client
}

type groupShards = shards.Set[group.Command, *group.Record, group.Reply]

// New makes an instance. Register makes it reachable, Start makes it a member.
func New(config Config, deps Deps) (*Server, error) {
	logger := deps.Logger
	set, err := parseSettings(config, logger)
	if err != nil {
		return nil, err
	}
	s := &Server{
		config:   config,
		settings: set,
		deps:     deps,
		codecs:   recordbatch.NewCodecs(),
		slots:    make(chan struct{}, max(1, set.loadConcurrency)),
	}
	s.image.Store(deps.Metadata.Image())
	s.groups = shards.New(shards.Config[group.Command, *group.Record, group.Reply]{
		NodeID: config.NodeID, Kind: metadata.GroupShard, Topic: internaltopic.ConsumerOffsets, Image: s.image.Load, Build: s.newGroupShard,
	})
	s.questions = transactionclient.New(transactionclient.Config{
		Image:           images{deps.Metadata}.Image,
		Coordinators:    deps.Coordinators,
		Timeout:         set.node.Duration("request.timeout.ms"),
		RetryBackoff:    set.node.Duration("add.partitions.to.txn.retry.backoff.ms"),
		RetryBackoffMax: set.node.Duration("add.partitions.to.txn.retry.backoff.max.ms"),
		Logger:          logger,
	})
	set.bounds.AskTransaction = s.questions.Ask
	set.bounds.VerifyTransactions = func(image metadata.Reader) bool {
		current := set.node.WithDynamic(image.Config(metadata.ResourceBroker, ""), nil)
		return current.Bool("transaction.partition.verification.enable")
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.markers = s.newMarkerSender()
	s.producerIDs = controllerclient.NewProducerIDs(deps.Controller.Handle, set.node.Duration("request.timeout.ms"))
	s.transactions = shards.New(shards.Config[txn.Command, *txn.Record, txn.Reply]{
		NodeID: config.NodeID, Kind: metadata.TransactionShard, Topic: internaltopic.TransactionState, Image: s.image.Load, Build: s.newTransactionShard,
	})
	s.transactionHandler = handler.NewTransactions(handler.TransactionConfig{
		MaxTimeout: set.maxTransactionTimeout, ProducerID: s.producerIDs.Next,
	}, s, images{deps.Metadata})
	s.handler = handler.New(set.bounds, s, images{deps.Metadata})
	s.member = controllerclient.NewMember(deps.Controller, controllerclient.MemberConfig{
		Kind:              controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR,
		ID:                config.NodeID,
		ClusterID:         config.ClusterID,
		Rack:              config.Rack,
		Endpoints:         endpoints(config.Endpoints),
		Version:           config.Version,
		AppliedOffset:     func() int64 { return deps.Metadata.Image().Offset() },
		HeartbeatInterval: set.heartbeatInterval,
		Logger:            logger,
	})
	if s.metrics, err = newMetrics(deps.Meter, s); err != nil {
		return nil, err
	}
	return s, nil
}

func endpoints(list []metadata.Endpoint) []*controllerv1.Endpoint {
	out := make([]*controllerv1.Endpoint, len(list))
	for i, e := range list {
		out[i] = &controllerv1.Endpoint{Name: e.Name, Host: e.Host, Port: uint32(e.Port)}
	}
	return out
}

// images is the metadata as shards and handlers see it.
type images struct{ Metadata }

func (i images) Image() metadata.Reader { return i.Metadata.Image() }

// Register makes the instance answer on a gRPC server or a local channel. It may be called before Start: until then no
// shard is here.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	coordinatorv1.RegisterCoordinatorServer(r, service{s: s})
}

// service is the gRPC side of a Server.
type service struct {
	coordinatorv1.UnimplementedCoordinatorServer
	s *Server
}

// Handle answers a request that names one shard, or all of the instance.
func (g service) Handle(ctx context.Context, req *coordinatorv1.HandleRequest) (*coordinatorv1.HandleResponse, error) {
	if req.GetEnvelope() == nil {
		return nil, errcode.InvalidRequest.Wrap(errors.New("there is no envelope"))
	}
	if len(req.GetEnvelope().GetMore()) > 0 && req.GetKind() == coordinatorv1.ShardKind_SHARD_KIND_GROUP {
		bodies, err := g.s.handler.HandleSeveral(ctx, req.GetShard(), req.GetEnvelope())
		if err != nil {
			return nil, err
		}
		return &coordinatorv1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: bodies[0], More: bodies[1:]}}, nil
	}
	handle := g.s.handler.Handle
	switch req.GetKind() {
	case coordinatorv1.ShardKind_SHARD_KIND_GROUP:
	case coordinatorv1.ShardKind_SHARD_KIND_TRANSACTION:
		handle = g.s.transactionHandler.Handle
	default:
		return nil, errcode.UnsupportedVersion.Wrap(fmt.Errorf("shards of kind %s are not served", req.GetKind()))
	}
	body, err := handle(ctx, req.GetShard(), req.GetEnvelope())
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: body}}, nil
}

// Start makes the instance a member and begins to follow which shards are its own.
func (s *Server) Start(ctx context.Context) error {
	s.deps.Metadata.Subscribe(metadata.PublisherFunc(s.publish))
	return s.member.Start(ctx)
}

// Stop lets the controller give the shards to other instances, brings what was decided to its end and ends the shards.
func (s *Server) Stop(ctx context.Context) error {
	leaveCtx, cancel := context.WithTimeout(ctx, handOverTimeout)
	err := s.member.Leave(leaveCtx)
	if err == nil {
		s.groups.AwaitEmpty(leaveCtx)
		s.transactions.AwaitEmpty(leaveCtx)
	}
	cancel()
	s.end()
	s.transactions.Drain(ctx)
	s.markers.Close()
	s.groups.Drain(ctx)
	s.questions.Close()
	s.background.Wait()
	s.metrics.close()
	stopErr := s.member.Stop(ctx)
	if errors.Is(stopErr, context.DeadlineExceeded) {
		// The controllers cannot be reached: they will see that the heartbeats have ended.
		s.deps.Logger.Warn("left without the controller's word", slog.Any("error", stopErr))
		return nil
	}
	return stopErr
}

// Failed is nil: the instance goes on trying.
func (s *Server) Failed() <-chan error { return nil }

// Ready is nil while the instance is a member. Its shards may still be loading.
func (s *Server) Ready() error { return s.member.Ready() }

// publish follows which shards are ours, and which topics are gone.
func (s *Server) publish(ctx context.Context, delta *metadata.Delta, image *metadata.Image) {
	s.image.Store(image)
	s.groups.Follow(ctx, delta, image)
	s.transactions.Follow(ctx, delta, image)
	s.forgetTopics(delta)
	s.tellImage(delta, image)
}

// tellImage tells the shards of newer metadata where it can matter to consumer groups: because topics, nodes or configs have
// changed. Shards that load begin with the newest.
func (s *Server) tellImage(delta *metadata.Delta, image *metadata.Image) {
	changed, created := false, false
	for c := range delta.Topics() {
		changed, created = true, created || c.Old == nil
	}
	for range delta.Configs() {
		changed = true
	}
	if !changed {
		return
	}
	s.groups.Tell(&group.NewImage{Image: image, NewTopics: created})
}

// forgetTopics makes the shards delete the offsets of topics that are gone. Shards that load look for themselves.
func (s *Server) forgetTopics(delta *metadata.Delta) {
	type topic struct {
		name string
		id   uuid.UUID
	}
	gone := map[topic]bool{}
	for c := range delta.Topics() {
		if c.New == nil {
			s.gone.add(c.Old.ID)
			gone[topic{c.Old.Name, c.Old.ID}] = true
			gone[topic{c.Old.Name, uuid.Zero}] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	s.groups.Tell(&group.TopicsGone{Gone: func(name string, id uuid.UUID) bool { return gone[topic{name, id}] }})
}

// newGroupShard makes a shard of groups with its log.
func (s *Server) newGroupShard(spec shards.Spec) *shard {
	name := fmt.Sprintf("%s-%d", internaltopic.ConsumerOffsets, spec.Number)
	config := s.settings.groups
	config.MaxBatchBytes = maxBatchBytes(spec.Image, internaltopic.ConsumerOffsets)
	config.Logger = s.deps.Logger.With(slog.String("shard", name))
	var made *shard
	config.Background = func(work func() group.Command) {
		s.background.Go(func() { made.Tell(work()) })
	}
	made = statemachine.NewShard(statemachine.Config[group.Command, *group.Record, group.Reply]{
		Name: name,
		New: func() statemachine.Machine[group.Command, *group.Record, group.Reply] {
			c := config
			c.Image = s.image.Load()
			c.Consumer.Settings = settingsOfGroups(s.settings.node)
			return group.New(c)
		},
		Codec:          group.Codec{},
		Log:            s.logOf(internaltopic.ConsumerOffsets, spec, s.settings.loadBufferBytes),
		Compression:    s.settings.compression,
		Codecs:         s.codecs,
		MaxBatchBytes:  config.MaxBatchBytes,
		MaxQueuedBytes: maxQueuedBytes,
		AnswerTimeout:  s.settings.answerTimeout,
		OnServing: func() {
			s.pruneTopics(made)
			made.Tell(&group.NewImage{Image: s.image.Load(), NewTopics: true})
		},
		Logger: s.deps.Logger,
	})
	return made
}

// logOf is the log of a shard.
func (s *Server) logOf(topic string, spec shards.Spec, fetchBytes int32) *statemachine.Partition {
	return statemachine.NewPartition(statemachine.PartitionConfig{
		Topic:       topic,
		TopicID:     spec.TopicID,
		Partition:   spec.Number,
		WriterEpoch: spec.Epoch,
		AssignedAt:  spec.Image.Offset(),
		Images:      images{s.deps.Metadata},
		Nodes:       s.deps.Nodes,
		Codecs:      s.codecs,
		LoadSlots:   s.slots,
		FetchBytes:  fetchBytes,
		Logger:      s.deps.Logger,
	})
}

// pruneTopics makes a shard that has loaded delete the offsets of topics that went while nobody looked.
//
// Another id alone does not say that a topic was deleted and made anew: logs that were taken over from another cluster have its
// ids, and groups must go on there where they were.
func (s *Server) pruneTopics(sh *shard) {
	image, gone := s.image.Load(), s.gone.all()
	sh.Tell(&group.TopicsGone{Gone: func(name string, id uuid.UUID) bool {
		if image.TopicByName(name) == nil {
			return id.IsZero() || image.Topic(id) == nil
		}
		return gone[id]
	}})
}

// maxGone bounds what is remembered of topics that are gone.
const maxGone = 10_000

// goneTopics remembers the topics that were deleted last.
type goneTopics struct {
	mu   sync.Mutex
	ids  []uuid.UUID
	next int
}

func (g *goneTopics) add(id uuid.UUID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ids) < maxGone {
		g.ids = append(g.ids, id)
		return
	}
	g.ids[g.next] = id
	g.next = (g.next + 1) % maxGone
}

func (g *goneTopics) all() map[uuid.UUID]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[uuid.UUID]bool, len(g.ids))
	for _, id := range g.ids {
		out[id] = true
	}
	return out
}
