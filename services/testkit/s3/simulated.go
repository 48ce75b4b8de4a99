package s3

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Latency is how slow a store is.
type Latency struct {
	// FirstByte is the least time until an answer begins, Spread the mean of what comes to it.
	FirstByte, Spread time.Duration
	// Slow is what is added to a share of SlowShare of the requests.
	Slow      time.Duration
	SlowShare float64
	// BytesPerSecond is the speed of a connection, in both directions.
	BytesPerSecond int
}

// FarStore is the latency of S3 within a region.
var FarStore = Latency{
	FirstByte: 20 * time.Millisecond, Spread: 10 * time.Millisecond, Slow: 200 * time.Millisecond, SlowShare: 0.01, BytesPerSecond: 90 << 20,
}

// Simulated is a store in memory, with one bucket and what Chancery asks of S3. It checks no signatures.
type Simulated struct {
	Endpoint string
	latency  Latency

	mu      sync.Mutex
	objects map[string]*simulatedObject
	uploads map[string]*simulatedUpload
	counts  map[string]int64
	serial  int

	// BytesIn and BytesOut count the bodies.
	BytesIn, BytesOut atomic.Int64
}

type simulatedObject struct {
	data     []byte
	metadata http.Header
	modified time.Time
}

type simulatedUpload struct {
	key      string
	metadata http.Header
	parts    map[int][]byte
	begun    time.Time
}

// NewSimulated starts such a store.
func NewSimulated(t testing.TB, latency Latency) *Simulated {
	s, stop := OpenSimulated(latency)
	t.Cleanup(stop)
	return s
}

// OpenSimulated starts such a store outside a test; stop ends it.
func OpenSimulated(latency Latency) (s *Simulated, stop func()) {
	if latency.BytesPerSecond == 0 {
		latency.BytesPerSecond = 1 << 40
	}
	s = &Simulated{latency: latency, objects: make(map[string]*simulatedObject), uploads: make(map[string]*simulatedUpload), counts: make(map[string]int64)}
	server := httptest.NewServer(s)
	s.Endpoint = server.URL
	return s, func() {
		server.CloseClientConnections()
		server.Close()
	}
}

// wait is the time until the first byte.
func (s *Simulated) wait(r *http.Request) {
	d := s.latency.FirstByte + time.Duration(rand.ExpFloat64()*float64(s.latency.Spread))
	if rand.Float64() < s.latency.SlowShare {
		d += s.latency.Slow
	}
	if d > 0 && pause(r.Context(), d) != nil {
		reset()
	}
}

// Stats are the requests of a simulated store by operation, and the bytes of bodies.
type Stats struct {
	Requests          map[string]int64
	BytesIn, BytesOut int64
}

// Stats is what the store has done.
func (s *Simulated) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{maps.Clone(s.counts), s.BytesIn.Load(), s.BytesOut.Load()}
}

// ServeHTTP is part of http.Handler.
func (s *Simulated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == statsPath {
		if json.NewEncoder(w).Encode(s.Stats()) != nil {
			reset()
		}
		return
	}
	op := Operation(r)
	s.mu.Lock()
	s.counts[op]++
	s.mu.Unlock()
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.wait(r)
	q := r.URL.Query()
	switch op {
	case "put":
		s.put(w, r, key)
	case "get", "head":
		s.get(w, r, key)
	case "delete":
		s.deleteMany(w, r)
	case "list":
		s.list(w, q.Get("prefix"), q.Get("continuation-token")+q.Get("start-after"))
	case "create_upload":
		s.mu.Lock()
		s.serial++
		id := "upload-" + strconv.Itoa(s.serial)
		s.uploads[id] = &simulatedUpload{key: key, metadata: metadataOf(r), parts: make(map[int][]byte), begun: time.Now()}
		s.mu.Unlock()
		answer(w, struct {
			XMLName     xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key string
			UploadID    string `xml:"UploadId"`
		}{Bucket: "bucket", Key: key, UploadID: id})
	case "upload_part":
		s.part(w, r, q.Get("uploadId"), q.Get("partNumber"))
	case "complete_upload":
		s.complete(w, q.Get("uploadId"), key)
	case "abort_upload":
		s.mu.Lock()
		delete(s.uploads, q.Get("uploadId"))
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		refuse(w, http.StatusNotImplemented, "NotImplemented")
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/xml")
	data, err := xml.Marshal(v)
	if err == nil {
		_, err = w.Write(append([]byte(xml.Header), data...))
	}
	if err != nil {
		reset()
	}
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `%s<Error><Code>%s</Code></Error>`, xml.Header, code)
}

