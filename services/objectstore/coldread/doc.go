// Package coldread reads records from remote segments: whole batches from an offset on, offsets by timestamp, aborted
// transactions.
//
// It owns the read-ahead, the caches of blocks (memory and disk) and of indexes, and the checks: a byte is handed on only
// after the checksum of its block was right. It must never know which segments a partition has nor what of them counts (the
// caller gives a view for each call), which store there is (it gets a RemoteStorageManager), and nothing that it does may
// wait on a partition's writes.
//
// # How a read works
//
// A segment is read in blocks of 1 MiB. Missing blocks that follow each other are asked for in one ranged request, whose
// blocks are checked and handed on as they come in. A reader that begins somewhere gets one block. When it comes back for the
// offset after the last one it got, its window of read-ahead doubles, up to ReadAheadMaxBytes and across segments, read with
// requests of a sixteenth of it, from 1 to 8 MiB: enough at the same time that a slow one does not stop the stream. A block
// that is asked for twice at the same time is read once, and is read to its end even if nobody waits for it any more.
//
// # The exported API
//
//	reader, err := coldread.New(manager, config, deps)
//	reader.Read(ctx, ReadRequest) (*ReadResult, error)          // batches from an offset on
//	reader.OffsetForTimestamp(ctx, segments, timestampMs, minOffset) (TimestampOffset, bool, error)
//	reader.AbortedTransactions(ctx, segments, from, to) (list, complete, error)
//	reader.Indexes(ctx, segment) (*objectstore.Indexes, error)  // producer snapshot and leader epochs among them
//	reader.Forget(segments...)                                  // after a deletion
//	reader.Close() error
//
// # Metrics
//
//	chancery_coldread_blocks_total{result}        blocks that readers asked for: hit (in memory) or miss
//	chancery_coldread_bytes_total{from}           bytes that came into memory, from store or disk
//	chancery_coldread_index_reads_total{result}   indexes that were asked for: hit or miss
//	chancery_coldread_evictions_total{read}       blocks that left the memory, and whether anybody had read them
//	chancery_coldread_crc_failures_total          blocks whose checksum was wrong
//	chancery_coldread_read_ahead_window_bytes     windows of read-ahead
//	chancery_coldread_memory_bytes                memory of blocks; likewise index_bytes and disk_bytes
//	chancery_coldread_in_flight                   blocks that are being read
package coldread
