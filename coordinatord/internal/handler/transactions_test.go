package handler

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/txn"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

// ledger plays one shard of transactions, whose records are durable at once and whose markers are written at once.
type ledger struct {
	t       *testing.T
	h       *Transactions
	machine *txn.Machine
	now     time.Time
	last    statemachine.Ticket
	answers map[statemachine.Ticket]txn.Reply
	failure error
	image   *metadata.Image
	nextID  int64
	noIDs   bool
	// slow leaves markers unwritten.
	slow bool
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{t: t, now: time.UnixMilli(1_700_000_000_000), answers: map[statemachine.Ticket]txn.Reply{}, nextID: 1000}
	l.machine = txn.New(txn.Config{
		Host: l, Version: func() int16 { return 2 }, AbortInterval: time.Hour, Expiration: time.Hour, ExpireInterval: time.Hour,
		MaxBatchBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler),
	})
	var out txn.Effects
	l.machine.Loaded(l.now, &out)
	offsets := uuid.Random()
	d, err := metadata.Empty("c").Apply(10, 1, &metarecord.TopicRecord{Name: "a", TopicID: topicID},
		&metarecord.PartitionRecord{TopicID: topicID, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1},
		&metarecord.TopicRecord{Name: "__consumer_offsets", TopicID: offsets},
		&metarecord.PartitionRecord{TopicID: offsets, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	if err != nil {
		t.Fatal(err)
	}
	l.image = d.Image()
	l.h = NewTransactions(TransactionConfig{MaxTimeout: 15 * time.Minute, ProducerID: func(context.Context) (int64, error) {
		if l.noIDs {
			return 0, errors.New("no controller")
		}
		l.nextID++
		return l.nextID, nil
	}}, l, l)
	return l
}

func (l *ledger) Image() metadata.Reader { return l.image }

func (l *ledger) Await(context.Context, int64) error { return nil }

func (l *ledger) WriteMarkers(x *txn.Transaction, _ bool) {
	if !l.slow {
		var out txn.Effects
		l.machine.Decide(l.now, 0, &txn.MarkersWritten{ID: x.ID, Producer: txn.Producer{ID: x.ProducerID, Epoch: x.Epoch}}, &out)
		l.carryOut(&out)
	}
}

func (l *ledger) Abandon([]txn.Abandon) {}

func (l *ledger) DoTransaction(_ context.Context, _ int32, _ int64, command txn.Command) (txn.Reply, error) {
	if l.failure != nil {
		return nil, l.failure
	}
	l.last++
	t := l.last
	var out txn.Effects
	l.machine.Decide(l.now, t, command, &out)
	l.carryOut(&out)
	if _, ok := l.answers[t]; !ok {
		l.now = l.now.Add(time.Second)
		l.machine.Tick(l.now, &out)
		l.carryOut(&out)
	}
	return l.answers[t], nil
}

func (l *ledger) DoAllTransactions(ctx context.Context, _ int64, command txn.Command) ([]txn.Reply, error) {
	reply, err := l.DoTransaction(ctx, 0, 0, command)
	return []txn.Reply{reply}, err
}

func (l *ledger) carryOut(out *txn.Effects) {
	records := append([]*txn.Record(nil), out.Records()...)
	out.Answers(func(t statemachine.Ticket, reply txn.Reply, _ errcode.Code, _ bool) { l.answers[t] = reply })
	out.Reset()
	for _, r := range records {
		l.machine.Apply(r)
		var more txn.Effects
		l.machine.Commit(l.now, 0, r, &more)
		l.carryOut(&more)
	}
}

// ask sends a request in a version through bytes and gives the response.
func ask[R kmsg.Response](l *ledger, version int16, req kmsg.Request) R {
	l.t.Helper()
	req.SetVersion(version)
	body, err := l.h.Handle(l.t.Context(), 0, &commonv1.Envelope{ApiKey: int32(req.Key()), ApiVersion: int32(version), Body: req.AppendTo(nil), MetadataOffset: 10})
	if err != nil {
		l.t.Fatalf("%s v%d: %v", kmsg.NameForKey(req.Key()), version, err)
	}
	resp := kmsg.ResponseForKey(req.Key())
	resp.SetVersion(version)
	if err := resp.ReadFrom(body); err != nil {
		l.t.Fatalf("%s v%d: %v", kmsg.NameForKey(req.Key()), version, err)
	}
	return resp.(R)
}

func initRequest(id string) *kmsg.InitProducerIDRequest {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &id, 60_000
	return req
}

func TestInitProducerIDVersions(t *testing.T) {
	for version := range int16(6) {
		l := newLedger(t)
		for epoch := range int16(2) {
			if r := ask[*kmsg.InitProducerIDResponse](l, version, initRequest("tx")); r.ErrorCode != 0 || r.ProducerID != 1001 || r.ProducerEpoch != epoch {
				t.Fatalf("v%d: %+v", version, r)
			}
		}
		if version < 3 {
			continue
		}
		zombie := initRequest("tx")
		zombie.ProducerID, zombie.ProducerEpoch = 1001, 0
		want := errcode.ProducerFenced
		if version < 4 {
			want = errcode.InvalidProducerEpoch
		}
		if r := ask[*kmsg.InitProducerIDResponse](l, version, zombie); errcode.Code(r.ErrorCode) != want || r.ProducerID != -1 {
			t.Fatalf("v%d: %+v", version, r)
		}
	}
}

func TestInitProducerIDRefusals(t *testing.T) {
	l := newLedger(t)
	for _, x := range []struct {
		name   string
		change func(*kmsg.InitProducerIDRequest)
		want   errcode.Code
	}{
		{"no id", func(r *kmsg.InitProducerIDRequest) { r.TransactionalID = nil }, errcode.InvalidRequest},
		{"empty id", func(r *kmsg.InitProducerIDRequest) { r.TransactionalID = new(string) }, errcode.InvalidRequest},
		{"id without epoch", func(r *kmsg.InitProducerIDRequest) { r.ProducerID = 5 }, errcode.InvalidRequest},
		{"time-out 0", func(r *kmsg.InitProducerIDRequest) { r.TransactionTimeoutMillis = 0 }, errcode.InvalidTransactionTimeout},
		{"longest time-out", func(r *kmsg.InitProducerIDRequest) { r.TransactionTimeoutMillis = 900_000 }, errcode.None},
		{"time-out too long", func(r *kmsg.InitProducerIDRequest) { r.TransactionTimeoutMillis = 900_001 }, errcode.InvalidTransactionTimeout},
	} {
		req := initRequest("tx")
		x.change(req)
		if r := ask[*kmsg.InitProducerIDResponse](l, 4, req); errcode.Code(r.ErrorCode) != x.want {
			t.Errorf("%s: %+v", x.name, r)
		}
	}
	l.noIDs = true
	if r := ask[*kmsg.InitProducerIDResponse](l, 4, initRequest("new")); errcode.Code(r.ErrorCode) != errcode.CoordinatorLoadInProgress {
		t.Errorf("%+v", r)
	}
}

// addRequest adds partition 0 of topics, in the form of a version.
func addRequest(version int16, p *kmsg.InitProducerIDResponse, topics ...string) *kmsg.AddPartitionsToTxnRequest {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	if version < 4 {
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = "tx", p.ProducerID, p.ProducerEpoch
		for _, t := range topics {
			req.Topics = append(req.Topics, kmsg.AddPartitionsToTxnRequestTopic{Topic: t, Partitions: []int32{0}})
		}
		return req
	}
	x := kmsg.AddPartitionsToTxnRequestTransaction{TransactionalID: "tx", ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch}
	for _, t := range topics {
		x.Topics = append(x.Topics, kmsg.AddPartitionsToTxnRequestTransactionTopic{Topic: t, Partitions: []int32{0}})
	}
	req.Transactions = append(req.Transactions, x)
	return req
}

// addCodes are the codes of the answer, in whichever form.
func addCodes(r *kmsg.AddPartitionsToTxnResponse) []errcode.Code {
	var codes []errcode.Code
	for _, t := range r.Topics {
		codes = append(codes, errcode.Code(t.Partitions[0].ErrorCode))
	}
	for _, x := range r.Transactions {
		for _, t := range x.Topics {
			codes = append(codes, errcode.Code(t.Partitions[0].ErrorCode))
		}
	}
	return codes
}

func TestAddPartitionsToTxnVersions(t *testing.T) {
	for version := range int16(6) {
		l := newLedger(t)
		p := ask[*kmsg.InitProducerIDResponse](l, 4, initRequest("tx"))
		add := func(topics ...string) []errcode.Code {
			return addCodes(ask[*kmsg.AddPartitionsToTxnResponse](l, version, addRequest(version, p, topics...)))
		}
		if c := add("a", "none"); len(c) != 2 || c[0] != errcode.OperationNotAttempted || c[1] != errcode.UnknownTopicOrPartition {
			t.Fatalf("v%d: %v", version, c)
		}
		if c := add("a"); len(c) != 1 || c[0] != errcode.None {
			t.Fatalf("v%d: %v", version, c)
		}
		if c := add("a", "a"); len(c) != 2 || c[0] != errcode.None || c[1] != errcode.None {
			t.Fatalf("v%d: named twice: %v", version, c)
		}
		p.ProducerEpoch++
		want := errcode.ProducerFenced
		if version < 2 {
			want = errcode.InvalidProducerEpoch
		}
		if c := add("a"); c[0] != want {
			t.Fatalf("v%d: %v", version, c)
		}
		p.ProducerEpoch--
		if version < 4 {
			continue
		}
		verify := addRequest(version, p, "a", "__consumer_offsets", "a")
		verify.Transactions[0].Topics = append(verify.Transactions[0].Topics, kmsg.AddPartitionsToTxnRequestTransactionTopic{Topic: "b"})
		verify.Transactions[0].VerifyOnly = true
		if c := addCodes(ask[*kmsg.AddPartitionsToTxnResponse](l, version, verify)); len(c) != 2 || c[0] != errcode.None || c[1] != errcode.TransactionAbortable {
			t.Fatalf("v%d: %v", version, c)
		}
		verify.Transactions[0].TransactionalID = ""
		if c := addCodes(ask[*kmsg.AddPartitionsToTxnResponse](l, version, verify)); c[0] != errcode.InvalidRequest {
			t.Fatalf("v%d: %v", version, c)
		}
	}
}

func TestAddOffsetsToTxnVersions(t *testing.T) {
	for version := range int16(5) {
		l := newLedger(t)
		p := ask[*kmsg.InitProducerIDResponse](l, 4, initRequest("tx"))
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = "tx", p.ProducerID, p.ProducerEpoch, "g"
		if r := ask[*kmsg.AddOffsetsToTxnResponse](l, version, req); r.ErrorCode != 0 {
			t.Fatalf("v%d: %+v", version, r)
		}
		d := ask[*kmsg.DescribeTransactionsResponse](l, 0, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{"tx", "", "none"}})
		if x := d.TransactionStates[0]; x.State != "Ongoing" || len(x.Topics) != 1 || x.Topics[0].Topic != "__consumer_offsets" || x.TimeoutMillis != 60_000 {
			t.Fatalf("%+v", x)
		}
		if errcode.Code(d.TransactionStates[1].ErrorCode) != errcode.InvalidRequest || errcode.Code(d.TransactionStates[2].ErrorCode) != errcode.TransactionalIdNotFound {
			t.Fatalf("%+v", d)
		}
		req.ProducerEpoch = 9
		want := errcode.ProducerFenced
		if version < 2 {
			want = errcode.InvalidProducerEpoch
		}
		if r := ask[*kmsg.AddOffsetsToTxnResponse](l, version, req); errcode.Code(r.ErrorCode) != want {
			t.Fatalf("v%d: %+v", version, r)
		}
		req.TransactionalID = ""
		if r := ask[*kmsg.AddOffsetsToTxnResponse](l, version, req); errcode.Code(r.ErrorCode) != errcode.InvalidRequest {
			t.Fatalf("v%d: %+v", version, r)
		}
	}
}

