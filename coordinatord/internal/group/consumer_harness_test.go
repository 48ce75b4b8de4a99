package group

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// topicOf is the id of a topic in the tests: its name.
func topicOf(name string) uuid.UUID {
	var id uuid.UUID
	copy(id[:], name)
	return id
}

// topics makes an image with more partitions of some topics.
func (w *world) topics(partitions map[string]int) {
	w.T.Helper()
	var image *metadata.Image
	if w.image == nil {
		w.image = metadata.Empty("c")
	}
	d := metadata.NewDelta(w.image)
	var records []metarecord.Record
	created := false
	for name, n := range partitions {
		had := 0
		if t := w.image.TopicByName(name); t != nil {
			had = len(t.Partitions)
		} else {
			created = true
			records = append(records, &metarecord.TopicRecord{Name: name, TopicID: topicOf(name)})
		}
		for p := had; p < n; p++ {
			records = append(records, &metarecord.PartitionRecord{
				TopicID: topicOf(name), PartitionID: int32(p), Replicas: []int32{1}, ISR: []int32{1}, Leader: 1,
			})
		}
	}
	if err := d.Apply(w.image.Offset()+int64(len(records))+1, 1, records...); err != nil {
		w.T.Fatal(err)
	}
	image = d.Image()
	w.image = image
	w.config.Image = image
	w.Do(&NewImage{Image: image, NewTopics: created})
}

// dropTopic makes an image without a topic.
func (w *world) dropTopic(name string) {
	w.T.Helper()
	d := metadata.NewDelta(w.image)
	if err := d.Apply(w.image.Offset()+1, 1, &metarecord.RemoveTopicRecord{TopicID: topicOf(name)}); err != nil {
		w.T.Fatal(err)
	}
	w.image = d.Image()
	w.config.Image = w.image
	w.Do(&NewImage{Image: w.image})
}

// work does what the machine has given away.
func (w *world) work() {
	for len(w.background) > 0 {
		work := w.background[0]
		w.background = w.background[1:]
		w.Do(work())
	}
}

// modern is a member of a consumer group as its client sees it.
type modern struct {
	w        *world
	group    string
	id       string
	instance *string
	topics   []string
	regex    *string
	assignor *string
	epoch    int32
	// owned is what it has, by topic; a client gives up at once what it is not to have.
	owned  map[uuid.UUID][]int32
	ticket Ticket
}

func (w *world) modern(group, id string, topics ...string) *modern {
	return &modern{w: w, group: group, id: id, topics: append([]string{}, topics...), owned: map[uuid.UUID][]int32{}}
}

// request is the heartbeat of the member: a full one when it joins, and otherwise only what it has.
func (c *modern) request() *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch, req.InstanceID = 1, c.group, c.id, c.epoch, c.instance
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if c.epoch == 0 {
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.SubscribedTopicRegex, req.ServerAssignor = 60000, c.topics, c.regex, c.assignor
		return req
	}
	for _, topic := range sortedTopics(c.owned) {
		t := kmsg.NewConsumerGroupHeartbeatRequestTopic()
		t.TopicID, t.Partitions = topic, c.owned[topic]
		req.Topics = append(req.Topics, t)
	}
	return req
}

func (c *modern) send(req *kmsg.ConsumerGroupHeartbeatRequest) Ticket {
	c.ticket = c.w.Do(&ConsumerHeartbeat{Request: req, ClientID: "client", ClientHost: "/127.0.0.1"})
	return c.ticket
}

// hear takes in an answer, if there is one, and says what it was.
func (c *modern) hear() errcode.Code {
	a, ok := c.w.Answers[c.ticket]
	if !ok {
		return errcode.None
	}
	c.ticket = 0
	if a.Code != errcode.None {
		return a.Code
	}
	resp := a.Reply.(*kmsg.ConsumerGroupHeartbeatResponse)
	code := errcode.Code(resp.ErrorCode)
	switch code {
	case errcode.None:
		c.epoch = resp.MemberEpoch
		if resp.Assignment != nil {
			clear(c.owned)
			for _, t := range resp.Assignment.Topics {
				c.owned[t.TopicID] = t.Partitions
			}
		}
	case errcode.FencedMemberEpoch, errcode.UnknownMemberId, errcode.GroupIdNotFound:
		c.epoch = 0
		clear(c.owned)
	}
	return code
}

