package handler

import (
	"slices"

	"chancery/coordinatord/internal/group"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

// answers collects the codes of a request's partitions. Those that are refused without asking the shard come first in the
// response, and then every topic is there once; when nothing was refused the topics are as they were asked for. A topic with
// nothing to ask and nothing to refuse is left out.
type answers struct{ refused, asked []topicCodes }

type topicCodes struct {
	topic      string
	id         uuid.UUID
	partitions []partitionCode
}

type partitionCode struct {
	partition int32
	code      errcode.Code
}

// of gives the place of a topic among the refused ones.
func (a *answers) of(topic string, id uuid.UUID) *topicCodes {
	i := slices.IndexFunc(a.refused, func(t topicCodes) bool { return t.topic == topic && t.id == id })
	if i < 0 {
		i = len(a.refused)
		a.refused = append(a.refused, topicCodes{topic: topic, id: id})
	}
	return &a.refused[i]
}

// refuse answers for a partition.
func (a *answers) refuse(topic string, id uuid.UUID, partition int32, code errcode.Code) {
	t := a.of(topic, id)
	t.partitions = append(t.partitions, partitionCode{partition, code})
}

// ask makes room for the shard's answers about a topic.
func (a *answers) ask(topic string, id uuid.UUID, partitions []partitionCode) {
	if len(partitions) > 0 {
		a.asked = append(a.asked, topicCodes{topic, id, partitions})
	}
}

// none says that the shard need not be asked.
func (a *answers) none() bool { return len(a.asked) == 0 }

// finish takes over the shard's answers, which are in the order of asking, and gives what is to be in the response.
func (a *answers) finish(reply group.CommitReply, code errcode.Code) []topicCodes {
	if code == errcode.None {
		code = reply.Code
	}
	next := 0
	for _, t := range a.asked {
		for i := range t.partitions {
			t.partitions[i].code = code
			if code == errcode.None {
				t.partitions[i].code = reply.Codes[next]
				next++
			}
		}
	}
	if len(a.refused) == 0 {
		return a.asked
	}
	for _, t := range a.asked {
		to := a.of(t.topic, t.id)
		to.partitions = append(to.partitions, t.partitions...)
	}
	return a.refused
}
