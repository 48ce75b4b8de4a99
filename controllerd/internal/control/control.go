// Package control decides what the active controller does: which records answer a request, a silence or an election.
//
// It owns Kafka's rules for topics, partitions, storage nodes, configs and features, and ours for the members and shards that
// Kafka does not know. It is pure: it reads an image and the time that it is given, and returns records and replies. It must
// never do IO, start a goroutine, read a clock, or change the image: records do that, when they are applied.
package control

import (
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// maxRecordsPerOperation is how many records one request of a client may lead to.
const maxRecordsPerOperation = 10_000

// Settings are what an operator sets.
type Settings struct {
	// Node has the static configs: defaults of topics and of requests.
	Node *configdef.Node
	// SessionTimeout is how long a member may be silent before it is fenced.
	SessionTimeout time.Duration
	// ControllerID is the id of this controller.
	ControllerID int32
}

// Decision is what a request leads to. The records are to be appended to the log and applied; the reply goes out when they
// are durable, together with all that was decided before.
type Decision struct {
	Records []metarecord.Record
	// Atomic says that the records must take effect together.
	Atomic bool
	Reply  any
	// Leaders are the nodes that lead new partitions: the reply waits until each of them has taken its role.
	Leaders []int32
}

// Manager decides. It belongs to one goroutine.
//
// Beside the image it knows what is not in the log: the sessions of the members.
type Manager struct {
	settings Settings
	random   *rand.Rand
	newID    func() uuid.UUID
	logger   Logger

	now time.Time
	// image is the state after all records decided so far, next the offset of the next record.
	image *metadata.Image
	next  int64

	sessions map[memberKey]*session
	// similar are the topics by their names with dots as underscores: those two collide in metric names. Only names with
	// either are in it.
	similar map[string][]string
	// topicDefaults are the resolved configs of a topic that sets none, under defaultsOf, the cluster's dynamic configs.
	topicDefaults configdef.Topic
	defaultsOf    map[string]string
	haveDefaults  bool
	// shardsChanged says that shards may have to change owners.
	shardsChanged bool
}

// Logger takes the news that an operator wants to read; *slog.Logger is one.
type Logger interface {
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

// New makes a manager without a state; Reset gives it one.
func New(s Settings, random *rand.Rand, newID func() uuid.UUID, logger Logger) *Manager {
	return &Manager{settings: s, random: random, newID: newID, logger: logger}
}

// Reset begins from an image, at whose offset the log ends. The sessions begin anew: every unfenced member has its whole
// session time-out to be heard.
func (m *Manager) Reset(image *metadata.Image, next int64, now time.Time) {
	m.image, m.next, m.now = image, next, now
	m.similar = map[string][]string{}
	for t := range image.Topics() {
		m.noteName(t.Name)
	}
	m.haveDefaults = false
	m.shardsChanged = true
	m.resetSessions()
}

// At sets the time of what is decided next.
func (m *Manager) At(now time.Time) { m.now = now }

// Image is the state after all decisions so far.
func (m *Manager) Image() *metadata.Image { return m.image }

// Apply takes note that records were applied: the delta between the image before and the one after, and the offset of the
// next record.
func (m *Manager) Apply(delta *metadata.Delta, next int64) {
	m.next = next
	if delta == nil {
		return
	}
	m.image = delta.Image()
	for change := range delta.Topics() {
		switch {
		case change.Old == nil:
			m.noteName(change.New.Name)
		case change.New == nil:
			m.forgetName(change.Old.Name)
		}
		m.shardsChanged = m.shardsChanged || isShardTopic(change.Name())
	}
	for range delta.Services() {
		m.shardsChanged = true
		break
	}
	m.haveDefaults = m.haveDefaults && sameMap(m.defaultsOf, m.image.Config(metadata.ResourceBroker, ""))
	m.applySessions(delta)
}

// fail is the code and the message of a response for an error.
func fail(err error) (int16, *string) {
	if err == nil {
		return 0, nil
	}
	return int16(errcode.Of(err)), kmsg.StringPtr(errcode.Text(err))
}

// tooMany refuses operations that would lead to too many records.
func tooMany(records []metarecord.Record) error {
	if len(records) > maxRecordsPerOperation {
		return errcode.PolicyViolation.Errorf("Unable to perform excessively large batch operation.")
	}
	return nil
}

// elrEnabled says whether eligible leader replicas are kept (KIP-966).
func (m *Manager) elrEnabled() bool { return m.image.FeatureLevel(featureELR) >= 1 }

// topicConfig resolves the configs of a topic, with those of all brokers behind them.
func (m *Manager) topicConfig(name string) configdef.Topic {
	cluster := m.image.Config(metadata.ResourceBroker, "")
	own := m.image.Config(metadata.ResourceTopic, name)
	node := m.settings.Node.WithDynamic(cluster, nil)
	if len(own) > 0 {
		t, _ := node.Topic(own) // A value that cannot be parsed counts as not set.
		return t
	}
	if !m.haveDefaults {
		m.topicDefaults, _ = node.Topic(nil)
		m.defaultsOf, m.haveDefaults = cluster, true
	}
	return m.topicDefaults
}

// minISR is how many replicas a topic's partitions must have in sync.
func (m *Manager) minISR(t *metadata.Topic, c configdef.Topic) int {
	return min(c.MinInsyncReplicas, len(t.Partitions[0].Replicas))
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}
