// Package simulation lets a simulator play a storage node step by step: real replicas with real logs, without the goroutines,
// clocks and connections around them.
//
// It owns what stands between the replicas and a simulated world: which replicas there are, what they ask of the controller
// and of their leaders, and which log directories have failed. It must never decide about replication, and nothing but a
// simulation may use it.
//
// A Node belongs to one goroutine. Each of its methods returns when the replicas have nothing left to do, so that the same calls
// always lead to the same state.
package simulation
