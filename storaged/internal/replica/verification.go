package replica

import (
	"time"

	"chancery/services/clients/transactionclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
)

// addingVersion is the first version of Produce that adds its partitions to the transaction (KIP-890, transaction version 2).
const addingVersion = 12

// verificationKept is how long a verification that has failed is remembered for the producer to come back.
const verificationKept = time.Hour

// Transactions is how a node's replicas learn what the coordinator knows of a transaction.
type Transactions struct {
	// Ask asks the transaction's coordinator.
	Ask func(q *transactionclient.Question)
	// Verify is transaction.partition.verification.enable.
	Verify func() bool
}

// verification is what stands between a producer and its first batch of a transaction: the coordinator's word that the
// partition is in the transaction. It is a guard as well: a marker that is written while the question is on its way makes the
// answer void, since it may be about the transaction that the marker has ended.
type verification struct {
	epoch int16
	// adds says that the producer's requests add the partition.
	adds bool
	// lowest is the lowest sequence that has asked. A higher one must not be written before it, also when the lowest was
	// refused for the moment and comes again.
	lowest int32
	// asked says that an answer is awaited; waiting are the producer's appends that wait for it, in their order.
	asked   bool
	waiting []appendEvent
	// void says that a marker has been written since.
	void bool
	at   time.Time
	// higher is what is remembered of a higher epoch, for which nobody has vouched either. It is back in this one's place when
	// the coordinator does not vouch for this one.
	higher *verification
}

// standsAside says whether an append of a transaction has to wait for the coordinator, or is refused at once. The batch was
// staged last.
func (r *Replica) standsAside(now time.Time, a appendEvent, h recordbatch.Header) (bool, error) {
	if h.ProducerID() == r.vouched.producerID && h.ProducerEpoch() == r.vouched.epoch {
		return false, r.checkVouched(h)
	}
	s := r.Log().Standing(h)
	switch {
	case s.Duplicate.Found:
		return false, nil
	case h.ProducerEpoch() < s.Epoch:
		r.refuseUnverified(a, errcode.InvalidProducerEpoch, "")
		return true, nil
	case s.InTransaction:
		return false, nil
	}
	adds := a.op.req.APIVersion >= addingVersion
	if !adds && !r.env.Transactions.Verify() {
		return false, nil
	}
	if a.op.req.TransactionalID == "" {
		return false, errcode.InvalidRequest.Errorf("there is no transaction with an empty transactional id")
	}
	r.putAside(now, a, h, adds)
	return true, nil
}

// putAside lets an append wait for the coordinator's answer, and asks for it where that has not been done.
func (r *Replica) putAside(now time.Time, a appendEvent, h recordbatch.Header, adds bool) {
	id := h.ProducerID()
	v := r.verifications[id]
	switch {
	case v == nil:
		v = &verification{epoch: h.ProducerEpoch(), lowest: h.BaseSequence()}
		if r.verifications == nil {
			r.verifications = map[int64]*verification{}
		}
		r.verifications[id] = v
	case h.ProducerEpoch() < v.epoch && !v.asked:
		// Anybody can name a higher epoch: as long as the coordinator has not vouched for it, it fences nobody.
		v = &verification{epoch: h.ProducerEpoch(), lowest: h.BaseSequence(), higher: v}
		r.verifications[id] = v
	case h.ProducerEpoch() < v.epoch:
		r.refuseUnverified(a, errcode.InvalidProducerEpoch, "")
		return
	case h.ProducerEpoch() > v.epoch:
		r.refuseWaiting(v, errcode.InvalidProducerEpoch)
		if v = v.higher; v == nil || v.epoch != h.ProducerEpoch() {
			v = &verification{epoch: h.ProducerEpoch(), lowest: h.BaseSequence()}
		}
		r.verifications[id] = v
	}
	v.lowest, v.adds, v.at = min(v.lowest, h.BaseSequence()), adds, now
	if !a.op.advance(a.index, stageAside) {
		a.op.free(a.index)
		return
	}
	v.waiting = append(v.waiting, a)
	if v.asked {
		a.op.decided(a.index)
	} else {
		r.ask(id, v, a)
	}
}

// ask asks the coordinator about a producer's transaction.
func (r *Replica) ask(id int64, v *verification, a appendEvent) {
	v.asked, v.void = true, false
	a.op.ask(a.index, r.env.Transactions.Ask, transactionclient.Question{
		TransactionalID: a.op.req.TransactionalID, ProducerID: id, ProducerEpoch: v.epoch, Add: v.adds,
		Partitions: []transactionclient.Partition{{Topic: r.topic, Partition: r.key.Partition, Done: func(code errcode.Code) {
			r.post(event{do: func() { r.answered(id, v, code) }})
		}}},
	})
}

