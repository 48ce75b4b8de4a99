//go:build jvm

package jvm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

const (
	linesTopic  = "lines"
	countsTopic = "counts"
	// linesPerTick lines of wordsPerLine words are written each lineInterval.
	linesPerTick, wordsPerLine = 10, 3
	lineInterval               = 50 * time.Millisecond
	// differentWords is how many words there are.
	differentWords = 23
)

// TestStreamsWordCount counts words with Kafka Streams, exactly once, while instances of the application and processes of the
// cluster are killed. Each word's counts must come out one by one, without a gap or a repetition, up to the right one.
func TestStreamsWordCount(t *testing.T) {
	k := installTools(t)
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Controllers: 1, Properties: map[string]string{
		// The transactions of an instance that has lost its state are nobody's, and only their time-out ends them.
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
	}})
	for _, topic := range []string{linesTopic, countsTopic} {
		makeTopic(t, p.Bootstrap[0], topic, 4, 3, map[string]string{"min.insync.replicas": "2"})
	}
	bootstrap := strings.Join(p.Bootstrap, ",")
	dirs := []string{filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")}
	run := func(instance int) *program { return k.start(t, "WordCount", bootstrap, "word-count", dirs[instance]) }

	writer := writeLines(t, p.Bootstrap)
	counts := newCounts(t, p.Bootstrap)
	first, second := run(0), run(1)
	counts.awaitMore(t, 500)

	p.Kill("storage-1")
	first.kill(t)
	first = run(0)
	counts.awaitMore(t, 500)
	p.Restart("storage-1")

	p.Kill("coordinator-1")
	counts.awaitMore(t, 500)
	p.Restart("coordinator-1")

	second.kill(t)
	if err := os.RemoveAll(dirs[1]); err != nil {
		t.Fatal(err)
	}
	second = run(1)
	second.awaitLine(t, `^restored word-count-words-seen-changelog-\d+ [1-9]`)
	counts.awaitMore(t, 500)

	p.Kill("coordinator-2")
	p.Kill("storage-2")
	p.Kill("gateway-1")
	for _, name := range []string{"coordinator-2", "storage-2", "gateway-1"} {
		p.Restart(name)
	}
	written := writer.stop(t)
	total := 0
	for _, n := range written {
		total += n
	}
	counts.awaitTotal(t, total)
	first.stop(t)
	second.stop(t)
	for word, n := range written {
		if counts.last[word] != n {
			t.Errorf("%q was counted %d times, and written %d times", word, counts.last[word], n)
		}
	}
	if len(counts.last) != len(written) {
		t.Errorf("%d words were counted, and %d written", len(counts.last), len(written))
	}
	t.Logf("%d words", total)
}

// lineWriter writes lines until it is told to stop.
type lineWriter struct {
	quit    chan struct{}
	done    chan error
	written map[string]int
}

func writeLines(t *testing.T, bootstrap []string) *lineWriter {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.DefaultProduceTopic(linesTopic))
	if err != nil {
		t.Fatal(err)
	}
	w := &lineWriter{quit: make(chan struct{}), done: make(chan error, 1), written: map[string]int{}}
	ctx := t.Context()
	go func() {
		defer client.Close()
		w.done <- w.write(ctx, client)
	}()
	return w
}

func (w *lineWriter) write(ctx context.Context, client *kgo.Client) error {
	tick := time.NewTicker(lineInterval)
	defer tick.Stop()
	for n := 0; ; {
		select {
		case <-w.quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		var records []*kgo.Record
		for range linesPerTick {
			var words []string
			for range wordsPerLine {
				word := fmt.Sprintf("word-%d", n*n%differentWords)
				n++
				words = append(words, word)
				w.written[word]++
			}
			records = append(records, &kgo.Record{Key: strconv.AppendInt(nil, int64(n), 10), Value: []byte(strings.Join(words, " "))})
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
	}
}

// stop returns how often each word was written.
func (w *lineWriter) stop(t *testing.T) map[string]int {
	t.Helper()
	close(w.quit)
	if err := <-w.done; err != nil {
		t.Fatalf("write lines: %v", err)
	}
	return w.written
}

// counts reads what the application has committed.
type counts struct {
	client *kgo.Client
	total  int
	last   map[string]int
}

func newCounts(t *testing.T, bootstrap []string) *counts {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumeTopics(countsTopic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &counts{client: client, last: map[string]int{}}
}

// awaitMore reads n more counts.
func (c *counts) awaitMore(t *testing.T, n int) {
	t.Helper()
	c.awaitTotal(t, c.total+n)
}

// awaitTotal reads until there were so many counts, and says when one is not its word's next.
func (c *counts) awaitTotal(t *testing.T, total int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	for c.total < total {
		fetches := c.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d counts of %d: %v", c.total, total, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			c.total++
			n, err := strconv.Atoi(string(r.Value))
			if word := string(r.Key); err != nil || n != c.last[word]+1 {
				t.Errorf("%s at offset %d of partition %d: %q after %d", word, r.Offset, r.Partition, r.Value, c.last[word])
			}
			c.last[string(r.Key)] = n
		})
	}
}
