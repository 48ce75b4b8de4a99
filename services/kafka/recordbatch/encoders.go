package recordbatch

import (
	"errors"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// encoder compresses what is written to it into a bounded buffer. After an error from write it must be abandoned; finish
// ends it in any case.
type encoder interface {
	sink
	finish() error
	abandon()
}

// encoder makes a compressor that writes to out.
func (c *Codecs) encoder(codec Compression, level int, out *bounded) (encoder, error) {
	switch codec {
	case None:
		return plainEncoder{out}, nil
	case Gzip:
		if level == DefaultGzipLevel {
			level = gzip.DefaultCompression
		} else {
			level = min(max(level, gzip.BestSpeed), gzip.BestCompression)
		}
		pool := &c.gzipWriters[level-gzip.DefaultCompression]
		w, _ := pool.Get().(*gzip.Writer)
		if w == nil {
			var err error
			if w, err = gzip.NewWriterLevel(out, level); err != nil {
				return nil, err
			}
		}
		w.Reset(out)
		return &gzipEncoder{pool: pool, w: w}, nil
	case Snappy:
		return &snappyWriter{out: out}, nil
	case LZ4:
		return &lz4Writer{codecs: c, level: level, out: out}, nil
	case Zstd:
		speed := zstd.EncoderLevelFromZstd(level)
		pool := &c.zstdWriters[speed-zstd.SpeedFastest]
		w, _ := pool.Get().(*zstd.Encoder)
		if w == nil {
			var err error
			w, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
				zstd.WithEncoderLevel(speed))
			if err != nil {
				return nil, err
			}
		}
		w.Reset(out)
		return &zstdEncoder{pool: pool, w: w}, nil
	}
	return nil, errors.New("unknown compression type")
}

type plainEncoder struct{ *bounded }

func (plainEncoder) finish() error { return nil }

func (plainEncoder) abandon() {}

type gzipEncoder struct {
	pool *sync.Pool
	w    *gzip.Writer
}

func (e *gzipEncoder) write(p []byte) error {
	_, err := e.w.Write(p)
	return err
}

func (e *gzipEncoder) finish() error {
	err := e.w.Close()
	e.abandon()
	return err
}

func (e *gzipEncoder) abandon() {
	e.w.Reset(nil)
	e.pool.Put(e.w)
}

type zstdEncoder struct {
	pool *sync.Pool
	w    *zstd.Encoder
}

func (e *zstdEncoder) write(p []byte) error {
	_, err := e.w.Write(p)
	return err
}

func (e *zstdEncoder) finish() error {
	err := e.w.Close()
	e.abandon()
	return err
}

func (e *zstdEncoder) abandon() {
	e.w.Reset(nil)
	e.pool.Put(e.w)
}
