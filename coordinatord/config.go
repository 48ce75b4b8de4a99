package coordinatord

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"chancery/coordinatord/internal/assignor"
	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/handler"
	"chancery/coordinatord/internal/txn"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// Config says who this instance is. Kafka's settings of groups come as Properties.
type Config struct {
	// NodeID is the instance's id, unlike that of any other coordinator.
	NodeID int32
	// ClusterID is the cluster that the instance belongs to; empty takes the controllers' word.
	ClusterID string
	// Rack is broker.rack; empty means none.
	Rack string
	// Endpoints are the addresses that the instance is registered with. One must have the name metadata.GRPCEndpoint.
	Endpoints []metadata.Endpoint
	// Version is the product's version.
	Version string
	// Properties are the settings as given at start, by Kafka's names; what is missing has its default. These are read:
	// group.initial.rebalance.delay.ms, group.max.session.timeout.ms, group.min.session.timeout.ms, group.max.size,
	// offset.metadata.max.bytes, offsets.commit.timeout.ms, offsets.load.buffer.size, offsets.retention.minutes,
	// offsets.retention.check.interval.ms, offsets.topic.compression.codec, group.coordinator.threads (how many
	// shards load at once), broker.heartbeat.interval.ms, group.coordinator.rebalance.protocols,
	// group.consumer.*, request.timeout.ms, add.partitions.to.txn.retry.backoff.ms and .max.ms, producer.id.expiration.ms,
	// transactional.id.expiration.ms and transaction.*.
	Properties map[string]string
}

// Metadata is the instance's view of the metadata log; *metadata.Follower is one.
type Metadata interface {
	Image() *metadata.Image
	Await(ctx context.Context, offset int64) error
	Subscribe(p metadata.Publisher)
}

// Coordinators takes requests to the owners of shards; *coordinatorclient.Client is one.
type Coordinators interface {
	Handle(ctx context.Context, kind metadata.ShardKind, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
}

// Deps is what the instance works with.
type Deps struct {
	Metadata Metadata
	// Nodes gives the storage nodes by id.
	Nodes func(id int32) (storage.Node, error)
	// Coordinators are the owners of all shards, this instance among them.
	Coordinators Coordinators
	// Controller is where the instance registers.
	Controller *controllerclient.Client
	Meter      metric.Meter
	Logger     *slog.Logger
}

// settings are the parsed Properties.
type settings struct {
	groups            group.Config
	bounds            handler.Config
	node              *configdef.Node
	loadConcurrency   int
	loadBufferBytes   int32
	answerTimeout     time.Duration
	heartbeatInterval time.Duration
	transactions      txn.Config
	// maxTransactionTimeout is transaction.max.timeout.ms.
	maxTransactionTimeout time.Duration
	transactionLoadBytes  int32
	compression           recordbatch.Compression
}

func parseSettings(c Config, logger *slog.Logger) (settings, error) {
	node := configdef.NewNode(c.Properties)
	s := settings{
		groups: group.Config{
			InitialRebalanceDelay:         node.Duration("group.initial.rebalance.delay.ms"),
			MaxSize:                       node.Int("group.max.size"),
			OffsetMetadataMaxBytes:        node.Int("offset.metadata.max.bytes"),
			OffsetsRetention:              minutes(node.Long("offsets.retention.minutes")),
			OffsetsRetentionCheckInterval: node.Duration("offsets.retention.check.interval.ms"),
			ProducerIDExpiration:          node.Duration("producer.id.expiration.ms"),
			NewUUID:                       newUUID,
			NewID:                         func() string { return uuid.Random().String() },
			Logger:                        logger,
		},
		bounds: handler.Config{
			MinSessionTimeout: node.Duration("group.min.session.timeout.ms"),
			MaxSessionTimeout: node.Duration("group.max.session.timeout.ms"),
			ConsumerProtocol:  slices.Contains(node.List("group.coordinator.rebalance.protocols"), "consumer"),
			Assignors:         node.List("group.consumer.assignors"),
		},
		node:              node,
		loadConcurrency:   node.Int("group.coordinator.threads"),
		loadBufferBytes:   int32(node.Int("offsets.load.buffer.size")),
		answerTimeout:     node.Duration("offsets.commit.timeout.ms"),
		heartbeatInterval: node.Duration("broker.heartbeat.interval.ms"),
		compression:       recordbatch.Compression(node.Int("offsets.topic.compression.codec")),
	}
	for _, name := range s.bounds.Assignors {
		if assignor.ByName(name) == nil {
			return s, fmt.Errorf("group.consumer.assignors: there is no assignor %q, only %s and %s", name, assignor.Uniform, assignor.Range)
		}
	}
	s.groups.Consumer = consumerConfig(node)
	s.transactions = txn.Config{
		AbortInterval:  node.Duration("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
		Expiration:     node.Duration("transactional.id.expiration.ms"),
		ExpireInterval: node.Duration("transaction.remove.expired.transaction.cleanup.interval.ms"),
	}
	s.maxTransactionTimeout = node.Duration("transaction.max.timeout.ms")
	s.transactionLoadBytes = int32(node.Int("transaction.state.log.load.buffer.size"))
	if !s.compression.Known() {
		return s, fmt.Errorf("offsets.topic.compression.codec: there is no codec %d", s.compression)
	}
	return s, nil
}

// consumerConfig reads the settings of consumer groups.
func consumerConfig(node *configdef.Node) group.ConsumerConfig {
	policy := strings.ToLower(node.String("group.consumer.migration.policy"))
	return group.ConsumerConfig{
		MaxSize:              node.Int("group.consumer.max.size"),
		Assignors:            node.List("group.consumer.assignors"),
		Upgrade:              policy == "upgrade" || policy == "bidirectional",
		Downgrade:            policy == "downgrade" || policy == "bidirectional",
		RegexRefreshInterval: node.Duration("group.consumer.regex.refresh.interval.ms"),
	}
}

// settingsOfGroups gives the settings of consumer groups, which their own configs and the dynamic ones of all nodes change. What
// holds for groups without configs is kept, because every heartbeat asks for it. The result belongs to one goroutine.
func settingsOfGroups(node *configdef.Node) func(image metadata.Reader, id string) group.ConsumerSettings {
	var seen metadata.Reader
	var common group.ConsumerSettings
	current := node
	return func(image metadata.Reader, id string) group.ConsumerSettings {
		if image != seen {
			current = node.WithDynamic(image.Config(metadata.ResourceBroker, ""), nil)
			seen, common = image, consumerSettings(current, nil)
		}
		configs := image.Config(metadata.ResourceGroup, id)
		if len(configs) == 0 {
			return common
		}
		return consumerSettings(current, configs)
	}
}

func consumerSettings(node *configdef.Node, configs map[string]string) group.ConsumerSettings {
	ms := func(name string) time.Duration { return configdef.Millis(node.GroupValue(name, configs).Int) }
	return group.ConsumerSettings{
		SessionTimeout:     ms("consumer.session.timeout.ms"),
		HeartbeatInterval:  ms("consumer.heartbeat.interval.ms"),
		AssignmentInterval: ms("consumer.assignment.interval.ms"),
	}
}

func minutes(n int64) time.Duration {
	if n > int64(math.MaxInt64/time.Minute) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Minute
}

// newUUID is a random UUID in its usual text form, as it stands in the ids of members.
func newUUID() string {
	var u [16]byte
	// crypto/rand.Read never fails: it ends the process when the kernel has no randomness.
	_, _ = rand.Read(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
