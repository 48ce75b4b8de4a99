package e2e_test

import (
	"bytes"
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// plainWindow is how many records of a producer without idempotence are under way at once.
const plainWindow = 50

// pace ticks as often as a producer is to write.
func (l *load) pace() *time.Ticker {
	return time.NewTicker(time.Second / time.Duration(max(1, l.options.perSecond)))
}

// startPlain starts producers that have no sequence numbers, on a topic of their own.
func (l *load) startPlain(ctx, workCtx context.Context, bootstrap []string) {
	l.t.Helper()
	l.plain = newHistory()
	topic := l.topic + "-plain"
	createTopics(ctx, l.t, l.adm, loadTopicPartitions, 3, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")}, topic)
	for i := range 2 {
		s := source{topic: topic, producer: i, keys: 20}
		l.plain.add(s)
		l.workers.Go(func() error { return l.producePlain(workCtx, bootstrap, s) })
	}
}

// producePlain writes with acks=all. What fails may be in the log or not, and what the client sends again may be there twice.
func (l *load) producePlain(ctx context.Context, bootstrap []string, s source) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(time.Millisecond),
		kgo.MetadataMinAge(quickMetadata), kgo.ProduceRequestTimeout(5*time.Second), kgo.RequestTimeoutOverhead(5*time.Second), kgo.RecordDeliveryTimeout(recoveryTime))
	if err != nil {
		return err
	}
	defer cl.Close()
	window, pace := make(chan struct{}, plainWindow), l.pace()
	defer pace.Stop()
	for seq := 0; ; seq++ {
		select {
		case window <- struct{}{}:
			<-pace.C
		case <-ctx.Done():
			flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoveryTime)
			defer cancel()
			return cl.Flush(flushCtx)
		}
		l.plain.sending(s, seq+1)
		cl.Produce(context.WithoutCancel(ctx), &kgo.Record{Topic: s.topic, Key: s.key(seq), Value: s.value(seq)}, func(r *kgo.Record, err error) {
			<-window
			if err == nil {
				l.plain.acked(s, seq, position{r.Partition, r.Offset})
			}
		})
	}
}

// tail reads everything from the start on, as it comes.
func (l *load) tail(ctx context.Context, bootstrap []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumeTopics(l.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(quickMetadata))
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		fetches.EachRecord(func(r *kgo.Record) { l.tailed.read(consumed{r.Topic, r.Partition, r.Offset, r.Key, r.Value}) })
	}
}

// finishOthers holds what plain producers wrote and what the tail has read to the promises: nothing acknowledged is lost, no offset
// has had two records, and no poll went back.
func (l *load) finishOthers(ctx context.Context, bootstrap []string) {
	l.t.Helper()
	if l.plain != nil {
		l.finishPlain(ctx, bootstrap)
	}
	if l.tailed == nil {
		return
	}
	for s, sh := range l.history.sources[l.topic] {
		l.tailed.sources[l.topic][s].sent = sh.sent
	}
	l.tailed.mustHold(l.t, rules{})
	at := map[place]consumed{}
	for _, r := range l.history.reads {
		at[place{partition{r.topic, r.partition}, r.offset}] = r
	}
	for _, reads := range [][]consumed{l.tailed.reads, l.grouped.reads} {
		for _, r := range reads {
			here := place{partition{r.topic, r.partition}, r.offset}
			if now, ok := at[here]; !ok || !bytes.Equal(now.value, r.value) {
				l.t.Errorf("%s offset %d was read as %.40q, and is %.40q", here.partition, r.offset, r.value, now.value)
				return
			}
		}
	}
	l.t.Logf("the reader without a group has read %d of %d records, the group %d", len(l.tailed.reads), len(l.history.reads), len(l.grouped.reads))
}

func (l *load) finishPlain(ctx context.Context, bootstrap []string) {
	l.t.Helper()
	topic, total, reads := l.topic+"-plain", int64(0), int64(0)
	for _, end := range endOffsets(ctx, l.t, l.adm, topic) {
		total += end
	}
	err := franz{}.readAll(ctx, bootstrap, []string{topic}, loadTopicPartitions, func(r consumed) bool {
		l.plain.read(r)
		reads++
		return reads < total
	})
	if err != nil {
		l.t.Errorf("read what plain producers wrote: %v", err)
	}
	l.plain.mustHold(l.t, rules{duplicates: true})
	acks, _, _ := l.plain.counts()
	l.t.Logf("plain producers: %d records acknowledged, %d in the log", acks, total)
}
