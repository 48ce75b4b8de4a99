package segmentobject_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

// example is a tail with something in every section.
func example(t testing.TB, logBytes int) (uuid.UUID, *objectstore.Indexes, []byte) {
	t.Helper()
	log := make([]byte, logBytes)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range log {
		log[i] = byte(r.Uint32())
	}
	var s segmentobject.Summer
	s.Write(log)
	x := &objectstore.Indexes{
		Offset:           bytes.Repeat([]byte{1}, 8*5),
		Time:             bytes.Repeat([]byte{2}, 12*3),
		ProducerSnapshot: []byte("snapshot"),
		Transaction:      bytes.Repeat([]byte{3}, 34*2),
		LeaderEpochs:     []objectstore.EpochStart{{Epoch: 0, StartOffset: 0}, {Epoch: 7, StartOffset: 90}},
	}
	x.BlockCRCs, x.SegmentCRC = s.Sums()
	id := uuid.UUID{1, 2, 3, 4}
	tail, err := segmentobject.EncodeTail(id, int64(logBytes), x)
	if err != nil {
		t.Fatal(err)
	}
	return id, x, tail
}

func TestTailRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, objectstore.BlockBytes, objectstore.BlockBytes + 1, 3 * objectstore.BlockBytes} {
		id, x, tail := example(t, n)
		got, err := segmentobject.DecodeTail(id, int64(n), tail)
		if err != nil {
			t.Fatal(n, err)
		}
		if len(got.BlockCRCs) == 0 && len(x.BlockCRCs) == 0 {
			got.BlockCRCs = x.BlockCRCs
		}
		if !reflect.DeepEqual(got, x) {
			t.Errorf("log of %d bytes: got %+v, want %+v", n, got, x)
		}
	}
}

// Every single flipped bit and every cut is found.
func TestTailDamage(t *testing.T) {
	const logBytes = objectstore.BlockBytes + 5
	id, _, tail := example(t, logBytes)
	for i := range tail {
		bad := bytes.Clone(tail)
		bad[i] ^= 1 << (i % 8)
		if _, err := segmentobject.DecodeTail(id, logBytes, bad); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Fatalf("flip at %d: %v", i, err)
		}
		if _, err := segmentobject.DecodeTail(id, logBytes, tail[:i]); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		if _, err := segmentobject.DecodeTail(id, logBytes, tail[i+1:]); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Fatalf("begin at %d: %v", i+1, err)
		}
	}
	if _, err := segmentobject.DecodeTail(uuid.UUID{9}, logBytes, tail); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("another segment's tail: %v", err)
	}
	if _, err := segmentobject.DecodeTail(id, logBytes-1, tail); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("another length: %v", err)
	}
}

