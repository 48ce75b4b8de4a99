// Package server is the gRPC face of a controller.
//
// It owns the way from a request's bytes to a decision and back to bytes, and the descriptions that rest on more than the
// image. It must never decide anything about the cluster.
package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/grpc"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/transport"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/controller"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
)

// Server implements the Controller service.
type Server struct {
	controllerv1.UnimplementedControllerServer
	Controller *controller.Controller
	Feed       *feed.Feed
	Acks       *feed.Acks
	Follow     *feed.Server
	Log        metalog.Log

	joiners joiners
	// changing is held by a change of the voters.
	changing sync.Mutex
}

// Handle answers a request in Kafka's format.
func (s *Server) Handle(ctx context.Context, envelope *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	req, err := decode(envelope)
	if err != nil {
		return nil, err
	}
	switch r := req.(type) {
	case *kmsg.DescribeQuorumRequest:
		return s.describe(ctx, func(state feed.State) kmsg.Response { return s.describeQuorum(ctx, r, state) })
	case *kmsg.DescribeClusterRequest:
		return s.describe(ctx, func(state feed.State) kmsg.Response { return DescribeCluster(r, state) })
	case *kmsg.AddRaftVoterRequest, *kmsg.RemoveRaftVoterRequest, *kmsg.UpdateRaftVoterRequest:
		return s.changeVoters(ctx, r)
	}
	answer, err := s.Controller.Do(ctx, patience(req), func(m *control.Manager) (control.Decision, error) {
		if h, ok := req.(*kmsg.BrokerHeartbeatRequest); ok && h.WantShutdown {
			s.noteApplied(m)
		}
		d, ok := m.Handle(req, envelope.GetTrusted())
		if !ok {
			return d, errcode.UnsupportedVersion.Errorf("a controller does not answer %s", kmsg.NameForKey(req.Key()))
		}
		return d, nil
	})
	if err != nil {
		return nil, err
	}
	return reply(answer.Reply, answer.Offset)
}

// noteApplied tells the manager how far storage nodes have come: their streams tell it sooner than their heartbeats.
func (s *Server) noteApplied(m *control.Manager) {
	for who, ack := range s.Acks.All() {
		if who.Kind == controllerv1.ServiceKind_SERVICE_KIND_STORAGE {
			m.Applied(metadata.ServiceKind(who.Kind), who.ID, ack.Epoch, ack.Offset)
		}
	}
}

// decode reads the request in an envelope.
func decode(envelope *commonv1.Envelope) (kmsg.Request, error) {
	if key := envelope.GetApiKey(); key < 0 || key > kmsg.MaxKey {
		return nil, errcode.UnsupportedVersion.Errorf("there is no API with key %d", key)
	}
	req := kmsg.RequestForKey(int16(envelope.GetApiKey()))
	if req == nil {
		return nil, errcode.UnsupportedVersion.Errorf("there is no API with key %d", envelope.GetApiKey())
	}
	version := envelope.GetApiVersion()
	if version < 0 || version > int32(req.MaxVersion()) {
		return nil, errcode.UnsupportedVersion.Errorf("%s has no version %d", kmsg.NameForKey(req.Key()), version)
	}
	req.SetVersion(int16(version))
	if err := req.ReadFrom(envelope.GetBody()); err != nil {
		return nil, errcode.InvalidRequest.Wrap(fmt.Errorf("%s v%d: %w", kmsg.NameForKey(req.Key()), version, err))
	}
	return req, nil
}

func reply(response any, offset int64) (*commonv1.EnvelopeReply, error) {
	r, ok := response.(kmsg.Response)
	if !ok {
		return nil, errcode.UnknownServerError.Wrap(fmt.Errorf("no response but %T", response))
	}
	return &commonv1.EnvelopeReply{Body: r.AppendTo(nil), MetadataOffset: max(offset, 0)}, nil
}

// patience is how long the sender of a request wants to wait for new partitions.
func patience(req kmsg.Request) time.Duration {
	var ms int32
	switch r := req.(type) {
	case *kmsg.CreateTopicsRequest:
		ms = r.TimeoutMillis
	case *kmsg.CreatePartitionsRequest:
		ms = r.TimeoutMillis
	}
	return time.Duration(max(ms, 0)) * time.Millisecond
}

// describe answers from what is durable, in the active controller only.
func (s *Server) describe(ctx context.Context, response func(feed.State) kmsg.Response) (*commonv1.EnvelopeReply, error) {
	if err := s.mustBeActive(ctx); err != nil {
		return nil, err
	}
	return reply(response(s.Feed.State()), 0)
}

// RegisterService makes a gateway, coordinator or tiering instance a member.
func (s *Server) RegisterService(ctx context.Context, req *controllerv1.RegisterServiceRequest) (*controllerv1.RegisterServiceResponse, error) {
	return call[controllerv1.RegisterServiceResponse](ctx, s, func(m *control.Manager) (control.Decision, error) { return m.RegisterService(req) })
}

// ServiceHeartbeat keeps a member alive.
func (s *Server) ServiceHeartbeat(ctx context.Context, req *controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
	kind, id := metadata.ServiceKind(req.GetKind()), req.GetId()
	connection := transport.OnDisconnect(ctx, fmt.Sprintf("%d-%d", kind, id), func(connection any) {
		go s.disconnected(context.WithoutCancel(ctx), kind, id, connection)
	})
	return call[controllerv1.ServiceHeartbeatResponse](ctx, s, func(m *control.Manager) (control.Decision, error) {
		d, err := m.ServiceHeartbeat(req)
		if err == nil {
			m.Connected(kind, id, connection)
		}
		return d, err
	})
}

// disconnectedTimeout bounds how long the news of an ended connection waits to be heard.
const disconnectedTimeout = time.Second

// disconnected tells the manager that the connection of a member has ended. Where this controller does not decide any more,
// nobody needs to know.
func (s *Server) disconnected(ctx context.Context, kind metadata.ServiceKind, id int32, connection any) {
	ctx, cancel := context.WithTimeout(ctx, disconnectedTimeout)
	defer cancel()
	_, _ = s.Controller.Do(ctx, 0, func(m *control.Manager) (control.Decision, error) {
		m.Disconnected(kind, id, connection)
		return control.Decision{}, nil
	})
}

func call[R any](ctx context.Context, s *Server, decide func(*control.Manager) (control.Decision, error)) (*R, error) {
	answer, err := s.Controller.Do(ctx, 0, decide)
	if err != nil {
		return nil, err
	}
	r, ok := answer.Reply.(*R)
	if !ok {
		return nil, errcode.UnknownServerError.Wrap(fmt.Errorf("no response but %T", answer.Reply))
	}
	return r, nil
}

// FollowMetadata streams the metadata log.
func (s *Server) FollowMetadata(stream grpc.BidiStreamingServer[controllerv1.FollowMetadataRequest, controllerv1.FollowMetadataResponse]) error {
	return s.Follow.Serve(stream)
}
