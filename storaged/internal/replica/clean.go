package replica

import (
	"errors"
	"fmt"

	"chancery/services/kafka/errcode"
	"chancery/storaged/internal/log"
)

// LogDir is the path of the log directory; empty when it is not known.
func (r *Replica) LogDir() string {
	if d := r.Dir(); d != nil {
		return d.Path()
	}
	return ""
}

// Write runs a function in the loop, as the log's writer, and gives its error. It is log.ErrClosed when the log is not in use
// any more.
func (r *Replica) Write(f func() error) error {
	err := log.ErrClosed
	r.Do(func() {
		if !r.usable() {
			return
		}
		// A log that the replica has left for one in another directory is closed, which is nobody's fault.
		if err = f(); errcode.Of(err) == errcode.KafkaStorageError && !errors.Is(err, log.ErrClosed) {
			r.fail(fmt.Errorf("write: %w", err))
		}
	})
	return err
}
