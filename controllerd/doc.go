// Package controllerd is a controller: it keeps the metadata log with the other controllers, and while it is the active one,
// decides about the cluster.
//
// It owns the wiring of the metadata log, the decisions and the gRPC service, and their start and stop. It must never look
// into the data of topics.
package controllerd
