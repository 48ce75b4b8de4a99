package errcode

import (
	"errors"
	"fmt"
)

// Error is an expected failure that a client is told about: a Kafka error code and the text beside it.
type Error struct {
	Code Code
	// Text goes to the client where the response has room for it; empty means Code.Message().
	Text string
	// Cause is for logs only; it never reaches a client.
	Cause error
}

// Error gives the code's name and the text.
func (e *Error) Error() string {
	s := e.Code.Name()
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap gives the cause, which may be nil.
func (e *Error) Unwrap() error { return e.Cause }

// Is makes errors.Is match any Error of the same code.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// Err makes an error of a code with its default text.
func (c Code) Err() error {
	if c == None {
		return nil
	}
	return &Error{Code: c}
}

// Errorf makes an error of a code with a text for the client.
func (c Code) Errorf(format string, args ...any) error {
	return &Error{Code: c, Text: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of a code around a cause that only logs will show.
func (c Code) Wrap(cause error) error { return &Error{Code: c, Cause: cause} }

// Of finds the code of an error: None for nil, UnknownServerError for an error that carries none.
func Of(err error) Code {
	if err == nil {
		return None
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return UnknownServerError
}

// Text is what a client is told about err beside its code: the error's own text, or the code's default message.
// An error without a code gives UnknownServerError's message, so that internals stay inside.
func Text(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Text != "" {
		return e.Text
	}
	return Of(err).Message()
}
