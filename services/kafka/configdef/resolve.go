package configdef

import "errors"

// Source says which layer a value comes from, with the numbers of DescribeConfigs.
type Source int8

// The sources.
const (
	DynamicTopic         Source = 1
	DynamicBroker        Source = 2
	DynamicDefaultBroker Source = 3
	StaticBroker         Source = 4
	Default              Source = 5
	DynamicBrokerLogger  Source = 6
	DynamicClientMetrics Source = 7
	DynamicGroup         Source = 8
)

// resourceSource is the source of values that are set on the resource itself.
func (r Resource) resourceSource() Source {
	switch r {
	case TopicResource:
		return DynamicTopic
	case GroupResource:
		return DynamicGroup
	case ClientMetricsResource:
		return DynamicClientMetrics
	case BrokerLoggerResource:
		return DynamicBrokerLogger
	case BrokerResource:
	}
	return DynamicBroker
}

// brokerLayers are the layers of broker configs in their order of precedence.
func (l Layers) brokerLayers() []struct {
	values map[string]string
	source Source
} {
	return []struct {
		values map[string]string
		source Source
	}{{l.Broker, DynamicBroker}, {l.ClusterDefault, DynamicDefaultBroker}, {l.Static, StaticBroker}}
}

// lookUp gives the value of a topic's or a group's config from a layer above the default, converted to its unit, and as
// text. The source of a value that is set on the resource itself is DynamicTopic. It skips values that cannot be parsed.
func (l Layers) lookUp(d *Def) (v Value, text string, source Source, ok bool) {
	if text, ok := l.Resource[d.Name]; ok {
		if v, err := d.Parse(text); err == nil {
			return v, text, DynamicTopic, true
		}
	}
	for _, layer := range l.brokerLayers() {
		for _, s := range d.Synonyms {
			text, ok := layer.values[s.Name]
			if !ok {
				continue
			}
			if v, err := s.convert(d, text); err == nil {
				return v, *d.Format(v), layer.source, true
			}
		}
	}
	return Value{}, "", Default, false
}

// convert reads a broker config's value as the value of the config that it gives the default of.
func (s Synonym) convert(d *Def, text string) (Value, error) {
	b := brokerTable.get(s.Name)
	v, err := b.Parse(text)
	switch {
	case err != nil:
		return v, err
	case s.First && len(v.List) > 0:
		return Value{Text: v.List[0]}, nil
	case s.Factor > 0:
		v.Int *= s.Factor
	}
	if d.Name == "retention.ms" && v.Int < 0 {
		v.Int = -1 // A broker takes every negative retention for unlimited.
	}
	return v, nil
}

// effective gives the value in force of a topic's or a group's config.
func (l Layers) effective(d *Def) Value {
	if v, _, _, ok := l.lookUp(d); ok {
		return v
	}
	// The default of the broker config counts, which is the table's own except for lists of which the first counts.
	if len(d.Synonyms) > 0 && d.Synonyms[0].First {
		if v, err := d.Synonyms[0].convert(d, brokerTable.get(d.Synonyms[0].Name).Default); err == nil {
			return v
		}
	}
	return d.DefaultValue()
}

// Topic are all configs of a topic, resolved.
type Topic struct {
	// CleanupCompact and CleanupDelete are the entries of cleanup.policy; without either, everything is kept.
	CleanupCompact bool
	CleanupDelete  bool
	// CompressionType is producer, uncompressed, gzip, snappy, lz4 or zstd.
	CompressionType      string
	CompressionGzipLevel int
	CompressionLz4Level  int
	CompressionZstdLevel int

	MaxMessageBytes             int
	MaxDecompressedMessageBytes int
	// MessageTimestampType is CreateTime or LogAppendTime.
	MessageTimestampType        string
	MessageTimestampBeforeMaxMs int64
	MessageTimestampAfterMaxMs  int64
	MinInsyncReplicas           int
	UncleanLeaderElectionEnable bool

	// SegmentBytes counts internal.segment.bytes in, where that is set.
	SegmentBytes       int
	SegmentMs          int64
	SegmentJitterMs    int64
	SegmentIndexBytes  int
	IndexIntervalBytes int
	Preallocate        bool
	FlushMessages      int64
	FlushMs            int64
	FileDeleteDelayMs  int64

	// RetentionMs and RetentionBytes are -1 for no limit.
	RetentionMs            int64
	RetentionBytes         int64
	DeleteRetentionMs      int64
	MinCompactionLagMs     int64
	MaxCompactionLagMs     int64
	MinCleanableDirtyRatio float64

	// LeaderThrottledReplicas and FollowerThrottledReplicas are lists of partition:broker, or * alone.
	LeaderThrottledReplicas   []string
	FollowerThrottledReplicas []string

	// LocalRetentionMs and LocalRetentionBytes are -2 for the value of the whole log's retention.
	LocalRetentionMs         int64
	LocalRetentionBytes      int64
	RemoteStorageEnable      bool
	RemoteLogCopyDisable     bool
	RemoteLogDeleteOnDisable bool
	// RemoteCopyLagMs and RemoteCopyLagBytes are -1 for the value of the local retention; CopyLag has what that comes to.
	RemoteCopyLagMs    int64
	RemoteCopyLagBytes int64

	// DeadLetterQueueEnable says that share groups may use the topic as their dead-letter queue.
	DeadLetterQueueEnable bool
}