// Tails whose checksums are right and whose contents are not, as another program might write them, are refused as well: nothing
// behind it looks again whether there is a checksum for each block.
func TestTailsOfOthers(t *testing.T) {
	const logBytes = objectstore.BlockBytes + 5
	id, _, good := example(t, logBytes)
	footer, entry := len(good)-64, 16
	table := footer - 6*entry
	patched := func(patch func(b []byte) []byte) []byte {
		b := patch(bytes.Clone(good))
		end := len(b) - 64
		binary.BigEndian.PutUint64(b[end+24:], uint64(len(b)))
		if n := int(binary.BigEndian.Uint16(b[end+10:])) * entry; n <= end {
			binary.BigEndian.PutUint32(b[end+36:], segmentobject.Checksum(b[end-n:end]))
		}
		binary.BigEndian.PutUint32(b[end+60:], segmentobject.Checksum(b[end:end+60]))
		return b
	}
	// section lets the last section, the checksums of the blocks, have another kind or length.
	section := func(b []byte, kind uint16, n int) []byte {
		at := table + 5*entry
		data := b[table-8 : table-8+n]
		binary.BigEndian.PutUint16(b[at:], kind)
		binary.BigEndian.PutUint32(b[at+4:], uint32(n))
		binary.BigEndian.PutUint32(b[at+8:], segmentobject.Checksum(data))
		return append(b[:table-8+n:table-8+n], b[table:]...)
	}
	for name, patch := range map[string]func(b []byte) []byte{
		"no segment":                   func(b []byte) []byte { b[footer] = 'X'; return b },
		"a later version":              func(b []byte) []byte { b[footer+9]++; return b },
		"other blocks":                 func(b []byte) []byte { b[footer+13]++; return b },
		"a table that does not fit":    func(b []byte) []byte { b[footer+10] = 0xff; return b },
		"a section that does not fit":  func(b []byte) []byte { b[table+4] = 0xff; return b },
		"bytes of no section":          func(b []byte) []byte { return append(b[:table:table], append([]byte{0}, b[table:]...)...) },
		"one checksum for two blocks":  func(b []byte) []byte { return section(b, 6, 4) },
		"half a checksum":              func(b []byte) []byte { return section(b, 6, 6) },
		"checksums as something else":  func(b []byte) []byte { return section(b, 77, 8) },
		"an offset index that is none": func(b []byte) []byte { return section(b, 1, 4) },
		"a time index that is none":    func(b []byte) []byte { b[table+2*entry+1] = 2; return b },
		"epochs that are none":         func(b []byte) []byte { b[table+2*entry+1] = 5; return b },
	} {
		if x, err := segmentobject.DecodeTail(id, logBytes, patched(patch)); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("%s: %+v, %v", name, x, err)
		}
	}
	if _, err := segmentobject.DecodeTail(id, logBytes, patched(func(b []byte) []byte { return b })); err != nil {
		t.Errorf("one that was not touched: %v", err)
	}
}

// What is behind the log is not made with checksums of another log.
func TestTailOfAnotherLog(t *testing.T) {
	for _, n := range []int64{-1, objectstore.BlockBytes, 2*objectstore.BlockBytes + 1} {
		if _, err := segmentobject.EncodeTail(uuid.UUID{}, n, &objectstore.Indexes{BlockCRCs: []uint32{1, 2}}); err == nil {
			t.Errorf("a log of %d bytes has two checksums", n)
		}
	}
}

// A log may come in pieces of any size.
func TestSummer(t *testing.T) {
	log := make([]byte, 2*objectstore.BlockBytes+7)
	for i := range log {
		log[i] = byte(i * 31 >> 3)
	}
	for _, piece := range []int{1000, objectstore.BlockBytes - 1, objectstore.BlockBytes, objectstore.BlockBytes + 1, len(log)} {
		var s segmentobject.Summer
		for at := 0; at < len(log); at += piece {
			s.Write(log[at:min(at+piece, len(log))])
		}
		blocks, whole := s.Sums()
		want := []uint32{
			segmentobject.Checksum(log[:objectstore.BlockBytes]), segmentobject.Checksum(log[objectstore.BlockBytes : 2*objectstore.BlockBytes]),
			segmentobject.Checksum(log[2*objectstore.BlockBytes:]),
		}
		if !slices.Equal(blocks, want) || whole != segmentobject.Checksum(log) {
			t.Errorf("pieces of %d: %x and %08x, want %x and %08x", piece, blocks, whole, want, segmentobject.Checksum(log))
		}
	}
}

func TestCustomOfOthers(t *testing.T) {
	good := segmentobject.Custom{TailBytes: 64, LastLeaderEpoch: 3, Layout: segmentobject.ByTopicName, Prefix: "a"}
	edit := func(f func(b []byte) []byte) []byte { return f(good.Encode()) }
	for name, b := range map[string][]byte{
		"short":         edit(func(b []byte) []byte { return b[:12] }),
		"version 0":     edit(func(b []byte) []byte { b[0] = 0; return b }),
		"no layout yet": edit(func(b []byte) []byte { b[0] = 3; return b }),
		"no footer":     edit(func(b []byte) []byte { b[4] = 63; return b }),
		"no prefix":     edit(func(b []byte) []byte { return append(b, "/../b"...) }),
	} {
		if c, err := segmentobject.DecodeCustom(b); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		if key, err := segmentobject.ByTopicID.KeyOf("p", "c", &objectstore.SegmentMetadata{Custom: b}); err == nil {
			t.Errorf("%s: the key is %s", name, key)
		}
	}
	if _, err := segmentobject.DecodeCustom(edit(func(b []byte) []byte { return b[:13] })); err != nil {
		t.Errorf("without a prefix: %v", err)
	}
}

