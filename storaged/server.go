package storaged

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/uuid"
	"chancery/services/lifecycle"
	"chancery/services/storage"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/membership"
	"chancery/storaged/internal/node"
)

// Server is a storage node.
type Server struct {
	config Config
	deps   Deps
	static *configdef.Node
	epoch  atomic.Int64
	failed chan error

	// The following are made by Start.
	dirs    *logdir.Set
	node    *node.Node
	member  *membership.Member
	metrics metric.Registration
	// facade is what Node gives out from the beginning.
	facade facade
}

var _ lifecycle.Service = (*Server)(nil)

// New makes a storage node that does nothing until it is started. An error says what is wrong with the config.
func New(c Config, d Deps) (*Server, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("storage node: %w", err)
	}
	static := configdef.NewNode(c.Properties)
	if err := static.Check(); err != nil {
		return nil, fmt.Errorf("storage node: %w", err)
	}
	if c.Features == nil {
		c.Features = supportedFeatures()
	}
	s := &Server{config: c, deps: d, static: static, failed: make(chan error, 1)}
	s.epoch.Store(-1)
	return s, nil
}

// Node is the data path of this node. It may be handed out before Start, and refuses everything until then.
func (s *Server) Node() storage.Node { return &s.facade }

// BrokerEpoch is the node's epoch; -1 while it is not registered.
func (s *Server) BrokerEpoch() int64 { return s.epoch.Load() }

// Start opens the log directories and begins to register and to follow the metadata. The replicas are opened as soon as the
// metadata says which ones there are; Ready tells when the node serves.
func (s *Server) Start(ctx context.Context) error {
	dirs, err := logdir.Open(s.config.LogDirs, s.config.NodeID, s.config.ClusterID, s.deps.Logger)
	if err != nil {
		return fmt.Errorf("storage node %d: %w", s.config.NodeID, err)
	}
	s.dirs = dirs
	s.node = node.New(node.Options{
		ID: s.config.NodeID, Dirs: dirs, Static: s.static,
		Epoch: s.epoch.Load, Nodes: s.deps.Nodes, Controller: s.deps.Controller, Coordinators: s.deps.Coordinators,
		DirectoryFailed: func() { s.member.DirectoryFailed() },
		Fatal:           s.fail,
		Applied:         func() { s.member.Nudge() },
		LogLevel:        s.deps.LogLevel,
		Logger:          s.deps.Logger,
	})
	s.member = membership.New(s.membership(), s.deps.Controller)
	if s.metrics, err = registerMetrics(s.deps.Meter, s.node); err != nil {
		return errors.Join(fmt.Errorf("storage node metrics: %w", err), dirs.Close())
	}
	s.node.Start(ctx)
	s.facade.open(s.node)
	s.deps.Metadata.Subscribe(s.node)
	s.member.Start(ctx)
	return nil
}

func (s *Server) membership() membership.Config {
	return membership.Config{
		NodeID:      s.config.NodeID,
		ClusterID:   s.clusterID,
		Incarnation: uuid.Random(),
		Endpoints:   s.config.Endpoints,
		Features:    s.config.Features,
		Rack:        s.config.Rack,
		LogDirs: func() []uuid.UUID {
			var ids []uuid.UUID
			for _, d := range s.dirs.Online() {
				ids = append(ids, d.ID())
			}
			return ids
		},
		OfflineDirs:   s.dirs.Offline,
		Cordoned:      s.node.Cordoned,
		PreviousEpoch: s.dirs.PreviousEpoch(),
		Applied:       s.node.AppliedOffset,
		Registered: func(epoch int64) {
			s.epoch.Store(epoch)
			// Opening the logs may take long, and heartbeats must go on meanwhile.
			go func() {
				s.node.Registered()
				s.deps.Metadata.Acknowledge()
			}()
		},
		Fatal:    s.fail,
		Interval: s.static.Duration("broker.heartbeat.interval.ms"),
		Logger:   s.deps.Logger,
	}
}

// clusterID is the cluster's id as far as it is known: a new node without one learns it from the metadata log.
func (s *Server) clusterID() string {
	if id := s.dirs.ClusterID(); id != "" {
		return id
	}
	return s.deps.Metadata.Image().ClusterID()
}

// fail tells the process that the node cannot go on.
func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default: // one failure is enough
	}
}

// Stop lets the controller move what this node leads elsewhere, within the context's time, then closes the logs and marks
// the stop as clean.
func (s *Server) Stop(ctx context.Context) error {
	if s.static.Bool("controlled.shutdown.enable") {
		if err := s.member.Leave(ctx); err != nil {
			s.deps.Logger.Warn("stopping without the controller's consent", "error", err)
		}
	}
	s.member.Stop()
	opened := s.node.Ready() == nil
	s.node.Stop()
	mark := s.dirs.MarkAsFound
	if opened {
		mark = s.dirs.MarkClean
	}
	return errors.Join(mark(s.epoch.Load()), s.dirs.Close(), s.metrics.Unregister())
}

// Failed tells that the node cannot go on: no log directory works any more, or the controller is another cluster's.
func (s *Server) Failed() <-chan error { return s.failed }

// Ready is nil while the node is registered, unfenced, and its replicas have their roles.
func (s *Server) Ready() error {
	if s.node == nil {
		return errors.New("the storage node has not started")
	}
	return errors.Join(s.node.Ready(), s.member.Ready())
}
