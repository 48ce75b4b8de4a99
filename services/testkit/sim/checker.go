package sim

import (
	"slices"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/simulation"
)

// record is one record in a log: which one of which batch, and in which leader epoch it was written.
type record struct {
	batch int64
	index int32
	epoch int32
}

// copied is what a replica's log holds, offset by offset. Records below start were deleted, and are not looked at.
type copied struct {
	records []record
	start   int64
	// agrees is how many of the committed records are the same here.
	agrees int64
	// stale says that the log must be read anew.
	stale bool
	// doubtful says that the disk has lost something since the replica was last in the ISR: what was cut off may be back, even
	// below the high watermark that was checkpointed, until it is cut off again.
	doubtful bool
}

// truth is what is known of a partition from outside.
type truth struct {
	// committed are the records that a leader's high watermark has passed.
	committed []record
	// deleted is how far records may have been deleted.
	deleted int64
	// leaders are the nodes that led, by epoch.
	leaders map[int32]int32
	// seen are the offsets of the batches in committed, and sequences the next sequence number of each producer.
	seen      map[int64]int64
	sequences map[int64]int32
	// anew are the producers that a leader has taken a deleted batch of for a new one: what they sent after it does not fit then.
	anew map[int64]bool
	// elr are the eligible leader replicas as KIP-966 has them: who left an ISR that then was smaller than the minimum, and has
	// not come back from an unclean shutdown since.
	elr []int32
	// unclean is the epoch of the last election that may have lost records; -1 for none. Until its leader is seen, cut says that
	// what it has decides what was committed.
	unclean int32
	cut     bool
}

// checker knows what must hold.
type checker struct {
	batches   map[int64]*batch
	nextBatch int64
	nextPID   int64
	truths    map[simulation.Key]*truth
	copies    map[int32]map[simulation.Key]*copied
}

func newChecker() checker {
	return checker{batches: map[int64]*batch{}, truths: map[simulation.Key]*truth{}, copies: map[int32]map[simulation.Key]*copied{}}
}

func (c *checker) newProducerID() int64 {
	c.nextPID++
	return c.nextPID
}

func (c *checker) newBatch(b *batch) {
	c.nextBatch++
	b.id = c.nextBatch
	c.batches[b.id] = b
}

func (c *checker) truth(k simulation.Key) *truth {
	t := c.truths[k]
	if t == nil {
		t = &truth{leaders: map[int32]int32{}, unclean: -1}
		t.recount()
		c.truths[k] = t
	}
	return t
}

// recount looks at the committed records anew.
func (t *truth) recount() {
	t.seen, t.sequences, t.anew = map[int64]int64{}, map[int64]int32{}, map[int64]bool{}
}

func (c *checker) copyOf(node int32, k simulation.Key) *copied {
	if c.copies[node] == nil {
		c.copies[node] = map[simulation.Key]*copied{}
	}
	l := c.copies[node][k]
	if l == nil {
		l = &copied{stale: true}
		c.copies[node][k] = l
	}
	return l
}

// mayHaveLost says that an election was allowed to lose records of a partition.
func (c *checker) mayHaveLost(k simulation.Key) bool { return c.truth(k).unclean >= 0 }

// booted says that a node has started: what its logs hold is read when they have been opened.
func (c *checker) booted(_ *World, n *node) {
	for _, l := range c.copies[n.id] {
		l.stale = true
	}
}

// look sees what has become of a node's replicas.
func (c *checker) look(w *World, n *node) {
	if n.core == nil {
		return
	}
	keys := n.core.Keys()
	for _, k := range keys {
		s, _ := n.core.State(k)
		c.lookAt(w, n, k, &s)
	}
	if n.core.AppliedOffset() < 0 {
		return
	}
	for k := range c.copies[n.id] {
		if !slices.Contains(keys, k) {
			delete(c.copies[n.id], k)
		}
	}
}

