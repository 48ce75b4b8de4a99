// Package lifecycle is how the parts of a process start and stop.
//
// It owns the contract of a part and the group that runs several in order; it must never know which parts there are.
package lifecycle

import "context"

// Service is a part of a process that runs for a while: a gateway, a storage node, an HTTP server.
type Service interface {
	// Start returns once the service does its work, or with the reason why it cannot. The context bounds the start
	// only. After an error nothing is left running.
	Start(ctx context.Context) error
	// Stop ends the service in an orderly way within the context's time and gives everything back. It is called once,
	// after Start has returned nil.
	Stop(ctx context.Context) error
	// Failed tells of a failure after the start that the service cannot heal: at most one error is ever
	// sent, and the process should then stop. A nil channel means that the service has no such failures.
	Failed() <-chan error
	// Ready is nil while the service can take work; otherwise it says what is missing. It is cheap.
	Ready() error
}
