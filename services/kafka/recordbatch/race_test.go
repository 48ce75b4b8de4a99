//go:build race

package recordbatch

// raceEnabled says that sync.Pool drops things at random, so that allocations cannot be counted.
const raceEnabled = true
