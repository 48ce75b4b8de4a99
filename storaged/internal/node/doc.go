// Package node is the replicas of a storage node taken together: it opens and closes them as the metadata image says, and
// answers the data path (services/storage.Node) from them.
//
// It owns which replicas there are. It must never decide about one: that is the replica's own business.
//
// # Two images
//
// An image is the newest one from the moment when the metadata follower brings it, and the applied one when every replica
// has taken its role. Fencing goes by the newest; what this node refuses because it does not know better goes by the
// applied one, and waits when the sender knows a newer one.
package node