func (c *checker) lookAt(w *World, n *node, k simulation.Key, s *simulation.State) {
	t := c.truth(k)
	if s.Leads {
		before, known := t.leaders[s.LeaderEpoch]
		if known && before != n.id {
			w.fail("%s and node %d both lead partition %d in epoch %d", n.name, before, k.Partition, s.LeaderEpoch)
			return
		}
		if !known {
			w.report.Leaders++
			w.note("%s leads partition %d in epoch %d, log end %d, high watermark %d", n.name, k.Partition, s.LeaderEpoch, s.LogEnd, s.HighWatermark)
		}
		t.leaders[s.LeaderEpoch] = n.id
	}
	if s.Failed {
		return
	}
	if s.LogStart > s.HighWatermark || s.HighWatermark > s.LogEnd {
		w.fail("%s partition %d: log start %d, high watermark %d, log end %d", n.name, k.Partition, s.LogStart, s.HighWatermark, s.LogEnd)
		return
	}
	l := c.copyOf(n.id, k)
	if !c.update(w, n, k, l, s) {
		return
	}
	if t.cut && s.Leads && s.LeaderEpoch >= t.unclean {
		c.cutTo(w, k, t, l)
	}
	l.compare(t)
	if t.cut || s.LeaderEpoch < t.unclean || (t.unclean >= 0 || l.doubtful) && !s.Leads {
		// Before it has cut its log, a follower shows what an election out of sync has given up.
		return
	}
	if s.LogStart > t.deleted {
		w.fail("%s partition %d: the log starts at %d, but records were deleted only up to %d", n.name, k.Partition, s.LogStart, t.deleted)
		return
	}
	if known := min(s.HighWatermark, int64(len(t.committed))); l.agrees < known || !s.Leads && l.agrees < s.HighWatermark {
		w.fail("%s partition %d: of %d records below its high watermark %d only the first %d are those that were committed",
			n.name, k.Partition, known, s.HighWatermark, l.agrees)
		return
	}
	if s.HighWatermark > int64(len(t.committed)) {
		c.commit(w, n, k, t, l, s)
	}
}

// update brings the copy of a log to what the log holds.
func (c *checker) update(w *World, n *node, k simulation.Key, l *copied, s *simulation.State) bool {
	if l.stale {
		*l = copied{doubtful: l.doubtful}
	}
	l.start = s.LogStart
	end := int64(len(l.records))
	if s.LogEnd < end {
		l.records = l.records[:s.LogEnd]
	}
	l.agrees = min(l.agrees, int64(len(l.records)))
	if s.LogEnd == int64(len(l.records)) {
		return true
	}
	from := max(int64(len(l.records)), s.LogStart)
	data, err := n.core.Records(k, from)
	if err != nil {
		w.fail("%s partition %d cannot be read from offset %d: %w", n.name, k.Partition, from, err)
		return false
	}
	for int64(len(l.records)) < from {
		l.records = append(l.records, record{})
	}
	l.records = appendRecords(l.records, data)
	if int64(len(l.records)) != s.LogEnd {
		w.fail("%s partition %d: the log ends at %d, its batches at %d", n.name, k.Partition, s.LogEnd, len(l.records))
		return false
	}
	w.stamp(6, int64(n.id), int64(k.Partition), s.LogEnd)
	return true
}

// appendRecords adds the records of batches behind those that are there.
func appendRecords(records []record, data []byte) []record {
	for it := recordbatch.Iterate(data); it.Next(); {
		h := it.Header()
		for i := range h.Count() {
			if offset := h.BaseOffset() + int64(i); offset == int64(len(records)) {
				records = append(records, record{h.BaseTimestamp(), i, h.LeaderEpoch()})
			}
		}
	}
	return records
}

// compare counts how many of the committed records are the same. What was deleted may come back with a crash, and does not count.
func (l *copied) compare(t *truth) {
	end := min(int64(len(l.records)), int64(len(t.committed)))
	for l.agrees < end && (l.agrees < max(l.start, t.deleted) || l.records[l.agrees] == t.committed[l.agrees]) {
		l.agrees++
	}
}

