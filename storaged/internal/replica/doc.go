// Package replica is one partition replica at work: the state machine of package partition, its log on disk, and those
// who wait for it.
//
// It owns the order of everything that changes a replica. It must never decide about replication, which package partition
// does, nor know how other nodes and the controller are reached, which the Host does.
//
// # One owner
//
// Everything that changes a replica is an event in its mailbox, and one goroutine at a time works the mailbox off; it exists
// only while there is something to do. Appends that queue up while a write is under way leave together with the next
// write. Reads take no part in that: the loop publishes what readers may see as one immutable View, and the log can be
// read from any goroutine.
//
// A reader that wants to wait registers a Waiter on its replicas; each new View wakes those whose end has moved.
package replica
