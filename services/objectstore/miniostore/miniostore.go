// Package miniostore keeps objects in a bucket of MinIO, or of another store that speaks S3's protocol, with MinIO's client.
//
// It owns that client and its credentials. Each method makes one request; it must never retry by itself.
package miniostore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/s3wire"
)

// The headers with checksums.
const (
	checksumHeader          = "X-Amz-Checksum-Crc32c"
	checksumAlgorithmHeader = "X-Amz-Checksum-Algorithm"
	checksumTypeHeader      = "X-Amz-Checksum-Type"
	metadataPrefix          = "X-Amz-Meta-"
)

// Store is a bucket.
type Store struct {
	core        minio.Core
	http        *http.Client
	settings    s3wire.Settings
	credentials *credentials.Credentials
}

var (
	_ blob.Store      = (*Store)(nil)
	_ blob.Multipart  = (*Store)(nil)
	_ blob.Unfinished = (*Store)(nil)
)

// Open makes a client. It asks the store nothing yet.
func Open(settings s3wire.Settings) (*Store, error) {
	if err := settings.Check(); err != nil {
		return nil, err
	}
	if err := settings.CheckEndpoint(); err != nil {
		return nil, err
	}
	u, err := url.Parse(settings.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	client, err := settings.Client()
	if err != nil {
		return nil, err
	}
	region := settings.Region
	if region == "" {
		region = "us-east-1" // MinIO's own; asking for it would cost a request.
	}
	s := &Store{http: client, settings: settings, credentials: credentialsOf(&settings)}
	lookup := minio.BucketLookupDNS
	if settings.PathStyle {
		lookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds: s.credentials, Secure: u.Scheme == "https", Transport: client.Transport, Region: region, BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("client of the store: %w", err)
	}
	s.core = *core
	return s, nil
}

func credentialsOf(s *s3wire.Settings) *credentials.Credentials {
	if s.AccessKey != "" {
		return credentials.NewStaticV4(s.AccessKey, s.SecretKey, s.SessionToken)
	}
	file := &credentials.FileAWSCredentials{Filename: s.CredentialsFile, Profile: s.Profile}
	if s.CredentialsFile != "" {
		return credentials.New(file)
	}
	return credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.EnvMinio{}, file, &credentials.IAM{}})
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
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) {
		return s.settings.Failed(op, key, 0, "", "", err)
	}
	e := s.settings.Failed(op, key, answer.StatusCode, answer.Code, answer.Message, err)
	if errors.Is(e.Kind, objectstore.ErrCredentials) {
		s.credentials.Expire()
	}
	return e
}

// options are the headers of an object. Those that begin with x-amz-checksum- pass through the metadata unchanged.
func (s *Store) options(o *blob.PutObject) (minio.PutObjectOptions, error) {
	options := minio.PutObjectOptions{
		UserMetadata: make(map[string]string), StorageClass: s.settings.StorageClass, DisableContentSha256: true, DisableMultipart: true,
	}
	for name, value := range o.Metadata {
		options.UserMetadata[name] = value
	}
	switch s.settings.SSE {
	case "AES256":
		options.ServerSideEncryption = encrypt.NewSSE()
	case "aws:kms":
		sse, err := encrypt.NewSSEKMS(s.settings.SSEKeyID, nil)
		if err != nil {
			return options, fmt.Errorf("%w: sse: %w", objectstore.ErrRejected, err)
		}
		options.ServerSideEncryption = sse
	}
	return options, nil
}

// Put makes an object in one request.
func (s *Store) Put(ctx context.Context, o blob.PutObject) error {
	options, err := s.options(&o)
	if err != nil {
		return err
	}
	if s.settings.SendChecksums {
		options.UserMetadata[checksumHeader] = s3wire.Checksum(o.CRC32C)
	}
	if o.IfAbsent {
		options.SetMatchETagExcept("*")
	}
	_, err = s.core.PutObject(ctx, s.settings.Bucket, o.Key, io.NewSectionReader(o.Body, 0, o.Bytes), o.Bytes, "", "", options)
	return s.failed("put", o.Key, err)
}

// CreateUpload begins an upload in parts.
func (s *Store) CreateUpload(ctx context.Context, o blob.PutObject) (string, error) {
	options, err := s.options(&o)
	if err != nil {
		return "", err
	}
	if s.settings.SendChecksums {
		options.UserMetadata[checksumAlgorithmHeader] = "CRC32C"
		options.UserMetadata[checksumTypeHeader] = "FULL_OBJECT"
	}
	id, err := s.core.NewMultipartUpload(ctx, s.settings.Bucket, o.Key, options)
	return id, s.failed("create_upload", o.Key, err)
}

// UploadPart uploads a part.
func (s *Store) UploadPart(ctx context.Context, uploadID string, number int32, p blob.PutObject) (blob.Part, error) {
	options := minio.PutObjectPartOptions{DisableContentSha256: true, CustomHeader: make(http.Header)}
	if s.settings.SendChecksums {
		options.CustomHeader.Set(checksumHeader, s3wire.Checksum(p.CRC32C))
	}
	out, err := s.core.PutObjectPart(ctx, s.settings.Bucket, p.Key, uploadID, int(number), io.NewSectionReader(p.Body, 0, p.Bytes), p.Bytes, options)
	if err != nil {
		return blob.Part{}, s.failed("upload_part", p.Key, err)
	}
	return blob.Part{Number: number, ETag: out.ETag, CRC32C: p.CRC32C}, nil
}

