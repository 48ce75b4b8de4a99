package tieringclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/clients/instances"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// instance is a tiering instance that refuses its first questions.
type instance struct {
	tieringv1.UnimplementedTieringServer
	refusals []errcode.Code
	asked    int
}

func (i *instance) Read(_ context.Context, req *tieringv1.ReadRequest) (*tieringv1.ReadResponse, error) {
	i.asked++
	if n := i.asked - 1; n < len(i.refusals) {
		return nil, i.refusals[n].Err()
	}
	return &tieringv1.ReadResponse{EndOffset: req.GetFetchOffset() + 1}, nil
}

// owned is a cluster whose one shard of remote log metadata belongs to instance 1.
func owned(t *testing.T) *metadata.Image {
	t.Helper()
	id := uuid.Random()
	delta, err := metadata.Empty("c").Apply(3, 1,
		&metarecord.TopicRecord{Name: "__remote_log_metadata", TopicID: id},
		&metarecord.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1},
		&metarecord.ShardRecord{Kind: int8(metadata.RemoteLogShard), Owner: 1, Epoch: 1},
	)
	if err != nil {
		t.Fatal(err)
	}
	return delta.Image()
}

func newTestClient(image *metadata.Image, i *instance) *Client {
	local := transport.NewLocal(transport.NewPool())
	tieringv1.RegisterTieringServer(local.Channel("tiering"), i)
	c := New(instances.Config{
		Image:  func() metadata.Reader { return image },
		Await:  func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() },
		Dialer: transport.NewDialer(transport.Options{}, local),
	})
	c.AddLocal(1, local.Channel("tiering"))
	return c
}

func TestRead(t *testing.T) {
	topic := uuid.Random()
	for name, tt := range map[string]struct {
		image    *metadata.Image
		refusals []errcode.Code
		want     errcode.Code
		asked    int
	}{
		"at once":             {owned(t), nil, errcode.None, 1},
		"loading, then there": {owned(t), []errcode.Code{errcode.NotCoordinator, errcode.CoordinatorLoadInProgress}, errcode.None, 3},
		"out of range":        {owned(t), []errcode.Code{errcode.OffsetOutOfRange}, errcode.OffsetOutOfRange, 1},
		"broken":              {owned(t), []errcode.Code{errcode.KafkaStorageError}, errcode.KafkaStorageError, 1},
		"no owner":            {metadata.Empty("c"), nil, errcode.RequestTimedOut, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := &instance{refusals: tt.refusals}
				c := newTestClient(tt.image, i)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				got, err := c.Read(ctx, &tieringv1.ReadRequest{TopicId: topic[:], FetchOffset: 6})
				if errcode.Of(err) != tt.want && (tt.want != errcode.None || err != nil) || i.asked != tt.asked || err == nil && got.EndOffset != 7 {
					t.Fatalf("%v, %v after %d questions", got, err, i.asked)
				}
			})
		})
	}
	c := newTestClient(owned(t), &instance{})
	if _, err := c.Read(t.Context(), &tieringv1.ReadRequest{TopicId: []byte("short")}); errcode.Of(err) != errcode.InvalidRequest {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.owner(owned(t), topic, 0); err == nil || errors.Is(err, context.Canceled) {
		t.Fatal("a closed client found an instance")
	}
}
