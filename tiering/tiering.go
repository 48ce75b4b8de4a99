// Package tiering is the service that looks after closed segments in the object store.
//
// It owns the shards of __remote_log_metadata that the controller gives to this instance, and with them the remote segments
// of the partitions that hash to them: it copies, expires, deletes and reads them. It must never be on the way of a produce
// request, nor act on a partition whose shard is another instance's.
//
// # One owner
//
// Whoever owns the shard is the only one to copy and delete. Each step is a record in the shard's log first, which storage
// nodes refuse from an owner of the past; so two instances can never both believe that a segment is theirs to delete. What an
// owner of the past still does in the store is found by the next one, as a copy that was never finished, or by fsck.
//
// # Metrics
//
// Those that begin with remote_ are Kafka's tiered storage metrics by their names in snake case, with the attribute topic, and those of
// what there is now (lags, sizes, counts) with the attribute partition, too. The reason of a lag is one of a few; what failed in
// full is in the status. The series of a topic end with it.
//
//	chancery_tiering_registered            1 while the controller counts this instance as a member, else 0
//	chancery_tiering_metadata_offset       the last offset of the metadata log that this instance has applied
//	chancery_tiering_shards                shards of this instance, by state (loading, serving)
//	remote_copy_bytes, remote_copy_requests, remote_copy_errors          segments copied to the store
//	remote_fetch_bytes, remote_fetch_requests, remote_fetch_errors       reads from the remote tier
//	remote_delete_requests, remote_delete_errors                         segments that the store was to delete
//	chancery_tiering_expired_segments                                    segments that retention has ended
//	remote_copy_lag_bytes, remote_copy_lag_segments                      closed segments that are not remote yet, with the reason
//	remote_delete_lag_bytes, remote_delete_lag_segments                  segments whose deletion has begun
//	remote_log_size_bytes, remote_log_metadata_count                     what the remote tier has
//	remote_log_manager_tasks_avg_idle_percent                            share of the passes' places that are free
//	remote_log_reader_avg_idle_percent                                   share of the places for reads that are free
//	remote_log_reader_task_queue_size                                    reads that wait for a place
package tiering

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/lifecycle"
	"chancery/services/metadata"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
	"chancery/services/statemachine/shards"
	"chancery/services/storagerpc"
	"chancery/tiering/internal/keeper"
	"chancery/tiering/internal/remotestate"
)

// Server is one instance. It is a lifecycle.Service.
type Server struct {
	config   Config
	settings settings
	deps     Deps
	member   *controllerclient.Member
	codecs   *recordbatch.Codecs
	slots    chan struct{}
	// store and reader are made by Start where remote.log.storage.system.enable is set.
	store   objectstore.RemoteStorageManager
	reader  *coldread.Reader
	env     *keeper.Env
	reads   reads
	metrics *metrics
	// served is nil until Register.
	served *storagerpc.TierServer

	// image is the newest image that has been published here; it may be ahead of Deps.Metadata.Image.
	image atomic.Pointer[metadata.Image]

	shards *shardSet

	mu    sync.Mutex
	tasks map[remotelog.Partition]*task
	// running counts the passes under way.
	running int

	// missed says that somebody was told about tiered topics without a store.
	missed atomic.Bool

	// kick wakes the loop that starts passes.
	kick   chan struct{}
	cancel context.CancelFunc
	loops  sync.WaitGroup
}

var _ lifecycle.Service = (*Server)(nil)

const (
	// handOverTimeout bounds how long Stop waits for the controller to give the shards to others.
	handOverTimeout = 5 * time.Second
	// loadSlots is how many shards load at a time.
	loadSlots = 8
)

