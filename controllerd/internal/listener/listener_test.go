package listener

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"

	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
)

const clusterID = "the-cluster"

// start gives the address of a listener whose active controller answers as handle does.
func start(t testing.TB, handle func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error)) *Listener {
	f := feed.New()
	f.Reset(metadata.Empty(clusterID), -1)
	f.SetHolder(metalog.Holder{Epoch: 4, ID: 7})
	l := New(Config{
		NodeID: 7, Name: "CONTROLLER", Address: "127.0.0.1:0", MaxRequestBytes: 1 << 20, IdleTimeout: time.Minute,
		Properties: map[string]string{"num.io.threads": "5"},
		Handle:     handle, State: f.State, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func dial(t testing.TB, l *Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func frameOf(key, version int16, body []byte, flexible bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, 42)
	b = append(b, 0, 4)
	b = append(b, "test"...)
	if flexible {
		b = append(b, 0)
	}
	return append(b, body...)
}

// ask sends a request and gives the answer behind its header; io.EOF when the connection was closed instead.
func ask(t testing.TB, c net.Conn, req kmsg.Request) (kmsg.Response, error) {
	t.Helper()
	raw, err := exchange(c, frameOf(req.Key(), req.GetVersion(), req.AppendTo(nil), req.IsFlexible()))
	if err != nil {
		return nil, err
	}
	if id := binary.BigEndian.Uint32(raw); id != 42 {
		t.Fatalf("correlation id %d", id)
	}
	resp, skip := req.ResponseKind(), 4
	if resp.IsFlexible() && kmsg.Key(req.Key()) != kmsg.ApiVersions {
		skip++
	}
	if err := resp.ReadFrom(raw[skip:]); err != nil {
		t.Fatal(err)
	}
	return resp, nil
}

func exchange(c net.Conn, frame []byte) ([]byte, error) {
	if _, err := c.Write(framed(frame)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	raw := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c, raw)
	return raw, err
}

func TestAnswersHere(t *testing.T) {
	l := start(t, nil)
	c := dial(t, l)
	for version := range int16(6) {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = version, "test", "1"
		resp, err := ask(t, c, req)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.(*kmsg.ApiVersionsResponse); got.ErrorCode != 0 || len(got.ApiKeys) != len(table()) {
			t.Errorf("v%d: %+v", version, got)
		}
	}
	raw, err := exchange(c, frameOf(18, 99, nil, true))
	if err != nil || int16(binary.BigEndian.Uint16(raw[4:])) != int16(errcode.UnsupportedVersion) {
		t.Errorf("ApiVersions v99: %x, %v", raw, err)
	}

	configs := kmsg.NewPtrDescribeConfigsRequest()
	configs.Version = 4
	for _, name := range []string{"7", "8"} {
		configs.Resources = append(configs.Resources, kmsg.DescribeConfigsRequestResource{
			ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: name, ConfigNames: []string{"num.io.threads"},
		})
	}
	resp, err := ask(t, c, configs)
	if err != nil {
		t.Fatal(err)
	}
	own, other := resp.(*kmsg.DescribeConfigsResponse).Resources[0], resp.(*kmsg.DescribeConfigsResponse).Resources[1]
	if len(own.Configs) != 1 || *own.Configs[0].Value != "5" || other.ErrorCode != int16(errcode.InvalidRequest) {
		t.Errorf("%+v, %+v", own, other)
	}

	wrong := "wrong"
	vote := kmsg.NewPtrVoteRequest()
	vote.ClusterID = &wrong
	if resp, err := ask(t, c, vote); err != nil || resp.(*kmsg.VoteResponse).ErrorCode != int16(errcode.InconsistentClusterId) {
		t.Errorf("%+v, %v", resp, err)
	}
	vote.ClusterID = nil
	vote.Topics = []kmsg.VoteRequestTopic{{Topic: clusterMetadata, Partitions: []kmsg.VoteRequestTopicPartition{{}}}}
	resp, err = ask(t, c, vote)
	if err != nil {
		t.Fatal(err)
	}
	if p := resp.(*kmsg.VoteResponse).Topics[0].Partitions[0]; p.LeaderID != 7 || p.LeaderEpoch != 4 || p.VoteGranted {
		t.Errorf("%+v", p)
	}
}

func TestFetchSnapshot(t *testing.T) {
	l := start(t, nil)
	l.SnapshotDir = t.TempDir()
	if err := os.WriteFile(filepath.Join(l.SnapshotDir, "00000000000000000010-0000000003.checkpoint"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	ofTopic := func(topic string, epoch int32, end, position int64) *kmsg.FetchSnapshotResponse {
		t.Helper()
		req := kmsg.NewPtrFetchSnapshotRequest()
		req.Version, req.MaxBytes = 1, 4
		p := kmsg.NewFetchSnapshotRequestTopicPartition()
		p.CurrentLeaderEpoch, p.Position = epoch, position
		p.SnapshotID.EndOffset, p.SnapshotID.Epoch = end, 3
		req.Topics = []kmsg.FetchSnapshotRequestTopic{{Topic: topic, Partitions: []kmsg.FetchSnapshotRequestTopicPartition{p}}}
		resp, err := ask(t, c, req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.FetchSnapshotResponse)
	}
	fetch := func(epoch int32, end, position int64) kmsg.FetchSnapshotResponseTopicPartition {
		t.Helper()
		return ofTopic(clusterMetadata, epoch, end, position).Topics[0].Partitions[0]
	}
	if resp := ofTopic("other", 4, 10, 0); resp.ErrorCode != int16(errcode.UnknownServerError) || len(resp.Topics) != 0 {
		t.Errorf("of another topic: %+v", resp)
	}
	if p := fetch(4, 10, 7); p.ErrorCode != 0 || p.Size != 10 || string(p.Bytes) != "789" || p.CurrentLeader.LeaderID != 7 {
		t.Errorf("%+v", p)
	}
	for _, refused := range []struct {
		epoch         int32
		end, position int64
		want          errcode.Code
	}{
		{3, 10, 0, errcode.FencedLeaderEpoch},
		{5, 10, 0, errcode.UnknownLeaderEpoch},
		{4, 11, 0, errcode.SnapshotNotFound},
		{4, 10, 10, errcode.PositionOutOfRange},
		{4, 10, -1, errcode.PositionOutOfRange},
	} {
		if p := fetch(refused.epoch, refused.end, refused.position); p.ErrorCode != int16(refused.want) {
			t.Errorf("%+v: got %s", refused, errcode.Code(p.ErrorCode).Name())
		}
	}
}

func TestForwards(t *testing.T) {
	var got *commonv1.Envelope
	fails := false
	l := start(t, func(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		got = e
		if fails {
			return nil, errcode.RequestTimedOut.Err()
		}
		resp := kmsg.NewPtrDeleteTopicsResponse()
		resp.Version = int16(e.GetApiVersion())
		resp.ThrottleMillis = 5
		return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
	})
	c := dial(t, l)
	req := kmsg.NewPtrDeleteTopicsRequest()
	for _, version := range []int16{1, 6} {
		req.Version = version
		resp, err := ask(t, c, req)
		if err != nil || resp.(*kmsg.DeleteTopicsResponse).ThrottleMillis != 5 {
			t.Fatalf("v%d: %+v, %v", version, resp, err)
		}
		if got.GetListener() != "CONTROLLER" || got.GetPrincipal() != anonymous || got.GetClientHost() != "/127.0.0.1" || got.GetClientId() != "test" {
			t.Errorf("%+v", got)
		}
	}

	envelope := kmsg.NewPtrEnvelopeRequest()
	envelope.RequestData, envelope.ClientHostAddress = []byte("garbage"), []byte{10, 0, 0, 1}
	if resp, err := ask(t, c, envelope); err != nil || resp.(*kmsg.EnvelopeResponse).ErrorCode != int16(errcode.PrincipalDeserializationFailure) {
		t.Errorf("%+v, %v", resp, err)
	}
	principal := kmsg.DefaultPrincipalData{Type: "User", Name: "alice"}
	envelope.RequestPrincipal = principal.AppendTo(nil)
	if resp, err := ask(t, c, envelope); err != nil || resp.(*kmsg.EnvelopeResponse).ErrorCode != int16(errcode.InvalidRequest) {
		t.Errorf("%+v, %v", resp, err)
	}
	envelope.RequestData = frameOf(req.Key(), req.Version, req.AppendTo(nil), true)
	resp, err := ask(t, c, envelope)
	if err != nil || resp.(*kmsg.EnvelopeResponse).ErrorCode != 0 || len(resp.(*kmsg.EnvelopeResponse).ResponseData) < 5 {
		t.Fatalf("%+v, %v", resp, err)
	}
	if got.GetPrincipal() != "User:alice" || got.GetClientHost() != "/10.0.0.1" {
		t.Errorf("%+v", got)
	}

	fails = true
	if _, err := ask(t, c, req); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}

func TestClosesOnWhatIsNotServed(t *testing.T) {
	l := start(t, nil)
	for name, frame := range map[string][]byte{
		"a broker's API":   frameOf(3, 12, nil, true),
		"no such version":  frameOf(60, 9, nil, true),
		"broken body":      frameOf(60, 2, []byte{9}, true),
		"broken client id": {0, 18, 0, 3, 0, 0, 0, 1, 9, 9},
	} {
		if _, err := exchange(dial(t, l), frame); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, size := range []uint32{0, 9, 1<<20 + 1, 1 << 31} {
		c := dial(t, l)
		if _, err := c.Write(binary.BigEndian.AppendUint32(nil, size)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a frame of %d bytes: %v", size, err)
		}
	}
}

// FuzzAnswer answers frames of any bytes.
func FuzzAnswer(f *testing.F) {
	l := start(f, func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return &commonv1.EnvelopeReply{}, nil
	})
	for _, a := range table() {
		req := kmsg.RequestForKey(a.key)
		req.SetVersion(a.max)
		f.Add(frameOf(a.key, a.max, req.AppendTo(nil), req.IsFlexible()))
	}
	f.Fuzz(func(_ *testing.T, frame []byte) {
		_, _ = l.answer(context.Background(), client{}, frame)
	})
}
