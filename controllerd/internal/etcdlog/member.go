package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/uuid"
)

const (
	// defaultElection is how long voters wait for a silent leader. It is far above the pauses that a slow disk or a
	// neighbour's garbage collection cause, and lets another controller answer within a second.
	defaultElection = 500 * time.Millisecond
	// aloneElection is the same for one voter, which waits for nobody: only the start takes this long.
	aloneElection    = 50 * time.Millisecond
	ticksPerElection = 10

	// quotaBytes is where etcd refuses changes. Snapshots keep the log hundreds of times smaller.
	quotaBytes = 8 << 30
	// catchUpEntries is how many requests a member keeps in memory for slow members; those further behind get the whole
	// store, which is small.
	catchUpEntries = 500
	snapshotCount  = 5000
	maxWALFiles    = 5
	// bootstrapDefragMegabytes is how much must be free in the store's file before a start gives it back.
	bootstrapDefragMegabytes = 256

	// handOver bounds how long a leader that closes tries to hand over to another voter.
	handOver = 500 * time.Millisecond
	// noAddress stands for the addresses of a voter that is alone and that nobody dials.
	noAddress = "127.0.0.1:1"
	// defragCheck is how often a member looks whether its store's file is nearly at the quota.
	defragCheck = 5 * time.Second
)

// Voter is a member of the quorum.
type Voter struct {
	ID int32
	// Address is "host:port" of its half of the quorum.
	Address string
}

// Config describes a member in this process.
type Config struct {
	ID int32
	// Dir is where the member keeps its files.
	Dir string
	// Token is the same for all members, and for no member of another cluster.
	Token string
	// Address is where other services reach this controller. etcd gets it as its client address: it serves no clients
	// there, but a member with one notices when it has lost its disk, and stays out instead of voting twice.
	Address string
	// DirectoryID is that of the directory of the metadata log; with the id it names the voter.
	DirectoryID uuid.UUID
	// Voters are all members; empty means this one alone, which then opens no port.
	Voters []Voter
	// Join are all members of a quorum that this one has been admitted to, itself among them. Only the first start needs it.
	Join []metalog.Member
	// JoinAddress is this member's "host:port" if it is not among the voters.
	JoinAddress string
	// Election is how long voters wait for a silent leader; 0 means the default.
	Election time.Duration
	// UnsafeNoFsync and WALSegmentBytes are for tests.
	UnsafeNoFsync   bool
	WALSegmentBytes int64
	// BallastBytes is the size of a file that is given up when the disk is full; 0 means none.
	BallastBytes int64
	// QuotaBytes is where the store is full; 0 means 8 GiB.
	QuotaBytes int64
	Logger     *slog.Logger
}

// Member is the metadata log in a member of etcd in this process; it is a metalog.Log.
type Member struct {
	store
	etcd   *embed.Etcd
	logger *slog.Logger
	// portless says that nobody else can reach this member.
	portless   bool
	quota      int64
	leadership chan bool
	failed     chan error
	stop       chan struct{}
	closeOnce  sync.Once
	closing    atomic.Bool
	watchers   sync.WaitGroup
}

var _ metalog.Log = (*Member)(nil)

// walSegmentBytes guards etcd's variable of that name, which all members of a process share.
var walSegmentBytes sync.Mutex

// setWALSegmentBytes sets the size of the log's files; 0 leaves it. A member that is started reads it, so nothing is written when
// it has the size already.
func setWALSegmentBytes(n int64) {
	if n <= 0 {
		return
	}
	walSegmentBytes.Lock()
	defer walSegmentBytes.Unlock()
	if wal.SegmentSizeBytes != n {
		wal.SegmentSizeBytes = n
	}
}

