// Package configdef is the table of all configs: Kafka's for brokers, topics, groups and client metrics, and our own.
//
// It owns their names, types, defaults, bounds, synonyms and update modes; how values are parsed and checked; how layers
// of them are resolved and described; and how they may be altered. It must never know where values are kept: files, the
// command line and the metadata log are other packages' business.
//
// A config of a topic, group or broker gets its value from the first layer that has one: the resource itself, the broker's
// dynamic configs, the dynamic defaults of all brokers, the static file, the default in the table.
package configdef

import (
	"slices"
	"strings"
)

// Resource is the kind of thing that a config belongs to, with Kafka's numbers.
type Resource int8

// The resources that have configs.
const (
	TopicResource         Resource = 2
	BrokerResource        Resource = 4
	BrokerLoggerResource  Resource = 8
	ClientMetricsResource Resource = 16
	GroupResource         Resource = 32
)

// Type is the type of a config's value, with the numbers of DescribeConfigs.
type Type int8

// The types.
const (
	Unknown  Type = 0
	Boolean  Type = 1
	String   Type = 2
	Int      Type = 3
	Short    Type = 4
	Long     Type = 5
	Double   Type = 6
	List     Type = 7
	Class    Type = 8
	Password Type = 9
)

// String is the type's name as Kafka writes it.
func (t Type) String() string {
	names := []string{"UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"}
	if t < 0 || int(t) >= len(names) {
		return names[Unknown]
	}
	return names[t]
}

// Importance says how likely it is that somebody changes a config.
type Importance int8

// The levels of importance.
const (
	Low Importance = iota + 1
	Medium
	High
)

// UpdateMode says how a broker config may change while the cluster runs.
type UpdateMode int8

// The update modes.
const (
	// ReadOnly configs change with a restart only.
	ReadOnly UpdateMode = iota + 1
	// PerBroker configs may be altered for one broker.
	PerBroker
	// ClusterWide configs may be altered for one broker and for all.
	ClusterWide
	// DynamicOnly configs are altered like ClusterWide ones, and have no meaning in a file.
	DynamicOnly
)

// Def is one config: a row of the table.
type Def struct {
	Name string
	Type Type
	// Default is what applies when nothing is set. It is empty for NoDefault and Required.
	Default string
	// DefaultKind says whether there is a default at all.
	DefaultKind DefaultKind
	// Valid checks a value beyond its type; nil for anything.
	Valid Validator
	// Importance and Mode are for people and for altering; Mode matters for broker configs only.
	Importance Importance
	Mode       UpdateMode
	// Internal configs are described only when they are set.
	Internal bool
	// Own marks a config that Kafka does not have; it is described only when it is set.
	Own bool
	// Synonyms of a topic's or a group's config are the broker configs that give its default, the first that is set wins.
	Synonyms []Synonym
	// LowerBound and UpperBound name the broker configs that bound a group's config.
	LowerBound, UpperBound string
	Doc                    string
}

// DefaultKind says what a config is when nothing is set.
type DefaultKind int8

// The kinds of defaults.
const (
	// HasDefault: the value in Default.
	HasDefault DefaultKind = iota
	// NoDefault: null.
	NoDefault
	// Required: a value must be given by whoever needs the config.
	Required
)

// Synonym is a broker config that gives the default of a topic's or a group's config.
type Synonym struct {
	Name string
	// Factor converts its value: 3600000 for hours into milliseconds, for example. 0 means that it is taken as it is.
	Factor int64
	// First takes the first entry of a list.
	First bool
}

// Value is a parsed value. Only the field for the type is set; Null says that there is none.
type Value struct {
	Null   bool
	Bool   bool
	Int    int64
	Double float64
	Text   string
	List   []string
}

// Sensitive says whether values must never be shown.
func (d *Def) Sensitive() bool { return d.Type == Password }

// DefaultValue is the parsed default.
func (d *Def) DefaultValue() Value {
	if d.DefaultKind != HasDefault {
		return Value{Null: true}
	}
	v, err := d.parseType(d.Default)
	if err != nil {
		return Value{Null: true} // A test parses every default of the table.
	}
	return v
}

// table holds the rows of a resource, sorted by name.
type table []Def

// get finds a row by binary search, so that the tables need no maps made at start.
func (t table) get(name string) *Def {
	i, ok := slices.BinarySearchFunc(t, name, func(d Def, name string) int { return strings.Compare(d.Name, name) })
	if !ok {
		return nil
	}
	return &t[i]
}

// defs is the table of a resource; nil for one without configs of its own.
func (r Resource) defs() table {
	switch r {
	case TopicResource:
		return topicTable
	case BrokerResource:
		return brokerTable
	case GroupResource:
		return groupTable
	case ClientMetricsResource:
		return clientMetricsTable
	case BrokerLoggerResource:
	}
	return nil
}

// Lookup finds the definition of a config; nil when there is none. A broker config may have a listener's prefix, as in
// listener.name.external.ssl.keystore.location.
func Lookup(r Resource, name string) *Def {
	if d := r.defs().get(name); d != nil || r != BrokerResource {
		return d
	}
	if base, ok := listenerBase(name); ok {
		return brokerTable.get(base)
	}
	return nil
}

// All gives the definitions of a resource in the order of their names. They must not be changed.
func All(r Resource) []Def { return r.defs() }

const listenerPrefix = "listener.name."

// listenerBase gives the config behind a listener's prefix. For the configs of a SASL mechanism, the mechanism's
// name is part of the prefix too.
func listenerBase(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, listenerPrefix)
	if !ok {
		return "", false
	}
	_, base, ok := strings.Cut(rest, ".")
	if !ok {
		return "", false
	}
	for _, c := range mechanismConfigs {
		if base == c || strings.HasSuffix(base, "."+c) {
			return c, true
		}
	}
	return base, true
}

// mechanismConfigs may have a SASL mechanism's name before them.
var mechanismConfigs = []string{
	"sasl.jaas.config", "sasl.login.callback.handler.class", "sasl.login.class", "sasl.server.callback.handler.class",
	"connections.max.reauth.ms",
}

// pluginPrefixes begin the names of configs that are handed on to plug-ins as they are.
var pluginPrefixes = []string{"rlmm.config.", "rsm.config.", "remote.log.metadata.", "config.providers."}

// pluginNames are the configs of Kafka's own authorizer, which are no broker configs.
var pluginNames = []string{"super.users", "allow.everyone.if.no.acl.found"}

// KnownBrokerName says whether a key may stand in a properties file: a broker config, one with a listener's prefix, or one
// for a plug-in.
func KnownBrokerName(name string) bool {
	if Lookup(BrokerResource, name) != nil || slices.Contains(pluginNames, name) {
		return true
	}
	for _, p := range pluginPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
