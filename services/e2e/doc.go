// Package e2e tests whole clusters with real Kafka clients over real sockets: everything in one process, and a playground of
// real processes of which some are killed.
//
// It owns the checkers of what clients may rely on: what was acknowledged is there, once, in order. It must never know how
// a cluster works inside.
//
// The tests take these environment variables:
//
//	CHANCERY_E2E_BOOTSTRAP  the addresses of a cluster that is there already: tests that kill nothing run against it alone
//	CHANCERY_E2E_RECORDS    how many records each client writes with each compression; 100000 when not set
//	CHANCERY_E2E_MEMBERS    how many members a group has whose members come and go; 6 when not set
//	CHANCERY_E2E_ROUNDS     how many times each fault test strikes; 5 when not set
package e2e
