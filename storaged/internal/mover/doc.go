// Package mover copies replicas from one log directory of the node to another (KIP-113).
//
// It owns the copies ("future replicas") while they are made, who copies what next, and the steps of a move: copy until the
// copy has caught up, have the controller agree to the new directory, then let the copy take the replica's place. It must
// never write to a replica's present log, but for its deletion in the replica's own loop, and never tells clients anything.
//
// # What a crash leaves
//
// The copy lies in a directory of its own, named <topic>-<partition>.<id>-future, which a restart finds and goes on with. In the
// last step the present directory is first given the name of a deleted one, and then the copy gets its name. After a crash
// between the two there is only the copy, which takes its place when the log directories are opened, because the controller
// has already agreed.
package mover