// metadataOf keeps the metadata's headers.
func metadataOf(r *http.Request) http.Header {
	kept := make(http.Header)
	for name, values := range r.Header {
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			kept[name] = values
		}
	}
	return kept
}

// body reads the body of a request at the connection's speed.
func (s *Simulated) body(r *http.Request) ([]byte, bool) {
	data := bytes.NewBuffer(make([]byte, 0, max(0, r.ContentLength)))
	if err := paced(r.Context(), data, r.Body, s.latency.BytesPerSecond); err != nil {
		return nil, false
	}
	s.BytesIn.Add(int64(data.Len()))
	return data.Bytes(), true
}

func etag(data []byte) string {
	n := min(len(data), 1<<10) // A tag, not a checksum.
	sum := md5.Sum(data[:n])
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func (s *Simulated) put(w http.ResponseWriter, r *http.Request, key string) {
	if key == "" { // The bucket.
		return
	}
	data, ok := s.body(r)
	if !ok {
		reset()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.objects[key]; exists && r.Header.Get("If-None-Match") == "*" {
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	s.objects[key] = &simulatedObject{data, metadataOf(r), time.Now()}
	w.Header().Set("ETag", etag(data))
}

func (s *Simulated) get(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	o := s.objects[key]
	s.mu.Unlock()
	if o == nil {
		refuse(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	for name, values := range o.metadata {
		w.Header()[name] = values
	}
	w.Header().Set("ETag", etag(o.data))
	w.Header().Set("Last-Modified", o.modified.UTC().Format(http.TimeFormat))
	first, last := int64(0), int64(len(o.data))-1
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); n > 0 {
		if first >= int64(len(o.data)) {
			refuse(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		last = min(last, int64(len(o.data))-1)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(o.data)))
		w.Header().Set("Content-Length", strconv.FormatInt(last-first+1, 10))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		w.Header().Set("Content-Length", strconv.Itoa(len(o.data)))
	}
	if r.Method == http.MethodHead {
		return
	}
	s.BytesOut.Add(last - first + 1)
	if paced(r.Context(), w, bytes.NewReader(o.data[first:last+1]), s.latency.BytesPerSecond) != nil {
		reset()
	}
}

func (s *Simulated) part(w http.ResponseWriter, r *http.Request, id, number string) {
	data, ok := s.body(r)
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		reset()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[id]
	if u == nil {
		refuse(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	u.parts[n] = data
	w.Header().Set("ETag", etag(data))
}

func (s *Simulated) complete(w http.ResponseWriter, id, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[id]
	if u == nil {
		refuse(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	var data []byte
	for i := 1; i <= len(u.parts); i++ {
		data = append(data, u.parts[i]...)
	}
	delete(s.uploads, id)
	s.objects[key] = &simulatedObject{data, u.metadata, time.Now()}
	answer(w, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: "bucket", Key: key, ETag: etag(data)})
}

func (s *Simulated) deleteMany(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Object []struct{ Key string }
	}
	if err := xml.NewDecoder(r.Body).Decode(&request); err != nil {
		refuse(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range request.Object {
		delete(s.objects, o.Key)
	}
	answer(w, struct {
		XMLName xml.Name `xml:"DeleteResult"`
	}{})
}

func (s *Simulated) list(w http.ResponseWriter, prefix, after string) {
	type entry struct {
		Key          string
		Size         int
		LastModified string
	}
	var result struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []entry
	}
	s.mu.Lock()
	for key, o := range s.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			result.Contents = append(result.Contents, entry{key, len(o.data), o.modified.UTC().Format("2006-01-02T15:04:05.000Z")})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(result.Contents, func(a, b entry) int { return strings.Compare(a.Key, b.Key) })
	if len(result.Contents) > 1000 {
		result.Contents = result.Contents[:1000]
		result.IsTruncated, result.NextContinuationToken = true, result.Contents[999].Key
	}
	answer(w, result)
}

// statsPath is where Stats are asked for. No bucket has such a name.
const statsPath = "/-/stats"

// RemoteStats asks a simulated store in another process what it has done.
func RemoteStats(endpoint string) (Stats, error) {
	var out Stats
	response, err := http.Get(endpoint + statsPath)
	if err != nil {
		return out, err
	}
	defer response.Body.Close()
	return out, json.NewDecoder(response.Body).Decode(&out)
}
