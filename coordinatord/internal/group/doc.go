// Package group is the state machine of a shard of __consumer_offsets: classic consumer groups and committed offsets, by
// the rules of Apache Kafka 4.4.
//
// It owns who is a member, who waits for what, generations and assignments, and which records say so. It must never do
// IO, look at a clock or make up randomness: time, commands and ids come in, records and answers go out
// (services/statemachine).
//
// The durable part is offsets and, for each group, what its last metadata record says. Joins and syncs under way, session
// deadlines and the states between two generations are soft: they are lost with the shard, and members come back to
// what the log says. That is what a group's clients see of Kafka, too.
package group
