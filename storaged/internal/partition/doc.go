// Package partition is the state machine of one replica of a partition: its role and epochs, the in-sync replicas, what
// each follower has, and the high watermark.
//
// It owns every decision about replication. It must never touch a clock, a file, a socket or a goroutine: events and the
// time come in as arguments, and what has to be done comes out as Effects, which the caller carries out in order. The same
// code therefore runs in a storage node and in a simulation.
//
// # What holds at all times
//
//   - log start <= high watermark <= log end.
//   - While a replica leads, its high watermark only grows; on a follower it falls only by truncation.
//   - Every record below the high watermark of a leader is in the log of every member of the maximal ISR, which is
//     the committed ISR together with members that are being added. So whoever of them is elected has it.
//   - At most one AlterPartition is under way. A member that is being added counts at once, a member that is being
//     removed counts until the controller has agreed: in doubt, more replicas must have a record, never fewer.
//   - The high watermark stands still while the ISR is smaller than min.insync.replicas (KIP-966), where a minimum above
//     the replication factor means the replication factor.
package partition