// Start starts a member. It does not wait for a quorum.
func Start(c Config) (*Member, error) {
	setWALSegmentBytes(c.WALSegmentBytes)
	m := &Member{
		logger:     c.Logger,
		portless:   len(c.Voters) == 0 && c.JoinAddress == "",
		leadership: make(chan bool, 1),
		failed:     make(chan error, 1),
		stop:       make(chan struct{}),
	}
	config, err := embedConfig(c, newZapLogger(c.Logger, &m.closing, m.fail))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the metadata quorum: %w", err)
	}
	if err := keepBallast(c.Dir, c.BallastBytes, c.Logger); err != nil {
		c.Logger.Warn("ballast of the metadata quorum", "error", err) // It is for worse days; this one can go on.
	}
	m.quota = config.QuotaBackendBytes
	if m.etcd, err = embed.StartEtcd(config); err != nil {
		return nil, fmt.Errorf("start the metadata quorum in %s: %w", c.Dir, err)
	}
	m.store = store{
		client:  v3client.New(m.etcd.Server),
		prefix:  "/chancery/",
		id:      c.ID,
		read:    serializable(),
		compact: true,
		reclaim: m.makeRoom,
	}
	m.watchers.Go(func() { m.announce(identity{c.ID, c.DirectoryID}, config.AdvertisePeerUrls[0].String()) })
	m.watchers.Go(m.watchLeader)
	m.watchers.Go(m.watchSize)
	m.watchers.Go(m.watchEnd)
	return m, nil
}

func embedConfig(c Config, logger *zap.Logger) (*embed.Config, error) {
	e := embed.NewConfig()
	e.Dir = c.Dir
	e.Name = memberName(c.ID)
	e.InitialClusterToken = c.Token
	e.ClusterState = embed.ClusterStateFlagNew
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	e.ListenClientUrls = nil
	clientAddress := noAddress
	if c.Address != "" && !strings.Contains(c.Address, "://") && !strings.HasPrefix(c.Address, "local:") {
		clientAddress = c.Address
	}
	e.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: clientAddress}}
	if err := setVoters(e, c); err != nil {
		return nil, err
	}
	election := c.Election
	switch {
	case election > 0:
	case len(c.Voters) > 0 || c.JoinAddress != "":
		election = defaultElection
	default:
		election = aloneElection
	}
	e.ElectionMs = uint(election.Milliseconds())
	e.TickMs = max(e.ElectionMs/ticksPerElection, 1)
	e.QuotaBackendBytes = quotaBytes
	if c.QuotaBytes > 0 {
		e.QuotaBackendBytes = c.QuotaBytes
	}
	e.SnapshotCatchUpEntries = catchUpEntries
	e.SnapshotCount = snapshotCount
	e.MaxWalFiles = maxWALFiles
	e.AutoCompactionRetention = "0"
	e.BootstrapDefragThresholdMegabytes = bootstrapDefragMegabytes
	e.EnableGRPCGateway = false
	e.UnsafeNoFsync = c.UnsafeNoFsync
	for _, f := range []string{string(features.InitialCorruptCheck), string(features.CompactHashCheck)} {
		if err := e.ServerFeatureGate.(interface{ Set(string) error }).Set(f + "=true"); err != nil {
			return nil, fmt.Errorf("etcd feature %s: %w", f, err)
		}
	}
	return e, nil
}

func memberName(id int32) string { return fmt.Sprintf("controller-%d", id) }

// setVoters sets the addresses of the members. One member alone gets no port at all.
func setVoters(e *embed.Config, c Config) error {
	if c.JoinAddress != "" {
		return setJoined(e, c)
	}
	if len(c.Voters) == 0 {
		e.ListenPeerUrls = nil
		e.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: noAddress}}
		e.InitialCluster = e.Name + "=http://" + noAddress
		return nil
	}
	members := make([]string, 0, len(c.Voters))
	var own string
	for _, v := range c.Voters {
		members = append(members, memberName(v.ID)+"=http://"+v.Address)
		if v.ID == c.ID {
			own = v.Address
		}
	}
	if own == "" {
		return fmt.Errorf("controller %d is not among the voters", c.ID)
	}
	listen, err := listenURL(own)
	if err != nil {
		return err
	}
	e.ListenPeerUrls = []url.URL{listen}
	e.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: own}}
	e.InitialCluster = strings.Join(members, ",")
	return nil
}

