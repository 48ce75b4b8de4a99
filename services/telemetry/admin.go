package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"
)

// headerTimeout is how long a client of the admin port may take to send its request's headers.
const headerTimeout = 10 * time.Second

// AdminConfig is what an admin server shows.
type AdminConfig struct {
	// Address is the "host:port" to listen on; port 0 means any free one.
	Address string
	// Ready says whether the process can take work, and otherwise what is missing.
	Ready   func() error
	Metrics *Metrics
	Logger  *slog.Logger
}

// Admin is the HTTP server for operators: /livez, /readyz, /metrics, and Go's profiles under /debug/pprof/ for clients on
// the same host. It is a lifecycle.Service.
type Admin struct {
	config  AdminConfig
	server  *http.Server
	mux     *http.ServeMux
	bound   atomic.Pointer[string]
	serving atomic.Bool
	failed  chan error
}

// NewAdmin makes an admin server.
func NewAdmin(config AdminConfig) *Admin {
	a := &Admin{config: config, failed: make(chan error, 1)}
	mux := http.NewServeMux()
	a.mux = mux
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", config.Metrics.Handler())
	for path, handler := range map[string]http.HandlerFunc{
		"/debug/pprof/":        pprof.Index,
		"/debug/pprof/cmdline": pprof.Cmdline,
		"/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/trace":   pprof.Trace,
	} {
		mux.HandleFunc(path, loopbackOnly(handler))
	}
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ErrorLog: slog.NewLogLogger(config.Logger.Handler(), slog.LevelDebug)}
	return a
}

// Handle offers what a service of the process has for operators; before Start.
func (a *Admin) Handle(pattern string, handler http.HandlerFunc) { a.mux.HandleFunc(pattern, handler) }

// HandleLocal is Handle for clients on the same host only.
func (a *Admin) HandleLocal(pattern string, handler http.HandlerFunc) {
	a.mux.HandleFunc(pattern, loopbackOnly(handler))
}

// Start listens and serves.
func (a *Admin) Start(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.config.Address)
	if err != nil {
		return fmt.Errorf("admin port: %w", err)
	}
	bound := l.Addr().String()
	a.bound.Store(&bound)
	a.serving.Store(true)
	go func() {
		if err := a.server.Serve(l); a.serving.Swap(false) {
			a.failed <- fmt.Errorf("admin port: %w", err)
		}
	}()
	return nil
}

// Address is where the server listens, with the real port; empty before Start.
func (a *Admin) Address() string {
	if b := a.bound.Load(); b != nil {
		return *b
	}
	return ""
}

// Stop ends the server.
func (a *Admin) Stop(ctx context.Context) error {
	a.serving.Store(false)
	if err := a.server.Shutdown(ctx); err != nil {
		return errors.Join(err, a.server.Close())
	}
	return nil
}

// Failed tells when serving ended by itself.
func (a *Admin) Failed() <-chan error { return a.failed }

// Ready is nil while the server serves.
func (a *Admin) Ready() error {
	if !a.serving.Load() {
		return errors.New("admin port not open")
	}
	return nil
}

func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := a.config.Ready(); err != nil {
		writeText(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeText(w, http.StatusOK, "ok")
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	// A client that has gone away is no concern of ours.
	_, _ = fmt.Fprintln(w, text)
}

// loopbackOnly hides what could be used against the process from other hosts.
func loopbackOnly(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			http.NotFound(w, r)
			return
		}
		handler(w, r)
	}
}