// LocalRetention is how long, and how much of, a tiered log stays on the storage nodes; -1 for no limit.
func (t *Topic) LocalRetention() (ms, bytes int64) {
	ms, bytes = t.LocalRetentionMs, t.LocalRetentionBytes
	if ms == -2 {
		ms = t.RetentionMs
	}
	if bytes == -2 {
		bytes = t.RetentionBytes
	}
	return ms, bytes
}

// CopyLag is how old a closed segment is, and how much has been written behind it, before it is copied to the remote tier:
// either is enough, 0 for either means at once, and -1 that it never makes a segment due.
func (t *Topic) CopyLag() (ms, bytes int64) {
	localMs, localBytes := t.LocalRetention()
	ms, bytes = t.RemoteCopyLagMs, t.RemoteCopyLagBytes
	if ms == -1 {
		ms = localMs
	}
	if bytes == -1 {
		bytes = localBytes
	}
	return ms, bytes
}

// Topic resolves the configs of a topic: those set on it, over those of this node. A value that cannot be parsed counts as
// not set; the error then says so, and the result is good all the same.
func (n *Node) Topic(configs map[string]string) (Topic, error) {
	l := n.Layers(configs)
	get := func(name string) Value { return l.effective(topicTable.get(name)) }
	number := func(name string) int { return int(get(name).Int) }
	long := func(name string) int64 { return get(name).Int }
	flag := func(name string) bool { return get(name).Bool }
	t := Topic{
		CompressionType:             get("compression.type").Text,
		CompressionGzipLevel:        number("compression.gzip.level"),
		CompressionLz4Level:         number("compression.lz4.level"),
		CompressionZstdLevel:        number("compression.zstd.level"),
		MaxMessageBytes:             number("max.message.bytes"),
		MaxDecompressedMessageBytes: number("max.decompressed.message.bytes"),
		MessageTimestampType:        get("message.timestamp.type").Text,
		MessageTimestampBeforeMaxMs: long("message.timestamp.before.max.ms"),
		MessageTimestampAfterMaxMs:  long("message.timestamp.after.max.ms"),
		MinInsyncReplicas:           number("min.insync.replicas"),
		UncleanLeaderElectionEnable: flag("unclean.leader.election.enable"),
		SegmentBytes:                number("segment.bytes"),
		SegmentMs:                   long("segment.ms"),
		SegmentJitterMs:             long("segment.jitter.ms"),
		SegmentIndexBytes:           number("segment.index.bytes"),
		IndexIntervalBytes:          number("index.interval.bytes"),
		Preallocate:                 flag("preallocate"),
		FlushMessages:               long("flush.messages"),
		FlushMs:                     long("flush.ms"),
		FileDeleteDelayMs:           long("file.delete.delay.ms"),
		RetentionMs:                 long("retention.ms"),
		RetentionBytes:              long("retention.bytes"),
		DeleteRetentionMs:           long("delete.retention.ms"),
		MinCompactionLagMs:          long("min.compaction.lag.ms"),
		MaxCompactionLagMs:          long("max.compaction.lag.ms"),
		MinCleanableDirtyRatio:      get("min.cleanable.dirty.ratio").Double,
		LeaderThrottledReplicas:     get("leader.replication.throttled.replicas").List,
		FollowerThrottledReplicas:   get("follower.replication.throttled.replicas").List,
		LocalRetentionMs:            long("local.retention.ms"),
		LocalRetentionBytes:         long("local.retention.bytes"),
		RemoteStorageEnable:         flag("remote.storage.enable"),
		RemoteLogCopyDisable:        flag("remote.log.copy.disable"),
		RemoteLogDeleteOnDisable:    flag("remote.log.delete.on.disable"),
		RemoteCopyLagMs:             long("remote.copy.lag.ms"),
		RemoteCopyLagBytes:          long("remote.copy.lag.bytes"),
		DeadLetterQueueEnable:       flag("errors.deadletterqueue.group.enable"),
	}
	for _, policy := range get("cleanup.policy").List {
		t.CleanupCompact = t.CleanupCompact || policy == "compact"
		t.CleanupDelete = t.CleanupDelete || policy == "delete"
	}
	if v := get("internal.segment.bytes"); !v.Null {
		t.SegmentBytes = int(v.Int)
	}
	return t, checkValues(TopicResource, configs)
}

// GroupValue gives the value in force of a group's config.
func (n *Node) GroupValue(name string, configs map[string]string) Value {
	d := groupTable.get(name)
	if d == nil {
		panic("configdef: there is no group config " + name)
	}
	return n.withinBounds(d, n.Layers(configs).effective(d))
}

// withinBounds brings a group's value back into the bounds of the node, which may have changed since it was set.
func (n *Node) withinBounds(d *Def, v Value) Value {
	if d.Type != Int {
		return v
	}
	if d.LowerBound != "" {
		v.Int = max(v.Int, n.Long(d.LowerBound))
	}
	if d.UpperBound != "" {
		v.Int = min(v.Int, n.Long(d.UpperBound))
	}
	return v
}

// checkValues parses the values of a resource's configs; names that are not known are left alone.
func checkValues(r Resource, configs map[string]string) error {
	var errs []error
	for name, text := range configs {
		if d := Lookup(r, name); d != nil {
			if _, err := d.Parse(text); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
