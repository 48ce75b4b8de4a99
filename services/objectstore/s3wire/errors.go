package s3wire

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
)

// codes is what S3's error codes mean, where the HTTP status alone does not say it.
var codes = map[string]error{
	"SlowDown":                               objectstore.ErrThrottled,
	"SlowDownRead":                           objectstore.ErrThrottled,
	"SlowDownWrite":                          objectstore.ErrThrottled,
	"Throttling":                             objectstore.ErrThrottled,
	"ThrottlingException":                    objectstore.ErrThrottled,
	"ThrottledException":                     objectstore.ErrThrottled,
	"RequestThrottled":                       objectstore.ErrThrottled,
	"RequestLimitExceeded":                   objectstore.ErrThrottled,
	"TooManyRequests":                        objectstore.ErrThrottled,
	"TooManyRequestsException":               objectstore.ErrThrottled,
	"BandwidthLimitExceeded":                 objectstore.ErrThrottled,
	"NoSuchKey":                              objectstore.ErrNotFound,
	"NoSuchUpload":                           objectstore.ErrNotFound,
	"NotFound":                               objectstore.ErrNotFound,
	"NoSuchBucket":                           objectstore.ErrRejected,
	"InvalidRange":                           objectstore.ErrCorrupt,
	"RequestTimeout":                         objectstore.ErrTransient,
	"InternalError":                          objectstore.ErrTransient,
	"ServiceUnavailable":                     objectstore.ErrTransient,
	"OperationAborted":                       objectstore.ErrTransient,
	"ConditionalRequestConflict":             objectstore.ErrTransient,
	"IncompleteBody":                         objectstore.ErrTransient,
	"XMinioServerNotInitialized":             objectstore.ErrTransient,
	"BadDigest":                              objectstore.ErrTransient,
	"XAmzContentChecksumMismatch":            objectstore.ErrTransient,
	"XAmzContentSHA256Mismatch":              objectstore.ErrTransient,
	"ExpiredToken":                           objectstore.ErrCredentials,
	"ExpiredTokenException":                  objectstore.ErrCredentials,
	"TokenRefreshRequired":                   objectstore.ErrCredentials,
	"InvalidToken":                           objectstore.ErrCredentials,
	"InvalidAccessKeyId":                     objectstore.ErrCredentials,
	"SignatureDoesNotMatch":                  objectstore.ErrCredentials,
	"AccessDenied":                           objectstore.ErrCredentials,
	"XAdminUserNotFound":                     objectstore.ErrCredentials,
	"RequestTimeTooSkewed":                   objectstore.ErrCredentials,
	"AuthorizationHeaderMalformed":           objectstore.ErrCredentials,
	"UnrecognizedClientException":            objectstore.ErrCredentials,
	"AccountProblem":                         objectstore.ErrCredentials,
	"InvalidObjectState":                     objectstore.ErrRejected,
	"AccessDeniedByDefaultEncryptionContext": objectstore.ErrCredentials,
}

// noCode is what Amazon's client has as the code of an answer without one.
const noCode = "UnknownError"

// Kind is what a failed request means, from S3's error code and the HTTP status; 0 when there was no answer. Checksums
// that the store found to be wrong are transient: the body was checked when it was read, so it was damaged on its way. Something else
// than the object that is not there, whatever it is, is not taken for the object: it would count as expired, or as deleted.
func Kind(status int, code string) error {
	if kind, ok := codes[code]; ok {
		return kind
	}
	switch {
	case status == http.StatusTooManyRequests:
		return objectstore.ErrThrottled
	case status == http.StatusNotFound && (code == "" || code == noCode):
		return objectstore.ErrNotFound
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return objectstore.ErrCredentials
	case status == http.StatusRequestedRangeNotSatisfiable:
		return objectstore.ErrCorrupt
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status < 400, status >= 500:
		return objectstore.ErrTransient
	}
	return objectstore.ErrRejected
}

// Failed makes an error of a kind from what an S3 client has got. message is the store's own; empty when it gave none.
func (s *Settings) Failed(op, key string, status int, code, message string, err error) *objectstore.Error {
	kind := Kind(status, code)
	if errors.Is(err, objectstore.ErrCredentials) {
		kind = objectstore.ErrCredentials // there were none to ask with
	}
	cause := error(&cause{text: s.explain(code, message, err), err: err})
	switch {
	case status == http.StatusPreconditionFailed:
		kind, cause = objectstore.ErrRejected, errors.Join(blob.ErrExists, cause)
	case code == "ConditionalRequestConflict":
		cause = errors.Join(blob.ErrConflict, cause)
	}
	return &objectstore.Error{Kind: kind, Op: op, Key: key, Code: code, Err: cause}
}

