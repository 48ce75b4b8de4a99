package cleaner

import (
	"runtime"
	"sync"

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

// procs makes each change of GOMAXPROCS, which belongs to the process, one step.
var procs sync.Mutex

// besideOthers runs a pass without taking one of the places from those who produce and fetch: GOMAXPROCS counts the cleaning
// thread also while the system lets it wait for others, so there is one place more meanwhile.
func besideOthers(pass func()) {
	changeProcs(+1)
	defer changeProcs(-1)
	pass()
}

func changeProcs(by int) {
	procs.Lock()
	defer procs.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + by)
}
