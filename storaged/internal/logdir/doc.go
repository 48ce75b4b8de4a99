// Package logdir is a node's log directories (log.dirs): their identity, which replica is in which, the offset checkpoints
// at their roots, and which of them still work.
//
// It owns every file at the root of a log directory, in Apache Kafka's formats, so that either can open what the other
// wrote. It must never look inside a replica's directory, but for its partition.metadata: that is the log's.
package logdir
