package main

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// work is one kind of load.
type work struct {
	name string
	// run loads the cluster until ctx ends.
	run func(ctx context.Context, bootstrap []string, t *tally) error
}

// topicPartitions is the number of partitions of each topic that is loaded.
const topicPartitions = 12

// works are measured in this order: fetch reads what the first produce wrote.
func works() []work {
	bulk := produceLoad{topic: "bench-bulk", connections: 2, inFlight: 8, batchBytes: 64 << 10, recordBytes: 1 << 10, partitionsPerRequest: 4}
	small := produceLoad{topic: "bench-small", connections: 2, inFlight: 32, batchBytes: 100, recordBytes: 100, partitionsPerRequest: 1}
	ten := transactionLoad{topic: "bench-transactions", partitions: 10}
	return []work{
		{"produce acks=all, 64 KiB batches", bulk.run},
		{"produce acks=all, one 100 B record a request", small.run},
		{"fetch from the page cache", fetchLoad{topic: bulk.topic, connections: 2, partitionsPerRequest: 4}.run},
		{"commit of one offset, one shard", commitLoad{topic: "bench-bulk", connections: 32, inFlight: 16, shards: 1}.run},
		{"commit of one offset, all shards", commitLoad{topic: "bench-bulk", connections: 64, inFlight: 16, shards: offsetsPartitions}.run},
		{"transactions over 10 partitions", ten.run},
		{"20 transactions a second over 10 partitions", ten.at(20, 1, false)},
		{"40 transactions a second over 10 partitions", ten.at(40, 2, false)},
		{"40 transactions a second over 10 partitions, version 1", ten.at(40, 2, true)},
		{"end to end at 10 MB/s, 1 KiB records", endToEndLoad{topic: "bench-latency", bytesPerSecond: 10 << 20, recordBytes: 1 << 10}.run},
	}
}

// castagnoli is the polynomial of a record batch's checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// buildBatch makes an uncompressed batch of random records, at most batchBytes of records but at least one.
func buildBatch(batchBytes, recordBytes int) []byte {
	value := make([]byte, recordBytes)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range value {
		value[i] = byte(rng.Uint32())
	}
	var records []byte
	count := 0
	for len(records)+recordBytes+16 <= batchBytes || count == 0 {
		record := []byte{0}                                // attributes
		record = binary.AppendVarint(record, 0)            // timestamp delta
		record = binary.AppendVarint(record, int64(count)) // offset delta
		record = binary.AppendVarint(record, -1)           // no key
		record = binary.AppendVarint(record, int64(len(value)))
		record = append(record, value...)
		record = binary.AppendVarint(record, 0) // no headers
		records = binary.AppendVarint(records, int64(len(record)))
		records = append(records, record...)
		count++
	}
	const headerBytes = 61
	now := uint64(time.Now().UnixMilli())
	b := make([]byte, headerBytes, headerBytes+len(records))
	b = append(b, records...)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], ^uint32(0)) // partition leader epoch: the broker's to set
	b[16] = 2                                      // magic
	binary.BigEndian.PutUint32(b[23:], uint32(count-1))
	binary.BigEndian.PutUint64(b[27:], now)
	binary.BigEndian.PutUint64(b[35:], now)
	binary.BigEndian.PutUint64(b[43:], ^uint64(0)) // no producer id
	binary.BigEndian.PutUint16(b[51:], ^uint16(0))
	binary.BigEndian.PutUint32(b[53:], ^uint32(0))
	binary.BigEndian.PutUint32(b[57:], uint32(count))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	return b
}

// ensureTopic makes a topic; one that is there already is fine.
func ensureTopic(ctx context.Context, bootstrap []string, topic string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	there, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	if d, ok := there[topic]; ok && d.Err == nil {
		return nil
	}
	_, err = adm.CreateTopic(ctx, topicPartitions, 1, nil, topic)
	return err
}
