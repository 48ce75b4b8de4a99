// Package coordinatord is the coordinator service: it owns some shards of the internal topics, keeps their state machines
// and answers the requests about groups that belong to them.
//
// It owns which shards run here, and their loops. It must never serve a shard that the metadata gives to another
// instance, nor keep anything that is not in a shard's log.
//
// Metrics, all with the attribute "shard": chancery_coordinator_commands, _records, _batches, _rollbacks, _loads (counters);
// chancery_coordinator_load_duration_ms, _loaded_records (of the last load), _groups, _members, _offsets (gauges); and without
// it chancery_coordinator_shards with the attribute "state" (loading, serving).
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
	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	coordinatorv1 "chancery/proto/coordinator/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/lifecycle"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

var _ lifecycle.Service = (*Server)(nil)

const (
	// handOverTimeout bounds how long Stop waits for the controller to give the shards to others.
	handOverTimeout = 5 * time.Second
	// stopShardTimeout bounds how long a shard that another instance owns may take to bring appends to their end: they are
	// about to be refused.
	stopShardTimeout = 2 * time.Second
	// restartDelay is how long a shard that has ended by itself, though it is ours, stays away.
	restartDelay = time.Second
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

	mu sync.Mutex
	// topicID is that of __consumer_offsets when the shards were last looked at.
	topicID uuid.UUID
	owned   map[int32]*ownedShard
	// changed is closed and replaced when owned changes.
	changed  chan struct{}
	draining bool
	// ending waits for the goroutines that end shards or start them again.
	ending sync.WaitGroup
}

// ownedShard is a shard that the metadata gives to this instance.
type ownedShard struct {
	number int32
	epoch  int32
	shard  *shard
	// release is closed when the shard is not wanted any more.
	release chan struct{}
}

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
		owned:    map[int32]*ownedShard{},
		changed:  make(chan struct{}),
	}
	s.image.Store(deps.Metadata.Image())
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
	if req.GetKind() != coordinatorv1.ShardKind_SHARD_KIND_GROUP {
		return nil, errcode.UnsupportedVersion.Wrap(fmt.Errorf("shards of kind %s are not served", req.GetKind()))
	}
	if req.GetEnvelope() == nil {
		return nil, errcode.InvalidRequest.Wrap(errors.New("there is no envelope"))
	}
	body, err := g.s.handler.Handle(ctx, req.GetShard(), req.GetEnvelope())
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
		s.awaitHandOver(leaveCtx)
	}
	cancel()
	s.drain(ctx)
	s.metrics.close()
	stopErr := s.member.Stop(ctx)
	if errors.Is(stopErr, context.DeadlineExceeded) {
		// The controllers cannot be reached: they will see that the heartbeats have ended.
		s.deps.Logger.Warn("left without the controller's word", slog.Any("error", stopErr))
		return nil
	}
	return stopErr
}

