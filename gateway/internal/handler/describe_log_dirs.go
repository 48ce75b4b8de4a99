package handler

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
)

// DescribeLogDirs (35), versions 1 to 5: the log directories of a node, or of all of them where the client has not said
// which node it means. Version 3 adds an error for the whole answer, 4 the sizes of the volumes, 5 whether a directory is
// cordoned.

func (h *Handlers) describeLogDirs(ctx context.Context, r *Request, _ *kmsg.DescribeLogDirsRequest) (kmsg.Response, error) {
	nodes := []int32{r.Conn.NodeID}
	if r.Conn.NodeID == UnknownNode {
		nodes = nil
		for _, b := range h.Image().Brokers() {
			if !b.Fenced {
				nodes = append(nodes, b.ID)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.RequestTimeout)
	defer cancel()
	began := h.Now()
	answers := make([]*kmsg.DescribeLogDirsResponse, len(nodes))
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, id := range nodes {
		wg.Go(func() { answers[i], errs[i] = h.describeLogDirsOf(ctx, r, id) })
	}
	wg.Wait()
	r.Waited += h.Now().Sub(began)
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	for i, id := range nodes {
		if errs[i] != nil {
			h.Logger.Warn("a storage node has not described its log directories", "node", id, "error", errs[i])
			resp.ErrorCode = int16(forwardCode(errs[i]))
			continue
		}
		resp.Dirs = append(resp.Dirs, answers[i].Dirs...)
		if answers[i].ErrorCode != 0 {
			resp.ErrorCode = answers[i].ErrorCode
		}
	}
	return resp, nil
}

func (h *Handlers) describeLogDirsOf(ctx context.Context, r *Request, id int32) (*kmsg.DescribeLogDirsResponse, error) {
	node, err := h.Storage(id)
	if err != nil {
		return nil, err
	}
	reply, err := node.Handle(ctx, &storagev1.HandleRequest{Envelope: h.envelope(r, r.Body)})
	if err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	resp.SetVersion(r.Version)
	if err := resp.ReadFrom(reply.GetReply().GetBody()); err != nil {
		return nil, errcode.UnknownServerError.Wrap(fmt.Errorf("answer to DescribeLogDirs: %w", err))
	}
	return resp, nil
}
