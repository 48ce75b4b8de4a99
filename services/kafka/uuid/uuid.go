// Package uuid is Kafka's Uuid: 16 bytes, written in URL-safe base64 without padding.
//
// It owns the type, its text form and the reserved values; it must never give ids a meaning.
package uuid

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
)

// UUID identifies a topic, a log directory, a broker incarnation or a cluster.
type UUID [16]byte

var (
	// Zero is "no id".
	Zero UUID
	// Metadata is the topic id of __cluster_metadata (KIP-516).
	Metadata = UUID{15: 1}
	// MigratingDir is the log directory of a replica whose directory is not tracked yet (KIP-858).
	MigratingDir = UUID{}
	// UnassignedDir is that of a replica whose directory is not chosen yet.
	UnassignedDir = UUID{15: 1}
	// LostDir is that of a replica whose directory is gone.
	LostDir = UUID{15: 2}
)

// Random makes a new version 4 id. As Kafka does, it never gives one whose text starts with a dash, which command
// lines would take for an option, nor a reserved one.
func Random() UUID {
	for {
		var u UUID
		// crypto/rand.Read never fails: it ends the process when the kernel has no randomness.
		_, _ = rand.Read(u[:])
		u[6] = u[6]&0x0f | 0x40
		u[8] = u[8]&0x3f | 0x80
		if u.String()[0] != '-' {
			return u
		}
	}
}

// Parse reads the text form of 22 characters.
func Parse(s string) (UUID, error) {
	var u UUID
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != len(u) {
		return Zero, fmt.Errorf("%q is no id: want 22 characters of URL-safe base64", s)
	}
	copy(u[:], b)
	return u, nil
}

// FromBytes takes the 16 bytes of an id from a message. Another length gives false.
func FromBytes(b []byte) (UUID, bool) {
	var u UUID
	if len(b) != len(u) {
		return Zero, false
	}
	copy(u[:], b)
	return u, true
}

// String is the id in URL-safe base64 without padding, as Kafka's tools print it.
func (u UUID) String() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// IsZero says whether this is "no id".
func (u UUID) IsZero() bool { return u == Zero }
