package e2e_test

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

// rawBatch makes an uncompressed record batch with one record for each value.
func rawBatch(values ...[]byte) []byte {
	var records []byte
	for i, v := range values {
		record := []byte{0}
		record = binary.AppendVarint(record, 0)
		record = binary.AppendVarint(record, int64(i))
		record = binary.AppendVarint(record, -1)
		record = binary.AppendVarint(record, int64(len(v)))
		record = append(record, v...)
		record = binary.AppendVarint(record, 0)
		records = binary.AppendVarint(records, int64(len(record)))
		records = append(records, record...)
	}
	b := append(make([]byte, 61), records...)
	now := uint64(time.Now().UnixMilli())
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], ^uint32(0))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(len(values)-1))
	binary.BigEndian.PutUint64(b[27:], now)
	binary.BigEndian.PutUint64(b[35:], now)
	binary.BigEndian.PutUint64(b[43:], ^uint64(0))
	binary.BigEndian.PutUint16(b[51:], ^uint16(0))
	binary.BigEndian.PutUint32(b[53:], ^uint32(0))
	binary.BigEndian.PutUint32(b[57:], uint32(len(values)))
	return withCRC(b)
}

// withCRC gives a batch the checksum that fits its content.
func withCRC(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}
