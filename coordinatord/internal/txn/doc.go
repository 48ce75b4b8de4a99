// Package txn is the transactions of one shard: a pure state machine on services/statemachine, whose log is a partition of
// __transaction_state.
//
// It owns which producer has a transactional id, with which epoch, and how far its transaction is. It must never write a marker
// itself, nor ask for a producer id, nor know time but by what it is told: its Host does the work, and commands bring the
// outcome.
//
//	Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing or Empty again
//	              \---> PrepareAbort  -> CompleteAbort
//
// A command sees what all commands before it have decided, also what is not durable yet, and its answer waits for that. So there
// is no pending transition as in Kafka: what Kafka refuses with CONCURRENT_TRANSACTIONS while a record is on its way is decided
// here at once. While a transaction is being ended, commands of its producer wait for a moment instead of coming again.
package txn
