package tiering

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/remotelog"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/tiering/internal/keeper"
	"chancery/tiering/internal/remotestate"
)

// task is the passes over one partition, one after the other. The server's mutex guards it, but for lag while a pass runs.
type task struct {
	topic   string
	due     time.Time
	running bool
	// changed says that the topic, its configs or the leader have changed since the pass under way began.
	changed  bool
	failures int
	// lag is what the last pass found.
	lag keeper.Lag
}

const (
	// The loop looks for passes that are due at least this often, and no more often than that.
	minTick = 5 * time.Millisecond
	maxTick = time.Second
	// warnEvery is every how many failures in a row of a partition's passes one is a warning.
	warnEvery = 10
)

// wake makes the loop look for passes that are due.
func (s *Server) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// noteChanges makes passes due for partitions whose leader, or whose topic's configs, have changed. The mutex is held.
func (s *Server) noteChanges(delta *metadata.Delta) {
	woken := false
	soon := func(p remotelog.Partition) {
		if t := s.tasks[p]; t != nil {
			t.due, t.changed, woken = time.Time{}, true, true
		}
	}
	for c := range delta.Topics() {
		woken = woken || c.Old == nil || c.New == nil
		for p := range c.Partitions() {
			if p.New == nil || p.Old == nil || p.New.LeaderEpoch != p.Old.LeaderEpoch {
				soon(remotelog.Partition{TopicID: c.ID(), Partition: p.Partition})
			}
		}
	}
	changed := map[string]bool{}
	for r := range delta.Configs() {
		if r.Type == metadata.ResourceTopic {
			changed[r.Name] = true
		}
	}
	if len(changed) > 0 {
		woken = true
		for p, t := range s.tasks {
			if changed[t.topic] {
				soon(p)
			}
		}
	}
	if woken {
		s.wake()
	}
}

// schedule starts the passes that are due.
func (s *Server) schedule(ctx context.Context) {
	tick := time.NewTicker(min(max(s.settings.interval/10, minTick), maxTick))
	defer tick.Stop()
	var passes sync.WaitGroup
	defer passes.Wait()
	for {
		select {
		case <-tick.C:
		case <-s.kick:
		case <-ctx.Done():
			return
		}
		s.startDue(ctx, &passes)
	}
}

// job is a pass that is due.
type job struct {
	partition remotelog.Partition
	topic     string
	shard     ownedShard
	task      *task
}

// startDue finds the partitions of the owned shards and starts as many passes as there are places.
func (s *Server) startDue(ctx context.Context, passes *sync.WaitGroup) {
	// The image comes second: one from before a shard was ours might not have the shard's topics yet, which would count as deleted.
	owned := s.serving()
	image := s.image.Load()
	jobs := s.jobs(ctx, image, owned)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetTasks(jobs)
	for i := range jobs {
		j := &jobs[i]
		if j.task = s.tasks[j.partition]; j.task == nil {
			j.task = &task{}
			s.tasks[j.partition] = j.task
		}
		j.task.topic = j.topic
	}
	// Who has waited longest comes first: with more partitions than the places can serve in time, each still has its turn.
	slices.SortFunc(jobs, func(a, b job) int { return a.task.due.Compare(b.task.due) })
	now, passesAtOnce := time.Now(), int(s.settings.limits.passes.Load())
	for _, j := range jobs {
		t := j.task
		if t.running || t.due.After(now) || s.running >= passesAtOnce || s.shards.Find(j.shard.Number) != j.shard.Owned {
			continue
		}
		t.running, t.changed = true, false
		s.running++
		// Whatever has been noted as a change is in the image of now.
		image := s.image.Load()
		passes.Go(func() { s.runPass(j, image) })
	}
}

// jobs are all partitions that the owned shards look after: those of tiered topics, and those that have something remote.
func (s *Server) jobs(ctx context.Context, image *metadata.Image, owned map[int32]ownedShard) []job {
	var jobs []job
	seen := map[remotelog.Partition]bool{}
	add := func(p remotelog.Partition, topic string) {
		number, ok := shardOf(image, p)
		if o, here := owned[number]; ok && here && !seen[p] {
			seen[p] = true
			jobs = append(jobs, job{partition: p, topic: topic, shard: o})
		}
	}
	for _, name := range image.ConfigResources(metadata.ResourceTopic) {
		topic := image.TopicByName(name)
		if topic == nil || !s.topicConfig(image, name).RemoteStorageEnable {
			continue
		}
		for i := range topic.Partitions {
			add(remotelog.Partition{TopicID: topic.ID, Partition: int32(i)}, name)
		}
	}
	for _, o := range owned {
		views, err := o.list(ctx)
		if err != nil {
			continue // it is ending, or loads anew
		}
		for _, v := range views {
			add(v.Partition, v.Topic)
		}
	}
	return jobs
}

// outdated says whether something has changed since a pass began.
func (s *Server) outdated(t *task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.changed
}

