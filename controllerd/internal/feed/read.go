package feed

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	controllerv1 "chancery/proto/controller/v1"

	"chancery/controllerd/internal/metalog"
)

// Read gives batches from an offset on, a few at a time, and the state that goes with them. False says that a reader who has
// the log up to there, with lastEpoch the epoch of the batch before, cannot go on: the batches are gone, or others than its own
// came before.
func (f *Feed) Read(from int64, lastEpoch int32) ([]metalog.Batch, State, bool, error) {
	frames, state, ok := f.after(from)
	if !ok || f.epochBefore(from) != lastEpoch {
		return nil, state, false, nil
	}
	batches := make([]metalog.Batch, 0, len(frames))
	for _, frame := range frames {
		var m controllerv1.FollowMetadataResponse
		if err := proto.Unmarshal(frame.encoded, &m); err != nil {
			return nil, state, false, fmt.Errorf("batch at offset %d: %w", frame.base, err)
		}
		b := m.GetBatch()
		batches = append(batches, metalog.Batch{
			BaseOffset: b.GetBaseOffset(), Epoch: b.GetEpoch(), TimestampMs: b.GetTimestampMs(), Records: b.GetRecords(),
		})
	}
	return batches, state, true, nil
}

// epochBefore is the epoch of the batch before an offset.
func (f *Feed) epochBefore(offset int64) int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := f.findLocked(offset); i > 0 {
		return f.ring[i-1].epoch
	}
	return f.startEpoch
}
