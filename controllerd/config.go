package controllerd

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	"chancery/services/transport"
)

// Voter is a controller that takes part in the quorum.
type Voter struct {
	ID int32
	// Address is "host:port", where the other voters reach its half of the quorum.
	Address string
}

// Listener is a controller's listener for clients of Kafka's protocol.
type Listener struct {
	// Name is what it is called (controller.listener.names), Address where it listens: "host:port".
	Name    string
	Address string
	// AdvertisedHost and AdvertisedPort are where clients reach it; port 0 means the one that it listens on.
	AdvertisedHost string
	AdvertisedPort uint16
	// MaxRequestBytes bounds a request (socket.request.max.bytes), IdleTimeout the silence of a client
	// (connections.max.idle.ms).
	MaxRequestBytes int
	IdleTimeout     time.Duration
}

// Config is what a controller needs to know. DefaultConfig gives the defaults.
type Config struct {
	// NodeID is the controller's id, unlike that of any other controller.
	NodeID int32
	// ClusterID is the id of the cluster; empty means the one that is there already, or a new one on the first start.
	ClusterID string
	// Dir is where the metadata log is kept (metadata.log.dir).
	Dir string
	// Address is where other services reach this controller: "host:port", or the address of a local channel.
	Address string
	// Listener is for clients that ask controllers directly; nil means none.
	Listener *Listener
	// Voters are all controllers of the quorum (controller.quorum.voters), this one among them. Empty means a quorum of this
	// one alone, which then opens no port for it.
	Voters []Voter
	// JoinTargets are the addresses for services of other controllers, whose quorum this one wants to join: it is no voter until
	// it is added (controller.quorum.bootstrap.servers, without controller.quorum.voters). QuorumAddress is where the voters
	// will reach it then (controller.quorum.listener).
	JoinTargets   []string
	QuorumAddress string
	// EtcdEndpoints are those of an etcd that runs elsewhere; empty means that the controllers are the quorum themselves.
	EtcdEndpoints []string
	// EtcdPrefix is before all keys in an etcd that runs elsewhere, so that it can be shared.
	EtcdPrefix string

	// ElectionTimeout is how long a voter waits for a silent leader before it stands for election; 0 means 500 ms, and 50 ms
	// for a quorum of one. HeartbeatInterval is a tenth of it.
	ElectionTimeout time.Duration
	// BallastBytes is the size of a file beside the quorum's own that is given up when the disk is full, so that it can go on;
	// 0 means none.
	BallastBytes int64
	// UnsafeNoFsync leaves the quorum's files to the kernel. For tests: a crash of the machine then loses what was
	// acknowledged.
	UnsafeNoFsync bool
	// WALSegmentBytes is the size of the quorum's log files, which are allocated in advance; 0 means etcd's 64 MB.
	WALSegmentBytes int64

	// SessionTimeout is how long a storage node or another member may be silent (broker.session.timeout.ms).
	SessionTimeout time.Duration
	// SnapshotBytes and SnapshotInterval are how much log, or how much time with changes, leads to a snapshot
	// (metadata.log.max.record.bytes.between.snapshots, metadata.log.max.snapshot.interval.ms).
	SnapshotBytes    int64
	SnapshotInterval time.Duration
	// LogSegmentBytes and LogSegmentAge are when a file of the metadata log's copy in Kafka's format is closed
	// (metadata.log.segment.bytes, metadata.log.segment.ms); RetentionBytes and Retention are how much of it is kept
	// (metadata.max.retention.bytes, metadata.max.retention.ms).
	LogSegmentBytes int64
	LogSegmentAge   time.Duration
	RetentionBytes  int64
	Retention       time.Duration
	// LeaderImbalanceCheckInterval is how often leaders go back to the preferred replicas; 0 means never
	// (leader.imbalance.check.interval.seconds, auto.leader.rebalance.enable).
	LeaderImbalanceCheckInterval time.Duration
	// UncleanElectionCheckInterval is how often partitions without a leader are looked at
	// (unclean.leader.election.interval.ms).
	UncleanElectionCheckInterval time.Duration

	// NumPartitions and DefaultReplicationFactor are those of topics made without (num.partitions,
	// default.replication.factor).
	NumPartitions            int32
	DefaultReplicationFactor int16
	// DeleteTopicEnable allows DeleteTopics (delete.topic.enable).
	DeleteTopicEnable bool
	// Properties are the static configs as given, for the defaults of topics.
	Properties map[string]string
}

// DefaultConfig gives Kafka's defaults.
func DefaultConfig() Config {
	return Config{
		EtcdPrefix:                   "/chancery",
		BallastBytes:                 128 << 20,
		SessionTimeout:               9 * time.Second,
		SnapshotBytes:                20 << 20,
		SnapshotInterval:             time.Hour,
		LogSegmentBytes:              1 << 30,
		LogSegmentAge:                7 * 24 * time.Hour,
		RetentionBytes:               100 << 20,
		Retention:                    7 * 24 * time.Hour,
		LeaderImbalanceCheckInterval: 5 * time.Minute,
		UncleanElectionCheckInterval: 5 * time.Minute,
		NumPartitions:                1,
		DefaultReplicationFactor:     1,
		DeleteTopicEnable:            true,
	}
}

// Validate says what is wrong with a configuration.
func (c *Config) Validate() error {
	switch {
	case c.NodeID < 0:
		return fmt.Errorf("node.id is %d, want 0 or more", c.NodeID)
	case c.Address == "":
		return errors.New("a controller needs the address at which other services reach it")
	case c.Dir == "":
		return errors.New("metadata.log.dir is empty")
	case c.SessionTimeout <= 0:
		return fmt.Errorf("broker.session.timeout.ms is %s, want more than 0", c.SessionTimeout)
	case c.NumPartitions < 1:
		return fmt.Errorf("num.partitions is %d, want 1 or more", c.NumPartitions)
	case c.DefaultReplicationFactor < 1:
		return fmt.Errorf("default.replication.factor is %d, want 1 or more", c.DefaultReplicationFactor)
	}
	if len(c.JoinTargets) > 0 && c.QuorumAddress == "" {
		return errors.New("controller.quorum.listener is not set: want the host:port at which the voters of the quorum in " +
			"controller.quorum.bootstrap.servers will reach this controller")
	}
	return c.validateVoters()
}

func (c *Config) validateVoters() error {
	if len(c.Voters) == 0 {
		return nil
	}
	if len(c.EtcdEndpoints) > 0 {
		return errors.New("controller.quorum.voters and the endpoints of an etcd exclude each other")
	}
	seen := map[int32]bool{}
	for _, v := range c.Voters {
		if seen[v.ID] {
			return fmt.Errorf("controller.quorum.voters names controller %d twice", v.ID)
		}
		seen[v.ID] = true
	}
	if !seen[c.NodeID] {
		return fmt.Errorf("controller.quorum.voters does not name this controller, %d", c.NodeID)
	}
	return nil
}

// Dialer makes channels to other controllers; *transport.Dialer is one.
type Dialer interface {
	Dial(address string) (transport.Conn, error)
}

// Deps is what a controller is given.
type Deps struct {
	// Registrar is where the controller registers its gRPC service: a server, a local channel, or both.
	Registrar grpc.ServiceRegistrar
	// Dialer reaches the other controllers.
	Dialer Dialer
	// Meter and Registry take the controller's metrics; both or none.
	Meter    metric.Meter
	Registry prometheus.Registerer
	Logger   *slog.Logger
}
