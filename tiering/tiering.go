// Package tiering is the service that looks after closed segments in the object store.
//
// It owns its membership in the cluster and its view of the metadata; it moves no segments yet. It must never be on the
// way of a produce request.
//
// # Metrics
//
//	chancery_tiering_registered        1 while the controller counts this instance as a member, else 0
//	chancery_tiering_metadata_offset   the last offset of the metadata log that this instance has applied
package tiering

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/otel/metric"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/metadata"
)

// Config says who this instance is.
type Config struct {
	NodeID    int32
	ClusterID string
	// Rack is broker.rack; empty means none.
	Rack string
	// Endpoints are the addresses that the instance is registered with.
	Endpoints []metadata.Endpoint
	Version   string
}

// Metadata is the instance's view of the metadata log; *metadata.Follower is one.
type Metadata interface {
	Image() *metadata.Image
	Ready() error
}

// Deps are what the instance works with.
type Deps struct {
	Metadata   Metadata
	Controller *controllerclient.Client
	Meter      metric.Meter
	Logger     *slog.Logger
}

// Server is one instance. It is a lifecycle.Service.
type Server struct {
	metadata Metadata
	member   *controllerclient.Member
	meter    metric.Meter
	metrics  metric.Registration
}

// New makes an instance; Start makes it a member.
func New(config Config, deps Deps) (*Server, error) {
	if config.NodeID < 0 {
		return nil, fmt.Errorf("node.id is %d, want 0 or more", config.NodeID)
	}
	member := controllerclient.NewMember(deps.Controller, controllerclient.MemberConfig{
		Kind:          controllerv1.ServiceKind_SERVICE_KIND_TIERING,
		ID:            config.NodeID,
		ClusterID:     config.ClusterID,
		Rack:          config.Rack,
		Endpoints:     endpoints(config.Endpoints),
		Version:       config.Version,
		AppliedOffset: func() int64 { return deps.Metadata.Image().Offset() },
		Logger:        deps.Logger,
	})
	return &Server{metadata: deps.Metadata, member: member, meter: deps.Meter}, nil
}

func endpoints(list []metadata.Endpoint) []*controllerv1.Endpoint {
	out := make([]*controllerv1.Endpoint, len(list))
	for i, e := range list {
		out[i] = &controllerv1.Endpoint{Name: e.Name, Host: e.Host, Port: uint32(e.Port)}
	}
	return out
}

// Start begins to register.
func (s *Server) Start(ctx context.Context) error {
	if err := s.observe(); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	if err := s.member.Start(ctx); err != nil {
		return errors.Join(err, s.metrics.Unregister())
	}
	return nil
}

func (s *Server) observe() error {
	registered, err := s.meter.Int64ObservableGauge("chancery_tiering_registered", metric.WithDescription("Whether the controller counts this instance as a member."))
	if err != nil {
		return err
	}
	offset, err := s.meter.Int64ObservableGauge("chancery_tiering_metadata_offset", metric.WithDescription("Last metadata offset applied."))
	if err != nil {
		return err
	}
	s.metrics, err = s.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		isMember := int64(0)
		if s.member.Ready() == nil {
			isMember = 1
		}
		o.ObserveInt64(registered, isMember)
		o.ObserveInt64(offset, s.metadata.Image().Offset())
		return nil
	}, registered, offset)
	return err
}

// Stop takes leave of the cluster.
func (s *Server) Stop(ctx context.Context) error {
	return errors.Join(s.member.Stop(ctx), s.metrics.Unregister())
}

// Failed is nil: an instance goes on trying to be a member.
func (s *Server) Failed() <-chan error { return nil }

// Ready is nil while the instance is a member and knows the metadata.
func (s *Server) Ready() error { return errors.Join(s.metadata.Ready(), s.member.Ready()) }
