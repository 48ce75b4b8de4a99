// Package app puts a process together: which services a target runs, how they are wired, and in which order they start and
// stop.
//
// It owns the composition and nothing else: the only place that imports the services, it must never do a service's work.
package app
