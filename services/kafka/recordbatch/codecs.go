package recordbatch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"chancery/services/kafka/errcode"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// The levels that stand for "the codec's own default", as Kafka's configs have them.
const (
	DefaultGzipLevel = -1
	DefaultLZ4Level  = 9
	DefaultZstdLevel = 3
)

const (
	// chunkSize is how much a streaming decoder gives at once.
	chunkSize = 32 << 10
	// maxPooledWindow is the largest zstd window whose decoder is kept: a decoder holds on to its window, and only the
	// highest levels go above 8 MiB.
	maxPooledWindow = 8 << 20
	// maxZstdWindow is the largest window that Kafka's own decoder accepts.
	maxZstdWindow = 128 << 20
	// largeWindows is how many decoders with a window above maxPooledWindow there are at a time. A batch of a few bytes can
	// ask for the largest one, so many of them must not have it at once.
	largeWindows = 2
	// maxPooledBuffer is the largest scratch buffer that is kept.
	maxPooledBuffer = 4 << 20
)

// What can be wrong with compressed bytes.
var (
	errDecompressed = errors.New("decompressed records exceed the limit")
	errCompressed   = errors.New("compressed records exceed the limit")
)

// Codecs keeps decoders and encoders for use again. One per process or service is enough; all methods may be called
// from any goroutine. The zero value is not ready: use NewCodecs.
type Codecs struct {
	gzipReaders sync.Pool // *gzip.Reader
	gzipWriters [11]sync.Pool
	zstdReaders sync.Pool // *zstd.Decoder, streaming, single-threaded
	zstdWriters [4]sync.Pool
	lz4Fast     sync.Pool // *lz4.Compressor
	lz4High     sync.Pool // *lz4.CompressorHC
	buffers     sync.Pool // *[]byte, scratch
	streams     sync.Pool // *stream
	walks       sync.Pool // *walkState
	// large has a token for each decoder with a large window.
	large chan struct{}
}

// NewCodecs makes an empty set.
func NewCodecs() *Codecs { return &Codecs{large: make(chan struct{}, largeWindows)} }

// Decompress appends the decompressed form of src to dst. More than limit bytes give InvalidRecord, and are not
// allocated; bytes that are no valid stream of the codec give UnknownServerError, which is what Kafka answers.
func (c *Codecs) Decompress(dst []byte, codec Compression, src []byte, limit int) ([]byte, error) {
	if codec == None {
		if len(src) > limit {
			return dst, c.tooLarge(limit)
		}
		return append(dst, src...), nil
	}
	s, err := c.open(codec, src, int64(limit))
	if err != nil {
		return dst, err
	}
	defer s.close()
	for {
		p, err := s.next()
		if err != nil {
			return dst, err
		}
		if p == nil {
			return dst, nil
		}
		dst = append(dst, p...)
	}
}

// Compress appends the compressed form of src to dst. A level outside the codec's range is taken as the nearest.
func (c *Codecs) Compress(dst []byte, codec Compression, level int, src []byte) ([]byte, error) {
	out := &bounded{buf: dst, limit: int(^uint(0) >> 1)}
	e, err := c.encoder(codec, level, out)
	if err != nil {
		return dst, err
	}
	if err := e.write(src); err != nil {
		e.abandon()
		return dst, err
	}
	if err := e.finish(); err != nil {
		return dst, err
	}
	return out.buf, nil
}

// Records begins at the first record of a batch in one piece, compressed or not. Compressed records are decompressed
// into a buffer of their own, of at most limit bytes.
func (c *Codecs) Records(batch []byte, limit int) Records {
	if len(batch) < HeaderSize || Header(batch).Size() != len(batch) {
		return Records{err: invalid(errTruncated)}
	}
	h := Header(batch)
	if h.Compression() == None || h.Count() == 0 {
		return recordsIn(h, batch[HeaderSize:])
	}
	body, err := c.Decompress(nil, h.Compression(), batch[HeaderSize:], limit)
	if err != nil {
		return Records{err: err}
	}
	return recordsIn(h, body)
}

func (c *Codecs) tooLarge(limit int) error {
	return errcode.InvalidRecord.Errorf("The records are larger than max.decompressed.message.bytes (%d) once decompressed", limit)
}

// broken is the error for bytes that a codec cannot read.
func broken(codec Compression, err error) error {
	return &errcode.Error{
		Code:  errcode.UnknownServerError,
		Cause: fmt.Errorf("decompress %s records: %w", codec, err),
	}
}

// stream is a decompressor as a source, with a bound on what it gives.
type stream struct {
	codecs *Codecs
	codec  Compression
	limit  int64
	given  int64

	in    bytes.Reader
	chunk []byte

	gzip *gzip.Reader
	zstd *zstd.Decoder
	// keep says that zstd may go back to the pool.
	keep   bool
	snappy snappyReader
	lz4    lz4Reader
}

