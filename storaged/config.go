package storaged

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/metric"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// Config says who this node is. What Kafka calls broker configs comes as Properties.
type Config struct {
	NodeID int32
	// ClusterID is the cluster that the node belongs to; empty takes the one in meta.properties, or else that of the
	// metadata log.
	ClusterID string
	// LogDirs are the log directories (log.dirs); they are made where they do not exist.
	LogDirs []string
	// Rack is broker.rack; empty means none.
	Rack string
	// Endpoints are the addresses that the node is registered with. One must have the name metadata.GRPCEndpoint.
	Endpoints []metadata.Endpoint
	// Features are the feature levels that the node supports; nil means those of Kafka 4.4.
	Features map[string]metadata.VersionRange
	// Properties are the node's settings as given at start, by Kafka's names; what is missing has its default.
	Properties map[string]string
}

// check says what is missing.
func (c *Config) check() error {
	if c.NodeID < 0 {
		return fmt.Errorf("node.id is %d: want 0 or more", c.NodeID)
	}
	if len(c.LogDirs) == 0 {
		return errors.New("log.dirs names no directory")
	}
	for _, e := range c.Endpoints {
		if e.Name == metadata.GRPCEndpoint {
			return nil
		}
	}
	return fmt.Errorf("no endpoint named %s: other nodes could not reach this one", metadata.GRPCEndpoint)
}

// Metadata is the node's view of the metadata log; *metadata.Follower is one.
type Metadata interface {
	Image() *metadata.Image
	Subscribe(p metadata.Publisher)
	// Acknowledge tells the controller once more what has been applied, because the node's epoch has changed.
	Acknowledge()
}

// Controller sends requests to the active controller; *controllerclient.Client is one.
type Controller interface {
	Request(ctx context.Context, req kmsg.Request, from controllerclient.Sender) (kmsg.Response, error)
}

// Coordinators takes requests to the owners of coordinator shards; *coordinatorclient.Client is one.
type Coordinators interface {
	Handle(ctx context.Context, kind metadata.ShardKind, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
}

// Deps is what the node works with.
type Deps struct {
	// Metadata is the node's follower of the metadata log. It acknowledges with the epoch that Server.BrokerEpoch gives.
	Metadata   Metadata
	Controller Controller
	// Nodes gives other storage nodes by id.
	Nodes func(id int32) (storage.Node, error)
	// Coordinators are where transactions are verified; nil where nobody writes any.
	Coordinators Coordinators
	Meter        metric.Meter
	// LogLevel is the level of Logger, which the broker-logger resource shows and alters; nil when it cannot be changed.
	LogLevel *slog.LevelVar
	Logger   *slog.Logger
}
