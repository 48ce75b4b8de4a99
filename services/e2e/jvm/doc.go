// Package jvm runs Apache Kafka's own command-line tools against Chancery.
//
// It owns the tools' class path, which Maven fetches once into the user's cache, and the tests, which are built with the
// tag jvm (make test-jvm). It must never need anything but a JVM, Maven and the binary that make build makes.
package jvm
