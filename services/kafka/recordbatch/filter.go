package recordbatch

import (
	"encoding/binary"
	"hash/crc32"

	"chancery/services/kafka/errcode"
)

// maxFilteredBytes bounds what a batch may become when the cleaner decompresses it. The leader that took it in has checked it
// against the topic's config of its time, so the bound here is that of the format.
const maxFilteredBytes = 1<<31 - 9

// Filter makes batches anew with only some of their records, as the cleaner does. Offsets, sequence numbers and the last
// offset stay what they were, so that neither readers nor the producer's state see a difference. Its buffers are used again
// for each batch. Not for concurrent use; the zero value with Codecs is ready.
type Filter struct {
	// Codecs are for compressed batches.
	Codecs *Codecs

	body, kept, timed, out []byte
}

// Filtering is what a filter does to a batch.
type Filtering struct {
	// Keep says whether a record stays.
	Keep func(r *Record) bool
	// DeleteHorizonMs is the delete horizon that a batch without one gets when tombstones stay in it, or when Marker is set: the
	// batch is a marker whose transaction has no records any more.
	DeleteHorizonMs int64
	Marker          bool
	// KeepEmpty says that the batch's header stays even if no record does.
	KeepEmpty bool
}

// Filtered is what has become of a batch.
type Filtered struct {
	// Batch is what remains: the same bytes if nothing had to change, else bytes that are valid until the next call. It is nil
	// if nothing remains.
	Batch []byte
	// Changed says that Batch is not what it was.
	Changed bool
	// Read and Kept are numbers of records.
	Read, Kept int
}

// Apply filters a batch in one piece. Records that cannot be read are an error with code InvalidRecord, and a checksum that
// does not match one with CorruptMessage: a damaged batch must not be given a new checksum.
func (f *Filter) Apply(batch []byte, how *Filtering) (Filtered, error) {
	if !CheckCRC(batch) {
		return Filtered{}, errcode.CorruptMessage.Errorf("the checksum of %s is wrong", headerOf(batch))
	}
	h := Header(batch)
	body, err := f.records(h, batch)
	if err != nil {
		return Filtered{}, err
	}
	n, kept, err := f.choose(h, body, how)
	if err != nil {
		return Filtered{}, err
	}
	_, hasHorizon := h.DeleteHorizon()
	setHorizon := n.kept > 0 && !hasHorizon && (n.tombstones || how.Marker)
	out := Filtered{Batch: batch, Read: n.read, Kept: n.kept}
	switch {
	case n.kept == 0 && !how.KeepEmpty:
		out.Batch, out.Changed = nil, true
	case n.kept == 0 && n.read == 0, n.kept == n.read && !setHorizon:
	case n.kept == 0:
		out.Batch, out.Changed = f.empty(h), true
	default:
		out.Changed = true
		if setHorizon {
			kept = f.rebase(h, kept, how.DeleteHorizonMs)
		}
		out.Batch, err = f.build(h, kept, n, setHorizon, how.DeleteHorizonMs)
	}
	return out, err
}

// Records begins at the first record of a batch in one piece, compressed or not; they are valid until the next call.
func (f *Filter) Records(batch []byte) (Records, error) {
	if len(batch) < HeaderSize || Header(batch).Size() != len(batch) {
		return Records{}, invalid(errTruncated)
	}
	body, err := f.records(batch, batch)
	if err != nil {
		return Records{}, err
	}
	return recordsIn(batch, body), nil
}

// headerOf is a header for messages, of bytes that may be too short to be one.
func headerOf(batch []byte) string {
	if len(batch) < HeaderSize {
		return "a batch that is cut short"
	}
	return Header(batch).String()
}

// records gives the records without compression.
func (f *Filter) records(h Header, batch []byte) ([]byte, error) {
	if h.Compression() == None || h.Count() == 0 {
		return batch[HeaderSize:], nil
	}
	var err error
	f.body, err = f.Codecs.Decompress(f.body[:0], h.Compression(), batch[HeaderSize:], maxFilteredBytes)
	return f.body, err
}

// chosen is what is known of a batch's records once each one has been looked at.
type chosen struct {
	read, kept int
	tombstones bool
	maxTime    int64
}

// choose asks about each record and gives those that stay. As long as all do, nothing is copied.
func (f *Filter) choose(h Header, body []byte, how *Filtering) (n chosen, kept []byte, err error) {
	n.maxTime = NoTimestamp
	records := recordsIn(h, body)
	at, whole := 0, true
	for records.Next() {
		r, raw := records.Record(), records.Raw()
		n.read++
		if !how.Keep(r) {
			if whole {
				f.kept, whole = append(f.kept[:0], body[:at]...), false
			}
			continue
		}
		n.kept++
		n.tombstones = n.tombstones || r.Value == nil
		n.maxTime = max(n.maxTime, r.Timestamp)
		if whole {
			at += len(raw)
		} else {
			f.kept = append(f.kept, raw...)
		}
	}
	if whole {
		return n, body, records.Err()
	}
	return n, f.kept, records.Err()
}

// rebase writes records with timestamps that count from the delete horizon.
func (f *Filter) rebase(h Header, records []byte, horizonMs int64) []byte {
	f.timed = f.timed[:0]
	for len(records) > 0 {
		// The structure was checked when the records were chosen, so nothing can fail here.
		body, rest, _ := takeBytes(records)
		records = rest
		delta, n := binary.Varint(body[1:])
		tail := body[1+n:]
		delta += h.BaseTimestamp() - horizonMs
		f.timed = binary.AppendVarint(f.timed, int64(1+varintSize(delta)+len(tail)))
		f.timed = append(f.timed, body[0])
		f.timed = binary.AppendVarint(f.timed, delta)
		f.timed = append(f.timed, tail...)
	}
	return f.timed
}

// build puts records behind a copy of their batch's header.
func (f *Filter) build(old Header, records []byte, n chosen, setHorizon bool, horizonMs int64) ([]byte, error) {
	f.out = append(f.out[:0], old[:HeaderSize]...)
	if codec := old.Compression(); codec == None {
		f.out = append(f.out, records...)
	} else {
		var err error
		if f.out, err = f.Codecs.Compress(f.out, codec, defaultLevel(codec), records); err != nil {
			return nil, err
		}
	}
	h := Header(f.out)
	h.setLength(len(f.out))
	h.setCount(int32(n.kept))
	if h.TimestampType() == CreateTime {
		h.setMaxTimestamp(n.maxTime)
	}
	if setHorizon {
		h.setAttributes(h.Attributes() | attributeDeleteHorizon)
		h.setBaseTimestamp(horizonMs)
	}
	h.setCRC(crc32.Checksum(f.out[offsetAttributes:], castagnoli))
	return f.out, nil
}

func defaultLevel(codec Compression) int {
	switch codec {
	case Gzip:
		return DefaultGzipLevel
	case LZ4:
		return DefaultLZ4Level
	case Zstd:
		return DefaultZstdLevel
	default:
		return 0
	}
}

// empty is a batch without records, for what its header tells of the producer.
func (f *Filter) empty(old Header) []byte {
	f.out = append(f.out[:0], old[:HeaderSize]...)
	h := Header(f.out)
	h.setLength(HeaderSize)
	h.setCount(0)
	h.setAttributes(h.Attributes() & (attributeLogAppendTime | attributeTransactional | attributeControl))
	h.setBaseTimestamp(NoTimestamp)
	h.setCRC(crc32.Checksum(f.out[offsetAttributes:], castagnoli))
	return f.out
}
