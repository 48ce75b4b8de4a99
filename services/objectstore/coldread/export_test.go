package coldread

// Out is how many blocks somebody has a reference to, the memory among them, and how many the memory keeps or is reading.
func (r *Reader) Out() (all, kept int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pool.out.Load(), int64(len(r.memory.blocks) + len(r.flights))
}
