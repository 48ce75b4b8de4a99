package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
)

// heartbeatInterval is how often followers hear that the controller lives.
const heartbeatInterval = 500 * time.Millisecond

// catchUpPatience is how long a follower waits for a standby that is behind it.
const catchUpPatience = time.Second

var errNotLoaded = errcode.NotController.Wrap(errors.New("this controller has no metadata yet"))

// Stream is the server's side of FollowMetadata.
type Stream interface {
	Recv() (*controllerv1.FollowMetadataRequest, error)
	grpc.ServerStream
}

// Server serves FollowMetadata from a feed.
type Server struct {
	Feed *Feed
	Acks *Acks
	// InContact says whether the feed is live; while it is not, followers get no heartbeats and go elsewhere.
	InContact func() bool
	// IsActive says whether this controller is the active one, whose log no follower can be ahead of.
	IsActive func() bool
	// Stopping is closed when the controller stops.
	Stopping <-chan struct{}
}

// Serve follows one stream to its end.
func (s *Server) Serve(stream Stream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	state := s.Feed.State()
	if !state.Loaded {
		return errNotLoaded
	}
	if id := state.Image.ClusterID(); first.GetClusterId() != "" && first.GetClusterId() != id {
		return errcode.InconsistentClusterId.Errorf("Expected cluster ID %s, but got cluster ID %s", id, first.GetClusterId())
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if err := s.catchUp(ctx, first); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, Follower{first.GetKind(), first.GetId()}) }()
	f := &follower{server: s, stream: stream, next: first.GetFromOffset(), acksOnly: first.GetAcksOnly()}
	sent := make(chan error, 1)
	go func() { sent <- f.send(ctx, first.GetLastEpoch()) }()
	select {
	case err = <-received:
		cancel()
		err = errors.Join(err, ended(<-sent))
	case err = <-sent:
		// The receiver ends with the stream, when this handler has returned.
	}
	return err
}

// catchUp waits until this controller has seen all that a follower has: a standby may be a little behind, and must not take
// the follower back. Only the active controller knows that what a follower has is not in the log.
func (s *Server) catchUp(ctx context.Context, first *controllerv1.FollowMetadataRequest) error {
	if first.GetAcksOnly() || s.IsActive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpPatience)
	defer cancel()
	if _, err := s.Feed.Await(ctx, func(f State) bool { return f.Next >= first.GetFromOffset() }); err != nil {
		return errcode.NotController.Wrap(fmt.Errorf("this controller is behind offset %d: %w", first.GetFromOffset(), err))
	}
	return nil
}

// ended is what the end of the sending half has to tell beside that of the receiving half, which caused it.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// receive takes acknowledgements until the stream ends.
func (s *Server) receive(stream Stream, who Follower) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil // The follower is done.
		}
		if err != nil {
			return err
		}
		end, now := s.Feed.State().Next-1, time.Now()
		for _, r := range req.GetRelayed() {
			s.Acks.Note(Follower{r.GetKind(), r.GetId()}, r.GetMemberEpoch(), r.GetAppliedOffset(), end, now)
		}
		s.Acks.Note(who, req.GetMemberEpoch(), req.GetAppliedOffset(), end, now)
	}
}

// follower is the sending half of a stream.
type follower struct {
	server   *Server
	stream   Stream
	next     int64
	acksOnly bool
}

func (f *follower) send(ctx context.Context, lastEpoch int32) error {
	feed := f.server.Feed
	if !f.acksOnly && feed.begin(f.next, lastEpoch) {
		if err := f.sendSnapshot(); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(heartbeatInterval)
	defer ticker.Stop()
	var told int32 = -1
	for {
		if f.acksOnly {
			f.next = feed.State().Next
		}
		frames, state, ok := feed.after(f.next)
		if !ok {
			return errcode.OffsetOutOfRange.Wrap(fmt.Errorf("the follower at offset %d is too far behind", f.next))
		}
		for _, frame := range frames {
			if err := f.stream.SendMsg(frame.encoded); err != nil {
				return err
			}
			f.next = frame.end
		}
		if state.Holder.Epoch != told && f.server.InContact() {
			told = state.Holder.Epoch
			if err := f.heartbeat(state); err != nil {
				return err
			}
		}
		if len(frames) > 0 {
			continue
		}
		select {
		case <-state.Changed:
		case <-ticker.C:
			if f.server.InContact() {
				if err := f.heartbeat(state); err != nil {
					return err
				}
			}
		case <-f.server.Stopping:
			return errcode.NotController.Wrap(errors.New("the controller stops"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *follower) sendSnapshot() error {
	snapshot, err := f.server.Feed.snapshotFor()
	if err != nil {
		return err
	}
	for _, b := range snapshot.frames {
		if err := f.stream.SendMsg(b); err != nil {
			return err
		}
	}
	f.next = snapshot.end
	return nil
}

func (f *follower) heartbeat(s State) error {
	return f.stream.SendMsg(&controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_Heartbeat{
		Heartbeat: &controllerv1.Heartbeat{
			ActiveControllerId: s.Holder.ID, ActiveControllerAddress: s.Holder.Address, Epoch: s.Holder.Epoch, HighWatermark: s.Next - 1,
		},
	}})
}
