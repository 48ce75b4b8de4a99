// Package transport is how the processes of a cluster reach each other: the gRPC codec that moves record batches without
// copying them, the pool their buffers come from, dialling and serving, and channels that stay inside the process.
//
// It owns every use of gRPC's unstable interfaces and the mapping between Kafka errors and gRPC statuses. It must never
// know a service's messages, nor decide whether a failed call may be repeated: it only says whether the other side may
// have seen it (Unsent).
//
// # Addresses
//
// An address is "host:port", "unix:///path" or, for a service in the same process, "local:name", where name was given to
// Local.Channel.
//
// # Errors
//
// A handler returns an *errcode.Error, perhaps with a hint (WithHint) of where to ask instead; the caller gets an equal
// one, whether the call crossed a process or not. Failures of the transport itself come as errors with the codes
// NetworkException (the other side could not be reached, or was lost) and RequestTimedOut (the deadline passed); those of
// the caller's own context wrap context.Canceled. The cause of an error never travels.
package transport
