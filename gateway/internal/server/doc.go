// Package server is the Kafka side of the gateway's sockets: listeners, connections, the order of requests, and the way of
// bytes in and out.
//
// It owns connections and their limits. It must never know what a request means: it asks the handlers which requests may run
// beside each other, and writes what they return.
//
// # A connection
//
// One goroutine reads and runs the requests that are alone on the connection; those that may run beside each other are started
// by it and end on other goroutines. Answers leave in the order of the requests. Whoever completes the answer that is due writes
// it, with all that are ready behind it, or has a short-lived goroutine do so; there is no writer that waits. So an
// idle connection costs one goroutine that waits for its socket, and no buffer.
//
// Small requests are read many at a time into a buffer that is shared by all connections that have something to read. A Produce
// request gets a pooled buffer of its own from the start, of which the handlers slice the record batches. Records that come as
// regions of files go out by sendfile.
//
// # Limits
//
// A frame that is larger than socket.request.max.bytes, smaller than a header, of an unknown API or version closes the
// connection, after the answers that are due before it. Bytes of requests are taken from a budget of the process before
// they are read. connections.max.idle.ms closes a connection on which nothing was read or written for so long, also when it waits
// for an answer. max.connections and max.connections.per.ip bound their number.
//
// # Metrics
//
//	chancery_gateway_requests_total{api}                  requests answered
//	chancery_gateway_request_errors_total{api}            requests that closed their connection
//	chancery_gateway_request_queue_seconds{api}           from complete frame to the begin of the work
//	chancery_gateway_request_wait_seconds{api}            waiting for data, acknowledgements, other services
//	chancery_gateway_request_service_seconds{api}         the gateway's own work
//	chancery_gateway_request_send_seconds{api}            from the answer's being ready until it is written
//	chancery_gateway_request_seconds{api}                 all of it
//	chancery_gateway_connections{listener}                open connections
//	chancery_gateway_connections_accepted_total{listener} connections accepted
//	chancery_gateway_connections_refused_total{listener}  connections refused for a limit
//	chancery_gateway_requests_in_flight                   requests begun and not yet answered
//	chancery_gateway_received_bytes_total, chancery_gateway_sent_bytes_total
//	chancery_gateway_cold_read_limit_bytes_per_second     what all cold reads may bring beside producers; 0 while nobody produces
//	chancery_gateway_cold_read_bytes_total, chancery_gateway_cold_read_wait_seconds_total, chancery_gateway_cold_reads_refused_total
//	chancery_gateway_fetch_sessions, chancery_gateway_fetch_session_partitions, chancery_gateway_fetch_session_evictions_total
package server
