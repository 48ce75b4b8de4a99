package handler

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/clients/transactionclient"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// vouching makes the coordinators of transactions answer a question, and counts them.
func (c *cluster) vouching(answer func(q *transactionclient.Question) errcode.Code) *int {
	asked := 0
	c.h.config.AskTransaction = func(q *transactionclient.Question) {
		asked++
		q.Partitions[0].Done(answer(q))
	}
	c.h.config.VerifyTransactions = func(metadata.Reader) bool { return true }
	return &asked
}

func txnCommitRequest(version int16, group string) *kmsg.TxnOffsetCommitRequest {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.Generation = "tx", group, 7, -1
	topic := kmsg.TxnOffsetCommitRequestTopic{Topic: "a", TopicID: topicID}
	for _, p := range []int32{0, 9} {
		part := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		part.Partition, part.Offset, part.Metadata = p, 5, kmsg.StringPtr("m")
		topic.Partitions = append(topic.Partitions, part)
	}
	none := kmsg.TxnOffsetCommitRequestTopic{Topic: "none", TopicID: [16]byte{1}}
	none.Partitions = append(none.Partitions, kmsg.NewTxnOffsetCommitRequestTopicPartition())
	req.Topics = append(req.Topics, topic, none)
	return req
}

// committed is the code for the partition that exists, which comes after those that do not.
func committed(r *kmsg.TxnOffsetCommitResponse) errcode.Code {
	return errcode.Code(r.Topics[0].Partitions[1].ErrorCode)
}

func TestTxnOffsetCommitVersions(t *testing.T) {
	for version := range int16(7) {
		c := newCluster(t)
		asked := c.vouching(func(q *transactionclient.Question) errcode.Code {
			if q.Add != (version >= 5) || q.TransactionalID != "tx" || q.ProducerID != 7 || q.Partitions[0].Topic != "__consumer_offsets" {
				t.Errorf("v%d: %+v", version, q)
			}
			return errcode.None
		})
		for range 2 {
			r := send[*kmsg.TxnOffsetCommitResponse](c, version, txnCommitRequest(version, "g"))
			unknown := errcode.UnknownTopicOrPartition
			if version >= 6 {
				unknown = errcode.UnknownTopicId
			}
			if p := r.Topics[0].Partitions; committed(r) != errcode.None || p[0].Partition != 9 || errcode.Code(p[0].ErrorCode) != errcode.UnknownTopicOrPartition {
				t.Fatalf("v%d: %+v", version, r)
			}
			if errcode.Code(r.Topics[1].Partitions[0].ErrorCode) != unknown {
				t.Fatalf("v%d: %+v", version, r)
			}
		}
		if *asked != 1 {
			t.Fatalf("v%d: the coordinator was asked %d times", version, *asked)
		}
	}
}

func TestTxnOffsetCommitFailures(t *testing.T) {
	for _, x := range []struct {
		version int16
		answer  errcode.Code
		want    errcode.Code
	}{
		{3, errcode.TransactionAbortable, errcode.InvalidTxnState},
		{4, errcode.TransactionAbortable, errcode.TransactionAbortable},
		{5, errcode.ProducerFenced, errcode.InvalidProducerEpoch},
		{5, errcode.ConcurrentTransactions, errcode.ConcurrentTransactions},
		{5, errcode.NetworkException, errcode.CoordinatorLoadInProgress},
		{1, errcode.NetworkException, errcode.CoordinatorNotAvailable},
		{5, errcode.InvalidProducerIdMapping, errcode.InvalidProducerIdMapping},
	} {
		c := newCluster(t)
		c.vouching(func(*transactionclient.Question) errcode.Code { return x.answer })
		r := send[*kmsg.TxnOffsetCommitResponse](c, x.version, txnCommitRequest(x.version, "g"))
		if got := committed(r); got != x.want {
			t.Errorf("v%d %s: %s", x.version, x.answer, got)
		}
	}
	c := newCluster(t)
	c.vouching(func(*transactionclient.Question) errcode.Code { return errcode.None })
	if r := send[*kmsg.TxnOffsetCommitResponse](c, 4, txnCommitRequest(4, "")); committed(r) != errcode.InvalidGroupId {
		t.Errorf("%+v", r)
	}
	bad := txnCommitRequest(4, "g")
	bad.ProducerEpoch = -1
	if r := send[*kmsg.TxnOffsetCommitResponse](c, 4, bad); committed(r) != errcode.InvalidProducerEpoch {
		t.Errorf("%+v", r)
	}
	bad.ProducerID = -1
	if r := send[*kmsg.TxnOffsetCommitResponse](c, 4, bad); committed(r) != errcode.InvalidProducerIdMapping {
		t.Errorf("%+v", r)
	}
	bad.TransactionalID = ""
	if r := send[*kmsg.TxnOffsetCommitResponse](c, 4, bad); committed(r) != errcode.InvalidRequest {
		t.Errorf("%+v", r)
	}
}

