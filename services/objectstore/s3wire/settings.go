// Package s3wire is what the clients of S3 have in common: their settings, the connections they use, and what S3's errors
// mean.
//
// It owns those; it must never make a request itself.
package s3wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// Settings say where the bucket is and how it is used.
type Settings struct {
	Bucket string
	// Endpoint is the URL of a store that is not Amazon's; empty means Amazon's of the region.
	Endpoint  string
	Region    string
	PathStyle bool

	// AccessKey, SecretKey and SessionToken are the credentials. Without them, CredentialsFile with Profile has them, or else
	// the environment, the default files, a web identity token, or the machine's role.
	AccessKey       string
	SecretKey       string
	SessionToken    string
	CredentialsFile string
	Profile         string

	// CAFile has the certificates that the store's is checked with, instead of the system's.
	CAFile string
	// SendChecksums sends CRC-32C with every upload, for the store to check. Some older stores refuse it.
	SendChecksums bool

	StorageClass string
	// SSE is the server-side encryption: empty, AES256 or aws:kms; SSEKeyID the key for the latter, empty for the default.
	SSE      string
	SSEKeyID string

	// KeyPrefix is what the settings' names begin with, for messages.
	KeyPrefix string

	// MaxConnections is how many connections stay open between requests.
	MaxConnections int
}

// Check says what is wrong with settings; each problem names its setting.
func (s *Settings) Check() error {
	var errs []error
	if s.Bucket == "" {
		errs = append(errs, errors.New(s.KeyPrefix+"bucket is not set: it names the bucket for the segments"))
	}
	if s.Endpoint != "" {
		if u, err := url.Parse(s.Endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" {
			errs = append(errs, fmt.Errorf("%sendpoint is %q: want a URL without a path, such as https://s3.example.com:9000", s.KeyPrefix, s.Endpoint))
		}
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		errs = append(errs, fmt.Errorf("%[1]saccess.key and %[1]ssecret.key: set both, or none to use other credentials", s.KeyPrefix))
	}
	if s.AccessKey != "" && s.CredentialsFile != "" {
		errs = append(errs, fmt.Errorf("%[1]saccess.key and %[1]scredentials.file: set only one of them", s.KeyPrefix))
	}
	if s.SSEKeyID != "" && s.SSE != "aws:kms" {
		errs = append(errs, fmt.Errorf("%[1]ssse.kms.key.id: it needs %[1]ssse=aws:kms", s.KeyPrefix))
	}
	return errors.Join(errs...)
}

// CheckEndpoint wants an endpoint, for stores that have no default one.
func (s *Settings) CheckEndpoint() error {
	if s.Endpoint == "" {
		return errors.New(s.KeyPrefix + "endpoint is not set: it is the URL of the store, such as https://minio.example.com:9000")
	}
	return nil
}

// Client makes the HTTP client. It follows no redirects of its own, and has no time-outs: those belong to each request.
func (s *Settings) Client() (*http.Client, error) {
	const dialTimeout = 5 * time.Second
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConns:        s.MaxConnections,
		MaxIdleConnsPerHost: s.MaxConnections,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		WriteBufferSize:     128 << 10,
		ReadBufferSize:      128 << 10,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%stls.ca.file: %w", s.KeyPrefix, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%stls.ca.file: %s has no certificate in PEM", s.KeyPrefix, s.CAFile)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: transport}, nil
}