// New makes an instance; Register makes it reachable, Start makes it a member.
func New(config Config, deps Deps) (*Server, error) {
	if config.NodeID < 0 {
		return nil, fmt.Errorf("node.id is %d, want 0 or more", config.NodeID)
	}
	s := &Server{
		config: config, settings: newSettings(config), deps: deps, codecs: recordbatch.NewCodecs(), slots: make(chan struct{}, loadSlots),
		tasks: map[remotelog.Partition]*task{}, kick: make(chan struct{}, 1),
	}
	s.image.Store(deps.Metadata.Image())
	s.shards = shards.New(shards.Config[remotestate.Command, remotelog.Record, remotestate.Reply]{
		NodeID: config.NodeID, Kind: metadata.RemoteLogShard, Topic: internaltopic.RemoteLogMetadata, Image: s.image.Load, Build: s.newShard,
	})
	if s.settings.enabled {
		if _, err := s.settings.store(config, config.ClusterID); err != nil {
			return nil, err
		}
		s.env = &keeper.Env{
			BrokerID: config.NodeID, Copying: s.settings.limits.copying,
			Metrics: &keeper.Metrics{}, Now: time.Now, NewID: uuid.Random, MaxCustom: s.settings.maxCustom, Logger: deps.Logger,
		}
	}
	s.member = controllerclient.NewMember(deps.Controller, controllerclient.MemberConfig{
		Kind:              controllerv1.ServiceKind_SERVICE_KIND_TIERING,
		ID:                config.NodeID,
		ClusterID:         config.ClusterID,
		Rack:              config.Rack,
		Endpoints:         endpoints(config.Endpoints),
		Version:           config.Version,
		AppliedOffset:     func() int64 { return deps.Metadata.Image().Offset() },
		HeartbeatInterval: s.settings.node.Duration("broker.heartbeat.interval.ms"),
		Logger:            deps.Logger,
	})
	return s, nil
}

func endpoints(list []metadata.Endpoint) []*controllerv1.Endpoint {
	out := make([]*controllerv1.Endpoint, len(list))
	for i, e := range list {
		out[i] = &controllerv1.Endpoint{Name: e.Name, Host: e.Host, Port: uint32(e.Port)}
	}
	return out
}

// Register makes the instance answer on a gRPC server or a local channel. The address is the one by which other processes reach
// it; empty when there are none.
func (s *Server) Register(r grpc.ServiceRegistrar, address string) {
	s.served = storagerpc.RegisterTiering(r, service{s: s}, address, s.deps.Logger)
}

// Start begins to register, and to look after the shards that the controller gives to this instance.
func (s *Server) Start(ctx context.Context) error {
	var err error
	if s.settings.enabled {
		if s.store, s.reader, err = open(ctx, s.config, s.settings, s.deps); err != nil {
			return err
		}
		s.env.Store, s.env.Forget = s.store, s.reader.Forget
	}
	if s.metrics, err = newMetrics(s.deps.Meter, s); err != nil {
		return errors.Join(fmt.Errorf("metrics: %w", err), s.closeStore())
	}
	loopCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	if s.settings.enabled {
		s.deps.Metadata.Subscribe(metadata.PublisherFunc(s.publish))
		s.loops.Go(func() { s.makeTopic(loopCtx) })
		s.loops.Go(func() { s.schedule(loopCtx) })
		s.loops.Go(func() { s.sweep(loopCtx) })
		s.loops.Go(func() { s.probe(loopCtx) })
	} else {
		s.deps.Metadata.Subscribe(metadata.PublisherFunc(s.missStore))
	}
	if err := s.member.Start(ctx); err != nil {
		cancel()
		s.loops.Wait()
		return errors.Join(err, s.metrics.close(), s.closeStore())
	}
	return nil
}

func (s *Server) closeStore() error {
	if s.store == nil {
		return nil
	}
	return closeBoth(s.store, s.reader.Close())
}

// Stop lets the controller give the shards to other instances, breaks off what is under way, and takes leave of the cluster.
func (s *Server) Stop(ctx context.Context) error {
	leaveCtx, cancel := context.WithTimeout(ctx, handOverTimeout)
	if s.member.Leave(leaveCtx) == nil {
		s.shards.AwaitEmpty(leaveCtx)
	}
	cancel()
	s.shards.Drain(ctx)
	if s.served != nil {
		s.served.Close()
	}
	s.cancel()
	s.loops.Wait()
	err := s.member.Stop(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// The controllers cannot be reached: they will see that the heartbeats have ended.
		s.deps.Logger.Warn("left without the controller's word", "error", err)
		err = nil
	}
	return errors.Join(err, s.metrics.close(), s.closeStore())
}

// closeBoth closes a store and joins its error to another.
func closeBoth(store objectstore.RemoteStorageManager, err error) error {
	return errors.Join(err, store.Close())
}

// Failed is nil: an instance goes on trying to be a member.
func (s *Server) Failed() <-chan error { return nil }

// Ready is nil while the instance is a member and knows the metadata.
func (s *Server) Ready() error { return errors.Join(s.deps.Metadata.Ready(), s.member.Ready()) }
