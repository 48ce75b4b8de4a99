package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"chancery/services/testkit"
)

const (
	// loadTopicPartitions is the number of partitions that a load goes to.
	loadTopicPartitions = 6
	// loadProducers is how many producers a load has.
	loadProducers = 3
	// loadWindow is how many records of a producer are under way at once.
	loadWindow = 200
	// quickMetadata lets clients ask soon where to go after a fault; by default they wait for seconds.
	quickMetadata = 100 * time.Millisecond
	// recoveryTime is how long a cluster may take until work goes on after a fault. The fencing of a silent member alone
	// takes nine seconds.
	recoveryTime = 60 * time.Second
)

// load is idempotent producers with acks=all and a group of two members, who work while parts of the cluster die.
type load struct {
	t       *testing.T
	adm     *kadm.Client
	topic   string
	group   string
	history *history
	// grouped is what the group's members have read.
	grouped *history
	// log takes what the clients say.
	log     *slog.Logger
	stop    context.CancelFunc
	workers errgroup.Group
	sources []source
	options loadOptions
	// plain is what producers without idempotence wrote, tailed what one reader has read of all, without a group.
	plain, tailed *history
	// errs are the failures of single records, which clients report when they cannot know the outcome.
	mu   sync.Mutex
	errs []error
}

// loadOptions say what a load does beside the rest.
type loadOptions struct {
	// perSecond is how many records each producer writes; 0 for as many as it can.
	perSecond int
	// plain adds producers without idempotence on a topic of their own, tail a reader without a group.
	plain, tail bool
}

// startLoad makes a topic with three replicas, of which two must be in sync, and starts the work on it.
func startLoad(t *testing.T, p *testkit.Playground, name string, options ...loadOptions) *load {
	t.Helper()
	l := &load{t: t, adm: admin(t, p.Bootstrap), topic: name, group: name + "-readers", history: newHistory(), grouped: newHistory(), log: testkit.Logger(t)}
	ctx, cancel := context.WithTimeout(t.Context(), recoveryTime)
	defer cancel()
	createTopics(ctx, t, l.adm, loadTopicPartitions, 3, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")}, l.topic)

	for _, o := range options {
		l.options = o
	}
	workCtx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	l.stop = stop
	t.Cleanup(stop)
	for i := range loadProducers {
		s := source{topic: l.topic, producer: i, keys: 20}
		l.sources = append(l.sources, s)
		l.history.add(s)
		l.grouped.add(s)
		l.workers.Go(func() error { return l.produce(workCtx, p.Bootstrap, s) })
	}
	for number := range 2 {
		l.workers.Go(func() error { return l.consume(workCtx, p.Bootstrap, number) })
	}
	if l.options.plain {
		l.startPlain(ctx, workCtx, p.Bootstrap)
	}
	if l.options.tail {
		l.tailed = newHistory()
		for _, s := range l.sources {
			l.tailed.add(s)
		}
		l.workers.Go(func() error { return l.tail(workCtx, p.Bootstrap) })
	}
	l.awaitProgress("the start")
	return l
}

func (l *load) produce(ctx context.Context, bootstrap []string, s source) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ProducerLinger(time.Millisecond), kgo.RecordDeliveryTimeout(2*recoveryTime),
		kgo.MetadataMinAge(quickMetadata), kgo.ProduceRequestTimeout(5*time.Second), kgo.RequestTimeoutOverhead(5*time.Second), kgo.WithLogger(clientLog{l.log.With("producer", s.producer)}))
	if err != nil {
		return err
	}
	defer cl.Close()
	window := make(chan struct{}, loadWindow)
	pace := l.pace()
	defer pace.Stop()
	for seq := 0; ; seq++ {
		select {
		case window <- struct{}{}:
			if l.options.perSecond > 0 {
				<-pace.C
			}
		case <-ctx.Done():
			flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoveryTime)
			defer cancel()
			return cl.Flush(flushCtx)
		}
		l.history.sending(s, seq+1)
		l.grouped.sending(s, seq+1)
		record := &kgo.Record{Topic: s.topic, Key: s.key(seq), Value: s.value(seq)}
		cl.Produce(context.WithoutCancel(ctx), record, func(r *kgo.Record, err error) {
			<-window
			if err != nil {
				l.mu.Lock()
				l.errs = append(l.errs, fmt.Errorf("record %d of producer %d: %w", seq, s.producer, err))
				l.mu.Unlock()
				return
			}
			l.history.acked(s, seq, position{r.Partition, r.Offset})
			l.grouped.acked(s, seq, position{r.Partition, r.Offset})
		})
	}
}

