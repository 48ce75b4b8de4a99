package handler

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// TestTopicsAskedByName: when a topic is deleted while a request is under way, the storage node does not know the id any more. A
// client that has named the topic is told so in words that it knows.
func TestTopicsAskedByName(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"a": {1}})
	c.nodes[1].code = errcode.UnknownTopicId
	resp := c.ask(t, listOffsetsOf(-1, map[string][]int32{"a": {0}}), 11).(*kmsg.ListOffsetsResponse)
	if got := errcode.Code(resp.Topics[0].Partitions[0].ErrorCode); got != errcode.UnknownTopicOrPartition {
		t.Errorf("ListOffsets: %s", got.Name())
	}
	for version, want := range map[int16]errcode.Code{12: errcode.UnknownTopicOrPartition, 13: errcode.UnknownTopicId} {
		p := &produce{r: &Request{Version: version}, attempts: 1, parts: []producePart{{node: 1, attempt: 1}}}
		p.take(1, &storage.AppendResult{Partitions: []storage.PartitionAppendResult{{Error: errcode.UnknownTopicId}}})
		if got := p.parts[0].result.Error; got != want {
			t.Errorf("Produce %d: %s, want %s", version, got.Name(), want.Name())
		}
		f := &fetching{r: &Request{Version: version}, places: make([]place, 1), results: make([]storage.FetchPartitionResult, 1)}
		f.places[0].node = 1
		f.take(1, &storage.FetchResult{Partitions: []storage.FetchPartitionResult{{Error: errcode.UnknownTopicId}}}, nil)
		if got := f.results[0].Error; got != want {
			t.Errorf("Fetch %d: %s, want %s", version, got.Name(), want.Name())
		}
	}
}