// open begins to decompress src. The stream must be closed.
func (c *Codecs) open(codec Compression, src []byte, limit int64) (*stream, error) {
	s, _ := c.streams.Get().(*stream)
	if s == nil {
		s = &stream{}
	}
	s.codecs, s.codec, s.limit, s.given = c, codec, limit, 0
	s.in.Reset(src)
	var err error
	switch codec {
	case Gzip:
		err = s.openGzip()
	case Snappy:
		err = s.snappy.reset(src)
	case LZ4:
		err = s.lz4.reset(src)
	case Zstd:
		err = s.openZstd(src)
	default:
		err = errors.New("unknown compression type")
	}
	if err != nil {
		s.close()
		return nil, broken(codec, err)
	}
	return s, nil
}

func (s *stream) openGzip() error {
	r, _ := s.codecs.gzipReaders.Get().(*gzip.Reader)
	if r == nil {
		r = new(gzip.Reader)
	}
	s.gzip = r
	return r.Reset(&s.in)
}

func (s *stream) openZstd(src []byte) error {
	var head zstd.Header
	window := uint64(0)
	if err := head.Decode(src); err == nil && !head.Skippable {
		window = head.WindowSize
	}
	// What the first frame asks for goes for those behind it.
	most := uint64(maxPooledWindow)
	s.keep = window <= most
	if s.keep {
		s.zstd, _ = s.codecs.zstdReaders.Get().(*zstd.Decoder)
	} else {
		s.codecs.large <- struct{}{}
		most = maxZstdWindow
	}
	if s.zstd == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(most))
		if err != nil {
			if !s.keep {
				<-s.codecs.large
			}
			return err
		}
		s.zstd = d
	}
	return s.zstd.Reset(&s.in)
}

// next gives the next decompressed piece, or nil at the end.
func (s *stream) next() ([]byte, error) {
	p, err := s.piece()
	if errors.Is(err, errDecompressed) {
		return nil, s.codecs.tooLarge(int(s.limit))
	}
	if err != nil {
		return nil, broken(s.codec, err)
	}
	s.given += int64(len(p))
	if s.given > s.limit {
		return nil, s.codecs.tooLarge(int(s.limit))
	}
	return p, nil
}

func (s *stream) piece() ([]byte, error) {
	switch s.codec {
	case Snappy:
		return s.snappy.next(s.limit - s.given)
	case LZ4:
		return s.lz4.next()
	}
	if s.chunk == nil {
		s.chunk = make([]byte, chunkSize)
	}
	var r io.Reader = s.gzip
	if s.codec == Zstd {
		r = s.zstd
	}
	n := 0
	for n < len(s.chunk) {
		m, err := r.Read(s.chunk[n:])
		n += m
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if n == 0 {
		return nil, nil
	}
	return s.chunk[:n], nil
}

// close gives everything back.
func (s *stream) close() {
	c := s.codecs
	s.in.Reset(nil)
	if s.gzip != nil {
		c.gzipReaders.Put(s.gzip)
		s.gzip = nil
	}
	if s.zstd != nil {
		if s.keep && s.zstd.Reset(nil) == nil {
			c.zstdReaders.Put(s.zstd)
		} else {
			s.zstd.Close()
		}
		if !s.keep {
			<-c.large
		}
		s.zstd = nil
	}
	s.snappy.release()
	s.lz4.release()
	c.streams.Put(s)
}

// scratch gives an empty buffer with room for n bytes.
func (c *Codecs) scratch(n int) *[]byte {
	b, _ := c.buffers.Get().(*[]byte)
	if b == nil {
		b = new([]byte)
	}
	if cap(*b) < n {
		*b = make([]byte, 0, n)
	}
	*b = (*b)[:0]
	return b
}

func (c *Codecs) freeScratch(b *[]byte) {
	if cap(*b) <= maxPooledBuffer {
		c.buffers.Put(b)
	}
}

// bounded collects bytes up to a limit. It is a sink and an io.Writer.
type bounded struct {
	buf   []byte
	limit int
}

func (b *bounded) write(p []byte) error {
	if len(b.buf)+len(p) > b.limit {
		return errCompressed
	}
	b.buf = append(b.buf, p...)
	return nil
}

// Write makes it an io.Writer for the encoders that need one.
func (b *bounded) Write(p []byte) (int, error) {
	if err := b.write(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// lz4Block compresses one block: with the fast compressor at the default level, as Kafka does, else with the other.
func (c *Codecs) lz4Block(level int, src, dst []byte) (int, error) {
	if level == DefaultLZ4Level {
		f, _ := c.lz4Fast.Get().(*lz4.Compressor)
		if f == nil {
			f = new(lz4.Compressor)
		}
		defer c.lz4Fast.Put(f)
		return f.CompressBlock(src, dst)
	}
	h, _ := c.lz4High.Get().(*lz4.CompressorHC)
	if h == nil {
		h = new(lz4.CompressorHC)
	}
	defer c.lz4High.Put(h)
	h.Level = lz4HighLevel(level)
	return h.CompressBlock(src, dst)
}

func lz4HighLevel(level int) lz4.CompressionLevel {
	levels := [...]lz4.CompressionLevel{
		lz4.Level1, lz4.Level2, lz4.Level3, lz4.Level4, lz4.Level5, lz4.Level6, lz4.Level7, lz4.Level8, lz4.Level9,
	}
	return levels[min(max(level, 1), len(levels))-1]
}