// cutTo takes the log of a leader that was elected out of sync for what is committed.
func (c *checker) cutTo(w *World, k simulation.Key, t *truth, l *copied) {
	l.compare(t)
	w.note("partition %d goes on with %d of %d committed records", k.Partition, l.agrees, len(t.committed))
	w.report.Unclean++
	for _, b := range c.batches {
		if b.key == k && b.acknowledged >= l.agrees {
			b.forgiven = true
		}
	}
	t.committed, t.cut = t.committed[:l.agrees], false
	// What was deleted elsewhere was not compared: here it may be something else, which counts from now on.
	copy(t.committed[:min(l.agrees, t.deleted)], l.records)
	t.recount()
	for _, copies := range c.copies {
		if other := copies[k]; other != nil {
			other.agrees = min(other.agrees, l.agrees)
		}
	}
	for offset, r := range t.committed {
		t.seen[r.batch] = int64(offset) - int64(r.index)
	}
}

// commit takes what a leader's high watermark has passed for committed.
func (c *checker) commit(w *World, n *node, k simulation.Key, t *truth, l *copied, s *simulation.State) {
	if !s.Leads {
		w.fail("%s partition %d follows with the high watermark %d; only %d records were committed", n.name, k.Partition, s.HighWatermark, len(t.committed))
		return
	}
	for offset := int64(len(t.committed)); offset < s.HighWatermark; offset++ {
		r := l.records[offset]
		t.committed = append(t.committed, r)
		if offset < l.start && t.unclean >= 0 {
			// One that was elected out of sync has deleted what the one before it did not have.
			t.deleted = max(t.deleted, offset+1)
			continue
		}
		w.report.Committed++
		if r.index == 0 {
			c.commitBatch(w, k, t, r.batch, offset)
		}
	}
	l.agrees = s.HighWatermark
	c.holders(w, k, t)
}

func (c *checker) commitBatch(w *World, k simulation.Key, t *truth, id, offset int64) {
	b := c.batches[id]
	if b == nil || b.key != k {
		w.fail("partition %d offset %d: nobody has written batch %d there", k.Partition, offset, id)
		return
	}
	if t.forgotten(b) {
		t.seen[id], t.anew[b.pid] = offset, true
		return
	}
	if _, seen := t.seen[id]; seen {
		w.fail("partition %d: batch %d is in the log twice, again at offset %d", k.Partition, id, offset)
		return
	}
	t.seen[id] = offset
	if b.pid < 0 {
		return
	}
	if want := t.sequences[b.pid]; b.sequence != want && t.unclean < 0 {
		w.fail("partition %d offset %d: batch %d of producer %d has the sequence %d, want %d", k.Partition, offset, id, b.pid, b.sequence, want)
		return
	}
	t.sequences[b.pid] = b.sequence + b.count
}

// holders sees to it that all who may be elected have all that was committed.
func (c *checker) holders(w *World, k simulation.Key, t *truth) {
	p := w.quorum.image.Partition(k.TopicID, k.Partition)
	if t.cut || p == nil {
		return
	}
	for _, id := range slices.Concat(p.ISR, p.ELR) {
		l := c.copies[id][k]
		if w.nodeOf(id).lostData || l == nil && len(t.committed) == 0 {
			continue
		}
		if l != nil {
			l.doubtful = false
			l.compare(t)
		}
		if l == nil || l.agrees < int64(len(t.committed)) {
			has := int64(0)
			if l != nil {
				has = l.agrees
			}
			w.fail("partition %d: node %d has %d of %d committed records, and may be elected: ISR %v, ELR %v", k.Partition, id, has, len(t.committed), p.ISR, p.ELR)
			return
		}
	}
}

