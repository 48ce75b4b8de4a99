package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what happens to a request on its way. The zero Fault is none.
type Fault struct {
	// Name is for messages of tests.
	Name string
	// Status and Code answer the request with an error of S3 without asking the store. With status 200 the body has the
	// error.
	Status int
	Code   string
	// ResetBefore ends the connection before the store has seen the request, ResetAfter when it has done it: the answer is
	// lost.
	ResetBefore, ResetAfter bool
	// Hang answers nothing until the client gives up.
	Hang bool
	// FirstByteDelay delays the answer.
	FirstByteDelay time.Duration
	// BytesPerSecond is how fast the body of the answer comes.
	BytesPerSecond int
	// CutAfter ends the connection after so many bytes of the answer's body; 0 means never.
	CutAfter int64
	// ShortBy leaves so many bytes out at the end of the answer, as if the object were shorter.
	ShortBy int64
	// FlipAt flips a bit of that byte of the answer's body, counted from 1; FlipRequestAt one of the request's.
	FlipAt, FlipRequestAt int64
}

// Operation is the S3 operation of a request: put, get, head, delete, list, list_uploads, create_upload, upload_part,
// complete_upload, abort_upload.
func Operation(r *http.Request) string {
	q := r.URL.Query()
	switch {
	case q.Has("uploads") && r.Method == http.MethodPost:
		return "create_upload"
	case q.Has("uploads"):
		return "list_uploads"
	case q.Has("partNumber"):
		return "upload_part"
	case q.Has("uploadId") && r.Method == http.MethodPost:
		return "complete_upload"
	case q.Has("uploadId"):
		return "abort_upload"
	case q.Has("delete"), r.Method == http.MethodDelete:
		return "delete"
	case q.Has("list-type"):
		return "list"
	}
	return strings.ToLower(r.Method)
}

// Proxy stands before a store and makes faults.
type Proxy struct {
	// Endpoint is the proxy's URL.
	Endpoint string

	target    *url.URL
	stopped   chan struct{}
	transport *http.Transport

	mu     sync.Mutex
	script func(op string, r *http.Request) Fault
	counts map[string]int
	down   bool
}

// NewProxy starts a proxy before an endpoint, without faults at first.
func NewProxy(t testing.TB, endpoint string) *Proxy {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}, counts: make(map[string]int), stopped: make(chan struct{})}
	server := httptest.NewServer(p)
	p.Endpoint = server.URL
	t.Cleanup(func() {
		close(p.stopped)
		server.CloseClientConnections()
		server.Close()
		p.transport.CloseIdleConnections()
	})
	return p
}

// Script sets who decides what happens to each request; nil means no faults.
func (p *Proxy) Script(script func(op string, r *http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

// Down makes the store unreachable, or reachable again.
func (p *Proxy) Down(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// Requests is how many requests of an operation have come; of all operations for "".
func (p *Proxy) Requests(op string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if op != "" {
		return p.counts[op]
	}
	n := 0
	for _, c := range p.counts {
		n += c
	}
	return n
}

// ServeHTTP is part of http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := Operation(r)
	p.mu.Lock()
	p.counts[op]++
	var f Fault
	if p.script != nil {
		f = p.script(op, r)
	}
	if p.down {
		f = Fault{ResetBefore: true}
	}
	p.mu.Unlock()
	switch {
	case f.ResetBefore:
		reset()
	case f.Hang:
		// Only behind the body does the server notice that the client has given up.
		drain(r.Body)
		select {
		case <-r.Context().Done():
		case <-p.stopped:
		}
		reset()
	case f.Status != 0:
		drain(r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(f.Status)
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>a fault</Message></Error>`, f.Code)
		return
	}
	p.forward(w, r, f)
}

// drain reads what is left.
func drain(r io.Reader) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return // Whoever sent it is gone, which ends the request as well.
	}
}

// reset ends the connection without an answer.
func reset() {
	panic(http.ErrAbortHandler) //nolint:forbidigo // it is how a handler of net/http ends a connection
}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, f Fault) {
	body := r.Body
	if f.FlipRequestAt > 0 {
		body = io.NopCloser(&flipper{r: r.Body, at: f.FlipRequestAt})
	}
	// A store finishes what it has begun, so the request outlives the client.
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.URL.Scheme, out.URL.Host, out.RequestURI = p.target.Scheme, p.target.Host, ""
	out.Body = body
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	response, err := p.transport.RoundTrip(out)
	if err != nil {
		reset()
	}
	defer response.Body.Close()
	if f.ResetAfter {
		drain(response.Body)
		reset()
	}
	if f.FirstByteDelay > 0 && pause(r.Context(), f.FirstByteDelay) != nil {
		reset()
	}
	length := response.ContentLength
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	if f.ShortBy > 0 {
		length = max(0, length-f.ShortBy)
		w.Header().Set("Content-Length", fmt.Sprint(length))
	}
	w.WriteHeader(response.StatusCode)
	from := io.Reader(response.Body)
	if length >= 0 {
		from = io.LimitReader(from, length)
	}
	if f.FlipAt > 0 {
		from = &flipper{r: from, at: f.FlipAt}
	}
	if f.CutAfter > 0 {
		if _, err := io.CopyN(w, from, f.CutAfter); err == nil && http.NewResponseController(w).Flush() == nil {
			reset()
		}
		return
	}
	if f.BytesPerSecond > 0 {
		err = paced(r.Context(), w, from, f.BytesPerSecond)
	} else {
		_, err = io.Copy(w, from)
	}
	if err != nil {
		reset()
	}
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// paced copies at a rate.
func paced(ctx context.Context, w io.Writer, r io.Reader, bytesPerSecond int) error {
	const piece = 128 << 10
	begun, sent := time.Now(), int64(0)
	for {
		n, err := io.CopyN(w, r, piece)
		if f, ok := w.(http.ResponseWriter); ok && bytesPerSecond < piece {
			http.NewResponseController(f).Flush()
		}
		sent += n
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		due := time.Duration(float64(sent) / float64(bytesPerSecond) * float64(time.Second))
		if early := due - time.Since(begun); early > time.Millisecond {
			if err := pause(ctx, early); err != nil {
				return err
			}
		}
	}
}

// flipper flips a bit of one byte, counted from 1.
type flipper struct {
	r  io.Reader
	at int64
}

func (f *flipper) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if f.at > 0 && f.at <= int64(n) {
		p[f.at-1] ^= 1
		f.at = 0
	}
	f.at = max(0, f.at-int64(n))
	return n, err
}
