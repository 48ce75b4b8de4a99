package recordbatch

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"runtime"
	"strings"
	"testing"

	"chancery/services/kafka/errcode"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func TestCodecsRoundTrip(t *testing.T) {
	c := NewCodecs()
	noise := make([]byte, 300<<10)
	_, _ = rand.Read(noise)
	inputs := map[string][]byte{
		"empty": {}, "one": {1}, "text": []byte(strings.Repeat("to and fro ", 20000)), "noise": noise,
		"exactly a block": bytes.Repeat([]byte{7}, 64<<10),
	}
	for _, codec := range allCodecs {
		for level := -5; level <= 22; level++ {
			for name, in := range inputs {
				if level != 9 && level != 3 && len(in) > 50<<10 && level%11 != 0 {
					continue
				}
				z, err := c.Compress([]byte("x"), codec, level, in)
				if err != nil {
					t.Fatal(codec, level, name, err)
				}
				got, err := c.Decompress([]byte("y"), codec, z[1:], len(in))
				if err != nil || !bytes.Equal(got[1:], in) {
					t.Fatal(codec, level, name, len(got), err)
				}
				if len(in) > 0 {
					if _, err := c.Decompress(nil, codec, z[1:], len(in)-1); errcode.Of(err) != errcode.InvalidRecord {
						t.Fatal(codec, level, name, err)
					}
				}
			}
		}
	}
}

// The compressed forms were made by zlib, and by hand from the description of snappy's format.
func TestDecompressGolden(t *testing.T) {
	const want = "Chancery Chancery Chancery"
	tests := []struct {
		name, hex string
		codec     Compression
	}{
		{"zlib's gzip", "1f8b080000000000020373ce48cc4b4e2daa547046670000843ee61a1a000000", Gzip},
		{"bare snappy block", "1a204368616e6365727920420900", Snappy},
	}
	c := NewCodecs()
	for _, tt := range tests {
		in, err := hex.DecodeString(tt.hex)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Decompress(nil, tt.codec, in, 100)
		if err != nil || string(got) != want {
			t.Errorf("%s: %q %v", tt.name, got, err)
		}
	}
}

// TestDecompressClient reads what a Kafka client's own compressor writes.
func TestDecompressClient(t *testing.T) {
	c := NewCodecs()
	in := []byte(strings.Repeat("all work and no play makes jack a dull boy. ", 500))
	for codec, client := range map[Compression]kgo.CompressionCodec{
		Gzip: kgo.GzipCompression(), Snappy: kgo.SnappyCompression(), LZ4: kgo.Lz4Compression(), Zstd: kgo.ZstdCompression(),
	} {
		compressor, err := kgo.DefaultCompressor(client)
		if err != nil {
			t.Fatal(err)
		}
		z, used := compressor.Compress(new(bytes.Buffer), in)
		if Compression(used) != codec {
			t.Fatal(used)
		}
		if got, err := c.Decompress(nil, codec, z, len(in)); err != nil || !bytes.Equal(got, in) {
			t.Errorf("%s: %v", codec, err)
		}
		ours, err := c.Compress(nil, codec, 5, in)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := kgo.DefaultDecompressor().Decompress(ours, used); err != nil || !bytes.Equal(got, in) {
			t.Errorf("%s read by the client: %v", codec, err)
		}
	}
}

func TestDecompressOthers(t *testing.T) {
	c := NewCodecs()
	rapid.Check(t, func(t *rapid.T) {
		in := []byte(strings.Repeat(rapid.String().Draw(t, "text"), rapid.IntRange(0, 3000).Draw(t, "times")))
		for name, z := range othersWriters(t, in) {
			codec := map[byte]Compression{'g': Gzip, 's': Snappy, 'l': LZ4, 'z': Zstd}[name[0]]
			got, err := c.Decompress(nil, codec, z, len(in))
			if err != nil || !bytes.Equal(got, in) {
				t.Fatalf("%s: %d bytes of %d: %v", name, len(got), len(in), err)
			}
		}
		// And the other way: others read what this package writes.
		z, _ := c.Compress(nil, LZ4, DefaultLZ4Level, in)
		var out bytes.Buffer
		if _, err := out.ReadFrom(lz4.NewReader(bytes.NewReader(z))); err != nil || !bytes.Equal(out.Bytes(), in) {
			t.Fatal("lz4 reader:", err)
		}
	})
}

