package tiering

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/configdef"
	"chancery/services/metadata"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
	"chancery/services/objectstore/registry"
	"chancery/services/objectstore/segmentstore"
	"chancery/services/storage"
)

// Config says who this instance is. What Kafka calls broker configs comes as Properties.
type Config struct {
	NodeID    int32
	ClusterID string
	// Rack is broker.rack; empty means none.
	Rack string
	// Endpoints are the addresses that the instance is registered with.
	Endpoints []metadata.Endpoint
	Version   string
	// Properties are the settings as given at start, by Kafka's names; what is missing has its default. These are read:
	// remote.log.storage.system.enable, without which the instance does nothing, remote.log.storage.manager.class.name and
	// .impl.prefix with the store's own settings, remote.log.manager.task.interval.ms, .task.retry.backoff.ms,
	// .task.retry.backoff.max.ms, .task.retry.jitter, .copier.thread.pool.size, .copy and .fetch.max.bytes.per.second with
	// their windows, remote.log.reader.threads, remote.log.reader.max.pending.tasks,
	// remote.log.index.file.cache.total.size.bytes, remote.log.metadata.custom.metadata.max.bytes, the settings of
	// __remote_log_metadata (rlmm.config.), and what topics have by default. The sizes of pools and of the cache, and the quotas,
	// follow what is altered in the cluster.
	Properties map[string]string
	// Step is called at each named step of a copy or a deletion, for tests that stop there; nil outside tests.
	Step func(name string) error
}

// Metadata is the instance's view of the metadata log; *metadata.Follower is one.
type Metadata interface {
	Image() *metadata.Image
	Await(ctx context.Context, offset int64) error
	Subscribe(p metadata.Publisher)
	Ready() error
}

// Deps are what the instance works with.
type Deps struct {
	Metadata   Metadata
	Controller *controllerclient.Client
	// Nodes gives the storage nodes by id.
	Nodes  func(id int32) (storage.Node, error)
	Meter  metric.Meter
	Logger *slog.Logger
}

// settings are the parsed Properties.
type settings struct {
	node     *configdef.Node
	enabled  bool
	interval time.Duration
	retry    objectstore.Backoff
	pending  int
	// limits may change while the instance runs.
	limits    *limits
	maxCustom int
}

func newSettings(c Config) settings {
	node := configdef.NewNode(c.Properties)
	s := settings{
		node:     node,
		enabled:  node.Bool("remote.log.storage.system.enable"),
		interval: node.Duration("remote.log.manager.task.interval.ms"),
		retry: objectstore.Backoff{
			Base: node.Duration("remote.log.manager.task.retry.backoff.ms"), Max: node.Duration("remote.log.manager.task.retry.backoff.max.ms"),
			Jitter: node.Double("remote.log.manager.task.retry.jitter"),
		},
		pending:   node.Int("remote.log.reader.max.pending.tasks"),
		limits:    newLimits(node),
		maxCustom: node.Int("remote.log.metadata.custom.metadata.max.bytes"),
	}
	return s
}

// store are the settings of the store and of its reader.
func (s *settings) store(c Config, clusterID string) (*registry.Config, error) {
	return registry.Parse(c.Properties, s.node.String("remote.log.storage.manager.impl.prefix"), clusterID)
}

// open makes the store and its reader that the settings name. The cluster's id, which is a part of keys, may be known only
// when the metadata is.
func open(ctx context.Context, c Config, s settings, deps Deps) (objectstore.RemoteStorageManager, *coldread.Reader, error) {
	store, err := s.store(c, deps.Metadata.Image().ClusterID())
	if err != nil {
		return nil, nil, err
	}
	manager, err := registry.Stores().Open(ctx, s.node.String(registry.ClassNameConfig), store, segmentstore.Deps{Meter: deps.Meter, Logger: deps.Logger, Step: c.Step})
	if err != nil {
		return nil, nil, err
	}
	reader, err := coldread.New(manager, store.ColdRead, coldread.Deps{Meter: deps.Meter, Logger: deps.Logger, FetchLimiter: s.limits.fetching})
	if err != nil {
		return nil, nil, fmt.Errorf("cold reads: %w", closeBoth(manager, err))
	}
	reader.SetIndexBytes(s.limits.indexBytes.Load())
	return manager, reader, nil
}
