package objectstore

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of errors; errors.Is tells them apart.
var (
	// ErrNotFound says that the object is not there.
	ErrNotFound = errors.New("not found")
	// ErrThrottled says that the store wants fewer requests.
	ErrThrottled = errors.New("throttled")
	// ErrTransient says that the request may work later: a time-out, a broken connection, a store that is away.
	ErrTransient = errors.New("store is not available")
	// ErrCredentials says that the store does not let us do it with the credentials there are. They may be renewed, so it
	// is worth a later attempt, and a person's attention.
	ErrCredentials = errors.New("credentials refused")
	// ErrCorrupt says that what is stored, or was to be stored, is not what it should be.
	ErrCorrupt = errors.New("corrupt")
	// ErrRejected says that the store understood the request and will never do it: no such bucket, a bad setting.
	ErrRejected = errors.New("rejected")
)

// Error is a failed operation of a store.
type Error struct {
	// Kind is one of the errors above.
	Kind error
	// Op is the operation, as in the metrics: put, get, list, ...
	Op string
	// Key is the object.
	Key string
	// Code is the store's own code for what happened, such as SlowDown; empty when it gave none.
	Code string
	// Err is the cause; it may be nil.
	Err error
}

// Error says what was done, to what, and what happened.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %s", e.Op, e.Key, e.Kind)
	if e.Code != "" {
		fmt.Fprintf(&b, " (%s)", e.Code)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %s", e.Err)
	}
	return b.String()
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// KindName is the kind of an error as a metric's label: not_found, throttled, transient, credentials, corrupt, rejected;
// "other" for an error of no kind and "none" for nil.
func KindName(err error) string {
	if err == nil {
		return "none"
	}
	for _, k := range [...]struct {
		kind error
		name string
	}{
		{ErrNotFound, "not_found"},
		{ErrThrottled, "throttled"},
		{ErrCredentials, "credentials"},
		{ErrCorrupt, "corrupt"},
		{ErrRejected, "rejected"},
		{ErrTransient, "transient"},
	} {
		if errors.Is(err, k.kind) {
			return k.name
		}
	}
	return "other"
}

// MayRetry says whether the same request may work later without anybody changing the data.
func MayRetry(err error) bool {
	return errors.Is(err, ErrThrottled) || errors.Is(err, ErrTransient) || errors.Is(err, ErrCredentials)
}