func TestEndTxnVersions(t *testing.T) {
	for version := range int16(6) {
		l := newLedger(t)
		p := ask[*kmsg.InitProducerIDResponse](l, 4, initRequest("tx"))
		ask[*kmsg.AddPartitionsToTxnResponse](l, 3, addRequest(3, p, "a"))
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = "tx", p.ProducerID, p.ProducerEpoch, true
		for range 2 {
			r := ask[*kmsg.EndTxnResponse](l, version, req)
			if r.ErrorCode != 0 || version >= 5 && (r.ProducerID != p.ProducerID || r.ProducerEpoch != p.ProducerEpoch+1) || version < 5 && r.ProducerID != -1 {
				t.Fatalf("v%d: %+v", version, r)
			}
		}
		req.ProducerEpoch = 9
		want := errcode.ProducerFenced
		if version < 2 {
			want = errcode.InvalidProducerEpoch
		}
		if r := ask[*kmsg.EndTxnResponse](l, version, req); errcode.Code(r.ErrorCode) != want || r.ProducerID != -1 {
			t.Fatalf("v%d: %+v", version, r)
		}
		req.TransactionalID = ""
		if r := ask[*kmsg.EndTxnResponse](l, version, req); errcode.Code(r.ErrorCode) != errcode.InvalidRequest {
			t.Fatalf("v%d: %+v", version, r)
		}
	}
}