func (l *load) consume(ctx context.Context, bootstrap []string, number int) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumerGroup(l.group), kgo.ConsumeTopics(l.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(quickMetadata), kgo.AutoCommitInterval(200*time.Millisecond), kgo.HeartbeatInterval(500*time.Millisecond), kgo.WithLogger(clientLog{l.log.With("member", number)}))
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// Errors of fetches are what the faults are about; the client goes on by itself.
		fetches.EachRecord(func(r *kgo.Record) { l.grouped.read(consumed{r.Topic, r.Partition, r.Offset, r.Key, r.Value}) })
	}
}

// clientLog takes the log of a client.
type clientLog struct{ log *slog.Logger }

// Level is part of kgo.Logger.
func (clientLog) Level() kgo.LogLevel { return kgo.LogLevelInfo }

// Log is part of kgo.Logger.
func (c clientLog) Log(level kgo.LogLevel, message string, keyValues ...any) {
	c.log.Info(message, append([]any{"severity", level.String()}, keyValues...)...)
}

// progressRecords is how many records must be acknowledged, and read, for work to count as going on.
const progressRecords = 300

// awaitProgress waits until both the producers and the group have done more since now, and tells how long each took.
func (l *load) awaitProgress(after string) {
	l.t.Helper()
	begin := time.Now()
	acks0, _, _ := l.history.counts()
	_, reads0, _ := l.grouped.counts()
	timer := time.NewTimer(recoveryTime)
	defer timer.Stop()
	var acksAfter, readsAfter time.Duration
	for {
		acks, _, moved := l.history.counts()
		_, reads, read := l.grouped.counts()
		if acks >= acks0+progressRecords && acksAfter == 0 {
			acksAfter = time.Since(begin)
		}
		if reads >= reads0+progressRecords && readsAfter == 0 {
			readsAfter = time.Since(begin)
		}
		if acksAfter > 0 && readsAfter > 0 {
			l.t.Logf("after %s: writing goes on in %s, reading in %s", after, acksAfter.Round(time.Millisecond), readsAfter.Round(time.Millisecond))
			return
		}
		select {
		case <-moved:
		case <-read:
		case <-timer.C:
			l.t.Fatalf("%s after %s only %d records were acknowledged and %d read", recoveryTime, after, acks-acks0, reads-reads0)
		}
	}
}

// finish ends the work, reads everything, and holds the cluster to its promises.
func (l *load) finish(bootstrap []string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*recoveryTime)
	defer cancel()
	l.stop()
	if err := l.workers.Wait(); err != nil {
		l.t.Errorf("the load: %v", err)
	}
	// A producer with a sequence number gets through a fault of this kind without an error.
	if err := errors.Join(l.errs...); err != nil {
		l.t.Errorf("%d records failed: %.2000s", len(l.errs), err.Error())
	}
	total := int64(0)
	for _, end := range endOffsets(ctx, l.t, l.adm, l.topic) {
		total += end
	}
	reads := int64(0)
	err := franz{}.readAll(ctx, bootstrap, []string{l.topic}, loadTopicPartitions, func(r consumed) bool {
		l.history.read(r)
		reads++
		return reads < total
	})
	if err != nil {
		l.t.Errorf("read everything: %v", err)
	}
	l.history.mustHold(l.t, rules{})
	l.finishOthers(ctx, bootstrap)
	acks, _, _ := l.history.counts()
	l.t.Logf("%d records acknowledged, %d in the log", acks, total)
	l.checkGroup(ctx)
}

// checkGroup sees to it that the group has skipped nothing below what it has committed.
func (l *load) checkGroup(ctx context.Context) {
	l.t.Helper()
	committed, err := l.adm.FetchOffsets(ctx, l.group)
	if err != nil {
		l.t.Errorf("fetch offsets: %v", err)
		return
	}
	read := map[place]bool{}
	for _, r := range l.grouped.reads {
		read[place{partition{r.topic, r.partition}, r.offset}] = true
	}
	committed.Each(func(o kadm.OffsetResponse) {
		for offset := range o.At {
			if at := (place{partition{o.Topic, o.Partition}, offset}); !read[at] {
				l.t.Errorf("%s: the group has committed %d and never read offset %d", at.partition, o.At, offset)
				return
			}
		}
	})
}
