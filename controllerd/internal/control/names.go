package control

import (
	"slices"
	"strings"

	"chancery/services/kafka/errcode"
)

const (
	maxTopicNameBytes = 249
	clusterMetadata   = "__cluster_metadata"
)

// checkTopicName says whether a topic may have a name.
func checkTopicName(name string) error {
	var reason string
	switch {
	case name == "":
		reason = "the empty string is not allowed"
	case name == "." || name == "..":
		reason = "'" + name + "' is not allowed"
	case len(name) > maxTopicNameBytes:
		return errcode.InvalidTopicException.Errorf("Topic name is invalid: the length of '%s' is longer than the max allowed length %d",
			name, maxTopicNameBytes)
	case strings.ContainsFunc(name, func(r rune) bool { return !isTopicNameRune(r) }):
		reason = "'" + name + "' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
	default:
		return nil
	}
	return errcode.InvalidTopicException.Errorf("Topic name is invalid: %s", reason)
}

func isTopicNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

// unified gives what names have in common that collide in metrics, and whether a name can collide at all.
func unified(name string) (string, bool) {
	return strings.ReplaceAll(name, ".", "_"), strings.ContainsAny(name, "._")
}

// noteName remembers a topic's name for collisions.
func (m *Manager) noteName(name string) {
	if key, collides := unified(name); collides {
		m.similar[key] = append(m.similar[key], name)
	}
}

func (m *Manager) forgetName(name string) {
	key, collides := unified(name)
	if !collides {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(m.similar[key]), func(n string) bool { return n == name })
	if len(rest) == 0 {
		delete(m.similar, key)
	} else {
		m.similar[key] = rest
	}
}

// checkNewTopicName says whether a topic can be made with a name.
func (m *Manager) checkNewTopicName(name string) error {
	if err := checkTopicName(name); err != nil {
		return err
	}
	if m.image.TopicByName(name) != nil {
		return errcode.TopicAlreadyExists.Errorf("Topic '%s' already exists.", name)
	}
	if key, collides := unified(name); collides && len(m.similar[key]) > 0 {
		return errcode.InvalidTopicException.Errorf("Topic '%s' collides with existing topic: %s", name, m.similar[key][0])
	}
	return nil
}
