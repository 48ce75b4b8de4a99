package server

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/transport"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
)

const (
	reportPause  = 200 * time.Millisecond
	reportPeriod = 500 * time.Millisecond
	callTimeout  = 3 * time.Second
)

// Dialer makes channels to other controllers.
type Dialer interface {
	Dial(address string) (transport.Conn, error)
}

// Reporter is a controller's dealings with the active one: it registers there, and as a standby it tells what it and its
// followers have applied.
type Reporter struct {
	ID          int32
	Address     string
	Incarnation uuid.UUID
	// Listeners are where Kafka's clients reach this controller.
	Listeners []metadata.Endpoint
	Server    *Server
	Dialer    Dialer
	Logger    *slog.Logger
}

// Run reports until the context ends.
func (r *Reporter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		state, err := r.Server.Feed.Await(ctx, func(s feed.State) bool { return s.Loaded && s.Holder.Epoch > 0 })
		if err != nil {
			return
		}
		if state.Holder.ID == r.ID {
			err = r.asActive(ctx, state)
		} else {
			err = r.asStandby(ctx, state.Holder)
		}
		if err != nil && ctx.Err() == nil {
			r.Logger.Debug("report to the active controller", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reportPause):
		}
	}
}

// asActive registers with this very controller and waits for another to become active.
func (r *Reporter) asActive(ctx context.Context, state feed.State) error {
	if !r.registered(state.Image) {
		if err := r.register(ctx, r.Server.Handle); err != nil {
			return err
		}
	}
	_, err := r.Server.Feed.Await(ctx, func(s feed.State) bool { return s.Holder.ID != r.ID || !r.registered(s.Image) })
	return err
}

// asStandby registers with the active controller and tells it what is applied here, until there is another one.
func (r *Reporter) asStandby(ctx context.Context, holder metalog.Holder) error {
	conn, err := r.Dialer.Dial(holder.Address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := controllerv1.NewControllerClient(conn)
	if !r.registered(r.Server.Feed.Image()) {
		err := r.register(ctx, func(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
			return client.Handle(ctx, e)
		})
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.FollowMetadata(ctx)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	err = r.report(stream, holder.Epoch, ended)
	cancel()
	return err
}

type ackSender interface {
	Send(*controllerv1.FollowMetadataRequest) error
}

// report sends what is news, at least once in a period, until the stream ends or another controller is active.
func (r *Reporter) report(stream ackSender, epoch int32, ended <-chan error) error {
	kind := controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER
	err := stream.Send(&controllerv1.FollowMetadataRequest{
		Kind: kind, Id: r.ID, ClusterId: r.Server.Feed.Image().ClusterID(), LastEpoch: -1, AcksOnly: true,
	})
	if err != nil {
		return err
	}
	ticker := time.NewTicker(reportPeriod)
	defer ticker.Stop()
	var version uint64
	for {
		state := r.Server.Feed.State()
		if state.Holder.Epoch != epoch {
			return nil
		}
		news, next, more := r.Server.Acks.Since(version)
		version = next
		err := stream.Send(&controllerv1.FollowMetadataRequest{Kind: kind, Id: r.ID, AppliedOffset: state.Next - 1, Relayed: news})
		if err != nil {
			return err
		}
		select {
		case err := <-ended:
			return err
		case <-more:
		case <-state.Changed:
		case <-ticker.C:
		}
	}
}

func (r *Reporter) registered(image *metadata.Image) bool {
	return slices.ContainsFunc(image.Controllers(), func(c *metadata.Controller) bool {
		return c.ID == r.ID && c.IncarnationID == r.Incarnation
	})
}

// register makes this controller known with its endpoint.
func (r *Reporter) register(ctx context.Context, handle func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error)) error {
	req := kmsg.NewPtrControllerRegistrationRequest()
	req.ControllerID, req.IncarnationID = r.ID, r.Incarnation
	listener, err := Endpoint(r.Address)
	if err != nil {
		return err
	}
	req.Listeners = append(req.Listeners, listener)
	for _, e := range r.Listeners {
		l := kmsg.NewControllerRegistrationRequestListener()
		l.Name, l.Host, l.Port, l.SecurityProtocol = e.Name, e.Host, e.Port, e.SecurityProtocol
		req.Listeners = append(req.Listeners, l)
	}
	req.Features = control.ControllerFeatures()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reply, err := handle(ctx, &commonv1.Envelope{ApiKey: int32(req.Key()), Body: req.AppendTo(nil), Trusted: true})
	if err != nil {
		return err
	}
	resp := kmsg.NewPtrControllerRegistrationResponse()
	if err := resp.ReadFrom(reply.GetBody()); err != nil {
		return err
	}
	if resp.ErrorCode != 0 {
		return errcode.Code(resp.ErrorCode).Err()
	}
	_, err = r.Server.Feed.Await(ctx, func(s feed.State) bool { return r.registered(s.Image) })
	return err
}
