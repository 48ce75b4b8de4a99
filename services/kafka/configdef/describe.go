package configdef

import (
	"maps"
	"slices"
)

// Entry is the description of one config.
type Entry struct {
	Name string
	// Value is nil for null and for what must not be shown.
	Value     *string
	Source    Source
	ReadOnly  bool
	Sensitive bool
	Type      Type
	Doc       string
	// Synonyms are all values that stand behind the config, in order of precedence; its own is the first.
	Synonyms []EntrySynonym
}

// EntrySynonym is a value behind a config.
type EntrySynonym struct {
	Name   string
	Value  *string
	Source Source
}

// Describe describes the configs of a topic, a group or a client metrics subscription, in the order of their names.
// No names means all of them.
func (l Layers) Describe(r Resource, names []string) []Entry {
	if r == BrokerResource {
		return l.describeBroker(names)
	}
	var entries []Entry
	for i := range r.defs() {
		d := &r.defs()[i]
		if !wanted(names, d.Name) {
			continue
		}
		if _, set := l.Resource[d.Name]; (d.Internal || d.Own) && !set {
			continue
		}
		entries = append(entries, l.describe(r, d))
	}
	return entries
}

func wanted(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

func (l Layers) describe(r Resource, d *Def) Entry {
	e := Entry{Name: d.Name, Value: hide(d, d.Format(l.effective(d))), Source: Default, Sensitive: d.Sensitive(), Type: d.Type, Doc: d.Doc}
	if _, set := l.Resource[d.Name]; set {
		e.Synonyms = append(e.Synonyms, EntrySynonym{d.Name, e.Value, r.resourceSource()})
	}
	switch {
	case len(d.Synonyms) > 0:
		e.Synonyms = append(e.Synonyms, l.brokerSynonyms(d.Synonyms[0].Name)...)
	case r == GroupResource:
		if s := hide(d, d.Format(d.DefaultValue())); s != nil {
			e.Synonyms = append(e.Synonyms, EntrySynonym{d.Name, s, Default})
		}
	}
	if len(e.Synonyms) > 0 {
		e.Source = e.Synonyms[0].Source
	}
	return e
}

func hide(d *Def, s *string) *string {
	if d.Sensitive() {
		return nil
	}
	return s
}

// synonymGroups are broker configs that stand for each other in several units.
var synonymGroups = [][]string{
	{"log.roll.ms", "log.roll.hours"},
	{"log.roll.jitter.ms", "log.roll.jitter.hours"},
	{"log.retention.ms", "log.retention.minutes", "log.retention.hours"},
}

// synonymNames gives the names that a broker config may also have, in order of precedence.
func synonymNames(name string) []string {
	if name == "log.flush.interval.ms" {
		return []string{name, "log.flush.scheduler.interval.ms"}
	}
	for _, group := range synonymGroups {
		if slices.Contains(group, name) {
			return group
		}
	}
	if base, ok := listenerBase(name); ok {
		return []string{name, base}
	}
	return []string{name}
}

// brokerSynonyms lists the values behind a broker config. As in Kafka, the list begins where the config's own name
// is first met: values of coarser units alone do not show.
func (l Layers) brokerSynonyms(name string) []EntrySynonym {
	names := synonymNames(name)
	var all []EntrySynonym
	add := func(n string, value *string, source Source) {
		if d := Lookup(BrokerResource, name); d == nil || d.Sensitive() {
			value = nil
		}
		all = append(all, EntrySynonym{n, value, source})
	}
	for _, layer := range l.brokerLayers() {
		for _, n := range names {
			if v, ok := layer.values[n]; ok {
				add(n, &v, layer.source)
			}
		}
	}
	for _, n := range names {
		if d := brokerTable.get(n); d != nil && d.DefaultKind == HasDefault {
			add(n, d.Format(d.DefaultValue()), Default)
		}
	}
	first := slices.IndexFunc(all, func(s EntrySynonym) bool { return s.Name == name })
	if first < 0 {
		return nil
	}
	return all[first:]
}

// describeBroker describes the configs of a broker: those of the table, and what else was set.
func (l Layers) describeBroker(names []string) []Entry {
	var entries []Entry
	for _, name := range l.brokerNames() {
		if wanted(names, name) {
			text, set := l.find(name)
			entries = append(entries, l.describeBrokerConfig(name, text, set))
		}
	}
	return entries
}

// brokerNames are the names to describe: public ones, and all that are set.
func (l Layers) brokerNames() []string {
	set := make(map[string]bool, len(brokerTable))
	for i := range brokerTable {
		d := &brokerTable[i]
		if !d.Internal && !d.Own && d.DefaultKind != Required && d.Mode != DynamicOnly {
			set[d.Name] = true
		}
	}
	for _, layer := range l.brokerLayers() {
		for name := range layer.values {
			set[name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func (l Layers) describeBrokerConfig(name, text string, set bool) Entry {
	e := Entry{Name: name, Source: Default, ReadOnly: true, Sensitive: true}
	if d := Lookup(BrokerResource, name); d != nil {
		v := d.DefaultValue()
		if set {
			if parsed, err := d.Parse(text); err == nil {
				v = parsed
			}
		}
		e.Type, e.Doc, e.Sensitive = d.Type, d.Doc, d.Sensitive()
		// A config with a listener's prefix is read-only for Kafka even though it can be altered.
		e.ReadOnly = d.Mode == ReadOnly || d.Name != name
		e.Value = hide(d, d.Format(v))
	}
	e.Synonyms = l.brokerSynonyms(name)
	if len(e.Synonyms) > 0 {
		e.Source = e.Synonyms[0].Source
	}
	return e
}

// DescribeClusterDefault describes the dynamic configs of all brokers, which is what the broker resource without a name
// stands for.
func (l Layers) DescribeClusterDefault(names []string) []Entry {
	only := Layers{ClusterDefault: l.ClusterDefault}
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(l.ClusterDefault)) {
		if !wanted(names, name) {
			continue
		}
		text := l.ClusterDefault[name]
		e := only.describeBrokerConfig(name, text, true)
		if !e.Sensitive {
			e.Value = &text
		}
		e.Synonyms = slices.DeleteFunc(e.Synonyms, func(s EntrySynonym) bool { return s.Source != DynamicDefaultBroker })
		entries = append(entries, e)
	}
	return entries
}

// Effective gives the values in force of a topic's configs as CreateTopics answers them: unlike Describe it says
// that a value comes from the static file when only a coarser unit is set there. There are no synonyms and no texts.
func (l Layers) Effective() []Entry {
	var entries []Entry
	for i := range topicTable {
		d := &topicTable[i]
		if _, set := l.Resource[d.Name]; d.Internal && !set {
			continue
		}
		e := Entry{Name: d.Name, Source: Default, Sensitive: d.Sensitive(), Type: d.Type, Value: d.Format(d.DefaultValue())}
		if _, text, source, ok := l.lookUp(d); ok {
			e.Value, e.Source = &text, source
		}
		e.Value = hide(d, e.Value)
		entries = append(entries, e)
	}
	return entries
}