// TestMarkerBetweenQuestionAndCommit: the coordinator is asked again, and its later answer counts.
func TestMarkerBetweenQuestionAndCommit(t *testing.T) {
	c := newCluster(t)
	times := 0
	c.vouching(func(*transactionclient.Question) errcode.Code {
		if times++; times > 1 {
			return errcode.TransactionAbortable
		}
		send[*kmsg.WriteTxnMarkersResponse](c, 2, markersOf(0, 0))
		return errcode.None
	})
	r := send[*kmsg.TxnOffsetCommitResponse](c, 4, txnCommitRequest(4, "g"))
	if got := committed(r); got != errcode.TransactionAbortable || times != 2 {
		t.Fatal(got, times)
	}
}

func TestVerificationMayBeOff(t *testing.T) {
	c := newCluster(t)
	asked := c.vouching(func(*transactionclient.Question) errcode.Code { return errcode.TransactionAbortable })
	c.h.config.VerifyTransactions = func(metadata.Reader) bool { return false }
	if r := send[*kmsg.TxnOffsetCommitResponse](c, 4, txnCommitRequest(4, "g")); committed(r) != errcode.None || *asked != 0 {
		t.Fatalf("%+v", r)
	}
	// What is added has to be added all the same.
	if r := send[*kmsg.TxnOffsetCommitResponse](c, 5, txnCommitRequest(5, "h")); committed(r) != errcode.None || *asked != 0 {
		t.Fatalf("the transaction is open already: %+v", r)
	}
}

func markersOf(epoch int16, partitions ...int32) *kmsg.WriteTxnMarkersRequest {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Markers = []kmsg.WriteTxnMarkersRequestMarker{{
		ProducerID: 7, ProducerEpoch: epoch, Committed: true,
		Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "__consumer_offsets", Partitions: partitions}},
	}}
	return req
}

func TestWriteTxnMarkersVersions(t *testing.T) {
	for version := int16(1); version <= 2; version++ {
		c := newCluster(t)
		c.vouching(func(*transactionclient.Question) errcode.Code { return errcode.None })
		send[*kmsg.TxnOffsetCommitResponse](c, 4, txnCommitRequest(4, "g"))
		r := send[*kmsg.WriteTxnMarkersResponse](c, version, markersOf(0, 0, 3))
		p := r.Markers[0].Topics[0].Partitions
		if r.Markers[0].ProducerID != 7 || p[0].ErrorCode != 0 || errcode.Code(p[1].ErrorCode) != errcode.UnknownTopicOrPartition {
			t.Fatalf("%+v", r)
		}
		fetch := kmsg.NewPtrOffsetFetchRequest()
		fetch.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g", MemberEpoch: -1, Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "a", Partitions: []int32{0}}}}}
		fetch.RequireStable = true
		if f := send[*kmsg.OffsetFetchResponse](c, 8, fetch); f.Groups[0].Topics[0].Partitions[0].Offset != 5 {
			t.Fatalf("%+v", f)
		}
		for _, x := range []struct {
			id    int64
			epoch int16
			want  errcode.Code
		}{{-1, 0, errcode.UnknownServerError}, {1, -1, errcode.UnknownServerError}, {1, -5, errcode.InvalidProducerEpoch}} {
			bad := markersOf(0, 0)
			bad.Markers[0].ProducerID, bad.Markers[0].ProducerEpoch = x.id, x.epoch
			if r := send[*kmsg.WriteTxnMarkersResponse](c, version, bad); errcode.Code(r.Markers[0].Topics[0].Partitions[0].ErrorCode) != x.want {
				t.Fatalf("%+v, want %s", r, x.want.Name())
			}
		}
	}
	c := newCluster(t)
	c.failure = errcode.CoordinatorLoadInProgress.Err()
	if r := send[*kmsg.WriteTxnMarkersResponse](c, 2, markersOf(0, 0)); errcode.Code(r.Markers[0].Topics[0].Partitions[0].ErrorCode) != errcode.NotLeaderOrFollower {
		t.Fatalf("%+v", r)
	}
}
