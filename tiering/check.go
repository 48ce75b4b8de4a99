package tiering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"chancery/services/clients/tieringclient"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/tiering/internal/keeper"
	"chancery/tiering/internal/remotestate"
)

// CheckOptions say what Check does beside comparing.
type CheckOptions struct {
	// Repair deletes objects that the metadata does not know, and ends uploads that were never finished, both only when they
	// are older than OlderThan.
	Repair    bool
	OlderThan time.Duration
	// ForgetMissing takes segments out of the metadata whose object is not there. Their offsets then answer that they are out of
	// range, where they would fail with an error for ever otherwise.
	ForgetMissing bool
	// Former are prefixes of keys that were rsm.config.prefix once. Objects below them are compared, too.
	Former []string
	// Verify reads every segment and compares it with its checksums.
	Verify bool
}

// Check compares the store with the metadata of the shards that this instance owns. Only their owner may tell an orphan: it
// knows of every copy before its object is there.
func (s *Server) Check(ctx context.Context, o CheckOptions) (*tieringclient.CheckReport, error) {
	inventory, ok := s.store.(objectstore.Inventory)
	if !s.settings.enabled || !ok {
		return nil, errors.New("this instance has no store that can be listed")
	}
	began := time.Now()
	c := &check{server: s, inventory: inventory, options: o, began: began, shards: s.serving(), found: map[string]found{}}
	c.report.Shards = len(c.shards)
	if topic := s.image.Load().TopicByName(internaltopic.RemoteLogMetadata); topic != nil {
		c.report.ShardsInAll = len(topic.Partitions)
	}
	if err := c.list(ctx); err != nil {
		return nil, fmt.Errorf("list the store: %w", err)
	}
	c.compare(ctx)
	stale, err := inventory.AbortStaleUploads(ctx, began.Add(-o.OlderThan), !o.Repair)
	c.failed(err)
	c.report.StaleUploads = stale
	slices.SortFunc(c.report.Differences, func(a, b tieringclient.Difference) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
	})
	return &c.report, nil
}

// check is a Check under way.
type check struct {
	server    *Server
	inventory objectstore.Inventory
	options   CheckOptions
	began     time.Time
	shards    map[int32]ownedShard
	// found are the objects of segments of these shards, by key.
	found  map[string]found
	report tieringclient.CheckReport
}

// found is an object of a listing.
type found struct {
	objectstore.Object
	// former is the prefix that the listing was of; nil for the present one.
	former *string
}

