// Package pacer lets reads from the remote tier yield to producers.
//
// It owns the rate at which cold bytes pass through a gateway. It must never hold up a produce request, nor keep a cold reader from
// coming on at all.
//
// # How it decides
//
// While nobody produces, cold reads pass as they come. Beside producers they pass at a rate that begins with Floor and is judged
// by what producers notice: the gateway counts how many produce requests take longer, while cold bytes pass, than the 95th and the
// 99th percentile of those while none do. As long as there are no more of them than the 5 and the 1 in a hundred that this
// means the rate grows, faster the longer that lasts; when there are more than chance explains it is cut, down to Floor. From
// time to time cold reads pause for a moment, since what is usual without them changes, and only the last requests without them count.
//
// Bytes pass in few large grants rather than in many small ones: each holds up a request or two, hardly longer when it is large.
//
// The time of produce requests tells of whatever cold reads and producers share: processors, networks and disks, of this
// process and of others. Pressure of the processor alone would tell nothing of a storage node on another machine, and something of
// work that is no cold read.
//
// Governor decides, without a clock or a lock; Pacer has both and waits.
package pacer