// acknowledgedBy sees to it that a node acknowledges only what is so.
func (c *checker) acknowledgedBy(w *World, n *node, b *batch, base int64) {
	t, l := c.truth(b.key), c.copyOf(n.id, b.key)
	s, _ := n.core.State(b.key)
	if t.cut || s.LeaderEpoch < t.unclean {
		b.forgiven = true
		return
	}
	log := l.records
	if b.acks == storage.AcksAll {
		log = t.committed
	}
	for i := range b.count {
		offset := base + int64(i)
		if offset < l.start {
			continue
		}
		if offset >= int64(len(log)) || log[offset].batch != b.id || log[offset].index != i {
			w.fail("%s acknowledges batch %d at offset %d of partition %d with acks=%d, where it is not (%d records)",
				n.name, b.id, base, b.key.Partition, b.acks, len(log))
			return
		}
	}
}

// forgotten says that a batch was committed and has been deleted. A replica whose log begins behind it knows nothing of it, as in
// Kafka: sent again it is a new one there, or out of order.
func (t *truth) forgotten(b *batch) bool {
	offset, seen := t.seen[b.id]
	return seen && offset+int64(b.count) <= t.deleted
}

// holds says whether a batch is in a node's log, or has been deleted from it.
func (c *checker) holds(n *node, b *batch) bool {
	return c.truth(b.key).forgotten(b) || slices.ContainsFunc(c.copyOf(n.id, b.key).records, func(r record) bool { return r.batch == b.id })
}

// acknowledged counts what a producer was told.
func (c *checker) acknowledged(w *World, b *batch) {
	w.stamp(7, b.id, b.acknowledged)
	w.report.Acknowledged += int(b.count)
}

// consumed sees to it that a consumer gets every committed record once, in order.
func (c *checker) consumed(w *World, consumer *consumer, data []byte, epoch int32) {
	t := c.truth(consumer.key)
	for it := recordbatch.Iterate(data); it.Next(); {
		h := it.Header()
		for i := range h.Count() {
			offset := h.BaseOffset() + int64(i)
			if offset < consumer.position {
				continue
			}
			if offset > consumer.position {
				w.fail("%s: offset %d comes after %d", consumer.name, offset, consumer.position-1)
				return
			}
			consumer.position++
			if t.cut || epoch < t.unclean || offset < t.deleted {
				continue
			}
			if offset >= int64(len(t.committed)) || t.committed[offset].batch != h.BaseTimestamp() || t.committed[offset].index != i {
				w.fail("%s reads record %d of batch %d at offset %d, which was not committed there", consumer.name, i, h.BaseTimestamp(), offset)
				return
			}
		}
	}
}

// metadataChanged follows who may be elected, and who was.
func (c *checker) metadataChanged(w *World, before *metadata.Image, b metadataBatch) {
	after := w.quorum.image
	restarted := c.restarted(w, before, b)
	topic := after.TopicByName(topicName)
	if topic == nil {
		return
	}
	for i, p := range topic.Partitions {
		k := simulation.Key{TopicID: topic.ID, Partition: int32(i)}
		t, old := c.truth(k), before.Partition(topic.ID, int32(i))
		t.elr = slices.DeleteFunc(t.elr, func(id int32) bool { return slices.Contains(restarted, id) })
		if old == nil || old == p {
			continue
		}
		w.note("partition %d: leader %d epoch %d, ISR %v, ELR %v, last known %v, replicas %v", i, p.Leader, p.LeaderEpoch, p.ISR, p.ELR, p.LastKnownELR, p.Replicas)
		eligible := slices.DeleteFunc(slices.Concat(old.ISR, t.elr), func(id int32) bool { return slices.Contains(restarted, id) })
		// A reassignment may end with the leadership of one that has just joined the ISR, and has everything.
		if p.LeaderEpoch > old.LeaderEpoch && p.Leader >= 0 && !slices.Contains(eligible, p.Leader) && p.RecoveringUnclean {
			c.electedOutOfSync(w, k, t, p, eligible)
		} else {
			t.elr = nextELR(w, p, eligible)
		}
		c.holders(w, k, t)
	}
}

