package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"golang.org/x/sync/errgroup"
)

// transactionLoad writes transactions with a record in each of some partitions, and commits them.
type transactionLoad struct {
	topic      string
	partitions int32
	// perSecond is how many transactions are due in a second, spread evenly over the producers. With 0 each producer begins the next
	// one as soon as the last one is committed.
	perSecond, producers int
	// versionOne has the producers speak as those do that know no transaction.version 2: they add partitions themselves.
	versionOne bool
}

// The measured parts of a transaction.
const (
	stepProduce = "records acknowledged"
	stepEnd     = "EndTxn"
)

// at is the load at a rate.
func (l transactionLoad) at(perSecond, producers int, versionOne bool) func(context.Context, []string, *tally) error {
	l.perSecond, l.producers, l.versionOne = perSecond, producers, versionOne
	return l.run
}

// run measures transactions from the moment each was due until it is committed, so that one that has to wait for the one before,
// or that is told to come again later, is not forgiven. Without a rate that is from when it begins.
func (l transactionLoad) run(ctx context.Context, bootstrap []string, t *tally) error {
	if err := ensureTopic(ctx, bootstrap, l.topic); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	begin := time.Now()
	for n := range max(l.producers, 1) {
		g.Go(func() error { return ended(ctx, l.produce(ctx, bootstrap, n, begin, t)) })
	}
	return g.Wait()
}

func (l transactionLoad) produce(ctx context.Context, bootstrap []string, n int, begin time.Time, t *tally) error {
	opts := []kgo.Opt{
		kgo.SeedBrokers(bootstrap...), kgo.DefaultProduceTopic(l.topic), kgo.TransactionalID(fmt.Sprintf("bench-%d", n)),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
	}
	if l.versionOne {
		opts = append(opts, kgo.MaxVersions(kversion.V3_9_0()))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer cl.Close()
	for i := n; ctx.Err() == nil; i += max(l.producers, 1) {
		due := time.Now()
		if l.perSecond > 0 {
			due = begin.Add(time.Duration(i) * time.Second / time.Duration(l.perSecond))
			time.Sleep(time.Until(due))
		}
		if err := l.commit(ctx, cl, due, t); err != nil {
			return err
		}
	}
	return nil
}

// commit writes one transaction.
func (l transactionLoad) commit(ctx context.Context, cl *kgo.Client, due time.Time, t *tally) error {
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	var failed kgo.FirstErrPromise
	for p := range l.partitions {
		cl.Produce(ctx, &kgo.Record{Partition: p, Value: make([]byte, 100)}, failed.Promise())
	}
	if err := failed.Err(); err != nil {
		return err
	}
	produced := time.Now()
	if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	t.step(stepProduce, produced.Sub(due))
	t.step(stepEnd, time.Since(produced))
	t.request(time.Since(due))
	return nil
}
