package controllerd_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/clients/controllerclient"
	"chancery/services/metadata"
)

// BenchmarkCreateTopics makes topics of ten partitions with three replicas, by 64 clients at once; each answer waits for the
// leaders.
func BenchmarkCreateTopics(b *testing.B) {
	c := newCluster(b, 1)
	c.startAll()
	nodes := []*node{c.startNode(1), c.startNode(2), c.startNode(3)}
	var n atomic.Int64
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req := kmsg.NewPtrCreateTopicsRequest()
			req.Version, req.TimeoutMillis = 7, 10_000
			topic := kmsg.NewCreateTopicsRequestTopic()
			topic.Topic, topic.NumPartitions, topic.ReplicationFactor = fmt.Sprintf("topic-%d", n.Add(1)), 10, 3
			req.Topics = append(req.Topics, topic)
			resp, err := c.client.Request(b.Context(), req, controllerclient.Sender{})
			if err != nil || resp.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode != 0 {
				b.Errorf("%+v, %v", resp, err)
				return
			}
		}
	})
	b.StopTimer()
	nodes[0].await("all topics", func(i *metadata.Image) bool { return i.TopicCount() == b.N })
}