// beat sends a heartbeat and hears the answer, which must be without an error.
func (c *modern) beat() *modern {
	c.w.T.Helper()
	c.w.code("heartbeat of "+c.id, int16(c.try()), errcode.None)
	return c
}

// try sends a heartbeat and gives the error of the answer.
func (c *modern) try() errcode.Code {
	c.w.T.Helper()
	c.send(c.request())
	return c.hear()
}

// leave ends the membership, with epoch -1, or -2 for a while.
func (c *modern) leave(epoch int32) errcode.Code {
	c.w.T.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch, req.InstanceID = 1, c.group, c.id, epoch, c.instance
	resp := reply[*kmsg.ConsumerGroupHeartbeatResponse](c.w, c.w.Do(&ConsumerHeartbeat{Request: req}))
	c.epoch = 0
	clear(c.owned)
	return errcode.Code(resp.ErrorCode)
}

// has checks what the member has.
func (c *modern) has(epoch int32, want string) *modern {
	c.w.T.Helper()
	got := ""
	for _, topic := range sortedTopics(c.owned) {
		got += fmt.Sprint(c.w.image.Topic(topic).Name, c.owned[topic])
	}
	if c.epoch != epoch || got != want {
		c.w.T.Fatalf("%s has %q at epoch %d, want %q at %d", c.id, got, c.epoch, want, epoch)
	}
	return c
}

func (c *modern) commit(topic string, partition int32, offset int64) errcode.Code {
	c.w.T.Helper()
	old := &client{w: c.w, group: c.group, id: c.id, generation: c.epoch}
	command := old.commitCommand(topic, partition, offset)
	command.Offsets[0].TopicID = topicOf(topic)
	r := reply[CommitReply](c.w, c.w.Do(command))
	if r.Code != errcode.None {
		return r.Code
	}
	return r.Codes[0]
}

func (w *world) consumers(id string) *consumerGroup {
	w.T.Helper()
	g, ok := w.m.find(id).(*consumerGroup)
	if !ok {
		w.T.Fatalf("%s is no consumer group but %T", id, w.m.find(id))
	}
	return g
}

func (w *world) describeConsumers(id string) kmsg.ConsumerGroupDescribeResponseGroup {
	w.T.Helper()
	return reply[[]kmsg.ConsumerGroupDescribeResponseGroup](w, w.Do(&DescribeConsumerGroups{IDs: []string{id}}))[0]
}

func (w *world) consumersAre(id, state string, epoch, targetEpoch int32) {
	w.T.Helper()
	d := w.describeConsumers(id)
	if d.State != state || d.Epoch != epoch || d.AssignmentEpoch != targetEpoch {
		w.T.Fatalf("group %s is %s at %d, target %d (error %d); want %s at %d, target %d", id, d.State, d.Epoch, d.AssignmentEpoch,
			d.ErrorCode, state, epoch, targetEpoch)
	}
}

// settle lets members beat until nothing changes any more.
func settle(members ...*modern) {
	for range 10 {
		for _, c := range members {
			c.beat()
		}
	}
}

// heldPartitions are all partitions that members have, each once.
func heldPartitions(members ...*modern) []string {
	var all []string
	for _, c := range members {
		for topic, partitions := range c.owned {
			for _, p := range partitions {
				all = append(all, fmt.Sprint(c.w.image.Topic(topic).Name, p))
			}
		}
	}
	slices.Sort(all)
	return all
}

// keys are the partitions of a commit.
func (c *CommitOffsets) keys() []offsets.Key {
	var keys []offsets.Key
	for _, o := range c.Offsets {
		keys = append(keys, o.Key)
	}
	return keys
}
