package tiering

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/objectstore/quota"
)

// The limits of the remote tier are those of the properties, until the cluster has others, or the node itself.
func TestLimitsFollowTheCluster(t *testing.T) {
	const (
		copying  = "remote.log.manager.copy.max.bytes.per.second"
		fetching = "remote.log.manager.fetch.max.bytes.per.second"
		passes   = "remote.log.manager.copier.thread.pool.size"
		readers  = "remote.log.reader.threads"
		indexes  = "remote.log.index.file.cache.total.size.bytes"
	)
	config := Config{NodeID: 3, Properties: map[string]string{copying: "1000", passes: "4"}}
	s := &Server{config: config, settings: newSettings(config), kick: make(chan struct{}, 1)}
	l := s.settings.limits
	// expect passes a large piece, if it may pass, and says whether the next one has to wait.
	expect := func(when string, copied, fetched bool, passes int64, readers int, indexes int64) {
		t.Helper()
		for name, x := range map[string]struct {
			limiter *quota.Limiter
			want    bool
		}{"copies": {l.copying, copied}, "reads": {l.fetching, fetched}} {
			if x.limiter.ThrottleTime() == 0 {
				if err := x.limiter.Wait(t.Context(), 1<<20); err != nil {
					t.Fatal(err)
				}
			}
			if got := x.limiter.ThrottleTime() > 0; got != x.want {
				t.Errorf("%s: %s are throttled %v, want %v", when, name, got, x.want)
			}
		}
		if l.passes.Load() != passes || l.readers.most != readers || l.indexBytes.Load() != indexes {
			t.Errorf("%s: %d passes, %d readers and %d bytes of indexes, want %d, %d and %d",
				when, l.passes.Load(), l.readers.most, l.indexBytes.Load(), passes, readers, indexes)
		}
	}
	expect("by the properties", true, false, 4, 10, 1<<30)

	newest := metadata.Empty("cluster")
	image := func(node string, values map[string]string) *metadata.Image {
		delta := metadata.NewDelta(newest)
		for name, value := range values {
			err := delta.Apply(1, 1, &metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), ResourceName: node, Name: name, Value: &value})
			if err != nil {
				t.Fatal(err)
			}
		}
		newest = delta.Image()
		return newest
	}
	s.followLimits(image("", map[string]string{copying: "1000000000", fetching: "1000", passes: "8", readers: "20", indexes: "1000"}))
	expect("by the cluster", false, true, 8, 20, 1000)
	select {
	case <-s.kick:
	default:
		t.Error("nobody looks whether there are more places")
	}
	s.followLimits(image("4", map[string]string{passes: "5"}))
	expect("by another node", false, true, 8, 20, 1000)
	s.followLimits(image("3", map[string]string{passes: "6", readers: "19"}))
	expect("by the node", false, true, 6, 19, 1000)
	s.followLimits(metadata.Empty("cluster"))
	expect("by the properties again", true, false, 4, 10, 1<<30)
}

func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1)
		if err := p.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		if idle := p.idlePercent(); idle != 0 {
			t.Fatalf("%d %% of the places are free", idle)
		}
		in := make(chan int, 4)
		for i := range 3 {
			go func() {
				if p.enter(t.Context()) == nil {
					in <- i
				}
			}()
			synctest.Wait() // so that they wait in this order
		}
		given, cancel := context.WithCancel(t.Context())
		up := make(chan error, 1)
		go func() { up <- p.enter(given) }()
		synctest.Wait()
		expect := func(what string, want ...int) {
			t.Helper()
			synctest.Wait()
			for _, w := range want {
				if got := <-in; got != w {
					t.Fatalf("%s: %d has got a place, want %d", what, got, w)
				}
			}
			if len(in) > 0 {
				t.Fatalf("%s: too many have a place", what)
			}
		}
		expect("the place is taken")
		p.leave()
		expect("it is free", 0)
		p.resize(2)
		expect("there is another one", 1)
		cancel()
		if err := <-up; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		p.resize(1)
		p.leave()
		expect("one too many was there")
		p.leave()
		expect("the last one left", 2)
		p.leave()
		if p.taken != 0 || len(p.waiting) != 0 {
			t.Fatal(p.taken, p.waiting)
		}
	})
}

// TestTieredTopicWithoutAStore wants one complaint where tiered storage was switched off and tiered topics are left.
func TestTieredTopicWithoutAStore(t *testing.T) {
	var log bytes.Buffer
	s := &Server{settings: newSettings(Config{}), deps: Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	image := metadata.Empty("cluster")
	for i, enable := range []string{"false", "true", "true"} {
		delta := metadata.NewDelta(image)
		name := fmt.Sprint("topic-", i)
		for _, r := range []metarecord.Record{
			&metarecord.TopicRecord{Name: name, TopicID: uuid.UUID{byte(i + 1)}},
			&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceTopic), ResourceName: name, Name: "remote.storage.enable", Value: &enable},
		} {
			if err := delta.Apply(int64(i+1), 1, r); err != nil {
				t.Fatal(err)
			}
		}
		image = delta.Image()
		s.missStore(t.Context(), delta, image)
		if got, want := strings.Count(log.String(), "level=ERROR"), min(i, 1); got != want {
			t.Fatalf("after %d topics %d complaints, want %d: %s", i+1, got, want, log.String())
		}
	}
	if !strings.Contains(log.String(), "topic=topic-1") {
		t.Error(log.String())
	}
}
