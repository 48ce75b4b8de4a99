// Package playground runs a cluster of real processes on one machine: several of each service, each a child process of its
// own, that can be killed, stopped, paused and started again by name.
//
// It owns the children and the folder that they write to. It must never reach into a child: it knows their subcommands,
// their properties and their admin addresses only, as any operator does.
//
// The supervisor runs in the foreground. It listens on a port of the loopback interface for the commands of other
// processes of the same user, who find the port and a secret in the state file. When the supervisor ends, so do its
// children: in order when it is asked to, at once when it dies (on Linux, where the kernel sees to it).
package playground