// CompleteUpload makes the object of its parts; the store checks it against the checksum of the whole.
func (s *Store) CompleteUpload(ctx context.Context, uploadID string, parts []blob.Part, o blob.PutObject) error {
	list := make([]minio.CompletePart, len(parts))
	for i, p := range parts {
		list[i] = minio.CompletePart{PartNumber: int(p.Number), ETag: p.ETag}
		if s.settings.SendChecksums {
			list[i].ChecksumCRC32C = s3wire.Checksum(p.CRC32C)
		}
	}
	options := minio.PutObjectOptions{}
	if s.settings.SendChecksums {
		options.UserMetadata = map[string]string{checksumHeader: s3wire.Checksum(o.CRC32C), checksumTypeHeader: "FULL_OBJECT"}
	}
	if o.IfAbsent {
		options.SetMatchETagExcept("*")
	}
	_, err := s.core.CompleteMultipartUpload(ctx, s.settings.Bucket, o.Key, uploadID, list, options)
	return s.failed("complete_upload", o.Key, err)
}

// Get reads a range.
func (s *Store) Get(ctx context.Context, key string, start, end int64) (io.ReadCloser, int64, error) {
	options := minio.GetObjectOptions{}
	if err := options.SetRange(start, end-1); err != nil {
		return nil, 0, &objectstore.Error{Kind: objectstore.ErrRejected, Op: "get", Key: key, Err: err}
	}
	body, _, header, err := s.core.GetObject(ctx, s.settings.Bucket, key, options)
	if err != nil {
		return nil, 0, s.failed("get", key, err)
	}
	size, err := s3wire.CheckRange(header.Get("Content-Range"), start)
	if err != nil {
		body.Close()
		return nil, 0, &objectstore.Error{Kind: objectstore.ErrTransient, Op: "get", Key: key, Err: err}
	}
	return body, size, nil
}

// Head describes an object.
func (s *Store) Head(ctx context.Context, key string) (blob.Info, error) {
	out, err := s.core.StatObject(ctx, s.settings.Bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return blob.Info{}, s.failed("head", key, err)
	}
	info := blob.Info{Key: key, Bytes: out.Size, LastModified: out.LastModified, Metadata: make(map[string]string)}
	for name, values := range out.Metadata {
		if name, ok := strings.CutPrefix(name, metadataPrefix); ok && len(values) > 0 {
			info.Metadata[strings.ToLower(name)] = values[0]
		}
	}
	return info, nil
}

// Delete deletes objects.
func (s *Store) Delete(ctx context.Context, keys []string) []error {
	objects := make(chan minio.ObjectInfo, len(keys))
	place := make(map[string]int, len(keys))
	for i, key := range keys {
		objects <- minio.ObjectInfo{Key: key}
		place[key] = i
	}
	close(objects)
	var errs []error
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]error, len(keys))
		}
		errs[i] = err
	}
	// A key that the answer does not name may be there still, as when something between answers in the store's place.
	answered := make([]bool, len(keys))
	for result := range s.core.RemoveObjectsWithResult(ctx, s.settings.Bucket, objects, minio.RemoveObjectsOptions{}) {
		i, known := place[result.ObjectName]
		err := s.failed("delete", result.ObjectName, result.Err)
		if known {
			answered[i] = true
		}
		switch {
		case err == nil:
		case errors.Is(err, objectstore.ErrNotFound) && known:
		case known:
			fail(i, err)
		default: // The whole request failed.
			for i := range keys {
				fail(i, err)
				answered[i] = true
			}
		}
	}
	for i, key := range keys {
		if !answered[i] {
			fail(i, s3wire.Unanswered(key, ctx.Err()))
		}
	}
	return errs
}

// listPage is how many objects a page has.
const listPage = 1000

// List gives a page; its token is the last key of the page before.
func (s *Store) List(ctx context.Context, prefix, token string) (blob.Page, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var page blob.Page
	list := s.core.Client.ListObjects(ctx, s.settings.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true, StartAfter: token, MaxKeys: listPage})
	for o := range list {
		if o.Err != nil {
			return page, s.failed("list", prefix, o.Err)
		}
		page.Objects = append(page.Objects, blob.Info{Key: o.Key, Bytes: o.Size, LastModified: o.LastModified})
		if len(page.Objects) == listPage {
			page.Next = o.Key
			break
		}
	}
	return page, nil
}

// ListUploads lists uploads in parts that were not finished.
func (s *Store) ListUploads(ctx context.Context, prefix string, visit func(blob.Upload) error) error {
	for keyMarker, idMarker := "", ""; ; {
		out, err := s.core.ListMultipartUploads(ctx, s.settings.Bucket, prefix, keyMarker, idMarker, "", listPage)
		if err != nil {
			return s.failed("list_uploads", prefix, err)
		}
		for _, u := range out.Uploads {
			if err := visit(blob.Upload{Key: u.Key, UploadID: u.UploadID, Begun: u.Initiated}); err != nil {
				return err
			}
		}
		if !out.IsTruncated || out.NextKeyMarker == "" {
			return nil
		}
		keyMarker, idMarker = out.NextKeyMarker, out.NextUploadIDMarker
	}
}

// AbortUpload ends an upload in parts.
func (s *Store) AbortUpload(ctx context.Context, key, uploadID string) error {
	err := s.failed("abort_upload", key, s.core.AbortMultipartUpload(ctx, s.settings.Bucket, key, uploadID))
	if errors.Is(err, objectstore.ErrNotFound) {
		return nil
	}
	return err
}
