package configdef

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"chancery/services/kafka/errcode"
)

// Layers are the places where a value may be set, as maps from names to values as they were given.
type Layers struct {
	// Static is the node's properties file and command line.
	Static map[string]string
	// ClusterDefault are the dynamic configs of all brokers, Broker those of the one broker.
	ClusterDefault map[string]string
	Broker         map[string]string
	// Resource are the configs of the topic, group or client metrics subscription.
	Resource map[string]string
}

// find gives the value of a broker config from the first layer that has it.
func (l Layers) find(name string) (string, bool) {
	for _, layer := range []map[string]string{l.Broker, l.ClusterDefault, l.Static} {
		if v, ok := layer[name]; ok {
			return v, true
		}
	}
	return "", false
}

// Node is the configuration of a process: its static properties and the dynamic broker configs that apply to it. It is
// immutable; a change of dynamic configs makes a new one.
type Node struct {
	layers Layers
}

// NewNode makes the configuration of a process from its properties. They are taken as they are; Check says what is wrong
// with them.
func NewNode(static map[string]string) *Node {
	static = maps.Clone(static)
	if static == nil {
		static = make(map[string]string)
	}
	// Kafka has two names for the id of a node.
	for _, names := range [][2]string{{"node.id", "broker.id"}, {"broker.id", "node.id"}} {
		if v, ok := static[names[0]]; ok {
			if _, ok := static[names[1]]; !ok {
				static[names[1]] = v
			}
		}
	}
	return &Node{Layers{Static: static}}
}

// WithDynamic gives the configuration with other dynamic broker configs: those of all brokers and those of this one. The
// maps must not change afterwards.
func (n *Node) WithDynamic(clusterDefault, broker map[string]string) *Node {
	return &Node{Layers{Static: n.layers.Static, ClusterDefault: clusterDefault, Broker: broker}}
}

// Layers gives the layers under a topic, a group or a client metrics subscription with these configs.
func (n *Node) Layers(resource map[string]string) Layers {
	l := n.layers
	l.Resource = resource
	return l
}

// IsSet says whether a config has a value other than its default.
func (n *Node) IsSet(name string) bool {
	_, ok := n.layers.find(name)
	return ok
}

// value gives a config's value. A value that cannot be parsed counts as not set: it was refused when it was given.
// A name that is not in the table, or another type, is a mistake in the calling code.
func (n *Node) value(name string, types ...Type) Value {
	d := Lookup(BrokerResource, name)
	if d == nil || !slices.Contains(types, d.Type) {
		panic(fmt.Sprintf("configdef: there is no broker config %q of type %v", name, types))
	}
	if text, ok := n.layers.find(name); ok {
		if v, err := d.Parse(text); err == nil {
			return v
		}
	}
	return d.DefaultValue()
}

// IsNull says whether a config has neither a value nor a default.
func (n *Node) IsNull(name string) bool {
	return n.value(name, Boolean, String, Int, Short, Long, Double, List, Class, Password).Null
}

// Int gives an int or short config, 0 for null.
func (n *Node) Int(name string) int { return int(n.value(name, Int, Short).Int) }

// Long gives a config of any whole number type, 0 for null.
func (n *Node) Long(name string) int64 { return n.value(name, Int, Short, Long).Int }

// Bool gives a boolean config.
func (n *Node) Bool(name string) bool { return n.value(name, Boolean).Bool }

// Double gives a double config.
func (n *Node) Double(name string) float64 { return n.value(name, Double).Double }

// String gives a string, class or password config, empty for null.
func (n *Node) String(name string) string { return n.value(name, String, Class, Password).Text }

// List gives a list config, nil for null.
func (n *Node) List(name string) []string { return n.value(name, List).List }

// Duration gives a config in milliseconds as a duration; what is longer than a duration can be is the longest one.
func (n *Node) Duration(name string) time.Duration { return Millis(n.Long(name)) }