// list takes in what is in the store.
func (c *check) list(ctx context.Context) error {
	prefixes := []*string{nil}
	for i := range c.options.Former {
		prefixes = append(prefixes, &c.options.Former[i])
	}
	for _, former := range prefixes {
		scope := objectstore.Scope{Partition: objectstore.AllPartitions, Former: former}
		if err := c.inventory.ListObjects(ctx, scope, func(o objectstore.Object) error { return c.visit(found{o, former}) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) failed(err error) {
	if err != nil {
		c.report.Errors = append(c.report.Errors, err.Error())
	}
}

// visit takes an object of the store in.
func (c *check) visit(o found) error {
	if o.Segment == nil {
		c.report.Differences = append(c.report.Differences, tieringclient.Difference{Kind: "foreign", Key: o.Key, Bytes: o.SizeBytes})
		return nil
	}
	number, ok := shardOf(c.server.image.Load(), remotelog.Partition{TopicID: o.Segment.TopicID, Partition: o.Segment.Partition})
	if _, here := c.shards[number]; ok && here {
		c.found[o.Key] = o
		c.report.Objects++
	}
	return nil
}

// compare goes over the segments of the shards, and then over the objects that belong to none.
func (c *check) compare(ctx context.Context) {
	known := map[uuid.UUID]bool{}
	for _, owned := range c.shards {
		views, err := owned.list(ctx)
		c.failed(err)
		for _, v := range views {
			for i := range v.Segments {
				known[v.Segments[i].ID] = true
				c.report.Segments++
				c.segment(ctx, owned, &v.Segments[i])
			}
		}
	}
	for key, o := range c.found {
		if !known[o.Segment.ID] {
			c.orphan(ctx, key, o)
		}
	}
}

// segment looks for the object of a segment.
func (c *check) segment(ctx context.Context, owned ownedShard, e *remotestate.Entry) {
	m := keeper.SegmentMetadata(e)
	key, err := c.inventory.ObjectKey(m)
	if err != nil {
		c.failed(fmt.Errorf("segment %s of %s: %w", e.ID, e.Topic, err))
		return
	}
	object, there := c.found[key]
	d := tieringclient.Difference{
		Topic: e.Topic, TopicID: e.Partition.TopicID.String(), Partition: e.Partition.Partition, Segment: e.ID.String(), Key: key, Bytes: int64(e.SizeBytes),
	}
	switch {
	case e.State == remotelog.CopyStarted && !c.server.passRuns(e.Partition):
		// The next pass over the partition begins to delete it; as long as there is none, it stays.
		d.Kind, d.Bytes = "unfinished", object.SizeBytes
	case e.State == remotelog.DeleteStarted && c.began.Sub(time.UnixMilli(e.EventTimestampMs)) >= c.options.OlderThan+deleteAge:
		// Passes go on trying. That it has taken so long means that the store refuses.
		d.Kind = "undeleted"
	case e.State != remotelog.CopyFinished || time.UnixMilli(e.EventTimestampMs).After(c.began.Add(-finishedAge)):
		return // it is on its way, one way or the other
	case there && object.SizeBytes > int64(e.SizeBytes): // indexes follow the log
		if !c.options.Verify {
			return
		}
		damage, err := c.damage(ctx, m)
		if err != nil {
			c.failed(fmt.Errorf("verify segment %s of %s: %w", e.ID, e.Topic, err))
		}
		if damage == "" {
			return
		}
		d.Kind, d.Detail = "damaged", damage
	case there:
		d.Kind, d.Bytes = "short", object.SizeBytes
	default:
		// The listing is of the present prefix alone. Segments that were copied under another one are where their metadata says.
		gone, err := c.isGone(ctx, m)
		if err != nil {
			c.failed(fmt.Errorf("look for segment %s of %s: %w", e.ID, e.Topic, err))
		}
		if !gone {
			return
		}
		d.Kind = "missing"
		if c.options.ForgetMissing {
			err := c.forget(ctx, owned, e)
			c.failed(err)
			d.Repaired = err == nil
		}
	}
	c.report.Differences = append(c.report.Differences, d)
}

// isGone asks the store itself whether a segment's log is not there; an error means that nobody knows.
func (c *check) isGone(ctx context.Context, m *objectstore.SegmentMetadata) (bool, error) {
	body, err := c.server.store.FetchLogSegment(ctx, m, 0, 1)
	if err == nil {
		_, err = io.Copy(io.Discard, body)
		err = errors.Join(err, body.Close())
	}
	if errors.Is(err, objectstore.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// forget ends the life of a segment whose object is not there.
func (c *check) forget(ctx context.Context, owned ownedShard, e *remotestate.Entry) error {
	for _, state := range []remotelog.SegmentState{remotelog.DeleteStarted, remotelog.DeleteFinished} {
		err := owned.Write(ctx, &remotelog.SegmentUpdate{
			Topic: e.Topic, Partition: e.Partition, ID: e.ID, BrokerID: c.server.config.NodeID, EventTimestampMs: time.Now().UnixMilli(), State: state,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// isListed asks the store again for an object: one that was listed may have been deleted since, and with it what was known of it.
func (c *check) isListed(ctx context.Context, key string, p remotelog.Partition, former *string) (there bool, err error) {
	err = c.inventory.ListObjects(ctx, objectstore.Scope{TopicID: p.TopicID, Partition: p.Partition, Former: former}, func(o objectstore.Object) error {
		there = there || o.Key == key
		return nil
	})
	return there, err
}

// orphan deals with an object that no segment has. A copy may have begun since the metadata was looked at.
func (c *check) orphan(ctx context.Context, key string, o found) {
	p := remotelog.Partition{TopicID: o.Segment.TopicID, Partition: o.Segment.Partition}
	number, _ := shardOf(c.server.image.Load(), p)
	view, err := c.shards[number].View(ctx, p)
	if err != nil {
		c.failed(err)
		return
	}
	if view != nil && slices.ContainsFunc(view.Segments, func(e remotestate.Entry) bool { return e.ID == o.Segment.ID }) {
		return
	}
	if there, err := c.isListed(ctx, key, p, o.former); err != nil || !there {
		c.failed(err)
		return
	}
	d := tieringclient.Difference{Kind: "orphan", TopicID: p.TopicID.String(), Partition: p.Partition, Segment: o.Segment.ID.String(), Key: key, Bytes: o.SizeBytes}
	if topic := c.server.image.Load().Topic(p.TopicID); topic != nil {
		d.Topic = topic.Name
	}
	if c.options.Repair && c.began.Sub(o.LastModified) >= c.options.OlderThan {
		errs := c.inventory.DeleteObjects(ctx, []string{key})
		if len(errs) > 0 {
			c.failed(errs[0])
		}
		d.Repaired = len(errs) == 0 || errs[0] == nil
	}
	c.report.Differences = append(c.report.Differences, d)
}

const (
	// finishedAge is how long after its copy a segment is not compared yet: the store was listed before.
	finishedAge = time.Minute
	// deleteAge is how long deletions may take, besides CheckOptions.OlderThan, until that is remarkable.
	deleteAge = 10 * time.Minute

	// sweepInterval is how often an instance looks for what nobody knows of any more, and sweepAge how old that has to be.
	sweepInterval = 24 * time.Hour
	sweepAge      = 24 * time.Hour
	// firstSweep is how long after its start an instance sweeps first.
	firstSweep = time.Hour
)

// sweep deletes, from time to time, objects and uploads that were left behind: by an instance that was cut off while it copied,
// most of all.
func (s *Server) sweep(ctx context.Context) {
	timer := time.NewTimer(firstSweep)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		report, err := s.Check(ctx, CheckOptions{Repair: true, OlderThan: sweepAge})
		if err != nil {
			s.deps.Logger.Warn("cannot sweep the store", "error", err)
		} else if n := len(report.Differences); n > 0 || len(report.Errors) > 0 {
			s.deps.Logger.Warn("the store and the metadata differed", "differences", n, "stale_uploads", report.StaleUploads, "errors", report.Errors)
		}
		timer.Reset(sweepInterval)
	}
}

// Status is what this instance knows of the partitions that it looks after, by name.
func (s *Server) Status() []tieringclient.PartitionStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]tieringclient.PartitionStatus, 0, len(s.tasks))
	for p, t := range s.tasks {
		out = append(out, tieringclient.PartitionStatus{
			Topic: t.topic, Partition: p.Partition, RemoteSegments: t.lag.RemoteSegments, RemoteBytes: t.lag.RemoteBytes, CopyLagSegments: t.lag.CopySegments,
			CopyLagBytes: t.lag.CopyBytes, Reason: t.lag.Reason, Failure: t.lag.Failure, DeleteLagSegments: t.lag.DeleteSegments, Failures: t.failures,
		})
	}
	slices.SortFunc(out, func(a, b tieringclient.PartitionStatus) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}
