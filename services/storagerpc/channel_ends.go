package storagerpc

import (
	"io"
	"sync"
)

// channelEnds are a server's ends of the channels that clients on the same machine have opened beside their connections, by
// the names that the clients gave them.
type channelEnds[C io.Closer] struct {
	mu      sync.Mutex
	byToken map[[channelTokenBytes]byte]*channelEnd[C]
	closed  bool
}

// channelEnd is the server's end of one channel. Sends are one after the other, under mu.
type channelEnd[C io.Closer] struct {
	conn C
	mu   sync.Mutex
}

// add takes a new channel in; false when no more are wanted.
func (c *channelEnds[C]) add(token [channelTokenBytes]byte, conn C) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.byToken[token] != nil {
		return false
	}
	if c.byToken == nil {
		c.byToken = map[[channelTokenBytes]byte]*channelEnd[C]{}
	}
	c.byToken[token] = &channelEnd[C]{conn: conn}
	return true
}

// get gives a channel; nil when there is none of the name.
func (c *channelEnds[C]) get(token [channelTokenBytes]byte) *channelEnd[C] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byToken[token]
}

// remove ends a channel.
func (c *channelEnds[C]) remove(token [channelTokenBytes]byte) {
	c.mu.Lock()
	e := c.byToken[token]
	delete(c.byToken, token)
	c.mu.Unlock()
	if e != nil {
		_ = e.conn.Close() // there is nothing left to send
	}
}

// close ends all channels, and takes no more.
func (c *channelEnds[C]) close() {
	c.mu.Lock()
	all := c.byToken
	c.byToken, c.closed = nil, true
	c.mu.Unlock()
	for _, e := range all {
		_ = e.conn.Close() // there is nothing left to send
	}
}