// Millis makes a duration of milliseconds; what is longer than a duration can be is the longest one.
func Millis(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case ms > most:
		return math.MaxInt64
	case ms < -most:
		return math.MinInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// LogRetentionMs, LogRollMs, LogRollJitterMs and LogFlushMs are broker configs that have several names for several
// units, the finest of which wins.

// LogRetentionMs is how long records are kept by default; -1 for ever.
func (n *Node) LogRetentionMs() int64 { return n.fromSynonyms("retention.ms") }

// LogRollMs is the default age at which a segment rolls.
func (n *Node) LogRollMs() int64 { return n.fromSynonyms("segment.ms") }

// LogRollJitterMs is the default random part of that age.
func (n *Node) LogRollJitterMs() int64 { return n.fromSynonyms("segment.jitter.ms") }

// LogFlushMs is the default time after which a log is flushed.
func (n *Node) LogFlushMs() int64 { return n.fromSynonyms("flush.ms") }

func (n *Node) fromSynonyms(topicConfig string) int64 {
	return n.layers.effective(topicTable.get(topicConfig)).Int
}

// Check says what is wrong with the static properties: values that cannot be parsed or are out of bounds, and values that
// do not fit together.
func (n *Node) Check() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(n.layers.Static)) {
		if d := Lookup(BrokerResource, name); d != nil {
			if _, err := d.Parse(n.layers.Static[name]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := n.CheckTogether(); err != nil {
		return err
	}
	if !n.Bool("remote.log.storage.system.enable") {
		return nil
	}
	for _, l := range n.remoteDefaults() {
		if err := l.checkRetention(); err != nil {
			return err
		}
	}
	return nil
}

// CheckTogether says which values do not fit together.
func (n *Node) CheckTogether() error {
	retention := n.LogRetentionMs()
	maxIdle := n.Long("connections.max.idle.ms")
	queued := n.Long("queued.max.request.bytes")
	rules := []struct {
		holds bool
		text  string
	}{
		{n.Long("node.id") == n.Long("broker.id") || n.IsNull("node.id"), "`node.id` and `broker.id` must be set to the same value"},
		{n.LogRollMs() >= 1, "log.roll.ms must be greater than or equal to 1"},
		{n.LogRollJitterMs() >= 0, "log.roll.jitter.ms must be greater than or equal to 0"},
		{retention >= 1 || retention == -1, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"},
		{n.Long("log.cleaner.dedupe.buffer.size")/max(1, n.Long("log.cleaner.threads")) > 1<<20,
			"log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."},
		{n.Long("replica.fetch.wait.max.ms") <= n.Long("replica.socket.timeout.ms"),
			"replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket timeouts"},
		{n.Long("replica.fetch.wait.max.ms") <= n.Long("replica.lag.time.max.ms"),
			"replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent changes in ISR"},
		{queued <= 0 || queued >= n.Long("socket.request.max.bytes"),
			"queued.max.request.bytes must be larger or equal to socket.request.max.bytes"},
		{n.Long("max.connections.per.ip") > 0 || n.String("max.connections.per.ip.overrides") != "",
			"max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."},
		{maxIdle < 0 || n.Long("connection.failed.authentication.delay.ms") < maxIdle,
			"connection.failed.authentication.delay.ms must be less than connections.max.idle.ms"},
		{n.Long("log.cleaner.min.compaction.lag.ms") <= n.Long("log.cleaner.max.compaction.lag.ms"),
			"log.cleaner.min.compaction.lag.ms must not be greater than log.cleaner.max.compaction.lag.ms"},
	}
	for _, r := range rules {
		if !r.holds {
			return errcode.InvalidConfig.Errorf("%s", r.text)
		}
	}
	return n.checkGroupBounds()
}

// checkGroupBounds makes sure that the defaults of groups lie within the bounds for groups.
func (n *Node) checkGroupBounds() error {
	for i := range groupTable {
		d := &groupTable[i]
		if len(d.Synonyms) == 0 || d.LowerBound == "" && d.UpperBound == "" {
			continue
		}
		own := n.Long(d.Synonyms[0].Name)
		if d.LowerBound != "" && own < n.Long(d.LowerBound) {
			return errcode.InvalidConfig.Errorf("%s must be greater than or equal to %s", d.Synonyms[0].Name, d.LowerBound)
		}
		if d.UpperBound != "" && own > n.Long(d.UpperBound) {
			return errcode.InvalidConfig.Errorf("%s must be less than or equal to %s", d.Synonyms[0].Name, d.UpperBound)
		}
	}
	return nil
}
