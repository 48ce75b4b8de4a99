package tiering

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/metadata"
	"chancery/services/objectstore/quota"
)

// limits are the bounds of an instance that broker configs set, and that follow what is altered in the cluster while it runs.
type limits struct {
	// copying and fetching bound the bytes that are copied and read in a second.
	copying, fetching *quota.Limiter
	// passes is how many partitions are looked after at the same time, readers has a place for each read.
	passes  atomic.Int64
	readers *places
	// indexBytes bounds the indexes that are kept in memory.
	indexBytes atomic.Int64
}

func newLimits(node *configdef.Node) *limits {
	l := &limits{copying: newLimiter(node, "copy"), fetching: newLimiter(node, "fetch"), readers: newPlaces(0)}
	l.set(node)
	return l
}

// newLimiter makes the limiter of one of Kafka's two quotas of the remote tier.
func newLimiter(node *configdef.Node, of string) *quota.Limiter {
	prefix := "remote.log.manager." + of
	return quota.NewLimiter(node.Long(prefix+maxBytesPerSecond), node.Int(prefix+".quota.window.num"),
		time.Duration(node.Int(prefix+".quota.window.size.seconds"))*time.Second)
}

const maxBytesPerSecond = ".max.bytes.per.second"

// set takes limits over, also for copies and reads that wait.
func (l *limits) set(node *configdef.Node) {
	l.copying.SetLimit(node.Long("remote.log.manager.copy" + maxBytesPerSecond))
	l.fetching.SetLimit(node.Long("remote.log.manager.fetch" + maxBytesPerSecond))
	l.passes.Store(node.Long("remote.log.manager.copier.thread.pool.size"))
	l.readers.resize(node.Int("remote.log.reader.threads"))
	l.indexBytes.Store(node.Long("remote.log.index.file.cache.total.size.bytes"))
}

// followLimits takes over the limits that hold in the cluster now: those of all nodes, and of the node with this instance's id.
func (s *Server) followLimits(image *metadata.Image) {
	own := image.Config(metadata.ResourceBroker, strconv.Itoa(int(s.config.NodeID)))
	s.settings.limits.set(s.settings.node.WithDynamic(image.Config(metadata.ResourceBroker, ""), own))
	if s.reader != nil {
		s.reader.SetIndexBytes(s.settings.limits.indexBytes.Load())
	}
	s.wake() // there may be more places now
}

// places are for what may happen at the same time; who has waited longest gets the next one. Their number can change: with fewer,
// nobody has to leave, but nobody gets in until enough have left.
type places struct {
	mu          sync.Mutex
	most, taken int
	// waiting has a channel for each who waits, which is closed when the place is theirs.
	waiting []chan struct{}
}

func newPlaces(most int) *places { return &places{most: most} }

// enter takes a place, as soon as there is one.
func (p *places) enter(ctx context.Context) error {
	turn := make(chan struct{})
	p.mu.Lock()
	p.waiting = append(p.waiting, turn)
	p.admit()
	p.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, turn); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	} else { // it came at the same time
		p.taken--
		p.admit()
	}
	return ctx.Err()
}

// leave gives a place back.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.admit()
}

// idlePercent is how many of the places are free.
func (p *places) idlePercent() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(max(0, 100*(p.most-p.taken)/max(1, p.most)))
}

// resize changes how many places there are.
func (p *places) resize(most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = most
	p.admit()
}

// admit lets those in for whom there is a place. The mutex is held.
func (p *places) admit() {
	for p.taken < p.most && len(p.waiting) > 0 {
		close(p.waiting[0])
		p.waiting = p.waiting[1:]
		p.taken++
	}
}
