package tiering

import (
	"context"
	"errors"
	"fmt"
	"io"

	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

// damage reads a segment whole and says what is wrong with it; empty for nothing. An error means that nobody knows. It keeps to
// the quota of reads (remote.log.manager.fetch.max.bytes.per.second).
func (c *check) damage(ctx context.Context, m *objectstore.SegmentMetadata) (string, error) {
	store := c.server.store
	x, err := store.FetchIndexes(ctx, m)
	if err != nil {
		return corruption(err)
	}
	if err := c.server.settings.limits.fetching.Wait(ctx, m.SizeBytes); err != nil {
		return "", err
	}
	body, err := store.FetchLogSegment(ctx, m, 0, m.SizeBytes)
	if err != nil {
		return corruption(err)
	}
	var sums segmentobject.Summer
	_, err = io.Copy(&sums, body)
	if err = errors.Join(err, body.Close()); err != nil {
		return corruption(err)
	}
	blocks, _ := sums.Sums()
	if len(blocks) != len(x.BlockCRCs) {
		return fmt.Sprintf("%d blocks of 1 MiB, want %d", len(blocks), len(x.BlockCRCs)), nil
	}
	for i, crc := range blocks {
		if crc != x.BlockCRCs[i] {
			return fmt.Sprintf("the checksum of the MiB at %d is wrong", i*objectstore.BlockBytes), nil
		}
	}
	return "", nil
}

// corruption tells an error that says what is wrong with an object from one that says nothing of it.
func corruption(err error) (string, error) {
	if errors.Is(err, objectstore.ErrCorrupt) || errors.Is(err, objectstore.ErrNotFound) {
		return err.Error(), nil
	}
	return "", err
}