func othersWriters(t *rapid.T, in []byte) map[string][]byte {
	out := map[string][]byte{"snappy bare": s2.EncodeSnappy(nil, in)}
	var g bytes.Buffer
	gw := gzip.NewWriter(&g)
	_, _ = gw.Write(in)
	_ = gw.Close()
	out["gzip"] = g.Bytes()
	zw, _ := zstd.NewWriter(nil)
	out["zstd at once"] = zw.EncodeAll(in, nil)
	_ = zw.Close()
	for name, opts := range map[string][]lz4.Option{
		"lz4 64K":    {lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(true)},
		"lz4 4M":     {lz4.BlockSizeOption(lz4.Block4Mb), lz4.BlockChecksumOption(true)},
		"lz4 length": {lz4.SizeOption(uint64(len(in))), lz4.CompressionLevelOption(lz4.Level5)},
	} {
		var l bytes.Buffer
		lw := lz4.NewWriter(&l)
		if err := lw.Apply(opts...); err != nil {
			t.Fatal(err)
		}
		_, _ = lw.Write(in)
		_ = lw.Close()
		if len(in) > 0 {
			out[name] = l.Bytes()
		}
	}
	// Two xerial streams one after the other, and small blocks.
	var x []byte
	for _, half := range [][]byte{in[:len(in)/2], in[len(in)/2:]} {
		x = append(x, xerialMagic...)
		x = append(x, 0, 0, 0, 1, 0, 0, 0, 1)
		for len(half) > 0 {
			n := min(len(half), 1000)
			z := s2.EncodeSnappy(nil, half[:n])
			x = binary.BigEndian.AppendUint32(x, uint32(len(z)))
			x = append(x, z...)
			half = half[n:]
		}
	}
	out["snappy xerial"] = x
	return out
}

func TestDecompressRefuses(t *testing.T) {
	c := NewCodecs()
	frame := func(flags, kind byte, rest ...byte) []byte {
		head := []byte{4, 0x22, 0x4d, 0x18, flags, kind}
		return append(append(head, byte(xxh32(head[4:6])>>8)), rest...)
	}
	tests := []struct {
		name  string
		codec Compression
		in    []byte
	}{
		{"gzip garbage", Gzip, []byte("garbage garbage garbage")},
		{"snappy garbage", Snappy, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{"snappy that claims 4 GiB", Snappy, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0}},
		{"xerial cut", Snappy, append([]byte(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 9, 1)},
		{"xerial newer", Snappy, append([]byte(xerialMagic), 0, 0, 0, 9, 0, 0, 0, 9)},
		{"lz4 garbage", LZ4, []byte("garbage garbage")},
		{"lz4 dependent blocks", LZ4, frame(0x40, 0x40, 0, 0, 0, 0)},
		{"lz4 version 2", LZ4, frame(0xa0, 0x40, 0, 0, 0, 0)},
		{"lz4 without end", LZ4, frame(0x60, 0x40)},
		{"lz4 block too large", LZ4, frame(0x60, 0x40, 1, 0, 1, 0x80)},
		{"lz4 header checksum", LZ4, []byte{4, 0x22, 0x4d, 0x18, 0x60, 0x40, 0, 0, 0, 0, 0}},
		{"zstd garbage", Zstd, []byte("garbage garbage garbage")},
		{"unknown", 5, nil},
	}
	for _, tt := range tests {
		if _, err := c.Decompress(nil, tt.codec, tt.in, 1<<40); errcode.Of(err) != errcode.UnknownServerError {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestXXH32(t *testing.T) {
	// From the specification's test vectors.
	for in, want := range map[string]uint32{
		"": 0x02cc5d05, "a": 0x550d7456, "abc": 0x32d153ff, "Nobody inspects the spammish repetition": 0xe2293b2f,
	} {
		if got := xxh32([]byte(in)); got != want {
			t.Errorf("%q: %08x, want %08x", in, got, want)
		}
	}
}

func TestBombsAllocateLittle(t *testing.T) {
	c := NewCodecs()
	zeros := make([]byte, 64<<20)
	for _, codec := range []Compression{Gzip, LZ4, Zstd, Snappy} {
		z, err := c.Compress(nil, codec, DefaultZstdLevel, zeros)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err = c.Decompress(nil, codec, z, 1<<20)
		runtime.ReadMemStats(&after)
		if errcode.Of(err) != errcode.InvalidRecord {
			t.Errorf("%s: %v", codec, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 24<<20 {
			t.Errorf("%s: %d bytes allocated for a bomb of %d", codec, used, len(z))
		}
	}
}

func FuzzDecompress(f *testing.F) {
	c := NewCodecs()
	for _, codec := range allCodecs {
		z, _ := c.Compress(nil, codec, 1, []byte(strings.Repeat("abc", 100)))
		f.Add(int8(codec), z)
	}
	f.Fuzz(func(t *testing.T, codec int8, in []byte) {
		const limit = 1 << 20
		out, err := c.Decompress(nil, Compression(codec), in, limit)
		if err == nil && len(out) > limit {
			t.Fatal("more than the limit")
		}
	})
}