// passRuns says whether a pass over a partition is under way.
func (s *Server) passRuns(p remotelog.Partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[p]
	return t != nil && t.running
}

// forgetTasks drops the tasks of partitions that are not ours any more.
func (s *Server) forgetTasks(jobs []job) {
	ours := make(map[remotelog.Partition]bool, len(jobs))
	for _, j := range jobs {
		ours[j.partition] = true
	}
	forgotten := false
	for p, t := range s.tasks {
		if !ours[p] && !t.running {
			delete(s.tasks, p)
			forgotten = true
		}
	}
	s.reads.keep(ours)
	if forgotten {
		s.env.Metrics.Keep(s.wantedTopics())
	}
}

// topicConfig is what is in force for a topic.
func (s *Server) topicConfig(image *metadata.Image, name string) *configdef.Topic {
	// A value that cannot be parsed counts as not set; the controller does not let one in.
	c, _ := s.settings.node.WithDynamic(image.Config(metadata.ResourceBroker, ""), nil).Topic(image.Config(metadata.ResourceTopic, name))
	return &c
}

// runPass makes one pass and says when the next is due.
func (s *Server) runPass(j job, image *metadata.Image) {
	lag := j.task.lag
	err := s.pass(j.shard.Context(), j, image, &lag)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	t := j.task
	t.running, t.lag = false, lag
	switch {
	case t.changed:
		t.due = time.Time{}
		s.wake()
	case err == nil:
		if t.failures >= warnEvery {
			s.deps.Logger.Warn("a partition's remote segments are looked after again", "topic", j.topic, "partition", j.partition.Partition, "failures", t.failures)
		}
		t.failures = 0
		t.due = time.Now().Add(s.settings.interval - time.Duration(rand.Int64N(int64(s.settings.interval/10)+1)))
	case j.shard.Context().Err() != nil:
		t.due = time.Time{}
	default:
		t.failures++
		t.due = time.Now().Add(s.settings.retry.Delay(t.failures, rand.Float64()))
		log := s.deps.Logger.Debug
		if !errors.Is(err, keeper.ErrLeader) && t.failures == 1 || t.failures%warnEvery == 0 {
			log = s.deps.Logger.Warn
		}
		log("a partition's remote segments could not be looked after", "topic", j.topic, "partition", j.partition.Partition, "failures", t.failures, "error", err)
	}
	if s.running+1 >= int(s.settings.limits.passes.Load()) {
		s.wake() // another may have waited for the place
	}
}

// pass looks after one partition once.
func (s *Server) pass(ctx context.Context, j job, image *metadata.Image, lag *keeper.Lag) error {
	topic := image.Topic(j.partition.TopicID)
	config := s.topicConfig(image, j.topic)
	p := &keeper.Pass{
		Env: s.env, Metadata: j.shard, Partition: j.partition, Topic: j.topic, Config: config,
		Shard: j.shard.Number, ShardEpoch: j.shard.Epoch, MetadataOffset: image.Offset(),
		Outdated: func() bool { return s.outdated(j.task) },
		Report: func(lag keeper.Lag) {
			s.mu.Lock()
			defer s.mu.Unlock()
			j.task.lag = lag
		},
	}
	view, err := j.shard.View(ctx, j.partition)
	if err != nil {
		return err
	}
	switch {
	case topic == nil || !config.RemoteStorageEnable && config.RemoteLogDeleteOnDisable || view != nil && view.Deleting:
		return p.Remove(ctx, lag)
	case !config.RemoteStorageEnable:
		*lag = keeper.Lag{}
		if view != nil {
			lag.NoteRemote(view)
		}
		return nil
	}
	if p.Node, err = s.leaderOf(image, j.partition); err != nil {
		return err
	}
	err = p.Run(ctx, lag)
	if log, epoch, ok := p.Leader(); ok {
		s.reads.learn(j.partition, log, epoch)
	}
	return err
}

// leaderOf is the node that leads a partition.
func (s *Server) leaderOf(image *metadata.Image, p remotelog.Partition) (storage.Node, error) {
	at := image.Partition(p.TopicID, p.Partition)
	if at == nil || at.Leader == metadata.NoLeader {
		return nil, fmt.Errorf("%w: there is none for %s-%d", keeper.ErrLeader, p.TopicID, p.Partition)
	}
	node, err := s.deps.Nodes(at.Leader)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", keeper.ErrLeader, err)
	}
	return node, nil
}

var _ keeper.Metadata = ownedShard{}

// lookup asks a leader for its log.
func (s *Server) lookup(ctx context.Context, p remotelog.Partition) (remotestate.Log, int32, error) {
	image := s.image.Load()
	node, err := s.leaderOf(image, p)
	if err != nil {
		return remotestate.Log{}, -1, err
	}
	return keeper.Describe(ctx, node, image.Offset(), p)
}
