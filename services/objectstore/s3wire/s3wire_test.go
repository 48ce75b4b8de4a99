package s3wire_test

import (
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/s3wire"
)

func TestKinds(t *testing.T) {
	settings := &s3wire.Settings{Bucket: "b"}
	for _, c := range []struct {
		status int
		code   string
		kind   error
	}{
		{503, "SlowDown", objectstore.ErrThrottled},
		{503, "", objectstore.ErrTransient},
		{429, "", objectstore.ErrThrottled},
		{500, "InternalError", objectstore.ErrTransient},
		{200, "InternalError", objectstore.ErrTransient},
		{400, "RequestTimeout", objectstore.ErrTransient},
		{400, "ExpiredToken", objectstore.ErrCredentials},
		{403, "", objectstore.ErrCredentials},
		{404, "NoSuchKey", objectstore.ErrNotFound},
		{404, "NoSuchUpload", objectstore.ErrNotFound},
		{404, "NoSuchBucket", objectstore.ErrRejected},
		{416, "", objectstore.ErrCorrupt},
		{412, "PreconditionFailed", objectstore.ErrRejected},
		{409, "ConditionalRequestConflict", objectstore.ErrTransient},
		{400, "BadDigest", objectstore.ErrTransient},
		{400, "InvalidArgument", objectstore.ErrRejected},
		{0, "", objectstore.ErrTransient},
	} {
		if err := settings.Failed("put", "k", c.status, c.code, "", errors.New("cause")); !errors.Is(err, c.kind) {
			t.Errorf("%d %s: %v, want %v", c.status, c.code, err, c.kind)
		}
	}
	if err := settings.Failed("put", "k", 412, "", "", nil); !errors.Is(err, blob.ErrExists) {
		t.Errorf("412: %v", err)
	}
	if err := settings.Failed("put", "k", 409, "ConditionalRequestConflict", "", nil); !errors.Is(err, blob.ErrConflict) {
		t.Errorf("409: %v", err)
	}
}

// TestWords: an error says what happened, where, and what would be right, without the words of clients that help nobody.
func TestWords(t *testing.T) {
	settings := &s3wire.Settings{Bucket: "b", Endpoint: "http://store:9000"}
	sent := func(err error) error {
		return &url.Error{Op: "Put", URL: "http://store:9000/b/key?x-id=PutObject", Err: err}
	}
	for _, c := range []struct {
		code, message string
		err           error
		want          string
	}{
		{"NoSuchBucket", "It does not exist.", errors.New("RequestID: 5"), "It does not exist (bucket b at http://store:9000); create the bucket"},
		{"SignatureDoesNotMatch", "Wrong.", nil, "check secret.key"},
		{"AccessDenied", "No.", nil, "let the credentials read, write, delete and list"},
		{"", "", sent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}), "dial tcp: connection refused (bucket b at http://store:9000); check endpoint"},
		{"", "", sent(errors.New("http: server gave HTTP response to HTTPS client")), "want http:// in endpoint"},
		{"", "Client sent an HTTP request to an HTTPS server.", nil, "want https:// in endpoint"},
		{"", "", sent(x509.UnknownAuthorityError{}), "set tls.ca.file"},
	} {
		text := settings.Failed("put", "k", 0, c.code, c.message, c.err).Error()
		if !strings.Contains(text, c.want) || strings.Contains(text, "RequestID") || strings.Contains(text, "x-id") {
			t.Errorf("%q, want %q", text, c.want)
		}
	}
}

func TestCheckRange(t *testing.T) {
	for _, c := range []struct {
		header string
		start  int64
		size   int64
		ok     bool
	}{
		{"bytes 5-9/100", 5, 100, true}, {"bytes 5-9/*", 5, -1, true}, {"bytes 4-9/100", 5, 0, false}, {"", 0, 0, false},
		{"bytes x-9/100", 5, 0, false}, {"bytes 5-9/x", 5, 0, false}, {"items 5-9/100", 5, 0, false},
	} {
		size, err := s3wire.CheckRange(c.header, c.start)
		if (err == nil) != c.ok || size != c.size {
			t.Errorf("%q from %d: %d %v", c.header, c.start, size, err)
		}
	}
}

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		settings s3wire.Settings
		problem  string
	}{
		{s3wire.Settings{Bucket: "b"}, ""},
		{s3wire.Settings{}, "bucket"},
		{s3wire.Settings{Bucket: "b", Endpoint: "localhost:9000"}, "endpoint"},
		{s3wire.Settings{Bucket: "b", Endpoint: "https://x/y"}, "endpoint"},
		{s3wire.Settings{Bucket: "b", AccessKey: "a"}, "secret.key"},
		{s3wire.Settings{Bucket: "b", AccessKey: "a", SecretKey: "s", CredentialsFile: "f"}, "credentials.file"},
		{s3wire.Settings{Bucket: "b", SSEKeyID: "k"}, "sse"},
	} {
		err := c.settings.Check()
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%+v: %v, want it to name %q", c.settings, err, c.problem)
		}
	}
	if _, err := (&s3wire.Settings{CAFile: "/nowhere"}).Client(); err == nil || !strings.Contains(err.Error(), "tls.ca.file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func FuzzCheckRange(f *testing.F) {
	f.Add("bytes 5-9/100", int64(5))
	f.Fuzz(func(t *testing.T, header string, start int64) {
		if _, err := s3wire.CheckRange(header, start); err != nil && !errors.Is(err, objectstore.ErrTransient) {
			t.Fatal(err)
		}
	})
}
