// Package kraftlog keeps a copy of the metadata log in the files in which Kafka keeps its own, so that Kafka's tools read it.
//
// It owns the directory __cluster_metadata-0: segments, snapshots, the leader epochs and the state of the quorum. The quorum's own
// store is the truth; the copy follows the feed and may be thrown away at any time, after which it begins anew with a snapshot.
// It must never hold the controller up, fail it, or be read back into an image.
package kraftlog
