package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/storaged/internal/partition"
	"chancery/storaged/internal/replica"
)

const (
	alterPartitionVersion = 3
	assignReplicasVersion = 0
	// controllerTimeout bounds one request to the controller.
	controllerTimeout = 15 * time.Second
	sendRetryBase     = 50 * time.Millisecond
	sendRetryMax      = time.Second
)

// ask sends a request of this node to the controller.
func (n *Node) askController(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, controllerTimeout)
	defer cancel()
	return n.o.Controller.Request(ctx, req, controllerclient.Sender{Principal: "User:ANONYMOUS", Trusted: true})
}

// batcher runs a send function while there is something to send: what comes while a request is under way leaves with the
// next one.
type batcher struct {
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	active bool
}

func newBatcher() batcher {
	ctx, cancel := context.WithCancel(context.Background())
	return batcher{ctx: ctx, cancel: cancel}
}

// wake starts the sending when it does not run. The caller holds mu.
func (b *batcher) wake(send func()) {
	if b.active || b.ctx.Err() != nil {
		return
	}
	b.active = true
	b.done.Go(send)
}

func (b *batcher) close() {
	b.cancel()
	b.done.Wait()
}

// pause waits before a retry; false at the end.
func (b *batcher) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.ctx.Done():
		return false
	}
}

// flusher makes logs durable in which a segment has ended, beside the appends to the next one.
type flusher struct {
	batcher
	pending map[*replica.Replica]struct{}
}

func newFlusher() *flusher {
	return &flusher{batcher: newBatcher(), pending: map[*replica.Replica]struct{}{}}
}

func (f *flusher) add(r *replica.Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending[r] = struct{}{}
	f.wake(f.run)
}

func (f *flusher) run() {
	for {
		f.mu.Lock()
		batch := f.pending
		if len(batch) == 0 || f.ctx.Err() != nil {
			f.active = false
			f.mu.Unlock()
			return
		}
		f.pending = map[*replica.Replica]struct{}{}
		f.mu.Unlock()
		for r := range batch {
			r.Flush()
		}
	}
}

// isrSender sends the ISR changes of all replicas to the controller.
type isrSender struct {
	batcher
	node    *Node
	pending map[*replica.Replica]*partition.AlterPartition
}

func newISRSender(n *Node) *isrSender {
	return &isrSender{batcher: newBatcher(), node: n, pending: map[*replica.Replica]*partition.AlterPartition{}}
}

// add takes a proposal; one of the same replica that has not been sent yet is out of date.
func (s *isrSender) add(r *replica.Replica, p *partition.AlterPartition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending[r] = p
	s.wake(s.run)
}

func (s *isrSender) take() map[*replica.Replica]*partition.AlterPartition {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.pending
	if len(out) == 0 {
		s.active = false
		return nil
	}
	s.pending = map[*replica.Replica]*partition.AlterPartition{}
	return out
}

func (s *isrSender) run() {
	for retry := sendRetryBase; ; {
		batch := s.take()
		if batch == nil {
			return
		}
		if err := s.send(batch); err != nil {
			s.node.o.Logger.Warn("cannot change in-sync replicas", "partitions", len(batch), "error", err)
			// The replicas ask again; not faster than the controller recovers.
			if !s.pause(retry) {
				return
			}
			retry = min(2*retry, sendRetryMax)
			continue
		}
		retry = sendRetryBase
	}
}

// send sends proposals and gives each replica its outcome. The error is that of all of them together.
func (s *isrSender) send(batch map[*replica.Replica]*partition.AlterPartition) error {
	req := kmsg.NewPtrAlterPartitionRequest()
	req.Version = alterPartitionVersion
	req.BrokerID, req.BrokerEpoch = s.node.o.ID, s.node.o.Epoch()
	topics := map[uuid.UUID]int{}
	byKey := map[replica.Key]*replica.Replica{}
	for r, p := range batch {
		k := r.Key()
		byKey[k] = r
		at, ok := topics[k.TopicID]
		if !ok {
			at = len(req.Topics)
			topics[k.TopicID] = at
			t := kmsg.NewAlterPartitionRequestTopic()
			t.TopicID = k.TopicID
			req.Topics = append(req.Topics, t)
		}
		req.Topics[at].Partitions = append(req.Topics[at].Partitions, alterRequest(k.Partition, p))
	}
	answers, err := s.request(req)
	if err != nil {
		code := errcode.Of(err)
		if code == errcode.UnknownServerError {
			code = errcode.NetworkException
		}
		for r, p := range batch {
			r.AlterFailed(p, code)
		}
		return err
	}
	for k, r := range byKey {
		a, ok := answers[k]
		switch {
		case !ok:
			r.AlterFailed(batch[r], errcode.UnknownServerError)
		case a.ErrorCode != 0:
			r.AlterFailed(batch[r], errcode.Code(a.ErrorCode))
		default:
			r.Altered(batch[r], partition.Altered{LeaderEpoch: a.LeaderEpoch, PartitionEpoch: a.PartitionEpoch, ISR: a.ISR})
		}
	}
	return nil
}

