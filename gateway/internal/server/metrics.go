package server

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"chancery/gateway/internal/handler"
	"chancery/services/telemetry"
)

// apiMetrics counts the requests of one API.
type apiMetrics struct {
	requests atomic.Int64
	errors   atomic.Int64
	queue    *telemetry.Histogram
	wait     *telemetry.Histogram
	service  *telemetry.Histogram
	send     *telemetry.Histogram
	total    *telemetry.Histogram
}

// observe counts a request whose answer has been written.
func (m *apiMetrics) observe(x *exchange, now time.Time) {
	m.requests.Add(1)
	if x.err != nil {
		m.errors.Add(1)
	}
	m.queue.Observe(x.begun.Sub(x.req.Arrived))
	m.wait.Observe(x.req.Waited)
	m.service.Observe(x.ended.Sub(x.begun) - x.req.Waited)
	m.send.Observe(now.Sub(x.ended))
	m.total.Observe(now.Sub(x.req.Arrived))
}

// metrics is everything that a server counts. It is a prometheus.Collector; the package documentation names the metrics.
type metrics struct {
	apis     map[int16]*apiMetrics
	names    map[int16]string
	inFlight atomic.Int64
	received atomic.Int64
	sent     atomic.Int64

	server    *Server
	histogram []*telemetry.Histogram
	desc      metricDescs
}

type metricDescs struct {
	requests, errors, connections, accepted, refused, inFlight, received, sent *prometheus.Desc
}

func newMetrics(s *Server, apis []handler.API) *metrics {
	m := &metrics{apis: make(map[int16]*apiMetrics, len(apis)), names: make(map[int16]string, len(apis)), server: s}
	histogram := func(name, help, api string) *telemetry.Histogram {
		h := telemetry.NewHistogram("chancery_gateway_request_"+name, help, map[string]string{"api": api})
		m.histogram = append(m.histogram, h)
		return h
	}
	for _, a := range apis {
		m.names[a.Key] = a.Name
		m.apis[a.Key] = &apiMetrics{
			queue:   histogram("queue_seconds", "From the complete request to the begin of its work.", a.Name),
			wait:    histogram("wait_seconds", "Waiting for data, acknowledgements and other services.", a.Name),
			service: histogram("service_seconds", "The gateway's own work on a request.", a.Name),
			send:    histogram("send_seconds", "From the answer's being ready until it is written.", a.Name),
			total:   histogram("seconds", "From the complete request until its answer is written.", a.Name),
		}
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("chancery_gateway_"+name, help, labels, nil)
	}
	m.desc = metricDescs{
		requests:    desc("requests_total", "Requests answered.", "api"),
		errors:      desc("request_errors_total", "Requests that closed their connection.", "api"),
		connections: desc("connections", "Open connections.", "listener"),
		accepted:    desc("connections_accepted_total", "Connections accepted.", "listener"),
		refused:     desc("connections_refused_total", "Connections refused for a limit.", "listener"),
		inFlight:    desc("requests_in_flight", "Requests begun and not yet answered."),
		received:    desc("received_bytes_total", "Bytes received from clients."),
		sent:        desc("sent_bytes_total", "Bytes sent to clients."),
	}
	return m
}

func (m *metrics) api(key int16) *apiMetrics { return m.apis[key] }

// Describe is part of prometheus.Collector.
func (m *metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, h := range m.histogram {
		h.Describe(descs)
	}
	d := &m.desc
	for _, x := range []*prometheus.Desc{d.requests, d.errors, d.connections, d.accepted, d.refused, d.inFlight, d.received, d.sent} {
		descs <- x
	}
}

// Collect is part of prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	for _, h := range m.histogram {
		h.Collect(out)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for key, a := range m.apis {
		counter(m.desc.requests, a.requests.Load(), m.names[key])
		counter(m.desc.errors, a.errors.Load(), m.names[key])
	}
	for _, l := range m.server.listeners {
		gauge(m.desc.connections, l.open.Load(), l.config.Name)
		counter(m.desc.accepted, l.accepted.Load(), l.config.Name)
		counter(m.desc.refused, l.refused.Load(), l.config.Name)
	}
	gauge(m.desc.inFlight, m.inFlight.Load())
	counter(m.desc.received, m.received.Load())
	counter(m.desc.sent, m.sent.Load())
}
