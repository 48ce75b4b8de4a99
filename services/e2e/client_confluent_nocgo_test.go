//go:build !cgo

package e2e_test

import "errors"

// newConfluent has no client to give: librdkafka is C.
func newConfluent() (client, error) {
	return nil, errors.New("confluent-kafka-go needs cgo and a C compiler, which this build does without")
}