// The epoch in a key is the one that the copy was made with, whatever the record says, which may be read in another way later.
func TestEpochOfAKey(t *testing.T) {
	for _, epoch := range []int32{-1, 0, 7} {
		s := &objectstore.SegmentMetadata{BaseOffset: 5}
		if epoch >= 0 {
			s.LeaderEpochs = []objectstore.EpochStart{{Epoch: epoch}}
		}
		want := segmentobject.ByTopicID.Key("p", "c", s)
		s.LeaderEpochs = []objectstore.EpochStart{{Epoch: 9}}
		if got, err := segmentobject.ByTopicID.KeyOf("p", "c", s); err != nil || got != segmentobject.ByTopicID.Key("p", "c", s) {
			t.Errorf("an announced copy: %s, %v", got, err)
		}
		s.Custom = (&segmentobject.Custom{TailBytes: 64, LastLeaderEpoch: epoch, Prefix: "p"}).Encode()
		if got, err := segmentobject.ByTopicID.KeyOf("q", "c", s); err != nil || got != want {
			t.Errorf("epoch %d: %s, %v, want %s", epoch, got, err, want)
		}
	}
}

func TestCombineChecksums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "a")
		b := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "b")
		got := segmentobject.CombineChecksums(segmentobject.Checksum(a), segmentobject.Checksum(b), int64(len(b)))
		if want := segmentobject.Checksum(append(bytes.Clone(a), b...)); got != want {
			t.Fatalf("got %08x, want %08x", got, want)
		}
	})
}

func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &objectstore.SegmentMetadata{
			Partition:  rapid.Int32Range(0, 1<<30).Draw(t, "partition"),
			BaseOffset: rapid.Int64Range(0, 1<<62).Draw(t, "base"),
		}
		copy(s.TopicID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "topic"))
		copy(s.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		if epoch := rapid.Int32Range(-1, 1<<30).Draw(t, "epoch"); epoch >= 0 {
			s.LeaderEpochs = []objectstore.EpochStart{{Epoch: epoch, StartOffset: s.BaseOffset}}
		}
		prefix := rapid.SampledFrom([]string{"", "a", "tenant/b-1", "v1"}).Draw(t, "prefix")
		layout := rapid.SampledFrom([]segmentobject.Layout{segmentobject.ByTopicID, segmentobject.ByTopicName}).Draw(t, "layout")
		if layout == segmentobject.ByTopicName {
			s.Topic = rapid.StringMatching(`[a-zA-Z0-9._-]{1,20}`).Draw(t, "name")
		}
		key := layout.Key(prefix, "cluster-1", s)
		if !strings.HasPrefix(key, layout.ListPrefix(prefix, "cluster-1", s.TopicID, s.Partition)) {
			t.Fatalf("%s is not below its partition", key)
		}
		got, ok := segmentobject.ParseKey(prefix, "cluster-1", key)
		if !ok || !reflect.DeepEqual(got, s) {
			t.Fatalf("%s: got %+v %v, want %+v", key, got, ok, s)
		}
		// A finished copy is found with its own prefix, whatever the prefix is now.
		custom := segmentobject.Custom{TailBytes: 64, LastLeaderEpoch: s.LastLeaderEpoch(), Layout: layout, Prefix: prefix}
		s.Custom = custom.Encode()
		// Nor does it matter how keys are made now.
		if again, err := (segmentobject.ByTopicName - layout).KeyOf("new", "cluster-1", s); err != nil || again != key {
			t.Fatalf("got %s %v, want %s", again, err, key)
		}
	})
}