// answered takes in the coordinator's answer.
func (r *Replica) answered(id int64, v *verification, code errcode.Code) {
	if r.verifications[id] != v || !v.asked {
		return // this is not the leader any more, or another epoch has come
	}
	v.asked = false
	switch {
	case code != errcode.None:
		r.refuseWaiting(v, code)
		if v.higher != nil {
			r.verifications[id] = v.higher
		}
	case v.void:
		// The next answer is about the transaction as it is now.
		if first, ok := v.firstWaiting(); ok {
			r.ask(id, v, first)
		} else {
			delete(r.verifications, id)
		}
	default:
		waiting := v.waiting
		v.waiting = nil
		r.vouched = vouched{producerID: id, epoch: v.epoch, verification: v}
		events := make([]event, len(waiting))
		for i, a := range waiting {
			events[i].append = a
		}
		r.appendAll(events)
		r.vouched = noOneVouched
		r.endVerified(id, v)
	}
}

// firstWaiting is the first append whose time is not over.
func (v *verification) firstWaiting() (appendEvent, bool) {
	for _, a := range v.waiting {
		if !a.op.Settled(a.index) {
			return a, true
		}
	}
	return appendEvent{}, false
}

// endVerified forgets a verification once the transaction is open in the log, so that its batches need none any more.
func (r *Replica) endVerified(id int64, v *verification) {
	if r.verifications[id] == v && r.Log().InTransaction(id) {
		delete(r.verifications, id)
	}
}

// vouched is the producer whose appends are written because the coordinator has just vouched for them.
type vouched struct {
	producerID   int64
	epoch        int16
	verification *verification
}

var noOneVouched = vouched{producerID: recordbatch.NoProducerID}

// checkVouched refuses a batch that must not begin the transaction in this partition, since one before it has not come.
func (r *Replica) checkVouched(h recordbatch.Header) error {
	s, v, first := r.Log().Standing(h), r.vouched.verification, h.BaseSequence()
	switch {
	case s.Duplicate.Found, s.InTransaction:
		return nil
	case v.adds && first != 0 && s.Fresh:
		return errcode.OutOfOrderSequenceNumber.Errorf("Invalid sequence number for producer %d at offset %d in partition %s: %d "+
			"(incoming seq. number). Expected sequence 0 for transactions v2 idempotent producer with no existing state.",
			h.ProducerID(), h.BaseOffset(), r, first)
	case first > v.lowest:
		return errcode.OutOfOrderSequenceNumber.Errorf("Out of order sequence number for producer %d at offset %d in partition %s: %d "+
			"(incoming seq. number), %d (earliest seen sequence)", h.ProducerID(), h.BaseOffset(), r, first, v.lowest)
	}
	return nil
}

// markerStaged makes void what coordinators are about to say of the transaction that a marker ends.
func (r *Replica) markerStaged(id int64) {
	v := r.verifications[id]
	switch {
	case v == nil:
	case v.asked:
		v.void = true
	default:
		delete(r.verifications, id)
	}
}

// refuseWaiting answers the appends that wait for the coordinator.
func (r *Replica) refuseWaiting(v *verification, code errcode.Code) {
	waiting := v.waiting
	v.waiting = nil
	for _, a := range waiting {
		code, text := unverified(code, a.op.req.APIVersion)
		r.refuseUnverified(a, code, text)
	}
}

// refuseUnverified answers an append before the log has looked at it.
func (r *Replica) refuseUnverified(a appendEvent, code errcode.Code, text string) {
	r.env.Metrics.FailedProducePartitions.Add(1)
	a.op.free(a.index)
	a.op.settle(a.index, func(p *storage.PartitionAppendResult) { p.Error, p.ErrorMessage = code, text })
}

// failVerifications refuses everything that waits, because this is not the leader any more.
func (r *Replica) failVerifications(code errcode.Code) {
	leader := r.View().CurrentLeader()
	for _, v := range r.verifications {
		for _, a := range v.waiting {
			a.op.free(a.index)
			a.op.settle(a.index, func(p *storage.PartitionAppendResult) { p.Error, p.Leader = code, leader })
		}
	}
	r.verifications = nil
}

// expireVerifications forgets those that nobody has come back for.
func (r *Replica) expireVerifications(now time.Time) {
	for id, v := range r.verifications {
		if !v.asked && len(v.waiting) == 0 && now.Sub(v.at) > verificationKept {
			delete(r.verifications, id)
		}
	}
}

// unverified is what a producer is told when the coordinator does not vouch for its transaction, as Kafka translates it.
func unverified(code errcode.Code, apiVersion int16) (errcode.Code, string) {
	switch code {
	case errcode.ProducerFenced:
		return errcode.InvalidProducerEpoch, ""
	case errcode.TransactionAbortable:
		if apiVersion >= abortableVersion {
			return errcode.TransactionAbortable, ""
		}
		return errcode.InvalidTxnState, "Partition was not added to the transaction"
	case errcode.InvalidTxnState:
		return errcode.InvalidTxnState, "Partition was not added to the transaction"
	case errcode.ConcurrentTransactions:
		if apiVersion >= addingVersion {
			return code, ""
		}
	case errcode.NetworkException, errcode.CoordinatorLoadInProgress, errcode.CoordinatorNotAvailable, errcode.NotCoordinator,
		errcode.RequestTimedOut:
	default:
		return code, ""
	}
	// Producers try again on this one without asking for new metadata first.
	return errcode.NotEnoughReplicas,
		"Unable to verify the partition has been added to the transaction. Underlying error: " + code.Name()
}
