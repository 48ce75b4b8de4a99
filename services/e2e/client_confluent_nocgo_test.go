//go:build !cgo

package e2e_test

import (
	"context"
	"errors"
)

var errNoCgo = errors.New("confluent-kafka-go needs cgo and a C compiler, which this build does without")

// joinWithConfluent has no client either.
func joinWithConfluent(context.Context, []string, string, func(map[string][]int32, bool)) (func() error, error) {
	return nil, errNoCgo
}

// newConfluent has no client to give: librdkafka is C.
func newConfluent() (client, error) {
	return nil, errNoCgo
}
