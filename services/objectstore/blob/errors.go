package blob

import "errors"

var (
	// ErrExists is the cause when an object was to be made only if there is none, and there is one.
	ErrExists = errors.New("the object exists")
	// ErrConflict is the cause when another request on the same object came between.
	ErrConflict = errors.New("another request came between")
)

// ErrUnanswered says that a store's answer about several keys does not name this one: nobody knows.
var ErrUnanswered = errors.New("the answer does not name the key")
