// Package etcdlog keeps the metadata log in etcd: in a member that is part of this process, or in a cluster that runs
// elsewhere.
//
// It owns the keys and the transactions on them, the member, and the decision which controller should claim the log. It is
// the only package that knows etcd; it must never look into a record.
//
// The keys, all under one prefix:
//
//	ctl/active                      the holder of the claim, as JSON
//	ctl/beat                        a sign of life of the active controller, with an etcd that runs elsewhere
//	ctl/cluster                     the cluster id
//	ctl/snapshot                    the manifest of the last snapshots, as JSON; writing it publishes a snapshot
//	log/<base offset, 20 digits>    a batch, written once and never again
//	snap/<end offset, 20 digits>/<chunk, 5 digits>
//
// A batch is appended by one transaction that compares three things: that ctl/active is still as the claim wrote it, that the
// batch's key does not exist, and that the key of the batch before it does. So a fenced controller changes nothing, and
// the log has neither overwritten batches nor gaps. The newest batch is never removed, which keeps its end known.
package etcdlog
