package tiering_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/metadata"
	"chancery/services/telemetry"
	"chancery/services/transport"
	"chancery/tiering"
)

// fakeController lets every member in and out.
type fakeController struct {
	controllerv1.UnimplementedControllerServer
	mu         sync.Mutex
	registered *controllerv1.RegisterServiceRequest
	left       bool
	beat       chan struct{}
}

func (c *fakeController) RegisterService(_ context.Context, r *controllerv1.RegisterServiceRequest) (*controllerv1.RegisterServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registered = r
	return &controllerv1.RegisterServiceResponse{Epoch: 7}, nil
}

func (c *fakeController) ServiceHeartbeat(_ context.Context, r *controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = c.left || r.GetWantShutdown()
	select {
	case c.beat <- struct{}{}:
	default:
	}
	return &controllerv1.ServiceHeartbeatResponse{ShouldShutdown: r.GetWantShutdown()}, nil
}

// loaded is metadata that is there.
type loaded struct{}

func (loaded) Image() *metadata.Image                   { return metadata.Empty("c") }
func (loaded) Ready() error                             { return nil }
func (loaded) Await(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }
func (loaded) Subscribe(metadata.Publisher)             {}

func TestMembership(t *testing.T) {
	local := transport.NewLocal(transport.NewPool())
	controller := &fakeController{beat: make(chan struct{}, 1)}
	controllerv1.RegisterControllerServer(local.Channel("controller"), controller)
	client, err := controllerclient.New(controllerclient.Config{
		Targets: []string{transport.LocalAddress("controller")},
		Dialer:  transport.NewDialer(transport.Options{}, local),
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	s, err := tiering.New(tiering.Config{NodeID: 3, ClusterID: "c", Rack: "r", Version: "v"},
		tiering.Deps{Metadata: loaded{}, Controller: client, Meter: metrics.Meter("tiering"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(); err == nil {
		t.Error("ready before the start")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-controller.beat
	// The answer to the heartbeat is on its way; the next one is asked for by the wish to leave.
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := controller.registered
	if r.GetKind() != controllerv1.ServiceKind_SERVICE_KIND_TIERING || r.GetId() != 3 || r.GetRack() != "r" || r.GetClusterId() != "c" {
		t.Errorf("registered as %v", r)
	}
	if !controller.left {
		t.Error("ended without taking leave")
	}
}

func TestSettings(t *testing.T) {
	on := func(more ...string) map[string]string {
		p := map[string]string{"remote.log.storage.system.enable": "true"}
		for i := 0; i < len(more); i += 2 {
			p[more[i]] = more[i+1]
		}
		return p
	}
	for _, tt := range []struct {
		properties map[string]string
		complaint  string
	}{
		{on("remote.log.storage.manager.class.name", "tape"), `is "tape", want one of dir`},
		{on(), "remote.log.storage.manager.class.name"},
		{on("remote.log.storage.manager.class.name", "dir"), "rsm.config.dir.path is not set"},
		{on("rsm.config.part.size.bytes", "7"), "rsm.config.part.size.bytes"},
		{on("rsm.config.colour", "red"), "rsm.config.colour is not known"},
		{map[string]string{"rsm.config.colour": "red"}, ""},
	} {
		s, err := tiering.New(tiering.Config{NodeID: 1, Properties: tt.properties}, tiering.Deps{Metadata: loaded{}, Logger: slog.New(slog.DiscardHandler)})
		if err == nil && tt.complaint != "" {
			err = s.Start(t.Context())
		}
		if tt.complaint == "" && err != nil || tt.complaint != "" && (err == nil || !strings.Contains(err.Error(), tt.complaint)) {
			t.Errorf("%v: %v", tt.properties, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	client, err := controllerclient.New(controllerclient.Config{
		Targets: []string{transport.LocalAddress("nobody")},
		Dialer:  transport.NewDialer(transport.Options{}, transport.NewLocal(transport.NewPool())),
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := tiering.New(tiering.Config{NodeID: 1}, tiering.Deps{Metadata: loaded{}, Controller: client, Meter: metrics.Meter("tiering"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop(t.Context())
	w := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"chancery_tiering_registered 0", "chancery_tiering_metadata_offset -1"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %q in the metrics", want)
		}
	}
}
