package s3store

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// signer signs requests with Amazon's signer, which keeps the key that it derives from a secret, by the id of the access key
// alone: a secret that was wrong and is corrected would not count before the next day. So it begins anew when credentials are refused.
type signer struct {
	current atomic.Pointer[v4.Signer]
}

func newSigner() *signer {
	s := &signer{}
	s.renew()
	return s
}

// renew forgets all derived keys.
func (s *signer) renew() {
	// S3 does not want paths to be escaped twice.
	s.current.Store(v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }))
}

// SignHTTP is part of s3.HTTPSignerV4.
func (s *signer) SignHTTP(ctx context.Context, c aws.Credentials, r *http.Request, payloadHash, service, region string, at time.Time, options ...func(*v4.SignerOptions)) error {
	return s.current.Load().SignHTTP(ctx, c, r, payloadHash, service, region, at, options...)
}
