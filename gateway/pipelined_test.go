package gateway_test

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway"
	"chancery/gateway/internal/fake"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// commitCoordinator answers commits with their topics, and keeps the first call until it is released.
type commitCoordinator struct {
	began, release chan struct{}

	mu sync.Mutex
	// calls are the groups of each call's commits.
	calls [][]string
}

func (c *commitCoordinator) Handle(_ context.Context, _ metadata.ShardKind, _ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	var groups []string
	answer := func(body []byte) []byte {
		q := kmsg.NewPtrOffsetCommitRequest()
		q.SetVersion(int16(e.GetApiVersion()))
		if err := q.ReadFrom(body); err != nil {
			panic(err)
		}
		groups = append(groups, q.Group)
		resp := kmsg.NewPtrOffsetCommitResponse()
		resp.SetVersion(q.Version)
		resp.Topics = []kmsg.OffsetCommitResponseTopic{{Topic: q.Topics[0].Topic}}
		return resp.AppendTo(nil)
	}
	reply := &commonv1.EnvelopeReply{Body: answer(e.GetBody())}
	for _, body := range e.GetMore() {
		reply.More = append(reply.More, answer(body))
	}
	c.mu.Lock()
	c.calls = append(c.calls, groups)
	first := len(c.calls) == 1
	c.mu.Unlock()
	if first {
		close(c.began)
		<-c.release
	}
	return reply, nil
}

func (c *commitCoordinator) HandleAll(context.Context, metadata.ShardKind, *commonv1.Envelope) ([]*commonv1.EnvelopeReply, error) {
	return nil, nil
}

func numberedCommit(n int, version int16) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group = version, strconv.Itoa(n)
	req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "topic-" + strconv.Itoa(n)}}
	return req
}

// TestPipelinedCommitsShareACall: what a client has sent while its first commit was being carried out goes to the coordinator
// in one call, in its order, up to the next request of another kind; each is answered by itself, in order, and one that is
// malformed closes the connection behind the answers of those before it.
func TestPipelinedCommitsShareACall(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("__consumer_offsets", 1)
	coordinator := &commitCoordinator{began: make(chan struct{}), release: make(chan struct{})}
	g, err := gateway.New(gateway.Config{NodeID: 1, Properties: map[string]string{"listeners": "PLAINTEXT://127.0.0.1:0"}, Version: "test"}, gateway.Deps{
		Image: func() metadata.Reader { return c.Image() }, Await: c.Await, Storage: c.Storage, Controller: c, Coordinator: coordinator,
		Buffers: transport.NewDebugPool(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	k := dial(t, g)
	k.send(numberedCommit(0, 8))
	<-coordinator.began
	k.send(numberedCommit(1, 8), numberedCommit(2, 8), numberedCommit(3, 8), metadataOf(9), numberedCommit(4, 8), numberedCommit(5, 8), numberedCommit(6, 7))
	bad := k.frame(numberedCommit(7, 7))
	bad[len(bad)-1]++ // the last count says that more follows than does
	k.write(bad)
	close(coordinator.release)
	for n := range 8 {
		switch resp := k.recv().(type) {
		case *kmsg.OffsetCommitResponse:
			want := n
			if n > 4 {
				want = n - 1
			}
			if got := resp.Topics[0].Topic; got != "topic-"+strconv.Itoa(want) {
				t.Errorf("answer %d is that for %s", n, got)
			}
		case *kmsg.MetadataResponse:
			if n != 4 {
				t.Errorf("the metadata came as answer %d", n)
			}
		}
	}
	k.closed()
	coordinator.mu.Lock()
	defer coordinator.mu.Unlock()
	want := [][]string{{"0"}, {"1", "2", "3"}, {"4", "5"}, {"6"}}
	if !slices.EqualFunc(coordinator.calls, want, slices.Equal[[]string]) {
		t.Errorf("calls with %v, want %v", coordinator.calls, want)
	}
}
