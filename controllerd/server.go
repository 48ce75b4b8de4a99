package controllerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/uuid"
	"chancery/services/lifecycle"
	"chancery/services/metadata"
	"chancery/services/vfs"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/controller"
	"chancery/controllerd/internal/etcdlog"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/kraftlog"
	"chancery/controllerd/internal/listener"
	"chancery/controllerd/internal/metalog"
	"chancery/controllerd/internal/server"
)

const (
	// quorumDir is where the quorum's files are below the metadata log's directory.
	quorumDir = "quorum"
	// quorumPatience is how long a start waits for the others. A controller that starts alone is no failure: it serves as
	// soon as enough of them are there.
	quorumPatience = 3 * time.Second
	// alonePatience is how long a start waits where nobody else is needed. Only broken files take longer.
	alonePatience = time.Minute
	settlePause   = 50 * time.Millisecond
	settleTimeout = 2 * time.Second
	joinPause     = 200 * time.Millisecond
	readyPoll     = 2 * time.Millisecond
)

// Server is a controller; it is a lifecycle.Service.
type Server struct {
	config Config
	deps   Deps
	// service is what gRPC calls; it refuses while the controller is not there yet.
	service *server.Server
	log     metalog.Log
	feed    *feed.Feed
	// lock keeps other processes out of the directory of the metadata log while this one runs.
	lock *os.File
	// listener is for clients of Kafka's protocol, and client what it asks the active controller with; nil without one.
	listener *listener.Listener
	client   *controllerclient.Client

	metrics  metric.Registration
	stopping chan struct{}
	cancel   context.CancelFunc
	running  sync.WaitGroup
	failed   chan error
	started  atomic.Bool
}

var _ lifecycle.Service = (*Server)(nil)

// New makes a controller and registers its gRPC service. Start makes it work.
func New(c Config, d Deps) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Server{config: c, deps: d, feed: feed.New(), stopping: make(chan struct{}), failed: make(chan error, 1)}
	acks := feed.NewAcks()
	s.service = &server.Server{
		Feed: s.feed, Acks: acks,
		Follow: &feed.Server{Feed: s.feed, Acks: acks, InContact: s.inContact, IsActive: s.Active, Stopping: s.stopping},
	}
	s.service.Controller = controller.New(controller.Options{
		ID: c.NodeID, Address: c.Address, Feed: s.feed, Acks: acks, Control: s.settings(),
		SnapshotBytes: c.SnapshotBytes, SnapshotInterval: c.SnapshotInterval,
		BalanceInterval: c.LeaderImbalanceCheckInterval, UncleanInterval: c.UncleanElectionCheckInterval,
		Logger: d.Logger,
	})
	controllerv1.RegisterControllerServer(d.Registrar, s.service)
	if d.Meter != nil {
		var err error
		if s.metrics, err = registerMetrics(d.Meter, d.Registry, s); err != nil {
			return nil, fmt.Errorf("metrics of the controller: %w", err)
		}
	}
	if c.Listener == nil {
		return s, nil
	}
	var err error
	// This controller's own word about who is active leads to the others.
	s.client, err = controllerclient.New(controllerclient.Config{Targets: []string{c.Address}, Dialer: d.Dialer, Logger: d.Logger})
	if err != nil {
		return nil, err
	}
	s.listener = listener.New(listener.Config{
		NodeID: c.NodeID, Name: c.Listener.Name, Address: c.Listener.Address, MaxRequestBytes: c.Listener.MaxRequestBytes,
		IdleTimeout: c.Listener.IdleTimeout, Properties: c.Properties, SnapshotDir: filepath.Join(c.Dir, kraftlog.DirName),
		Handle: s.client.Handle, State: s.feed.State, Logger: d.Logger,
	})
	return s, nil
}

