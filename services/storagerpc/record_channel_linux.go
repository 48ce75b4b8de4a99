package storagerpc

import (
	"context"
	"net"

	"chancery/services/transport"
)

// recordSocketBytes is the size of a channel's socket buffers, as far as the system permits: the writer then seldom waits for
// the reader.
const recordSocketBytes = 2 << 20

// recordChannelName is channelName for the records of the instance at an address.
func recordChannelName(address string) *net.UnixAddr {
	return &net.UnixAddr{Name: "@chancery/records/" + address, Net: "unix"}
}

// dialRecords opens a channel to the instance at an address, if it is on this machine.
func dialRecords(address string, pool *transport.Pool) (*recordChannel, error) {
	conn, token, err := dialSamePeer(recordChannelName(address))
	if err != nil {
		return nil, err
	}
	return newRecordChannel(token, conn, pool), nil
}

// listen takes clients' channels until the context ends.
func (c *recordChannels) listen(ctx context.Context, address string) error {
	return listenSamePeer(ctx, recordChannelName(address), func(conn *net.UnixConn, token [channelTokenBytes]byte) {
		// A smaller buffer than asked for is good, too.
		if conn.SetWriteBuffer(recordSocketBytes) != nil || !c.add(token, conn) {
			_ = conn.Close() // nothing was said on it
			return
		}
		_, _ = conn.Read(make([]byte, 1)) // a client sends nothing more, so this ends with the channel
		c.remove(token)
	})
}
