// Package testkit starts clusters for tests: everything in the test's own process (StartAll), or real processes that can be
// killed (StartPlayground).
//
// It owns free ports, the binary under test, and the logs of what it started, which it shows when the test fails. It must
// never look inside a cluster: tests speak to it as clients do. What it starts ends with the test.
package testkit
