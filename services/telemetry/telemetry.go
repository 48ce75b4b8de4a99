// Package telemetry is how a process shows what it does: metrics, the admin port, and logs.
//
// It owns the process's Prometheus registry, the OpenTelemetry meter provider that feeds it, and the admin HTTP server. It
// must never know which metrics there are: services make theirs from the meter they are given, or, where a measurement
// happens for each request, as a Histogram of this package.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// Metrics is the metrics of one process.
type Metrics struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider
}

// NewMetrics makes the metrics of a process, with those of the Go runtime and of the process itself among them.
//
// Counters get the suffix "_total" and instruments with a unit that of the unit, unless their names end so already.
func NewMetrics() (*Metrics, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(
		otelprometheus.WithRegisterer(registry),
		otelprometheus.WithoutScopeInfo(),
		otelprometheus.WithoutTargetInfo(),
		otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, fmt.Errorf("metrics exporter: %w", err)
	}
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("runtime metrics: %w", err)
		}
	}
	return &Metrics{registry: registry, provider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))}, nil
}

// Meter makes the meter of a part of the process.
func (m *Metrics) Meter(name string) metric.Meter { return m.provider.Meter(name) }

// Registerer takes collectors for which OpenTelemetry's instruments are too slow, such as Histograms.
func (m *Metrics) Registerer() prometheus.Registerer { return m.registry }

// Handler serves the metrics in Prometheus's text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// Shutdown ends the meter provider.
func (m *Metrics) Shutdown(ctx context.Context) error { return m.provider.Shutdown(ctx) }

// NewLogger makes a logger that writes lines of text, or of JSON, from a level on: debug, info, warn or error. The level may
// be changed while the process runs.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, *slog.LevelVar, error) {
	l := new(slog.LevelVar)
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch strings.ToLower(format) {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), l, nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), l, nil
	}
	return nil, nil, fmt.Errorf("log format %q: want text or json", format)
}
