// Package wire is the form of Kafka requests and responses on a connection: frames, headers, and the messages that go out.
//
// It owns framing, header parsing, bounded reading of primitive fields and Message, a response made of bytes and of
// record batches that are never copied; it must never know what a request means, nor do IO.
package wire
