package tiering

import (
	"context"
	"math/rand/v2"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
)

// probe asks the store something when the instance starts, until it answers: a wrong bucket, or wrong credentials, should be
// told before the first segment waits to be copied.
func (s *Server) probe(ctx context.Context) {
	inventory, ok := s.store.(objectstore.Inventory)
	if !ok {
		return
	}
	// There are no objects of a partition that does not exist, so it costs one request.
	nothing := objectstore.Scope{TopicID: uuid.Random(), Partition: 0}
	for failures := 0; ctx.Err() == nil; {
		err := inventory.ListObjects(ctx, nothing, func(objectstore.Object) error { return nil })
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && failures > 0:
			s.deps.Logger.Warn("the object store can be used now", "attempts", failures+1)
			return
		case err == nil:
			return
		case failures == 0:
			s.deps.Logger.Warn("the object store cannot be used; until it can be, segments stay on the storage nodes", "error", err)
		}
		failures++
		select {
		case <-time.After(objectstore.JobBackoff.Delay(failures, rand.Float64())):
		case <-ctx.Done():
		}
	}
}
