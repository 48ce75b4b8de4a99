package configdef

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"chancery/services/kafka/errcode"
)

// Op is an operation of IncrementalAlterConfigs, with Kafka's number.
type Op int8

// The operations.
const (
	OpSet      Op = 0
	OpDelete   Op = 1
	OpAppend   Op = 2
	OpSubtract Op = 3
)

// Alteration is a wish to change one config.
type Alteration struct {
	Name string
	Op   Op
	// Value is nil for null, which only OpDelete allows.
	Value *string
}

// Change is what an alteration comes to: a config's new value, nil when it is removed.
type Change struct {
	Name  string
	Value *string
}

// maxValueBytes is how long a value may be.
const maxValueBytes = 32767

// CheckAlterations refuses what no resource allows: a config named twice, a null value, an unknown operation.
func CheckAlterations(alterations []Alteration) error {
	seen := make(map[string]bool, len(alterations))
	var nulls []string
	for _, a := range alterations {
		if seen[a.Name] {
			return errcode.InvalidRequest.Errorf("Error due to duplicate config keys")
		}
		seen[a.Name] = true
		if a.Op != OpDelete && a.Value == nil {
			nulls = append(nulls, a.Name)
		}
	}
	if len(nulls) > 0 {
		return errcode.InvalidRequest.Errorf("Null value not supported for : %s", strings.Join(nulls, ", "))
	}
	for _, a := range alterations {
		if a.Op < OpSet || a.Op > OpSubtract {
			return errcode.InvalidRequest.Errorf("Unknown operations type %d", a.Op)
		}
	}
	return nil
}

// Alter applies alterations to the configs that are set on a resource now. It gives the configs afterwards, which the
// caller has yet to validate, and the changes that make them so. Changes that change nothing are left out, but for
// brokers, for which setting a value again makes them load it again.
func Alter(r Resource, current map[string]string, alterations []Alteration) (map[string]string, []Change, error) {
	if err := CheckAlterations(alterations); err != nil {
		return nil, nil, err
	}
	after := maps.Clone(current)
	if after == nil {
		after = make(map[string]string)
	}
	var changes []Change
	for _, a := range alterations {
		value, err := a.apply(r, current)
		if err != nil {
			return nil, nil, err
		}
		if value != nil && len(*value) > maxValueBytes {
			return nil, nil, errcode.InvalidConfig.Errorf("The configuration value cannot be added because it exceeds the "+
				"maximum value size of %d bytes.", maxValueBytes)
		}
		old, was := current[a.Name]
		if r != BrokerResource && (value == nil && !was || value != nil && was && *value == old) {
			continue
		}
		changes = append(changes, Change{a.Name, value})
		if value == nil {
			delete(after, a.Name)
		} else {
			after[a.Name] = *value
		}
	}
	return after, changes, nil
}

// apply gives the value of the config after the operation.
func (a Alteration) apply(r Resource, current map[string]string) (*string, error) {
	switch a.Op {
	case OpSet:
		return a.Value, nil
	case OpDelete:
		return nil, nil
	case OpAppend, OpSubtract:
	}
	d := Lookup(r, a.Name)
	if d == nil || d.Type != List {
		verb := "APPEND"
		if a.Op == OpSubtract {
			verb = "SUBTRACT"
		}
		return nil, errcode.InvalidConfig.Errorf("Can't %s to key %s because its type is not LIST.", verb, a.Name)
	}
	old, ok := current[a.Name]
	if !ok {
		old = d.Default
	}
	parts := slices.DeleteFunc(strings.Split(old, ","), func(s string) bool { return s == "" })
	for _, part := range strings.Split(*a.Value, ",") {
		at := slices.Index(parts, part)
		switch {
		case a.Op == OpAppend && at < 0:
			parts = append(parts, part)
		case a.Op == OpSubtract && at >= 0:
			parts = slices.Delete(parts, at, at+1)
		}
	}
	value := strings.Join(parts, ",")
	return &value, nil
}

// Replace gives the changes by which AlterConfigs makes the configs of a resource exactly those given: what is set and not
// given is removed. Given values must not be null and no name may come twice; CheckAlterations with OpSet sees to that.
func Replace(r Resource, current, given map[string]string) ([]Change, error) {
	var changes []Change
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value := given[name]
		if len(value) > maxValueBytes {
			return nil, errcode.InvalidConfig.Errorf("The configuration value cannot be added because it exceeds the "+
				"maximum value size of %d bytes.", maxValueBytes)
		}
		if old, was := current[name]; r == BrokerResource || !was || old != value {
			changes = append(changes, Change{name, &value})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current)) {
		if _, ok := given[name]; !ok {
			changes = append(changes, Change{Name: name})
		}
	}
	return changes, nil
}

// NullValues is the error of a topic that is created with null values.
func NullValues(names ...string) error {
	return errcode.InvalidConfig.Errorf("Null value not supported for topic configs: %s", strings.Join(names, ","))
}

// bracketed writes names as Java writes a collection.
func bracketed(names []string) string { return fmt.Sprintf("[%s]", strings.Join(names, ", ")) }
