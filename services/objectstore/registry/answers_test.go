package registry_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/contract"
	"chancery/services/objectstore/registry"
	"chancery/services/objectstore/segmentobject"
)

// FuzzStoreAnswers has a store answer every request with the same status and body, which may be XML or not. Whatever it is, each
// operation ends with an error of a known kind, or with what can be read from it.
func FuzzStoreAnswers(f *testing.F) {
	for _, body := range []string{
		"", "<", `<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>m</Message></Error>`, `<Error><Code>NoSuchKey</Code>`,
		`<DeleteResult><Error><Key>k</Key><Code>InternalError</Code></Error></DeleteResult>`,
		`<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>`,
		`<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>`, "<html>proxy</html>",
	} {
		for _, status := range []int{200, 206, 301, 400, 403, 404, 409, 412, 416, 500, 503} {
			f.Add(status, []byte(body))
		}
	}
	var answer struct {
		status int
		body   []byte
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(answer.status)
		w.Write(answer.body)
	}))
	f.Cleanup(server.Close)
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 || status == 204 || status == 304 {
			return // net/http writes no body with these
		}
		answer.status, answer.body = status, body
		for _, name := range []string{"s3", "minio"} {
			answered(t, name, server.URL, body)
		}
	})
}

func answered(t *testing.T, name, endpoint string, body []byte) {
	config, err := registry.Parse(map[string]string{
		"bucket": "bucket", "endpoint": endpoint, "region": "us-east-1", "access.key": "a", "secret.key": "b", "request.attempts": "1",
	}, "", "cluster")
	if err != nil {
		t.Fatal(err)
	}
	opened, err := registry.Stores().Open(t.Context(), name, config, deps())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	m := opened.(objectstore.InventoryManager)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	kind := func(op string, err error) {
		if err != nil && objectstore.KindName(err) == "other" {
			t.Fatalf("%s, %s: %v is of no kind", name, op, err)
		}
	}
	s, d, log := contract.Segment(uuid.UUID{1}, 0, 100)
	custom, err := m.CopyLogSegmentData(ctx, s, d)
	kind("copy", err)
	if s.Custom = custom; err != nil {
		s.Custom = (&segmentobject.Custom{TailBytes: 500}).Encode()
	}
	r, err := m.FetchLogSegment(ctx, s, 0, s.SizeBytes)
	kind("get", err)
	if err == nil {
		got, err := io.ReadAll(r)
		kind("read", err)
		if err == nil && len(got) != len(log) {
			t.Fatalf("%s: %d bytes without an error, want %d", name, len(got), len(log))
		}
		r.Close()
	}
	x, err := m.FetchIndexes(ctx, s)
	kind("indexes", err)
	if err == nil && !bytes.Equal(x.Offset, d.Indexes.Offset) {
		t.Fatalf("%s: other indexes without an error", name)
	}
	errs := m.DeleteLogSegmentData(ctx, []*objectstore.SegmentMetadata{s})
	for _, err := range errs {
		kind("delete", err)
	}
	if key, err := m.ObjectKey(s); errs == nil && (err != nil || !bytes.Contains(body, []byte(key))) {
		t.Fatalf("%s: %s counts as deleted, for an answer that does not say so (%v)", name, key, err)
	}
	pages := 0
	kind("list", m.ListObjects(ctx, objectstore.Scope{}, func(objectstore.Object) error {
		if pages++; pages > 100 {
			return objectstore.ErrTransient // a store that says for ever that there is more
		}
		return nil
	}))
	_, err = m.AbortStaleUploads(ctx, time.Now(), true)
	kind("list uploads", err)
}
