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
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	for _, a := range h.askMeant(ctx, r) {
		own, _ := a.resp.(*kmsg.DescribeLogDirsResponse)
		if own == nil {
			h.Logger.Warn("a storage node has not described its log directories", "node", a.node, "error", a.err)
			resp.ErrorCode = int16(forwardCode(a.err))
			continue
		}
		resp.Dirs = append(resp.Dirs, own.Dirs...)
		if own.ErrorCode != 0 {
			resp.ErrorCode = own.ErrorCode
		}
	}
	return resp, nil
}

// meantAnswer is what a storage node answered to a request that was meant for it, or why there is no answer.
type meantAnswer struct {
	node int32
	resp kmsg.Response
	err  error
}

// askMeant passes a request on to the storage node that the client means, or to all live ones where it has not said which.
func (h *Handlers) askMeant(ctx context.Context, r *Request) []meantAnswer {
	var answers []meantAnswer
	if r.Conn.NodeID != UnknownNode {
		answers = append(answers, meantAnswer{node: r.Conn.NodeID})
	} else {
		for _, b := range h.Image().Brokers() {
			if !b.Fenced {
				answers = append(answers, meantAnswer{node: b.ID})
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.RequestTimeout)
	defer cancel()
	began := h.Now()
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i].resp, answers[i].err = h.askAsItCame(ctx, r, answers[i].node) })
	}
	wg.Wait()
	r.Waited += h.Now().Sub(began)
	return answers
}

// askAsItCame passes a request on to one storage node as it came.
func (h *Handlers) askAsItCame(ctx context.Context, r *Request, id int32) (kmsg.Response, error) {
	node, err := h.Storage(id)
	if err != nil {
		return nil, err
	}
	reply, err := node.Handle(ctx, &storagev1.HandleRequest{Envelope: h.envelope(r, r.Body)})
	if err != nil {
		return nil, err
	}
	resp := kmsg.ResponseForKey(r.Key)
	resp.SetVersion(r.Version)
	if err := resp.ReadFrom(reply.GetReply().GetBody()); err != nil {
		return nil, errcode.UnknownServerError.Wrap(fmt.Errorf("answer to %s: %w", kmsg.NameForKey(r.Key), err))
	}
	return resp, nil
}
