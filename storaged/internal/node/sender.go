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

// batcher gathers values by key and delivers them while there are any: what comes while a delivery is under way leaves
// with the next one, and of two values of a key only the later one. A failed delivery is followed by a pause.
type batcher[K comparable, V any] struct {
	ctx     context.Context
	cancel  context.CancelFunc
	done    sync.WaitGroup
	deliver func(batch map[K]V) error

	mu      sync.Mutex
	pending map[K]V
	active  bool
}

func newBatcher[K comparable, V any](deliver func(batch map[K]V) error) *batcher[K, V] {
	ctx, cancel := context.WithCancel(context.Background())
	return &batcher[K, V]{ctx: ctx, cancel: cancel, deliver: deliver, pending: map[K]V{}}
}

// add takes a value to send; one of the same key that has not been sent yet is out of date.
func (b *batcher[K, V]) add(k K, v V) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending[k] = v
	if b.active || b.ctx.Err() != nil {
		return
	}
	b.active = true
	b.done.Go(b.run)
}

func (b *batcher[K, V]) run() {
	for retry := sendRetryBase; ; {
		batch := b.take()
		if batch == nil {
			return
		}
		if b.deliver(batch) == nil {
			retry = sendRetryBase
			continue
		}
		select {
		case <-time.After(retry):
		case <-b.ctx.Done():
		}
		retry = min(2*retry, sendRetryMax)
	}
}

// take gives what is to be sent; nil when there is nothing or at the end, and then the sending has ended.
func (b *batcher[K, V]) take() map[K]V {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.pending
	if len(out) == 0 || b.ctx.Err() != nil {
		b.active = false
		return nil
	}
	b.pending = map[K]V{}
	return out
}

func (b *batcher[K, V]) close() {
	b.cancel()
	b.done.Wait()
}

// flusher makes logs durable in which a segment has ended, beside the appends to the next one.
type flusher struct {
	*batcher[*replica.Replica, struct{}]
}

func newFlusher() *flusher {
	return &flusher{newBatcher(func(batch map[*replica.Replica]struct{}) error {
		for r := range batch {
			r.Flush()
		}
		return nil
	})}
}

func (f *flusher) flush(r *replica.Replica) { f.add(r, struct{}{}) }

// isrSender sends the ISR changes of all replicas to the controller.
type isrSender struct {
	*batcher[*replica.Replica, *partition.AlterPartition]
	node *Node
}

func newISRSender(n *Node) *isrSender {
	s := &isrSender{node: n}
	s.batcher = newBatcher(s.send)
	return s
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
		// The replicas ask again; not faster than the controller recovers.
		s.node.o.Logger.Warn("cannot change in-sync replicas", "partitions", len(batch), "error", err)
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
	*batcher[replica.Key, place]
	node *Node
}

// place is where a replica is, or is about to be.
type place struct {
	dir uuid.UUID
	// done, if set, is called when the controller has agreed.
	done func()
}

func newPlaceSender(n *Node) *placeSender {
	s := &placeSender{node: n}
	s.batcher = newBatcher(s.send)
	return s
}

// check notes a replica that is elsewhere than the controller has it.
func (s *placeSender) check(k replica.Key, actual, assigned uuid.UUID) {
	if actual != assigned {
		s.assign(k, actual, nil)
	}
}

// assign tells the controller where a replica is. Who still waits for the agreement to an earlier place waits in vain.
func (s *placeSender) assign(k replica.Key, dir uuid.UUID, done func()) {
	s.add(k, place{dir, done})
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

// send tells places and calls those who wait for the agreement; what could not be told is queued again.
func (s *placeSender) send(batch map[replica.Key]place) error {
	if err := s.request(batch); err != nil {
		s.node.o.Logger.Warn("cannot tell where replicas are", "replicas", len(batch), "error", err)
		s.again(batch)
		return err
	}
	for _, p := range batch {
		if p.done != nil {
			p.done()
		}
	}
	return nil
}

func (s *placeSender) request(batch map[replica.Key]place) error {
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
