// Package log keeps one partition's records on disk, in exactly the files that Apache Kafka keeps them in: segments with
// their indexes, producer snapshots, the leader epoch checkpoint and partition.metadata. Either program opens what the
// other has written.
//
// It owns those files, the recovery after a crash, and what is derived from the records: leader epochs, producers,
// transactions. It must never decide what is committed (the high watermark is told to it), who leads, or what a client may
// write: batches come checked and stamped.
//
// # Who may call what
//
// A Log has one writer, the owner's loop, which calls everything that changes the log. Readers (LogReader's methods, and
// Flush) may run in any goroutine at any time. The lock inside guards only what both see, and no file is touched
// while it is held for reading; so a reader never waits for a disk that the writer waits for.
//
// # Files
//
//	<20 digits>.log        record batches, back to back; the name is the first offset that may be inside
//	<20 digits>.index      per entry: offset - base int32, position int32. The offset is a batch's last, the position its
//	                       first byte. One entry for at least index.interval.bytes of records.
//	<20 digits>.timeindex  per entry: timestamp int64, offset - base int32. No record up to the offset is later than the
//	                       timestamp. The last entry of a closed segment is its largest timestamp.
//	<20 digits>.txnindex   per aborted transaction: version int16 (0), producer id, first offset, offset of the marker,
//	                       last stable offset after it, int64 each. There is no file without aborted transactions.
//	<20 digits>.snapshot   the producers as they were before the offset
//	leader-epoch-checkpoint, partition.metadata   text
//
// Indexes are written as the records are, not preallocated. They are never mapped into memory: every 512th entry
// and the last page are kept, and a look-up reads at most one page.
package log
