// Package s3store keeps objects in a bucket of Amazon S3, or of a store that speaks its protocol, with Amazon's client.
//
// It owns that client and its credentials. Each method makes one request; it must never retry by itself.
package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/s3wire"
)

// Store is a bucket.
type Store struct {
	client      *s3.Client
	http        *http.Client
	settings    s3wire.Settings
	credentials *aws.CredentialsCache
	signer      *signer
}

var (
	_ blob.Store      = (*Store)(nil)
	_ blob.Multipart  = (*Store)(nil)
	_ blob.Unfinished = (*Store)(nil)
)

// Open makes a client. It asks the store nothing yet.
func Open(ctx context.Context, settings s3wire.Settings) (*Store, error) {
	if err := settings.Check(); err != nil {
		return nil, err
	}
	if settings.CAFile == "" {
		settings.CAFile = os.Getenv("AWS_CA_BUNDLE") // as Amazon's own client would have it
	}
	client, err := settings.Client()
	if err != nil {
		return nil, err
	}
	options := []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		// Reads are ranges, which the client cannot check; blocks have checksums of their own.
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if settings.Region != "" {
		options = append(options, config.WithRegion(settings.Region))
	}
	if settings.Profile != "" && settings.CredentialsFile == "" {
		options = append(options, config.WithSharedConfigProfile(settings.Profile))
	}
	switch {
	case settings.AccessKey != "":
		options = append(options, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(settings.AccessKey, settings.SecretKey, settings.SessionToken)))
	case settings.CredentialsFile != "":
		options = append(options, config.WithCredentialsProvider(fileCredentials(settings.CredentialsFile, settings.Profile)))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("configuration of the S3 client: %w", err)
	}
	if loaded.Region == "" {
		return nil, errors.New(settings.KeyPrefix + "region is not set, and neither is AWS_REGION: it names the region of the bucket; stores that are not Amazon's take us-east-1")
	}
	s := &Store{http: client, settings: settings, signer: newSigner()}
	// The configuration has a cache of its own already; one before it would hide from it what is invalidated.
	cache, ok := loaded.Credentials.(*aws.CredentialsCache)
	if !ok {
		cache = aws.NewCredentialsCache(loaded.Credentials)
	}
	s.credentials, loaded.Credentials = cache, cache
	s.client = s3.NewFromConfig(loaded, func(o *s3.Options) {
		o.HTTPClient = client
		o.HTTPSignerV4 = s.signer
		o.UsePathStyle = settings.PathStyle
		if settings.Endpoint != "" {
			o.BaseEndpoint = aws.String(settings.Endpoint)
		}
	})
	return s, nil
}

// fileCredentialsLife is how long credentials of a file are believed before it is read again.
const fileCredentialsLife = time.Minute

// fileCredentials reads a file again and again, so that whoever renews it needs no restart.
func fileCredentials(file, profile string) aws.CredentialsProvider {
	if profile == "" {
		profile = "default"
	}
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		shared, err := config.LoadSharedConfigProfile(ctx, profile, func(o *config.LoadSharedConfigOptions) {
			o.CredentialsFiles, o.ConfigFiles = []string{file}, []string{}
		})
		if err == nil && !shared.Credentials.HasKeys() {
			err = fmt.Errorf("profile %s has no keys", profile)
		}
		if err != nil {
			return aws.Credentials{}, fmt.Errorf("%w: credentials.file %s: %w", objectstore.ErrCredentials, file, err)
		}
		c := shared.Credentials
		c.CanExpire, c.Expires = true, time.Now().Add(fileCredentialsLife)
		return c, nil
	})
}

// Close gives back the connections.
func (s *Store) Close() error {
	s.http.CloseIdleConnections()
	return nil
}

// failed makes an error of objectstore's kinds. Credentials that were refused are fetched anew for the next request.
func (s *Store) failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	var (
		status   int
		code     string
		message  string
		answer   interface{ HTTPStatusCode() int }
		apiError smithy.APIError
	)
	if errors.As(err, &answer) {
		status = answer.HTTPStatusCode()
	}
	if errors.As(err, &apiError) {
		code, message = apiError.ErrorCode(), apiError.ErrorMessage()
	}
	e := s.settings.Failed(op, key, status, code, message, err)
	if errors.Is(e.Kind, objectstore.ErrCredentials) {
		s.credentials.Invalidate()
		s.signer.renew()
	}
	return e
}

