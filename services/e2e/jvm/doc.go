// Package jvm runs Apache Kafka's own command-line tools, Java clients, Kafka Streams and server against Chancery.
//
// It owns the jars, which Maven fetches once into the user's cache as pom.xml says, the Java programs of the folder programs, which
// are compiled into that cache, and the tests, which are built with the tag jvm (make test-jvm). The tools of a test run one after
// the other in one JVM (programs/ToolRunner.java), since most of a call's time would be the start of its JVM. It must never need
// anything but a JDK, Maven and the binary that make build makes.
package jvm
