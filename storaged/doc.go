// Package storaged is the storage node: it holds replicas of partitions in log directories, leads some of them and follows
// the others, and answers the data path (services/storage.Node).
//
// It owns the log directories, the node's registration with the controller, and everything that Kafka's broker keeps per
// partition. It must never talk to clients: requests reach it through gateways, coordinators and its own peers.
//
// # Metrics
//
// Names and meanings follow Kafka's:
//
//	chancery_storage_bytes_in, chancery_storage_bytes_out            bytes appended, and read by consumers
//	chancery_storage_replication_bytes_in, ..._out                   bytes copied from leaders, and to followers
//	chancery_storage_messages_in                                     records appended
//	chancery_storage_produce_partitions, ..._failed_produce_partitions   partition appends, and those refused
//	chancery_storage_fetch_requests{from=consumer|follower}          fetches
//	chancery_storage_purgatory_size{operation=produce|fetch|delete_records|metadata}   what waits
//	chancery_storage_partitions, ..._leaders, ..._offline_replicas   replicas held, led, and out of reach
//	chancery_storage_under_replicated_partitions, ..._under_min_isr_partitions, ..._at_min_isr_partitions
//	chancery_storage_isr_shrinks, ..._isr_expands, ..._failed_isr_updates
//	chancery_storage_max_replica_lag                                 records by which the slowest follower here lags
//	chancery_storage_log_size_bytes{topic,partition}, chancery_storage_log_end_offset, chancery_storage_log_start_offset
package storaged
