// Package handler answers the requests of Kafka's protocol that coordinators serve: it turns them into commands for the
// shards, and the shards' answers into responses.
//
// It owns the messages, version by version, and what is checked before a shard is asked: names and ids of topics against
// the metadata, and bounds from the configuration. It must never hold state of groups.
package handler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/clients/transactionclient"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

// AllShards is the shard of a request that is for every shard of the instance.
const AllShards int32 = -1

// Shards carries out commands on the group shards of this instance.
type Shards interface {
	// Do carries out a command on a shard, once the instance's metadata is at the offset. It fails as statemachine.Shard.Do
	// does.
	Do(ctx context.Context, shard int32, metadataOffset int64, command group.Command) (group.Reply, error)
	// DoEach is Do for commands that follow one another, with an answer or an error for each.
	DoEach(ctx context.Context, shard int32, metadataOffset int64, commands []group.Command) ([]group.Reply, []error)
	// DoAll carries out a command on all shards of the instance and gives their replies. Shards that end meanwhile are
	// left out.
	DoAll(ctx context.Context, metadataOffset int64, command group.Command) ([]group.Reply, error)
}

// Images is the metadata that topics are looked up in.
type Images interface {
	Image() metadata.Reader
	Await(ctx context.Context, offset int64) error
}

// Config is the bounds that are checked before a shard is asked, and who else is asked.
type Config struct {
	// MinSessionTimeout and MaxSessionTimeout bound what a member of a classic group may ask for.
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// ConsumerProtocol says that consumer groups are served; Assignors are those that their members may name.
	ConsumerProtocol bool
	Assignors        []string
	// AskTransaction asks the coordinators of transactions whether groups are in them; VerifyTransactions is
	// transaction.partition.verification.enable.
	AskTransaction     func(q *transactionclient.Question)
	VerifyTransactions func(image metadata.Reader) bool
}

// Handler answers requests. Its methods may be called from any goroutine.
type Handler struct {
	config Config
	shards Shards
	images Images
	apis   map[kmsg.Key]api
}

// api is one row of the table: which versions are served, and how.
type api struct {
	min, max int16
	handle   func(ctx context.Context, c call, req kmsg.Request) (kmsg.Response, error)
}

// call is a request without its body.
type call struct {
	shard    int32
	envelope *commonv1.Envelope
}

// New makes a handler.
func New(config Config, shards Shards, images Images) *Handler {
	h := &Handler{config: config, shards: shards, images: images}
	h.apis = map[kmsg.Key]api{
		kmsg.OffsetCommit:   {2, 10, typed(h.offsetCommit)},
		kmsg.OffsetFetch:    {1, 10, typed(h.offsetFetch)},
		kmsg.JoinGroup:      {0, 9, typed(h.joinGroup)},
		kmsg.Heartbeat:      {0, 4, typed(h.heartbeat)},
		kmsg.LeaveGroup:     {0, 5, typed(h.leaveGroup)},
		kmsg.SyncGroup:      {0, 5, typed(h.syncGroup)},
		kmsg.DescribeGroups: {0, 6, typed(h.describeGroups)},
		kmsg.ListGroups:     {0, 5, typed(h.listGroups)},
		kmsg.DeleteGroups:   {0, 3, typed(h.deleteGroups)},
		kmsg.OffsetDelete:   {0, 0, typed(h.offsetDelete)},

		kmsg.ConsumerGroupHeartbeat: {0, 1, typed(h.consumerGroupHeartbeat)},
		kmsg.ConsumerGroupDescribe:  {0, 1, typed(h.consumerGroupDescribe)},
		kmsg.TxnOffsetCommit:        {0, 6, typed(h.txnOffsetCommit)},
		kmsg.WriteTxnMarkers:        {1, 2, typed(h.writeTxnMarkers)},
	}
	return h
}

// typed makes a row's function of one that takes its own type of request.
func typed[R kmsg.Request](f func(ctx context.Context, c call, req R) (kmsg.Response, error)) func(context.Context, call, kmsg.Request) (kmsg.Response, error) {
	return func(ctx context.Context, c call, req kmsg.Request) (kmsg.Response, error) {
		own, ok := req.(R)
		if !ok {
			return nil, errcode.InvalidRequest.Wrap(fmt.Errorf("a %T where another request was expected", req))
		}
		return f(ctx, c, own)
	}
}

// Handle answers a request with the body of the response. An error says that there is no response: the shard is not ours,
// nothing was carried out, and another instance may be asked; or the context has ended; or the request is none that is
// served here.
func (h *Handler) Handle(ctx context.Context, shard int32, e *commonv1.Envelope) ([]byte, error) {
	key, version := kmsg.Key(e.GetApiKey()), int16(e.GetApiVersion())
	row, ok := h.apis[key]
	if !ok || version < row.min || version > row.max {
		return nil, errcode.UnsupportedVersion.Wrap(fmt.Errorf("%s v%d is not served by coordinators", key.Name(), version))
	}
	req := kmsg.RequestForKey(int16(key))
	if err := read(req, version, e.GetBody()); err != nil {
		return nil, err
	}
	resp, err := row.handle(ctx, call{shard: shard, envelope: e}, req)
	if err != nil {
		return nil, err
	}
	resp.SetVersion(version)
	return resp.AppendTo(nil), nil
}

// read decodes a request.
func read(req kmsg.Request, version int16, body []byte) error {
	req.SetVersion(version)
	if err := req.ReadFrom(body); err != nil {
		return errcode.InvalidRequest.Wrap(fmt.Errorf("%s v%d: %w", kmsg.NameForKey(req.Key()), version, err))
	}
	return nil
}

// do carries out a command on the call's shard. The error is one to return to the caller without a response; the code is one
// for the response.
func do[A any](ctx context.Context, h *Handler, c call, command group.Command) (A, errcode.Code, error) {
	var none A
	reply, err := h.shards.Do(ctx, c.shard, c.envelope.GetMetadataOffset(), command)
	if err != nil {
		if elsewhere(ctx, err) {
			return none, errcode.None, err
		}
		return none, errcode.Of(err), nil
	}
	own, ok := reply.(A)
	if !ok {
		return none, errcode.None, fmt.Errorf("a %T where another reply was expected", reply)
	}
	return own, errcode.None, nil
}

// elsewhere says whether an error means that the caller has gone, or should ask the instance that has the shard now.
func elsewhere(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, statemachine.ErrNotDecided) && errcode.Of(err) == errcode.NotCoordinator
}

// imageKnowing gives an image that is not behind the sender's if the present one does not satisfy: what is unknown only
// because this instance is behind must not be called unknown.
func (h *Handler) imageKnowing(ctx context.Context, c call, satisfied func(metadata.Reader) bool) (metadata.Reader, error) {
	image := h.images.Image()
	if satisfied(image) || image.Offset() >= c.envelope.GetMetadataOffset() {
		return image, nil
	}
	if err := h.images.Await(ctx, c.envelope.GetMetadataOffset()); err != nil {
		return nil, err
	}
	return h.images.Image(), nil
}