// Keys are as they have always been: what a store holds is found by nothing else.
func TestKeysStay(t *testing.T) {
	s := &objectstore.SegmentMetadata{
		Topic: "orders", TopicID: uuid.UUID{1}, Partition: 7, ID: uuid.UUID{2}, BaseOffset: 1234,
		LeaderEpochs: []objectstore.EpochStart{{Epoch: 3}, {Epoch: 5, StartOffset: 1300}},
	}
	for want, got := range map[string]string{
		"a/v1/c/68/AQAAAAAAAAAAAAAAAAAAAA/7/00000000000000001234-5-AgAAAAAAAAAAAAAAAAAAAA.seg":   segmentobject.ByTopicID.Key("a", "c", s),
		"v1/c/orders/AQAAAAAAAAAAAAAAAAAAAA/7/00000000000000001234.5-AgAAAAAAAAAAAAAAAAAAAA.log": segmentobject.ByTopicName.Key("", "c", s),
		"v1/c/68/AQAAAAAAAAAAAAAAAAAAAA/7/":                                                      segmentobject.ByTopicID.ListPrefix("", "c", s.TopicID, s.Partition),
		"a/v1/c/":                                                                                segmentobject.ByTopicName.ListPrefix("a", "c", s.TopicID, s.Partition),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestForeignKeys(t *testing.T) {
	s := &objectstore.SegmentMetadata{BaseOffset: 5}
	key := segmentobject.ByTopicID.Key("p", "c", s)
	for _, k := range []string{
		"", "p/v1/c/", "q" + key, strings.Replace(key, "/v1/", "/v2/", 1), key + "x", strings.TrimSuffix(key, ".seg"),
		strings.Replace(key, "/0/", "/+0/", 1), strings.Replace(key, "/0/", "/00/", 1), strings.Replace(key, "-1-", "-2-", 1),
	} {
		if got, ok := segmentobject.ParseKey("p", "c", k); ok {
			t.Errorf("%s was taken for a segment: %+v", k, got)
		}
	}
}

func TestPrefixes(t *testing.T) {
	for prefix, ok := range map[string]bool{
		"": true, "a": true, "a/b.c": true, "/a": false, "a/": false, "a//b": false, "a/../b": false, "./a": false, "ä": false, "a b": false,
		"a~": true, "a\x7f": false, "a#": false, "a`": false,
		strings.Repeat("x", segmentobject.MaxPrefixBytes): true, strings.Repeat("x", segmentobject.MaxPrefixBytes+1): false,
	} {
		if err := segmentobject.CheckPrefix(prefix); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", prefix, err, ok)
		}
	}
}

func FuzzDecodeTail(f *testing.F) {
	id, _, tail := example(f, objectstore.BlockBytes+1)
	f.Add(tail, int64(objectstore.BlockBytes+1))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, tail []byte, logBytes int64) {
		x, err := segmentobject.DecodeTail(id, logBytes, tail)
		if err != nil {
			if !errors.Is(err, objectstore.ErrCorrupt) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		if int64(len(x.BlockCRCs)) != segmentobject.Blocks(logBytes) {
			t.Fatalf("%d block checksums of %d bytes", len(x.BlockCRCs), logBytes)
		}
	})
}

func FuzzDecodeCustom(f *testing.F) {
	c := segmentobject.Custom{TailBytes: 100, SegmentCRC: 5, LastLeaderEpoch: 3, Prefix: "a/b"}
	f.Add(c.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := segmentobject.DecodeCustom(b)
		if err == nil && !bytes.Equal(c.Encode(), b) {
			t.Fatalf("%x is read as %+v", b, c)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	s := &objectstore.SegmentMetadata{Topic: "orders", BaseOffset: 5, Partition: 3, LeaderEpochs: []objectstore.EpochStart{{Epoch: 7}}}
	f.Add(segmentobject.ByTopicID.Key("p", "c", s))
	f.Add(segmentobject.ByTopicName.Key("p", "c", s))
	f.Fuzz(func(t *testing.T, key string) {
		got, ok := segmentobject.ParseKey("p", "c", key)
		if !ok {
			return
		}
		// A key that is taken for a segment's is the one that a copy of the segment would get.
		if key != segmentobject.ByTopicID.Key("p", "c", got) && key != segmentobject.ByTopicName.Key("p", "c", got) {
			t.Fatalf("%q is of %+v", key, got)
		}
	})
}