func (s *Server) settings() control.Settings {
	properties := maps.Clone(s.config.Properties)
	if properties == nil {
		properties = map[string]string{}
	}
	properties["num.partitions"] = strconv.Itoa(int(s.config.NumPartitions))
	properties["default.replication.factor"] = strconv.Itoa(int(s.config.DefaultReplicationFactor))
	properties["delete.topic.enable"] = strconv.FormatBool(s.config.DeleteTopicEnable)
	settings := control.Settings{
		Node: configdef.NewNode(properties), SessionTimeout: s.config.SessionTimeout, ControllerID: s.config.NodeID,
	}
	return settings
}

// inContact says whether this controller's view of the log is live.
func (s *Server) inContact() bool { return s.started.Load() && s.log.InContact() }

// Start opens the metadata log and takes part in the quorum. It returns when the controller serves; where that takes other
// controllers, it does not wait for them for long.
func (s *Server) Start(ctx context.Context) error {
	meta, err := loadMetaProperties(s.config.Dir, s.config.NodeID)
	if err != nil {
		return err
	}
	if s.config.ClusterID != "" && meta.clusterID != "" && s.config.ClusterID != meta.clusterID {
		return fmt.Errorf("%s belongs to the cluster %s, but cluster.id is %s", s.config.Dir, meta.clusterID, s.config.ClusterID)
	}
	if s.lock, err = vfs.Lock(filepath.Join(s.config.Dir, lockFile)); err != nil {
		return fmt.Errorf("metadata.log.dir: %w", err)
	}
	joins := s.mustJoin()
	if !joins {
		if s.log, err = s.openLog(meta, nil); err != nil { //nolint:contextcheck // The log outlives the start.
			return errors.Join(err, s.lock.Close())
		}
	}
	endpoints, err := s.listen(ctx)
	if err != nil {
		return errors.Join(err, s.closeLog(context.WithoutCancel(ctx)))
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	if joins {
		s.running.Go(func() { s.join(runCtx, meta, endpoints) })
	} else {
		s.serve(runCtx, meta, endpoints)
	}
	if err := s.awaitReady(ctx); err != nil {
		return errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// serve works with the log, which is open now.
func (s *Server) serve(ctx context.Context, meta metaProperties, endpoints []metadata.Endpoint) {
	s.service.Log = s.log
	s.started.Store(true)
	s.running.Go(func() { s.run(ctx, meta, endpoints) })
	s.running.Go(func() { s.watch(ctx) })
}

// closeLog closes the log, if there is one by now, and lets others have its directory.
func (s *Server) closeLog(ctx context.Context) error {
	var err error
	if s.log != nil {
		err = s.log.Close(ctx)
	}
	return errors.Join(err, s.lock.Close())
}

// mustJoin says whether this controller is to join a quorum and has never done so.
func (s *Server) mustJoin() bool {
	if len(s.config.JoinTargets) == 0 {
		return false
	}
	_, err := os.Stat(filepath.Join(s.config.Dir, quorumDir))
	return errors.Is(err, fs.ErrNotExist)
}

// join asks to be a voter until it is one, and then serves.
func (s *Server) join(ctx context.Context, meta metaProperties, endpoints []metadata.Endpoint) {
	members, clusterID, err := s.askToJoin(ctx, meta)
	if err != nil {
		return // The context has ended.
	}
	meta.clusterID = clusterID
	if err := meta.store(s.config.Dir); err != nil {
		s.fail(err)
		return
	}
	log, err := s.openLog(meta, members) //nolint:contextcheck // The log outlives this.
	if err != nil {
		s.fail(err)
		return
	}
	s.log = log
	s.serve(ctx, meta, endpoints)
}

// askToJoin tells the active controller of this one until it is admitted, and writes down meanwhile which cluster it is.
func (s *Server) askToJoin(ctx context.Context, meta metaProperties) ([]metalog.Member, string, error) {
	client, err := controllerclient.New(controllerclient.Config{Targets: s.config.JoinTargets, Dialer: s.deps.Dialer, Logger: s.deps.Logger})
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = client.Close() }()
	s.deps.Logger.Info("this controller is no voter yet; it waits to be added", "id", s.config.NodeID, "directory", meta.directoryID.String())
	for {
		attempt, cancel := context.WithTimeout(ctx, settleTimeout)
		resp, err := client.JoinQuorum(attempt, &controllerv1.JoinQuorumRequest{
			ClusterId: meta.clusterID, ControllerId: s.config.NodeID, DirectoryId: meta.directoryID[:], QuorumAddress: s.config.QuorumAddress,
		})
		cancel()
		switch {
		case err != nil:
			s.deps.Logger.Info("asking to join the quorum", "error", err)
		case len(resp.GetMembers()) > 0:
			var members []metalog.Member
			for _, m := range resp.GetMembers() {
				members = append(members, metalog.Member{Name: m.GetName(), Address: m.GetQuorumAddress()})
			}
			return members, resp.GetClusterId(), nil
		case meta.clusterID == "":
			// What adds a controller reads its directory's id from there.
			meta.clusterID = resp.GetClusterId()
			if err := meta.store(s.config.Dir); err != nil {
				s.fail(err)
			}
		}
		t := time.NewTimer(joinPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, "", ctx.Err()
		}
	}
}

// listen opens the listener for clients, if there is to be one, and says where they reach it.
func (s *Server) listen(ctx context.Context) ([]metadata.Endpoint, error) {
	if s.listener == nil {
		return nil, nil
	}
	if err := s.listener.Start(ctx); err != nil {
		return nil, err
	}
	e := metadata.Endpoint{Name: s.config.Listener.Name, Host: s.config.Listener.AdvertisedHost, Port: s.config.Listener.AdvertisedPort}
	if e.Port == 0 {
		if a, ok := s.listener.Addr().(*net.TCPAddr); ok {
			e.Port = uint16(a.Port)
		}
	}
	return []metadata.Endpoint{e}, nil
}

// openLog opens the metadata log; join are the members of the quorum if this controller joins it now.
func (s *Server) openLog(meta metaProperties, join []metalog.Member) (metalog.Log, error) {
	c := s.config
	if len(c.EtcdEndpoints) > 0 {
		return etcdlog.Connect(etcdlog.ExternalConfig{ID: c.NodeID, Endpoints: c.EtcdEndpoints, Prefix: c.EtcdPrefix, Logger: s.deps.Logger})
	}
	token := meta.clusterID
	if token == "" {
		token = c.ClusterID
	}
	var voters []etcdlog.Voter
	for _, v := range c.Voters {
		voters = append(voters, etcdlog.Voter{ID: v.ID, Address: v.Address})
	}
	if token == "" {
		// Without an id the voters' addresses tell one new quorum from another.
		var list []string
		for _, v := range voters {
			list = append(list, fmt.Sprintf("%d@%s", v.ID, v.Address))
		}
		slices.Sort(list)
		token = "chancery:" + strings.Join(list, ",")
	}
	joinAddress := ""
	if len(c.JoinTargets) > 0 {
		joinAddress = c.QuorumAddress
	}
	return etcdlog.Start(etcdlog.Config{
		ID: c.NodeID, Dir: filepath.Join(c.Dir, quorumDir), Token: token, Address: c.Address, DirectoryID: meta.directoryID,
		Voters: voters, Join: join, JoinAddress: joinAddress, BallastBytes: c.BallastBytes,
		Election: c.ElectionTimeout, UnsafeNoFsync: c.UnsafeNoFsync, WALSegmentBytes: c.WALSegmentBytes, Logger: s.deps.Logger,
	})
}

// run settles which cluster this is, then works until the context ends.
func (s *Server) run(ctx context.Context, meta metaProperties, endpoints []metadata.Endpoint) {
	id, err := s.settleClusterID(ctx, meta)
	if err != nil {
		if ctx.Err() == nil {
			s.fail(err)
		}
		return
	}
	c := s.service.Controller
	c.ClusterID, c.Log = id, s.log
	reporter := &server.Reporter{
		ID: s.config.NodeID, Address: s.config.Address, Incarnation: uuid.Random(), Listeners: endpoints,
		Server: s.service, Dialer: s.deps.Dialer, Logger: s.deps.Logger,
	}
	var parts sync.WaitGroup
	parts.Go(func() { c.Run(ctx) })
	parts.Go(func() { reporter.Run(ctx) })
	parts.Go(func() { s.kafkaLog().Run(ctx) })
	parts.Wait()
}

// kafkaLog is the copy of the metadata log that Kafka's tools read.
func (s *Server) kafkaLog() *kraftlog.Copy {
	c := s.config
	return kraftlog.New(kraftlog.Config{
		Dir:          filepath.Join(c.Dir, kraftlog.DirName),
		SegmentBytes: c.LogSegmentBytes, SegmentAge: c.LogSegmentAge,
		SnapshotBytes: c.SnapshotBytes, SnapshotInterval: c.SnapshotInterval,
		RetentionBytes: c.RetentionBytes, Retention: c.Retention, UnsafeNoFsync: c.UnsafeNoFsync,
		Logger: s.deps.Logger,
	}, s.feed)
}

// settleClusterID finds out the cluster's id, which on the very first start is the configured one or a new one, and writes
// it down.
func (s *Server) settleClusterID(ctx context.Context, meta metaProperties) (string, error) {
	if meta.clusterID != "" {
		return meta.clusterID, nil
	}
	proposed := s.config.ClusterID
	if proposed == "" {
		proposed = uuid.Random().String()
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, settleTimeout)
		id, err := s.log.ClusterID(attempt, proposed)
		cancel()
		if err == nil {
			if s.config.ClusterID != "" && id != s.config.ClusterID {
				return "", fmt.Errorf("the metadata log belongs to the cluster %s, but cluster.id is %s", id, s.config.ClusterID)
			}
			meta.clusterID = id
			return id, meta.store(s.config.Dir)
		}
		t := time.NewTimer(settlePause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return "", ctx.Err()
		}
	}
}

// watch passes on what the log cannot heal.
func (s *Server) watch(ctx context.Context) {
	select {
	case err := <-s.log.Failed():
		s.fail(err)
	case <-ctx.Done():
	}
}

func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

func (s *Server) awaitReady(ctx context.Context) error {
	needsOthers := len(s.config.Voters) > 1 || len(s.config.EtcdEndpoints) > 0 || len(s.config.JoinTargets) > 0
	limit := alonePatience
	if needsOthers {
		limit = quorumPatience
	}
	patience := time.NewTimer(limit)
	defer patience.Stop()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for s.Ready() != nil {
		select {
		case <-poll.C:
		case <-patience.C:
			if needsOthers {
				return nil
			}
			return fmt.Errorf("the metadata quorum in %s does not come up; are its files complete? %w", s.config.Dir, s.Ready())
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return errors.Join(s.Ready(), ctx.Err())
		}
	}
	return nil
}

// Stop hands leadership over and ends the controller.
func (s *Server) Stop(ctx context.Context) error {
	if s.metrics != nil {
		_ = s.metrics.Unregister() // It only fails where there is nothing to forget.
	}
	close(s.stopping)
	s.cancel()
	var err error
	if s.listener != nil {
		err = errors.Join(s.listener.Stop(), s.client.Close())
	}
	s.running.Wait()
	return errors.Join(err, s.closeLog(ctx))
}

// Failed tells of a failure of the metadata log that the controller cannot heal.
func (s *Server) Failed() <-chan error { return s.failed }

// Ready is nil while the controller serves the metadata log and knows the active controller.
func (s *Server) Ready() error {
	if !s.inContact() {
		return errors.New("no contact with a majority of the controllers")
	}
	state := s.feed.State()
	switch {
	case !state.Loaded || state.Holder.Epoch == 0:
		return errors.New("there is no active controller yet")
	case state.Holder.ID == s.config.NodeID && !s.service.Controller.IsActive():
		return errors.New("this controller is about to become active")
	}
	return nil
}

// Active says whether this controller is the one that decides.
func (s *Server) Active() bool { return s.service.Controller.IsActive() }

// ClusterID is the id of the cluster, empty until it is known.
func (s *Server) ClusterID() string { return s.feed.Image().ClusterID() }
