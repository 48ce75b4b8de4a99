// Package storaged is the storage node: it holds replicas of partitions in log directories, leads some of them and follows
// the others, and answers the data path (services/storage.Node).
//
// It owns the log directories, the node's registration with the controller, and everything that Kafka's broker keeps per
// partition. It must never talk to clients: requests reach it through gateways, coordinators and its own peers.
//
// # Metrics
//
// Counters, which Prometheus shows with "_total" at the end:
//
//	chancery_storage_bytes_in, chancery_storage_messages_in      what clients appended
//	chancery_storage_bytes_out                                   what consumers read
//	chancery_storage_replication_bytes_in, ..._bytes_out         what was copied from leaders, and by followers
//	chancery_storage_produce_partitions, chancery_storage_failed_produce_partitions
//	                                                             appends and refused ones, each partition counted
//	chancery_storage_fetch_requests{from="consumer"|"follower"}  fetches
//	chancery_storage_failed_fetch_partitions                     partitions of fetches that were answered with an error
//	chancery_storage_isr_shrinks, chancery_storage_isr_expands, chancery_storage_failed_isr_updates
//	chancery_storage_throttled_bytes{quota="leader"|"follower"|"log_dirs"}   bytes copied under a quota
//	chancery_storage_truncations, chancery_storage_replica_fetch_errors
//
// Gauges:
//
//	chancery_storage_purgatory_size{operation="produce"|"fetch"|"delete_records"|"metadata"}   requests that wait
//	chancery_storage_throttled_rate_bytes{quota="leader"|"follower"|"log_dirs"}                the present rate of those copies
//	chancery_storage_partitions, chancery_storage_leaders, chancery_storage_offline_replicas   replicas here
//	chancery_storage_under_replicated_partitions, chancery_storage_under_min_isr_partitions,
//	chancery_storage_at_min_isr_partitions                                                     of those led here
//	chancery_storage_log_size_bytes{topic,partition}, chancery_storage_log_end_offset{...},
//	chancery_storage_log_start_offset{...}                                                     for each replica
//
// Gauges of the log cleaner, with Kafka's names:
//
//	chancery_storage_log_cleaner_recopy_percent                  share of the bytes that stayed in the threads' last passes
//	chancery_storage_log_cleaner_max_clean_time_secs, ..._max_buffer_utilization_percent
//	                                                             the longest of those passes, the fullest map of keys
//	chancery_storage_log_cleaner_max_dirty_percent, ..._time_since_last_run_ms
//	                                                             the dirtiest log, and how long ago that was seen
//	chancery_storage_log_cleaner_max_compaction_delay_secs       by how much max.compaction.lag.ms was missed
//	chancery_storage_log_cleaner_uncleanable_partitions_count{log_directory}, ..._uncleanable_bytes{log_directory}
//	                                                             logs that were given up: the node's log says why
package storaged
