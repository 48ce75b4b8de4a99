package consumer

import (
	"cmp"
	"encoding/binary"
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"unicode/utf16"

	"github.com/zeebo/xxh3"

	"chancery/coordinatord/internal/assignor"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// topicHashVersion is the first byte of what a topic's hash is made of.
const topicHashVersion byte = 0

// Hashes gives what topics look like to groups as numbers, as Kafka computes them, and remembers them. It belongs to one
// goroutine.
type Hashes struct{ known map[string]knownHash }

type knownHash struct {
	topic *metadata.Topic
	hash  uint64
}

// NewHashes knows nothing yet.
func NewHashes() *Hashes { return &Hashes{known: map[string]knownHash{}} }

// Forget forgets all topics, because the racks of nodes may have changed.
func (h *Hashes) Forget() { clear(h.known) }

// Of is the hash of all topics that exist, of those named. The names are sorted.
func (h *Hashes) Of(image metadata.Reader, names []string) int64 {
	var b []byte
	for _, name := range names {
		t := image.TopicByName(name)
		if t == nil {
			delete(h.known, name)
			continue
		}
		k, ok := h.known[name]
		if !ok || k.topic != t {
			k = knownHash{topic: t, hash: topicHash(image, t)}
			h.known[name] = k
		}
		b = binary.LittleEndian.AppendUint64(b, k.hash)
	}
	if len(b) == 0 {
		return 0
	}
	return int64(xxh3.Hash(b))
}

// topicHash covers the id, the name, the number of partitions and the racks of their replicas.
func topicHash(image metadata.Reader, t *metadata.Topic) uint64 {
	b := []byte{topicHashVersion}
	b = binary.LittleEndian.AppendUint64(b, binary.BigEndian.Uint64(t.ID[:8]))
	b = binary.LittleEndian.AppendUint64(b, binary.BigEndian.Uint64(t.ID[8:]))
	b = appendText(b, t.Name)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Partitions)))
	for i, p := range t.Partitions {
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
		for _, rack := range racksOf(image, p) {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(utf16.Encode([]rune(rack)))))
			b = appendText(b, rack)
		}
	}
	return xxh3.Hash(b)
}

// appendText appends a text as UTF-16 and then its length in UTF-16 units.
func appendText(b []byte, s string) []byte {
	units := utf16.Encode([]rune(s))
	for _, u := range units {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return binary.LittleEndian.AppendUint32(b, uint32(len(units)))
}

func racksOf(image metadata.Reader, p *metadata.Partition) []string {
	var racks []string
	for _, id := range p.Replicas {
		if b := image.Broker(id); b != nil && b.Rack != nil {
			racks = append(racks, *b.Rack)
		}
	}
	slices.Sort(racks)
	return racks
}

// IDs are the ids of the topics that exist, of those named.
func IDs(image metadata.Reader, names []string) map[uuid.UUID]struct{} {
	ids := make(map[uuid.UUID]struct{}, len(names))
	for _, name := range names {
		if t := image.TopicByName(name); t != nil {
			ids[t.ID] = struct{}{}
		}
	}
	return ids
}

// Plan makes a target assignment for some members of the group; targetOf gives what each was to have before. Where members have
// equal rights, the order decides, which is that of Apache Kafka's table of members.
func (g *Group) Plan(image metadata.Reader, members []*Member, homogeneous bool, assign assignor.Assignor, targetOf func(*Member) assignor.Partitions) (map[string]assignor.Partitions, error) {
	spec := assignor.Group{Homogeneous: homogeneous, PartitionCount: map[uuid.UUID]int{}}
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b *Member) int {
		return cmp.Compare(hash.TableSlot(a.ID, len(members)), hash.TableSlot(b.ID, len(members)))
	})
	for _, m := range members {
		topics := IDs(image, g.TopicsOf(m))
		for id := range topics {
			spec.PartitionCount[id] = len(image.Topic(id).Partitions)
		}
		spec.Members = append(spec.Members, assignor.Member{ID: m.ID, InstanceID: m.InstanceID, Topics: topics, Target: targetOf(m)})
	}
	return assign(spec)
}

// CheckRegex says what is wrong with a regular expression.
func CheckRegex(expression string) error {
	_, err := regexp.Compile(expression)
	if err == nil {
		return nil
	}
	reason := err.Error()
	var syntaxErr *syntax.Error
	if errors.As(err, &syntaxErr) {
		reason = syntaxErr.Code.String()
	}
	return errcode.InvalidRegularExpression.Errorf("SubscribedTopicRegex `%s` is not a valid regular expression: %s.", expression, reason)
}

// Resolve finds the topics whose whole names match regular expressions. One that is not valid matches nothing.
func Resolve(image metadata.Reader, expressions []string, nowMs int64) map[string]*Regex {
	resolved := make(map[string]*Regex, len(expressions))
	compiled := make(map[string]*regexp.Regexp, len(expressions))
	for _, e := range expressions {
		resolved[e] = &Regex{Version: image.Offset(), TimestampMs: nowMs}
		if re, err := regexp.Compile(`\A(?:` + e + `)\z`); err == nil {
			compiled[e] = re
		}
	}
	for t := range image.Topics() {
		for e, re := range compiled {
			if re.MatchString(t.Name) {
				resolved[e].Topics = append(resolved[e].Topics, t.Name)
			}
		}
	}
	for _, r := range resolved {
		slices.Sort(r.Topics)
	}
	return resolved
}