// awaitHandOver waits until the metadata gives this instance no shard any more.
func (s *Server) awaitHandOver(ctx context.Context) {
	for {
		s.mu.Lock()
		n, changed := len(s.owned), s.changed
		s.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// drain ends the shards that are still here.
func (s *Server) drain(ctx context.Context) {
	s.mu.Lock()
	s.draining = true
	for number, o := range s.owned {
		s.releaseLocked(ctx, o, nil)
		delete(s.owned, number)
	}
	s.mu.Unlock()
	s.ending.Wait()
}

// Failed is nil: the instance goes on trying.
func (s *Server) Failed() <-chan error { return nil }

// Ready is nil while the instance is a member. Its shards may still be loading.
func (s *Server) Ready() error { return s.member.Ready() }

// publish follows which shards are ours, and which topics are gone.
func (s *Server) publish(ctx context.Context, delta *metadata.Delta, image *metadata.Image) {
	s.image.Store(image)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return
	}
	if s.assignmentChanged(delta, image) {
		s.assign(ctx, image)
	}
	s.forgetTopics(delta)
}

// assignmentChanged says whether the shards have to be looked at.
func (s *Server) assignmentChanged(delta *metadata.Delta, image *metadata.Image) bool {
	if topic := image.TopicByName(internaltopic.ConsumerOffsets); topic == nil && !s.topicID.IsZero() || topic != nil && topic.ID != s.topicID {
		return true
	}
	for id := range delta.Shards() {
		if id.Kind == metadata.GroupShard {
			return true
		}
	}
	return false
}

// assign starts the shards that are ours and ends the others. The topic itself may have been made anew.
func (s *Server) assign(ctx context.Context, image *metadata.Image) {
	wanted := map[int32]int32{} // epoch by shard
	topic := image.TopicByName(internaltopic.ConsumerOffsets)
	remade := topic == nil || topic.ID != s.topicID
	s.topicID = uuid.Zero
	if topic != nil {
		s.topicID = topic.ID
		for id, a := range image.Shards() {
			if id.Kind == metadata.GroupShard && a.Owner == s.config.NodeID && int(id.Shard) < len(topic.Partitions) {
				wanted[id.Shard] = a.Epoch
			}
		}
	}
	for number, o := range s.owned {
		if epoch, ok := wanted[number]; ok && epoch == o.epoch && !remade {
			delete(wanted, number)
			continue
		}
		delete(s.owned, number)
		var next *ownedShard
		if epoch, ok := wanted[number]; ok {
			next = s.own(number, epoch, image)
			delete(wanted, number)
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopShardTimeout)
		s.releaseLocked(stopCtx, o, func() {
			cancel()
			if next != nil {
				s.run(next)
			}
		})
	}
	for number, epoch := range wanted {
		s.run(s.own(number, epoch, image))
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// own makes a shard that is ours. It answers that it loads until it is run.
func (s *Server) own(number, epoch int32, image *metadata.Image) *ownedShard {
	o := &ownedShard{number: number, epoch: epoch, shard: s.newShard(number, epoch, image), release: make(chan struct{})}
	s.owned[number] = o
	return o
}

// run starts a shard and watches over it.
func (s *Server) run(o *ownedShard) {
	o.shard.Start()
	s.ending.Go(func() { s.watch(o) })
}

// watch starts a shard again that has ended though it is ours: it was refused because another instance owns it, which
// this instance is about to learn, or its log could not be read.
func (s *Server) watch(o *ownedShard) {
	select {
	case <-o.release:
		return
	case <-o.shard.Done():
	}
	select {
	case <-o.release:
		return
	case <-time.After(restartDelay):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned[o.number] == o {
		s.run(s.own(o.number, o.epoch, s.image.Load()))
	}
}

// releaseLocked ends a shard without making the caller wait, and then goes on with after.
func (s *Server) releaseLocked(ctx context.Context, o *ownedShard, after func()) {
	close(o.release)
	s.ending.Go(func() {
		o.shard.Stop(ctx)
		if after != nil {
			after()
		}
	})
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
			gone[topic{c.Old.Name, c.Old.ID}] = true
			gone[topic{c.Old.Name, uuid.Zero}] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	command := &group.TopicsGone{Gone: func(name string, id uuid.UUID) bool { return gone[topic{name, id}] }}
	for _, o := range s.owned {
		o.shard.Tell(command)
	}
}

// newShard makes a shard with its log. The caller holds the lock.
func (s *Server) newShard(number, epoch int32, image *metadata.Image) *shard {
	name := fmt.Sprintf("%s-%d", internaltopic.ConsumerOffsets, number)
	config := s.settings.groups
	config.MaxBatchBytes = maxBatchBytes(image)
	config.Logger = s.deps.Logger.With(slog.String("shard", name))
	var made *shard
	made = statemachine.NewShard(statemachine.Config[group.Command, *group.Record, group.Reply]{
		Name: name,
		New: func() statemachine.Machine[group.Command, *group.Record, group.Reply] {
			return group.New(config)
		},
		Codec: group.Codec{},
		Log: statemachine.NewPartition(statemachine.PartitionConfig{
			Topic:       internaltopic.ConsumerOffsets,
			TopicID:     s.topicID,
			Partition:   number,
			WriterEpoch: epoch,
			AssignedAt:  image.Offset(),
			Images:      images{s.deps.Metadata},
			Nodes:       s.deps.Nodes,
			Codecs:      s.codecs,
			LoadSlots:   s.slots,
			FetchBytes:  s.settings.loadBufferBytes,
			Logger:      s.deps.Logger,
		}),
		Compression:    s.settings.compression,
		Codecs:         s.codecs,
		MaxBatchBytes:  config.MaxBatchBytes,
		MaxQueuedBytes: maxQueuedBytes,
		AnswerTimeout:  s.settings.answerTimeout,
		OnServing:      func() { s.pruneTopics(made) },
		Logger:         s.deps.Logger,
	})
	return made
}

// pruneTopics makes a shard that has loaded delete the offsets of topics that went while nobody looked.
func (s *Server) pruneTopics(sh *shard) {
	image := s.image.Load()
	sh.Tell(&group.TopicsGone{Gone: func(name string, id uuid.UUID) bool {
		if id.IsZero() {
			return image.TopicByName(name) == nil
		}
		return image.Topic(id) == nil
	}})
}