// TestEndTxnGetsAProducerID where the epochs of the present one are used up.
func TestEndTxnGetsAProducerID(t *testing.T) {
	l := newLedger(t)
	p := ask[*kmsg.InitProducerIDResponse](l, 4, initRequest("tx"))
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID = "tx", p.ProducerID
	for epoch := p.ProducerEpoch; epoch < 32766; epoch++ {
		req.ProducerEpoch = epoch
		if r := ask[*kmsg.EndTxnResponse](l, 5, req); r.ErrorCode != 0 {
			t.Fatalf("epoch %d: %+v", epoch, r)
		}
	}
	req.ProducerEpoch = 32766
	if r := ask[*kmsg.EndTxnResponse](l, 5, req); r.ErrorCode != 0 || r.ProducerID != 1002 || r.ProducerEpoch != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestListTransactionsVersions(t *testing.T) {
	for version := range int16(3) {
		l := newLedger(t)
		ask[*kmsg.InitProducerIDResponse](l, 4, initRequest("tx"))
		req := kmsg.NewPtrListTransactionsRequest()
		if r := ask[*kmsg.ListTransactionsResponse](l, version, req); len(r.TransactionStates) != 1 || r.TransactionStates[0].TransactionState != "Empty" {
			t.Fatalf("v%d: %+v", version, r)
		}
		req.StateFilters = []string{"Ongoing", "Nonsense"}
		if r := ask[*kmsg.ListTransactionsResponse](l, version, req); len(r.TransactionStates) != 0 || len(r.UnknownStateFilters) != 1 {
			t.Fatalf("v%d: %+v", version, r)
		}
		if version < 2 {
			continue
		}
		req.StateFilters = nil
		for pattern, want := range map[string]int{"t.*": 1, "x": 0, "t": 0} {
			req.TransactionalIDPattern = &pattern
			if r := ask[*kmsg.ListTransactionsResponse](l, version, req); len(r.TransactionStates) != want {
				t.Fatalf("%q: %+v", pattern, r)
			}
		}
		pattern := "("
		req.TransactionalIDPattern = &pattern
		if r := ask[*kmsg.ListTransactionsResponse](l, version, req); errcode.Code(r.ErrorCode) != errcode.InvalidRegularExpression {
			t.Fatalf("%+v", r)
		}
	}
}

// TestTransactionShardsThatLoad: each answer says so, and a shard that has moved is no answer.
func TestTransactionShardsThatLoad(t *testing.T) {
	l := newLedger(t)
	l.failure = errcode.CoordinatorLoadInProgress.Wrap(statemachine.ErrNotDecided)
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID = "tx"
	offsets := kmsg.NewPtrAddOffsetsToTxnRequest()
	offsets.TransactionalID = "tx"
	const want = int16(errcode.CoordinatorLoadInProgress)
	codes := []int16{
		ask[*kmsg.InitProducerIDResponse](l, 4, initRequest("tx")).ErrorCode,
		int16(addCodes(ask[*kmsg.AddPartitionsToTxnResponse](l, 3, addRequest(3, &kmsg.InitProducerIDResponse{}, "a")))[0]),
		ask[*kmsg.AddOffsetsToTxnResponse](l, 3, offsets).ErrorCode,
		ask[*kmsg.EndTxnResponse](l, 3, end).ErrorCode,
		ask[*kmsg.DescribeTransactionsResponse](l, 0, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{"tx"}}).TransactionStates[0].ErrorCode,
		ask[*kmsg.ListTransactionsResponse](l, 0, kmsg.NewPtrListTransactionsRequest()).ErrorCode,
	}
	for i, code := range codes {
		if code != want {
			t.Errorf("answer %d: %s", i, errcode.Code(code))
		}
	}
	l.failure = errcode.NotCoordinator.Wrap(statemachine.ErrNotDecided)
	end.Version = 3
	if _, err := l.h.Handle(t.Context(), 0, &commonv1.Envelope{ApiKey: 26, ApiVersion: 3, Body: end.AppendTo(nil)}); errcode.Of(err) != errcode.NotCoordinator {
		t.Fatal(err)
	}
}
