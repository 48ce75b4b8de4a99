// Package handler answers the requests of Kafka clients: one row in table.go and one file for each API.
//
// It owns what an API means at the gateway: checks, routing by the metadata image to storage nodes, controllers and
// coordinators, and putting the answers together. It must never read from or write to a client's connection, nor keep
// state of the cluster beside the image; the state of fetch sessions is in package session.
//
// To add an API: a file with a method on Handlers and a row in table.go. A handler gets the decoded request and returns
// the response; an error means that nothing can be answered and closes the connection. Whatever a client should be told
// is in the response. Handlers run on the goroutine of their connection and may block; they must obey ctx, which ends with
// the connection. A request that cannot be served because the image is old waits with await, within its own time-out.
package handler
