package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Copies are as fast as they can without producers, keep to the least rate beside few, and keep up with many.
func TestPace(t *testing.T) {
	for name, tt := range map[string]struct {
		produced int64
		want     time.Duration
	}{
		"nobody produces": {0, 0},
		"somebody does":   {1, 2 * time.Second},
		"many do":         {64 << 20, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p Pace
				began := time.Now()
				for range 65 {
					p.heard(time.Now(), tt.produced)
					if err := p.wait(t.Context(), 1<<20); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(began); (took - tt.want).Abs() > 50*time.Millisecond {
					t.Errorf("64 MiB took %s, want %s", took, tt.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		p.heard(time.Now(), 1)
		p.reserve(time.Now(), 1<<30)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if p.wait(ctx, 1) == nil {
			t.Error("it has not waited")
		}
		<-time.After(heardOf)
		if d := p.reserve(time.Now(), 1<<30); d != 0 {
			t.Errorf("a word of long ago counts: %s", d)
		}
	})
}
