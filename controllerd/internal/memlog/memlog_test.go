package memlog_test

import (
	"testing"

	"chancery/controllerd/internal/memlog"
	"chancery/controllerd/internal/metalog"
	"chancery/controllerd/internal/metalog/metalogtest"
)

func TestConformance(t *testing.T) {
	metalogtest.Run(t, func(*testing.T) (one, two metalog.Log) {
		s := memlog.NewStore()
		return s.Node(1), s.Node(2)
	})
}