// unsigned leaves the body out of the signature: its checksum is in a header of its own, which is signed.
func unsigned(o *s3.Options) {
	o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
}

// Put makes an object in one request.
func (s *Store) Put(ctx context.Context, o blob.PutObject) error {
	in := &s3.PutObjectInput{
		Bucket: &s.settings.Bucket, Key: &o.Key, Body: io.NewSectionReader(o.Body, 0, o.Bytes), ContentLength: &o.Bytes,
		Metadata: o.Metadata, StorageClass: types.StorageClass(s.settings.StorageClass),
		ServerSideEncryption: types.ServerSideEncryption(s.settings.SSE), SSEKMSKeyId: optional(s.settings.SSEKeyID),
	}
	if s.settings.SendChecksums {
		in.ChecksumCRC32C = aws.String(s3wire.Checksum(o.CRC32C))
	}
	if o.IfAbsent {
		in.IfNoneMatch = aws.String("*")
	}
	_, err := s.client.PutObject(ctx, in, unsigned)
	return s.failed("put", o.Key, err)
}

func optional(value string) *string {
	if value == "" {
		return nil
	}
	return &value
}

// CreateUpload begins an upload in parts.
func (s *Store) CreateUpload(ctx context.Context, o blob.PutObject) (string, error) {
	in := &s3.CreateMultipartUploadInput{
		Bucket: &s.settings.Bucket, Key: &o.Key, Metadata: o.Metadata, StorageClass: types.StorageClass(s.settings.StorageClass),
		ServerSideEncryption: types.ServerSideEncryption(s.settings.SSE), SSEKMSKeyId: optional(s.settings.SSEKeyID),
	}
	if s.settings.SendChecksums {
		in.ChecksumAlgorithm, in.ChecksumType = types.ChecksumAlgorithmCrc32c, types.ChecksumTypeFullObject
	}
	out, err := s.client.CreateMultipartUpload(ctx, in)
	if err != nil {
		return "", s.failed("create_upload", o.Key, err)
	}
	return aws.ToString(out.UploadId), nil
}

// UploadPart uploads a part.
func (s *Store) UploadPart(ctx context.Context, uploadID string, number int32, p blob.PutObject) (blob.Part, error) {
	in := &s3.UploadPartInput{
		Bucket: &s.settings.Bucket, Key: &p.Key, UploadId: &uploadID, PartNumber: &number,
		Body: io.NewSectionReader(p.Body, 0, p.Bytes), ContentLength: &p.Bytes,
	}
	if s.settings.SendChecksums {
		in.ChecksumCRC32C = aws.String(s3wire.Checksum(p.CRC32C))
	}
	out, err := s.client.UploadPart(ctx, in, unsigned)
	if err != nil {
		return blob.Part{}, s.failed("upload_part", p.Key, err)
	}
	return blob.Part{Number: number, ETag: aws.ToString(out.ETag), CRC32C: p.CRC32C}, nil
}

// CompleteUpload makes the object of its parts; the store checks it against the checksum of the whole.
func (s *Store) CompleteUpload(ctx context.Context, uploadID string, parts []blob.Part, o blob.PutObject) error {
	list := make([]types.CompletedPart, len(parts))
	for i := range parts {
		list[i] = types.CompletedPart{PartNumber: &parts[i].Number, ETag: &parts[i].ETag}
		if s.settings.SendChecksums {
			list[i].ChecksumCRC32C = aws.String(s3wire.Checksum(parts[i].CRC32C))
		}
	}
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &s.settings.Bucket, Key: &o.Key, UploadId: &uploadID, MultipartUpload: &types.CompletedMultipartUpload{Parts: list},
	}
	if s.settings.SendChecksums {
		in.ChecksumCRC32C, in.ChecksumType = aws.String(s3wire.Checksum(o.CRC32C)), types.ChecksumTypeFullObject
		in.MpuObjectSize = &o.Bytes
	}
	if o.IfAbsent {
		in.IfNoneMatch = aws.String("*")
	}
	_, err := s.client.CompleteMultipartUpload(ctx, in)
	return s.failed("complete_upload", o.Key, err)
}

