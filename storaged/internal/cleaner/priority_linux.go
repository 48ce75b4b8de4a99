package cleaner

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// niceness is how much less of a processor a cleaning thread gets when others want it, too.
const niceness = 10

// lowerPriority makes the calling goroutine one of lower priority, for the rest of its life: produce and fetch go first. A
// system that does not allow it leaves things as they are.
func lowerPriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness)
}
