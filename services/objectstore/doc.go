// Package objectstore is the contract between tiered storage and the place where closed segments are kept: Kafka's
// RemoteStorageManager, in Go.
//
// It owns the interface, the words that both sides share (a segment's metadata, its data, the objects of a listing) and the
// kinds of errors. It must never know which store there is, nor what the metadata log says about a segment: whoever calls
// it keeps the state of each segment and decides what is copied, read and deleted.
//
// # Adding a store
//
// A third party adds a store in one of two ways. Whatever can put, get, list and delete named objects implements
// blob.Store, and segmentstore makes a manager of it, with the retries, deadlines, back-off and the object format that all
// stores share. Anything else implements RemoteStorageManager itself. Either way it gets a name in a registry.Table, which
// is what remote.log.storage.manager.class.name names.
//
// # What a manager promises
//
//   - When CopyLogSegmentData returns without an error, every byte is durable in the store and what is there was checked
//     against the segment's checksum. Any error may leave an object or an upload behind; DeleteLogSegmentData with the
//     same metadata removes it, and what nobody remembers is found by a listing.
//   - What a read returns without an error is either what was copied or found to differ by the block checksums, which the
//     reader checks: a manager need not verify a range, but must never give more or fewer bytes than asked for without
//     an error.
//   - Errors are of one of the kinds of this package (errors.Is with ErrNotFound and its neighbours). A manager tries a
//     request again by itself for as long as the context lets it and the error is worth it; a caller that wants more, as
//     a copier does, goes on with a Backoff.
package objectstore
