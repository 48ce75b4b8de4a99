package transport

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
)

// hintedError adds to an error the address to ask instead.
type hintedError struct {
	error
	address string
}

func (e *hintedError) Unwrap() error { return e.error }

// WithHint adds to an error the address of who can answer: the active controller, or the owner of a shard. An empty
// address adds nothing.
func WithHint(err error, address string) error {
	if err == nil || address == "" {
		return err
	}
	return &hintedError{error: err, address: address}
}

// Hint is the address to ask instead, or empty.
func Hint(err error) string {
	var h *hintedError
	if errors.As(err, &h) {
		return h.address
	}
	return ""
}

// unsentError marks a failure of a call that never left this process.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// Unsent says whether a call failed before any of it was written to a connection: then it may be repeated, whatever it
// would have done. For all other failures of the transport the other side may have carried it out.
func Unsent(err error) bool {
	var u *unsentError
	return errors.As(err, &u)
}

// lostError marks a failure of the transport, as opposed to an answer.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// Answered says whether err is the other side's own answer: it has decided, and nothing is left open.
func Answered(err error) bool {
	var l *lostError
	return err != nil && !errors.As(err, &l)
}

// ToStatus turns a handler's error into a gRPC status with a KafkaError detail. It is for servers outside this package's
// interceptors; those apply it by themselves.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	var e *errcode.Error
	if !errors.As(err, &e) {
		return plainStatus(err)
	}
	st := status.New(grpcCode(e.Code), e.Code.Name())
	detailed, detailErr := st.WithDetails(&commonv1.KafkaError{Code: int32(e.Code), Message: e.Text, HintAddress: Hint(err)})
	if detailErr != nil {
		return st.Err()
	}
	return detailed.Err()
}

// plainStatus is the status of an error that carries no Kafka code.
func plainStatus(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

// grpcCode is the nearest gRPC code, for tools and metrics that know only those.
func grpcCode(c errcode.Code) codes.Code {
	switch c {
	case errcode.NotController, errcode.NotCoordinator, errcode.NotLeaderOrFollower, errcode.FencedLeaderEpoch:
		return codes.FailedPrecondition
	case errcode.CoordinatorLoadInProgress, errcode.CoordinatorNotAvailable, errcode.BrokerNotAvailable:
		return codes.Aborted
	case errcode.RequestTimedOut:
		return codes.DeadlineExceeded
	case errcode.UnknownTopicOrPartition, errcode.UnknownTopicId:
		return codes.NotFound
	case errcode.InvalidRequest:
		return codes.InvalidArgument
	case errcode.UnsupportedVersion:
		return codes.Unimplemented
	case errcode.UnknownServerError:
		return codes.Internal
	default:
		return codes.FailedPrecondition
	}
}

// FromStatus turns what a gRPC call with this context returned into an *errcode.Error, with its hint where there is one.
func FromStatus(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if k, ok := d.(*commonv1.KafkaError); ok {
			return WithHint(&errcode.Error{Code: errcode.Code(k.GetCode()), Text: k.GetMessage()}, k.GetHintAddress())
		}
	}
	// The caller's own end of the call must be told from the other side's, which shows in the same status codes.
	if cause := ctx.Err(); cause != nil {
		err = errors.Join(cause, err)
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		// The other side may see the common deadline pass a moment before this one does.
		return &lostError{errcode.RequestTimedOut.Wrap(errors.Join(context.DeadlineExceeded, err))}
	case codes.Canceled, codes.Unavailable, codes.Internal, codes.ResourceExhausted:
		return &lostError{errcode.NetworkException.Wrap(err)}
	case codes.Unimplemented:
		return errcode.UnsupportedVersion.Wrap(err)
	default:
		return errcode.UnknownServerError.Wrap(err)
	}
}
