// Package cleaner compacts logs: of the records with one key it keeps the newest, in the background, without changing an
// offset. It is Apache Kafka's log cleaner, down to the files that a crash leaves.
//
// It owns the choice of what to clean next, the map from keys to offsets, the rules of what stays, and the threads and their
// limits. It must never touch a log's files itself: package log reads them, makes the new ones, and puts them in place.
//
// # A pass
//
// A pass has two parts. The dirty part of the log is read, and the last offset of each key noted (offsetMap). Then all
// segments up to there, clean ones too, are read and written anew without the records that a later one of the same key makes
// superfluous; small ones become one. Readers and appends go on; the log's writer only puts finished segments in place.
//
// What stays besides the newest record of each key:
//
//   - Tombstones, for delete.retention.ms from the first pass that has seen them. That pass writes the time when they may go,
//     the delete horizon, into their batch (KIP-534).
//   - A transaction's marker as long as there is a record of the transaction, and delete.retention.ms longer. Records of
//     aborted transactions go at once.
//   - The header of a producer's last batch, since its sequence number must be found after a restart, and the header of the
//     batch at the high watermark.
package cleaner