// Get reads a range.
func (s *Store) Get(ctx context.Context, key string, start, end int64) (io.ReadCloser, int64, error) {
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.settings.Bucket, Key: &key, Range: aws.String(s3wire.Range(start, end))})
	if err != nil {
		return nil, 0, s.failed("get", key, err)
	}
	size, err := s3wire.CheckRange(aws.ToString(out.ContentRange), start)
	if err != nil {
		out.Body.Close()
		return nil, 0, &objectstore.Error{Kind: objectstore.ErrTransient, Op: "get", Key: key, Err: err}
	}
	return out.Body, size, nil
}

// Head describes an object.
func (s *Store) Head(ctx context.Context, key string) (blob.Info, error) {
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.settings.Bucket, Key: &key})
	if err != nil {
		return blob.Info{}, s.failed("head", key, err)
	}
	info := blob.Info{Key: key, Bytes: aws.ToInt64(out.ContentLength), LastModified: aws.ToTime(out.LastModified), Metadata: make(map[string]string)}
	for name, value := range out.Metadata {
		info.Metadata[strings.ToLower(name)] = value
	}
	return info, nil
}

// Delete deletes objects.
func (s *Store) Delete(ctx context.Context, keys []string) []error {
	ids := make([]types.ObjectIdentifier, len(keys))
	for i := range keys {
		ids[i] = types.ObjectIdentifier{Key: &keys[i]}
	}
	out, err := s.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: &s.settings.Bucket, Delete: &types.Delete{Objects: ids},
	})
	var errs []error
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]error, len(keys))
		}
		errs[i] = err
	}
	if err != nil {
		err = s.failed("delete", keys[0], err)
		for i := range keys {
			fail(i, err)
		}
		return errs
	}
	// A key that the answer does not name may be there still, as when something between answers in the store's place.
	answers := make(map[string]*types.Error, len(keys))
	for i := range out.Deleted {
		answers[aws.ToString(out.Deleted[i].Key)] = nil
	}
	for i := range out.Errors {
		answers[aws.ToString(out.Errors[i].Key)] = &out.Errors[i]
	}
	for i, key := range keys {
		switch e, answered := answers[key]; {
		case !answered:
			fail(i, s3wire.Unanswered(key, nil))
		case e != nil && aws.ToString(e.Code) != "NoSuchKey":
			fail(i, s.settings.Failed("delete", key, http.StatusInternalServerError, aws.ToString(e.Code), aws.ToString(e.Message), nil))
		}
	}
	return errs
}

// List gives a page.
func (s *Store) List(ctx context.Context, prefix, token string) (blob.Page, error) {
	out, err := s.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &s.settings.Bucket, Prefix: &prefix, ContinuationToken: optional(token)})
	if err != nil {
		return blob.Page{}, s.failed("list", prefix, err)
	}
	page := blob.Page{Objects: make([]blob.Info, len(out.Contents))}
	for i, o := range out.Contents {
		page.Objects[i] = blob.Info{Key: aws.ToString(o.Key), Bytes: aws.ToInt64(o.Size), LastModified: aws.ToTime(o.LastModified)}
	}
	if aws.ToBool(out.IsTruncated) {
		page.Next = aws.ToString(out.NextContinuationToken)
	}
	return page, nil
}

// ListUploads lists uploads in parts that were not finished.
func (s *Store) ListUploads(ctx context.Context, prefix string, visit func(blob.Upload) error) error {
	in := &s3.ListMultipartUploadsInput{Bucket: &s.settings.Bucket, Prefix: &prefix}
	for {
		out, err := s.client.ListMultipartUploads(ctx, in)
		if err != nil {
			return s.failed("list_uploads", prefix, err)
		}
		for _, u := range out.Uploads {
			if err := visit(blob.Upload{Key: aws.ToString(u.Key), UploadID: aws.ToString(u.UploadId), Begun: aws.ToTime(u.Initiated)}); err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) || aws.ToString(out.NextKeyMarker) == "" {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}

// AbortUpload ends an upload in parts.
func (s *Store) AbortUpload(ctx context.Context, key, uploadID string) error {
	_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &s.settings.Bucket, Key: &key, UploadId: &uploadID})
	if err = s.failed("abort_upload", key, err); errors.Is(err, objectstore.ErrNotFound) {
		return nil
	}
	return err
}

// CreateBucket makes the bucket, for tests and first steps; it may be there already.
func (s *Store) CreateBucket(ctx context.Context) error {
	_, err := s.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &s.settings.Bucket})
	var owned *types.BucketAlreadyOwnedByYou
	if errors.As(err, &owned) {
		return nil
	}
	return s.failed("create_bucket", s.settings.Bucket, err)
}
