package metadata

import (
	"fmt"

	"chancery/services/kafka/metarecord"
)

// Loader turns the batches of the log into images. It keeps a transaction's records back until the transaction ends,
// so that an image never shows half of one.
//
// It belongs to one goroutine.
type Loader struct {
	image *Image
	// delta is what was added since the image was taken; nil for nothing.
	delta *Delta
	// next and epoch are those that the next batch must have, at least.
	next  int64
	epoch int32
	// inTransaction says that a transaction is open; held are its records so far.
	inTransaction bool
	held          []metarecord.Record
}

// NewLoader starts from an image.
func NewLoader(image *Image) *Loader {
	return &Loader{image: image, next: image.offset + 1, epoch: image.epoch}
}

// Image is the last image taken.
func (l *Loader) Image() *Image { return l.image }

// NextOffset is the offset of the record that is wanted next.
func (l *Loader) NextOffset() int64 { return l.next }

// Epoch is the controller epoch of the last batch, -1 for none.
func (l *Loader) Epoch() int32 { return l.epoch }

// Add takes the next batch of the log. After an error the loader must start again from a snapshot.
func (l *Loader) Add(baseOffset int64, epoch int32, records []metarecord.Record) error {
	if baseOffset != l.next {
		return fmt.Errorf("%w: batch at offset %d, want offset %d", ErrReplay, baseOffset, l.next)
	}
	if epoch < l.epoch {
		return fmt.Errorf("%w: batch at offset %d of controller epoch %d after epoch %d", ErrReplay, baseOffset, epoch, l.epoch)
	}
	visible, end, err := l.split(baseOffset, records)
	if err != nil {
		return err
	}
	l.next, l.epoch = baseOffset+int64(len(records)), epoch
	if end < 0 {
		return nil
	}
	if l.delta == nil {
		l.delta = NewDelta(l.image)
	}
	return l.delta.Apply(end, epoch, visible...)
}

// split gives the records that take effect now, and the offset up to which they bring the image: that before an open
// transaction, or -1 when the image stays where it is.
func (l *Loader) split(baseOffset int64, records []metarecord.Record) (visible []metarecord.Record, end int64, err error) {
	if !l.inTransaction && !hasTransaction(records) {
		return records, baseOffset + int64(len(records)) - 1, nil
	}
	end = -1
	for i, r := range records {
		offset := baseOffset + int64(i)
		switch r.(type) {
		case *metarecord.BeginTransactionRecord:
			if l.inTransaction {
				return nil, 0, fmt.Errorf("%w: transaction within a transaction at offset %d", ErrReplay, offset)
			}
			l.inTransaction = true
		case *metarecord.EndTransactionRecord, *metarecord.AbortTransactionRecord:
			if !l.inTransaction {
				return nil, 0, fmt.Errorf("%w: end of no transaction at offset %d", ErrReplay, offset)
			}
			if _, commit := r.(*metarecord.EndTransactionRecord); commit {
				visible = append(visible, l.held...)
			}
			l.inTransaction, l.held = false, nil
			end = offset
		default:
			if l.inTransaction {
				l.held = append(l.held, r)
				continue
			}
			visible = append(visible, r)
			end = offset
		}
	}
	return visible, end, nil
}

func hasTransaction(records []metarecord.Record) bool {
	for _, r := range records {
		switch r.(type) {
		case *metarecord.BeginTransactionRecord, *metarecord.EndTransactionRecord, *metarecord.AbortTransactionRecord:
			return true
		}
	}
	return false
}

// Take gives the delta of everything that was added since the last Take, and makes its image the current one. It is nil
// when nothing was.
func (l *Loader) Take() *Delta {
	d := l.delta
	if d == nil {
		return nil
	}
	l.delta = nil
	l.image = d.Image()
	return d
}

// Reset replaces the image by that of a snapshot and gives the delta between the two.
func (l *Loader) Reset(snapshot *Image) *Delta {
	d := Diff(l.image, snapshot)
	*l = *NewLoader(d.Image())
	return d
}