func alterRequest(id int32, p *partition.AlterPartition) kmsg.AlterPartitionRequestTopicPartition {
	out := kmsg.NewAlterPartitionRequestTopicPartition()
	out.Partition, out.LeaderEpoch, out.PartitionEpoch = id, p.LeaderEpoch, p.PartitionEpoch
	for _, m := range p.ISR {
		e := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
		e.BrokerID, e.BrokerEpoch = m.ID, m.BrokerEpoch
		out.NewEpochISR = append(out.NewEpochISR, e)
	}
	return out
}

func (s *isrSender) request(req *kmsg.AlterPartitionRequest) (map[replica.Key]*kmsg.AlterPartitionResponseTopicPartition, error) {
	resp, err := s.node.askController(s.ctx, req)
	if err != nil {
		return nil, err
	}
	r, ok := resp.(*kmsg.AlterPartitionResponse)
	if !ok {
		return nil, fmt.Errorf("answer of type %T", resp)
	}
	if r.ErrorCode != 0 {
		return nil, errcode.Code(r.ErrorCode).Err()
	}
	out := map[replica.Key]*kmsg.AlterPartitionResponseTopicPartition{}
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			out[replica.Key{TopicID: t.TopidID, Partition: t.Partitions[j].Partition}] = &t.Partitions[j]
		}
	}
	return out, nil
}

// placeSender tells the controller which log directory replicas are in, where it does not know.
type placeSender struct {
	batcher
	node    *Node
	pending map[replica.Key]place
}

// place is where a replica is, or is about to be.
type place struct {
	dir uuid.UUID
	// done, if set, is called when the controller has agreed.
	done func()
}

func newPlaceSender(n *Node) *placeSender {
	return &placeSender{batcher: newBatcher(), node: n, pending: map[replica.Key]place{}}
}

// check notes a replica that is elsewhere than the controller has it.
func (s *placeSender) check(k replica.Key, actual, assigned uuid.UUID) {
	if actual != assigned {
		s.assign(k, actual, nil)
	}
}

// assign tells the controller where a replica is. Who still waits for the agreement to an earlier place waits in vain.
func (s *placeSender) assign(k replica.Key, dir uuid.UUID, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending[k] = place{dir, done}
	s.wake(s.run)
}

func (s *placeSender) take() map[replica.Key]place {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.pending
	if len(out) == 0 {
		s.active = false
		return nil
	}
	s.pending = map[replica.Key]place{}
	return out
}

func (s *placeSender) run() {
	for retry := sendRetryBase; ; {
		batch := s.take()
		if batch == nil {
			return
		}
		if err := s.send(batch); err != nil {
			s.node.o.Logger.Warn("cannot tell where replicas are", "replicas", len(batch), "error", err)
			s.again(batch)
			if !s.pause(retry) {
				return
			}
			retry = min(2*retry, sendRetryMax)
			continue
		}
		retry = sendRetryBase
		for _, p := range batch {
			if p.done != nil {
				p.done()
			}
		}
	}
}

// again queues what could not be sent, unless there is something newer.
func (s *placeSender) again(batch map[replica.Key]place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, p := range batch {
		if _, newer := s.pending[k]; !newer && s.node.lookup(k) != nil {
			s.pending[k] = p
		}
	}
}

func (s *placeSender) send(batch map[replica.Key]place) error {
	req := kmsg.NewPtrAssignReplicasToDirsRequest()
	req.Version = assignReplicasVersion
	req.BrokerID, req.BrokerEpoch = s.node.o.ID, s.node.o.Epoch()
	byDir := map[uuid.UUID]map[uuid.UUID][]int32{}
	for k, p := range batch {
		if byDir[p.dir] == nil {
			byDir[p.dir] = map[uuid.UUID][]int32{}
		}
		byDir[p.dir][k.TopicID] = append(byDir[p.dir][k.TopicID], k.Partition)
	}
	for dir, topics := range byDir {
		d := kmsg.NewAssignReplicasToDirsRequestDirectory()
		d.ID = dir
		for id, partitions := range topics {
			t := kmsg.NewAssignReplicasToDirsRequestDirectoryTopic()
			t.TopicID = id
			for _, p := range partitions {
				part := kmsg.NewAssignReplicasToDirsRequestDirectoryTopicPartition()
				part.Partition = p
				t.Partitions = append(t.Partitions, part)
			}
			d.Topics = append(d.Topics, t)
		}
		req.Directories = append(req.Directories, d)
	}
	resp, err := s.node.askController(s.ctx, req)
	if err != nil {
		return err
	}
	r, ok := resp.(*kmsg.AssignReplicasToDirsResponse)
	if !ok {
		return fmt.Errorf("answer of type %T", resp)
	}
	if r.ErrorCode != 0 {
		return errcode.Code(r.ErrorCode).Err()
	}
	return placeErrors(r)
}

// placeErrors is what the controller refused. A replica that is not this node's any more needs no place.
func placeErrors(r *kmsg.AssignReplicasToDirsResponse) error {
	var errs []error
	for _, d := range r.Directories {
		for _, t := range d.Topics {
			for _, p := range t.Partitions {
				switch code := errcode.Code(p.ErrorCode); code {
				case errcode.None, errcode.NotLeaderOrFollower, errcode.UnknownTopicId, errcode.UnknownTopicOrPartition:
				default:
					errs = append(errs, code.Err())
				}
			}
		}
	}
	return errors.Join(errs...)
}
