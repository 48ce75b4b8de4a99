package coldread

import "testing"

// A name that is taken for a block's is written in the same way again, so that a file of somebody else is never dropped.
func FuzzParseName(f *testing.F) {
	f.Add("AAAAAAAAAAAAAAAAAAAAAA-0-00000000.block")
	f.Add("-_AAAAAAAAAAAAAAAAAAAA-12-0a0b0c0d.block")
	f.Add("x.block.tmp")
	f.Fuzz(func(t *testing.T, name string) {
		if b, ok := parseName(name); ok && b.name() != name {
			t.Fatalf("%q is read as %q", name, b.name())
		}
	})
}
