package segmentobject_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
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
		"": true, "a": true, "a/b.c": true, "/a": false, "a/": false, "a//b": false, "a/../b": false, "ä": false, "a b": false,
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
