package e2e_test

import "context"

// client is one Kafka client library.
type client interface {
	name() string
	// produce writes the records of a source from sequence number 0 to n-1, in order, and reports each acknowledgement. It
	// returns when every record has been acknowledged or has failed.
	produce(ctx context.Context, j produceJob) error
	// readAll reads topics from their start, each partition by assignment, until each returns false or ctx ends.
	readAll(ctx context.Context, bootstrap []string, topics []string, partitions int32, each func(consumed) bool) error
	// join is one member of a consumer group from its start to its end: until ctx ends, when it commits what it has read and
	// leaves.
	join(ctx context.Context, bootstrap []string, group string, topics []string, each func(consumed)) error
}

// produceJob is what is written, and how.
type produceJob struct {
	bootstrap []string
	source    source
	n         int
	// codec is none, gzip, snappy, lz4 or zstd.
	codec string
	// acks is 0, 1 or -1.
	acks  int
	acked func(seq int, at position)
}

// codecs are the compressions of the protocol.
var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}
