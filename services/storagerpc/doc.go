// Package storagerpc is the data path between processes: storage.Node over gRPC, both ends, and the reads that tiering instances
// answer.
//
// It owns the wire form of proto/storage/v1 for appends and fetches, and of proto/tiering/v1 for reads, written by hand so
// that record batches are never copied, and the streams they travel on. It must never look inside record batches, nor repeat
// an append: whether one may be sent again is for the sender to know, from OutcomeUnknown.
//
// # Connections
//
// A Client has one connection for small requests and the look-ups, and a few for bulk (requests above 64 KiB). Each
// has one Append stream and one Fetch stream, opened when first needed. Small requests wait behind bulk nowhere but
// in the node itself.
//
// # Order of appends
//
// Appends that name the same partition reach the node in the order of the calls. On one stream order holds by itself,
// so it is enough that a partition is never on two streams at once. Each partition with unanswered appends is pinned to
// the stream they are on, and later ones follow them. When none is left unanswered the next append may go anywhere, since an
// answer means that the node has taken the append. When a bulk append comes for a partition that is pinned to the
// small stream, it and those behind it wait until the small ones are answered, and then move to a bulk stream together;
// so a busy producer does not stay on the small stream for ever. An append of several partitions is split where
// they are pinned to different streams.
//
// After a stream broke, what was unanswered on it is reported with OutcomeUnknown; the node may still take it after
// what is sent next on another stream, as Kafka's brokers may after a lost connection. Idempotent producers are safe from
// that by their sequence numbers.
//
// # Files
//
// A client on the node's machine, of the same user, takes the records of a fetch as open files over a unix socket beside the
// streams: file_channel.go says how. Elsewhere, and whenever that does not work, they go over the streams. The records of large
// reads from a tiering instance on the same machine come over such a socket, too, as bytes: record_channel.go.
package storagerpc
