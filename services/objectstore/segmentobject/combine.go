package segmentobject

// castagnoliReversed is the polynomial of CRC-32C with its bits reversed, as the checksums have them.
const castagnoliReversed = 0x82f63b78

// CombineChecksums is the CRC-32C of two runs of bytes one behind the other, from that of each and the length of the second.
//
// Appending n zero bytes to a run multiplies its checksum, as a polynomial, by x^(8n); the multiplication is a 32x32 matrix
// over one bit, and squaring the matrix doubles n.
func CombineChecksums(first, second uint32, secondBytes int64) uint32 {
	if secondBytes <= 0 {
		return first
	}
	// One zero bit: shift, and subtract the polynomial when a bit falls out.
	var power matrix
	power[0] = castagnoliReversed
	for i := 1; i < 32; i++ {
		power[i] = 1 << (i - 1)
	}
	// Three squares make it one zero byte.
	for range 3 {
		power = power.squared()
	}
	for n := secondBytes; n > 0; n >>= 1 {
		if n&1 != 0 {
			first = power.times(first)
		}
		power = power.squared()
	}
	return first ^ second
}

// matrix is one of bits; element i is what bit i of a vector becomes.
type matrix [32]uint32

func (m *matrix) times(vector uint32) uint32 {
	var out uint32
	for i := 0; vector != 0; i, vector = i+1, vector>>1 {
		if vector&1 != 0 {
			out ^= m[i]
		}
	}
	return out
}

func (m *matrix) squared() matrix {
	var out matrix
	for i := range m {
		out[i] = m.times(m[i])
	}
	return out
}
