// Package pacer lets reads from the remote tier yield to producers.
//
// It owns the rate at which cold bytes pass through a gateway. It must never hold up a produce request, nor keep a cold reader from
// coming on at all.
//
// # How it decides
//
// While nobody produces, cold reads pass as they come. Beside producers they pass at a rate that begins with Floor and is judged
// by what producers notice: the gateway compares how long produce requests take while cold bytes pass with the 99th
// percentile of those while none do. As long as no more than one in a hundred is a tenth slower the rate grows, else it is
// halved, down to Floor. From time to time cold reads pause for a moment, since what is usual without them changes.
//
// The time of produce requests tells of whatever cold reads and producers share: processors, networks and disks, of this
// process and of others. Pressure of the processor alone would tell nothing of a storage node on another machine, and something of
// work that is no cold read.
//
// Governor decides, without a clock or a lock; Pacer has both and waits.
package pacer
