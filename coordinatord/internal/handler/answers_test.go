package handler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

type namedTopic struct {
	name       string
	partitions []int32
}

// TestTopicsThatComeTwice: the topics of a response when a request names topics twice or without partitions, as Apache Kafka
// answers.
func TestTopicsThatComeTwice(t *testing.T) {
	for _, x := range []struct {
		name   string
		topics []namedTopic
		want   string
	}{
		{"nothing is refused", []namedTopic{{"a", []int32{0}}, {"a", []int32{1}}}, "a[0:0] a[1:0]"},
		{"known, without partitions", []namedTopic{{"a", []int32{0}}, {"a", nil}}, "a[0:0]"},
		{"unknown, without partitions", []namedTopic{{"nope", nil}, {"a", nil}, {"nope", nil}}, "nope[]"},
		{"some are refused", []namedTopic{{"a", []int32{0, 9}}, {"nope", []int32{0}}, {"a", []int32{1}}, {"nope", []int32{2}}}, "a[9:3 0:0 1:0] nope[0:3 2:3]"},
		{"only others are refused", []namedTopic{{"nope", []int32{0}}, {"a", []int32{1}}, {"a", []int32{0}}}, "nope[0:3] a[1:0 0:0]"},
	} {
		for _, api := range []struct {
			name   string
			answer func(*cluster, []namedTopic) string
		}{{"OffsetCommit", commitTopics}, {"TxnOffsetCommit", txnCommitTopics}, {"OffsetDelete", deleteTopics}} {
			if got := api.answer(newCluster(t), x.topics); got != x.want {
				t.Errorf("%s, %s: %s, want %s", x.name, api.name, got, x.want)
			}
		}
	}
}

func commitTopics(c *cluster, topics []namedTopic) string {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = "g", -1
	for _, x := range topics {
		to := kmsg.OffsetCommitRequestTopic{Topic: x.name}
		for _, p := range x.partitions {
			to.Partitions = append(to.Partitions, kmsg.OffsetCommitRequestTopicPartition{Partition: p})
		}
		req.Topics = append(req.Topics, to)
	}
	var told []string
	for _, x := range send[*kmsg.OffsetCommitResponse](c, 9, req).Topics {
		var codes []string
		for _, p := range x.Partitions {
			codes = append(codes, fmt.Sprintf("%d:%d", p.Partition, p.ErrorCode))
		}
		told = append(told, x.Topic+"["+strings.Join(codes, " ")+"]")
	}
	return strings.Join(told, " ")
}

func txnCommitTopics(c *cluster, topics []namedTopic) string {
	c.h.config.VerifyTransactions = func(metadata.Reader) bool { return false }
	req := txnCommitRequest(3, "g")
	req.Topics = nil
	for _, x := range topics {
		to := kmsg.TxnOffsetCommitRequestTopic{Topic: x.name}
		for _, p := range x.partitions {
			to.Partitions = append(to.Partitions, kmsg.TxnOffsetCommitRequestTopicPartition{Partition: p})
		}
		req.Topics = append(req.Topics, to)
	}
	var told []string
	for _, x := range send[*kmsg.TxnOffsetCommitResponse](c, 3, req).Topics {
		var codes []string
		for _, p := range x.Partitions {
			codes = append(codes, fmt.Sprintf("%d:%d", p.Partition, p.ErrorCode))
		}
		told = append(told, x.Topic+"["+strings.Join(codes, " ")+"]")
	}
	return strings.Join(told, " ")
}

func deleteTopics(c *cluster, topics []namedTopic) string {
	send[*kmsg.OffsetCommitResponse](c, 9, commitRequest("g", "", -1, place{"a", uuid.UUID{}, 0, 1, ""}))
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = "g"
	for _, x := range topics {
		to := kmsg.OffsetDeleteRequestTopic{Topic: x.name}
		for _, p := range x.partitions {
			to.Partitions = append(to.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: p})
		}
		req.Topics = append(req.Topics, to)
	}
	var told []string
	for _, x := range send[*kmsg.OffsetDeleteResponse](c, 0, req).Topics {
		var codes []string
		for _, p := range x.Partitions {
			codes = append(codes, fmt.Sprintf("%d:%d", p.Partition, p.ErrorCode))
		}
		told = append(told, x.Topic+"["+strings.Join(codes, " ")+"]")
	}
	return strings.Join(told, " ")
}
