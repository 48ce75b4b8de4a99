package s3store

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"chancery/services/objectstore"
	"chancery/services/objectstore/s3wire"
)

// TestCorrectedSecret: a secret that was wrong in the file counts as soon as it is right, also with the same id.
func TestCorrectedSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(secret string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = id\naws_secret_access_key = "+secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		if err != nil {
			t.Error(err)
		}
		// The same request, signed with the right secret by a signer that has seen no other.
		again, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+r.Host+r.URL.RequestURI(), nil)
		if err != nil {
			t.Error(err)
		}
		_, signed, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
		signed, _, _ = strings.Cut(signed, ",")
		for name := range strings.SplitSeq(signed, ";") {
			if name != "host" {
				again.Header[http.CanonicalHeaderKey(name)] = r.Header[http.CanonicalHeaderKey(name)]
			}
		}
		c := aws.Credentials{AccessKeyID: "id", SecretAccessKey: "right"}
		if err := newSigner().SignHTTP(r.Context(), c, again, r.Header.Get("X-Amz-Content-Sha256"), "s3", "us-east-1", at); err != nil {
			t.Error(err)
		}
		if refused = again.Header.Get("Authorization") != r.Header.Get("Authorization"); refused {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	write("wrong")
	s, err := Open(t.Context(), s3wire.Settings{Bucket: "b", Endpoint: server.URL, Region: "us-east-1", PathStyle: true, CredentialsFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Head(t.Context(), "key"); !errors.Is(err, objectstore.ErrCredentials) {
		t.Fatal(err)
	}
	write("right")
	if _, err := s.Head(t.Context(), "key"); err != nil || refused {
		t.Fatal(err)
	}
}