// restarted are the nodes that a batch registers after an end that was not in order.
func (c *checker) restarted(w *World, before *metadata.Image, b metadataBatch) []int32 {
	var out []int32
	for _, r := range b.records {
		reg, ok := r.(*metarecord.RegisterBrokerRecord)
		if !ok {
			continue
		}
		old := before.Broker(reg.BrokerID)
		if old != nil && old.IncarnationID == reg.IncarnationID {
			continue
		}
		n := w.nodeOf(reg.BrokerID)
		clean := n.incarnation == reg.IncarnationID && n.bootedClean
		if n.incarnation == reg.IncarnationID && n.incarnation != n.lostIn {
			n.lostData = false
		}
		if !clean {
			out = append(out, reg.BrokerID)
		}
	}
	return out
}

// nextELR are those who may be elected beside the ISR.
func nextELR(w *World, p *metadata.Partition, eligible []int32) []int32 {
	if len(p.ISR) >= min(w.shape.minISR, len(p.Replicas)) {
		return nil
	}
	var out []int32
	for _, id := range eligible {
		if !slices.Contains(p.ISR, id) && slices.Contains(p.Replicas, id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// electedOutOfSync judges an election of a replica that may lack records.
func (c *checker) electedOutOfSync(w *World, k simulation.Key, t *truth, p *metadata.Partition, eligible []int32) {
	for _, id := range eligible {
		if !w.shape.unclean || isAble(w.quorum.image, p, id) {
			w.fail("partition %d: node %d is elected in epoch %d, though %v have all that was committed", k.Partition, p.Leader, p.LeaderEpoch, eligible)
			return
		}
	}
	w.note("partition %d: node %d is elected out of sync in epoch %d", k.Partition, p.Leader, p.LeaderEpoch)
	t.elr, t.unclean, t.cut = nil, p.LeaderEpoch, true
}

// isAble says whether a replica's node is in service, and its log directory as well.
func isAble(image *metadata.Image, p *metadata.Partition, id int32) bool {
	b, i := image.Broker(id), slices.Index(p.Replicas, id)
	if b == nil || b.Fenced || b.InControlledShutdown || i < 0 {
		return false
	}
	return i >= len(p.Directories) || p.Directories[i] == uuid.UnassignedDir || slices.Contains(b.Directories, p.Directories[i])
}

// maySafelyLose says whether what a node's disks hold is elsewhere, too, so that the cluster must bear its loss.
func (c *checker) maySafelyLose(w *World, n *node) bool {
	for k, t := range c.truths {
		p := w.quorum.image.Partition(k.TopicID, k.Partition)
		if p == nil || t.cut {
			return false
		}
		eligible := slices.Concat(p.ISR, t.elr)
		if !slices.Contains(eligible, n.id) {
			continue
		}
		others := 0
		for _, id := range eligible {
			l := c.copies[id][k]
			if l != nil {
				l.compare(t)
			}
			switch {
			case id == n.id:
			case w.nodeOf(id).lostData:
				return false
			case l != nil && l.agrees == int64(len(t.committed)):
				others++
			}
		}
		if others == 0 {
			return false
		}
	}
	return w.shape.minISR > 1
}

// lost says that a node's disks have lost something.
func (c *checker) lost(n *node) {
	n.lostData, n.lostIn = true, n.incarnation
	for _, l := range c.copies[n.id] {
		l.stale, l.doubtful, l.agrees, l.records = true, true, 0, nil
	}
}

// finish looks at the end of a run: every record that was acknowledged is there.
func (c *checker) finish(w *World) {
	for _, b := range c.batches {
		t := c.truth(b.key)
		if b.acknowledged < t.deleted || b.acks != storage.AcksAll || b.forgiven {
			continue
		}
		for i := range b.count {
			offset := b.acknowledged + int64(i)
			if offset >= int64(len(t.committed)) || t.committed[offset].batch != b.id || t.committed[offset].index != i {
				w.fail("record %d of batch %d was acknowledged at offset %d of partition %d and is lost", i, b.id, offset, b.key.Partition)
				return
			}
		}
	}
}