// setJoined sets the addresses of a member that comes to a quorum that is there already.
func setJoined(e *embed.Config, c Config) error {
	listen, err := listenURL(c.JoinAddress)
	if err != nil {
		return err
	}
	e.ClusterState = embed.ClusterStateFlagExisting
	e.ListenPeerUrls = []url.URL{listen}
	e.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: c.JoinAddress}}
	members := []string{}
	for _, m := range c.Join {
		members = append(members, m.Name+"=http://"+m.Address)
	}
	if len(members) == 0 {
		members = append(members, e.Name+"=http://"+c.JoinAddress) // Its files know the others.
	}
	e.InitialCluster = strings.Join(members, ",")
	return nil
}

// fail tells of the first failure.
func (m *Member) fail(err error) {
	select {
	case m.failed <- err:
	default:
	}
}

// watchLeader tells whether this member leads.
func (m *Member) watchLeader() {
	server := m.etcd.Server
	for {
		changed := server.LeaderChangedNotify()
		leads := server.Leader() == server.MemberID()
		select {
		case <-m.leadership:
		default:
		}
		m.leadership <- leads
		select {
		case <-changed:
		case <-m.stop:
			return
		}
	}
}

// watchEnd notices when the member ends by itself.
func (m *Member) watchEnd() {
	select {
	case <-m.stop:
	case <-m.etcd.Server.StopNotify():
		m.fail(errors.New("the member of the metadata quorum ended: it was removed, or its files failed"))
	case err := <-m.etcd.Err():
		m.fail(fmt.Errorf("the listener of the metadata quorum: %w", err))
	}
}

// watchSize gives back what is free in the store's file before the file reaches the quota: the space that truncation
// frees stays in the file, and counts.
func (m *Member) watchSize() {
	ticker := time.NewTicker(defragCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-m.stop:
			return
		}
		backend := m.etcd.Server.Backend()
		size, used := backend.Size(), backend.SizeInUse()
		if size > m.quota/10*8 && used < size/2 {
			m.defragment()
		}
	}
}

func (m *Member) defragment() {
	backend := m.etcd.Server.Backend()
	before := backend.Size()
	if err := backend.Defrag(); err != nil {
		m.logger.Warn("defragment the metadata quorum's store", "error", err)
		return
	}
	m.logger.Info("defragmented the metadata quorum's store", "bytes_before", before, "bytes_after", backend.Size())
}

// makeRoom cures a full store: it drops what the last snapshot covers, shrinks the file and takes back the alarm.
func (m *Member) makeRoom(ctx context.Context) error {
	m.logger.Warn("the metadata quorum's store is full; dropping the log that the last snapshot covers")
	if err := m.store.makeRoom(ctx); err != nil {
		return err
	}
	m.defragment()
	if _, err := m.client.AlarmDisarm(ctx, noAlarm()); err != nil {
		return fmt.Errorf("take back the alarm: %w", err)
	}
	return nil
}

// Leadership tells whether this member leads the quorum: then its controller should be the active one.
func (m *Member) Leadership() <-chan bool { return m.leadership }

// InContact says whether this member knows a leader.
func (m *Member) InContact() bool { return m.etcd.Server.Leader() != 0 }

// Failed tells of a failure that the member cannot heal.
func (m *Member) Failed() <-chan error { return m.failed }

// Close hands leadership over and ends the member. Only the first call does anything.
func (m *Member) Close(ctx context.Context) (err error) {
	m.closeOnce.Do(func() { err = m.close(ctx) })
	return err
}

func (m *Member) close(ctx context.Context) error {
	m.closing.Store(true)
	close(m.stop)
	m.watchers.Wait()
	_ = m.client.Close()
	m.handOver()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		m.etcd.Server.HardStop()
		m.etcd.Close()
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the member of the metadata quorum: %w", ctx.Err())
	}
}

// handOver gives leadership to another voter, if this member has it and there is one that takes it in time: when all members
// close together there is not.
func (m *Member) handOver() {
	if m.isOnlyVoter() {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.etcd.Server.TryTransferLeadershipOnShutdown() // Without it the others elect one of them a little later.
	}()
	t := time.NewTimer(handOver)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
