// Package listener is a controller's own listener for clients of Kafka's protocol: for tools that ask the controllers directly
// (--bootstrap-controller), and for whoever speaks Kafka's broker-to-controller messages.
//
// It owns connections, frames, the table of what is served, and the answers about this controller itself. All else goes to the
// active controller, whichever controller was dialled. It must never decide anything about the cluster.
package listener
