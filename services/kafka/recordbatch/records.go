package recordbatch

import (
	"encoding/binary"
	"errors"

	"chancery/services/kafka/errcode"
)

// What can be wrong with the structure of records. They become InvalidRecord where they meet a client.
var (
	errTruncated = errors.New("the records end in the middle of one")
	errVarint    = errors.New("a number in a record is longer than its type")
	errStructure = errors.New("a record's fields do not fill its length")
	errRemaining = errors.New("bytes remain after the last record")
	errCount     = errors.New("the record count is negative")
)

// Record is one record; its slices are parts of the batch.
type Record struct {
	Offset    int64
	Timestamp int64
	// Key and Value are nil when null, empty when empty.
	Key   []byte
	Value []byte

	headers     []byte
	headerCount int
}

// RecordHeader is a record header; a null value is nil.
type RecordHeader struct {
	Key   string
	Value []byte
}

// HeaderCount is how many headers the record has.
func (r *Record) HeaderCount() int { return r.headerCount }

// Headers decodes the headers; nil when there are none.
func (r *Record) Headers() []RecordHeader {
	if r.headerCount == 0 {
		return nil
	}
	out := make([]RecordHeader, 0, r.headerCount)
	rest := r.headers
	for range r.headerCount {
		var k, v []byte
		// The structure was checked when the record was read, so nothing can fail here.
		k, rest, _ = takeBytes(rest)
		v, rest, _ = takeBytes(rest)
		out = append(out, RecordHeader{Key: string(k), Value: v})
	}
	return out
}

// Records goes through the records of one batch. The records alias the bytes it was made from.
type Records struct {
	header  Header
	rest    []byte
	left    int32
	raw     []byte
	current Record
	err     error
}

// RecordsOf begins at the first record of an uncompressed batch in one piece.
func RecordsOf(batch []byte) Records {
	if len(batch) < HeaderSize || Header(batch).Size() != len(batch) {
		return Records{err: invalid(errTruncated)}
	}
	if c := Header(batch).Compression(); c != None {
		return Records{err: errcode.InvalidRecord.Errorf("the batch is compressed with %s", c)}
	}
	return recordsIn(batch, batch[HeaderSize:])
}

func recordsIn(h Header, body []byte) Records {
	if h.Count() < 0 {
		return Records{err: invalid(errCount)}
	}
	return Records{header: h, rest: body, left: h.Count()}
}

func invalid(err error) error { return &errcode.Error{Code: errcode.InvalidRecord, Text: err.Error()} }

// Next goes to the next record and says whether there is one. After the last it checks that nothing is left over.
func (r *Records) Next() bool {
	if r.err != nil || r.left == 0 {
		return false
	}
	body, rest, err := takeBytes(r.rest)
	if err == nil && body == nil {
		err = errStructure
	}
	if err == nil {
		err = r.current.parse(r.header, body)
	}
	if err != nil {
		r.err = invalid(err)
		return false
	}
	r.raw = r.rest[:len(r.rest)-len(rest)]
	r.rest = rest
	r.left--
	if r.left == 0 && len(rest) > 0 {
		r.err = invalid(errRemaining)
		return false
	}
	return true
}

// Record is the current record; it is overwritten by Next.
func (r *Records) Record() *Record { return &r.current }

// Raw is the current record as it is in the batch, with its length.
func (r *Records) Raw() []byte { return r.raw }

// Err is what was wrong, with code InvalidRecord, or nil.
func (r *Records) Err() error { return r.err }

// parse reads a record from its body.
func (r *Record) parse(h Header, body []byte) error {
	if len(body) == 0 {
		return errStructure
	}
	b := body[1:] // the attributes, which no record uses
	timestampDelta, n := binary.Varint(b)
	if n <= 0 {
		return errVarint
	}
	b = b[n:]
	offsetDelta, b, err := takeVarint(b)
	if err != nil {
		return err
	}
	r.Offset = h.BaseOffset() + int64(offsetDelta)
	r.Timestamp = h.BaseTimestamp() + timestampDelta
	if h.TimestampType() == LogAppendTime {
		r.Timestamp = h.MaxTimestamp()
	}
	if r.Key, b, err = takeBytes(b); err != nil {
		return err
	}
	if r.Value, b, err = takeBytes(b); err != nil {
		return err
	}
	count, b, err := takeVarint(b)
	if err != nil {
		return err
	}
	if count < 0 || int(count) > len(b) {
		return errStructure
	}
	r.headers, r.headerCount = b, int(count)
	for range count {
		var key []byte
		if key, b, err = takeBytes(b); err != nil {
			return err
		}
		if key == nil {
			return errStructure
		}
		if _, b, err = takeBytes(b); err != nil {
			return err
		}
	}
	if len(b) > 0 {
		return errStructure
	}
	return nil
}

func takeVarint(b []byte) (int32, []byte, error) {
	v, n := binary.Varint(b)
	if n == 0 {
		return 0, nil, errTruncated
	}
	if n < 0 || v != int64(int32(v)) {
		return 0, nil, errVarint
	}
	return int32(v), b[n:], nil
}

// takeBytes reads a length and as many bytes. A negative length is null, as Kafka reads it, and gives nil; an empty field
// gives an empty slice that is not nil.
func takeBytes(b []byte) (field, rest []byte, err error) {
	n, b, err := takeVarint(b)
	if err != nil {
		return nil, nil, err
	}
	if n < 0 {
		return nil, b, nil
	}
	if int(n) > len(b) {
		return nil, nil, errTruncated
	}
	return b[:n:n], b[n:], nil
}