// cause is what an S3 client has got, in fewer words.
type cause struct {
	text string
	err  error
}

// Error gives the words.
func (c *cause) Error() string { return c.text }

// Unwrap gives what the client has got.
func (c *cause) Unwrap() error { return c.err }

// explain says what happened, where, and what would be right.
func (s *Settings) explain(code, message string, err error) string {
	var request *url.Error
	switch {
	case message != "":
	case errors.As(err, &request):
		message = request.Err.Error() // the key is known, and the client's own words are of no use to anybody
	case err != nil:
		message = err.Error()
	}
	text := strings.TrimRight(message, ".") + " (" + s.where() + ")"
	if hint := hintFor(code, message, err); hint != "" {
		text += "; " + strings.ReplaceAll(hint, "rsm.config.", s.KeyPrefix)
	}
	return text
}

// where names the bucket.
func (s *Settings) where() string {
	switch {
	case s.Endpoint != "":
		return "bucket " + s.Bucket + " at " + s.Endpoint
	case s.Region != "":
		return "bucket " + s.Bucket + " in " + s.Region
	}
	return "bucket " + s.Bucket
}

// hints are what to do about S3's error codes.
var hints = map[string]string{
	"NoSuchBucket":                 "create the bucket, or name another one with rsm.config.bucket",
	"InvalidBucketName":            "name another bucket with rsm.config.bucket",
	"InvalidAccessKeyId":           "check rsm.config.access.key, or whatever the credentials come from",
	"SignatureDoesNotMatch":        "check rsm.config.secret.key, or whatever the credentials come from",
	"AccessDenied":                 "let the credentials read, write, delete and list in the bucket",
	"ExpiredToken":                 "renew the credentials",
	"ExpiredTokenException":        "renew the credentials",
	"RequestTimeTooSkewed":         "set the clock of this machine",
	"AuthorizationHeaderMalformed": "check rsm.config.region",
	"PermanentRedirect":            "check rsm.config.region and rsm.config.endpoint",
	"NotImplemented":               "the store may know neither If-None-Match (rsm.config.if.none.match=false) nor checksums (rsm.config.checksum=when_required)",
}

// hintFor says what to do about an error; empty when nobody knows.
func hintFor(code, message string, err error) string {
	if hint, ok := hints[code]; ok {
		return hint
	}
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		name      *net.DNSError
	)
	switch {
	case errors.As(err, &authority):
		return "set rsm.config.tls.ca.file to the certificate of the authority that signed the store's"
	case errors.As(err, &host):
		return "use a name in rsm.config.endpoint that the store's certificate has"
	case strings.Contains(message, "server gave HTTP response to HTTPS client"):
		return "the store does not speak TLS: want http:// in rsm.config.endpoint"
	case strings.Contains(message, "HTTP request to an HTTPS server"):
		return "the store speaks TLS: want https:// in rsm.config.endpoint"
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &name):
		return "check rsm.config.endpoint, and whether the store runs"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return "a store that speaks TLS wants https:// in rsm.config.endpoint"
	}
	return ""
}

// Unanswered is the error of a key that an answer about several keys does not name; cause may be nil.
func Unanswered(key string, cause error) error {
	if cause == nil {
		cause = blob.ErrUnanswered
	}
	return &objectstore.Error{Kind: objectstore.ErrTransient, Op: "delete", Key: key, Err: cause}
}

// Checksum is a CRC-32C as S3 writes it.
func Checksum(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// Range is the header for the bytes [start, end).
func Range(start, end int64) string { return fmt.Sprintf("bytes=%d-%d", start, end-1) }

// CheckRange reads the header of an answer to such a request: it must begin where it was asked to. It returns the size of
// the whole object, -1 when the store does not know it.
func CheckRange(header string, start int64) (objectBytes int64, err error) {
	rest, ok := strings.CutPrefix(header, "bytes ")
	place, total, ok2 := strings.Cut(rest, "/")
	first, _, ok3 := strings.Cut(place, "-")
	begin, err := strconv.ParseInt(first, 10, 64)
	if !ok || !ok2 || !ok3 || err != nil || begin != start {
		return 0, fmt.Errorf("%w: the answer's range is %q, want one that begins at %d", objectstore.ErrTransient, header, start)
	}
	if total == "*" {
		return -1, nil
	}
	if objectBytes, err = strconv.ParseInt(total, 10, 64); err != nil {
		return 0, fmt.Errorf("%w: the answer's range is %q", objectstore.ErrTransient, header)
	}
	return objectBytes, nil
}
