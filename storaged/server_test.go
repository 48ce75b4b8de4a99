package storaged_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/mem"

	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged"
)

// world is a controller and its metadata log, for one node.
type world struct {
	t         *testing.T
	mu        sync.Mutex
	image     *metadata.Image
	publisher metadata.Publisher
	requests  []kmsg.Request
}

func newWorld(t *testing.T) *world { return &world{t: t, image: metadata.Empty("cluster-1")} }

func (w *world) Image() *metadata.Image {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.image
}

func (w *world) Subscribe(p metadata.Publisher) {
	w.mu.Lock()
	image := w.image
	w.publisher = p
	w.mu.Unlock()
	p.Publish(w.t.Context(), metadata.Diff(metadata.Empty("cluster-1"), image), image)
}

func (w *world) Acknowledge() {}

// commit appends records; the node is told like by a follower, from another goroutine than its own.
func (w *world) commit(records ...metarecord.Record) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset := w.image.Offset() + int64(len(records))
	delta, err := w.image.Apply(offset, 1, records...)
	if err != nil {
		w.t.Error(err)
		return -1
	}
	w.image = delta.Image()
	if w.publisher != nil {
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.publisher.Publish(context.Background(), delta, delta.Image())
		}()
		<-done
	}
	return offset
}

func (w *world) Request(_ context.Context, req kmsg.Request, _ controllerclient.Sender) (kmsg.Response, error) {
	w.mu.Lock()
	w.requests = append(w.requests, req)
	epoch := w.image.Offset() + 1
	w.mu.Unlock()
	switch r := req.(type) {
	case *kmsg.BrokerRegistrationRequest:
		w.commit(&metarecord.RegisterBrokerRecord{BrokerID: r.BrokerID, IncarnationID: r.IncarnationID, BrokerEpoch: epoch, Fenced: true})
		return &kmsg.BrokerRegistrationResponse{BrokerEpoch: epoch}, nil
	case *kmsg.BrokerHeartbeatRequest:
		return &kmsg.BrokerHeartbeatResponse{IsFenced: r.WantFence, ShouldShutdown: r.WantShutdown}, nil
	case *kmsg.AssignReplicasToDirsRequest:
		return kmsg.NewPtrAssignReplicasToDirsResponse(), nil
	}
	return nil, errors.New("unexpected request")
}

func (w *world) topic(name string) uuid.UUID {
	id := uuid.Random()
	w.commit(&metarecord.TopicRecord{Name: name, TopicID: id},
		&metarecord.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	return id
}

func (w *world) last(want func(kmsg.Request) bool) kmsg.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.requests) - 1; i >= 0; i-- {
		if want(w.requests[i]) {
			return w.requests[i]
		}
	}
	return nil
}

func start(t *testing.T, w *world, meter metric.Meter, dirs ...string) *storaged.Server {
	t.Helper()
	s, err := storaged.New(storaged.Config{
		NodeID: 1, LogDirs: dirs, Rack: "r1",
		Endpoints:  []metadata.Endpoint{{Name: metadata.GRPCEndpoint, Host: "localhost", Port: 1}},
		Properties: map[string]string{"node.id": "1", "log.retention.ms": "-1"},
	}, storaged.Deps{
		Metadata: w, Controller: w, Meter: meter,
		Nodes:    func(int32) (storage.Node, error) { return nil, errcode.BrokerNotAvailable.Err() },
		LogLevel: &slog.LevelVar{},
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, s)
	return s
}

func awaitReady(t *testing.T, s *storaged.Server) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(20 * time.Second); s.Ready() != nil; {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal(s.Ready())
		}
	}
}

func meter() (metric.Meter, *sdkmetric.ManualReader) {
	reader := sdkmetric.NewManualReader()
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"), reader
}

func produce(t *testing.T, n storage.Node, topic uuid.UUID, value string) storage.PartitionAppendResult {
	t.Helper()
	b := recordbatch.NewBuilder(nil, recordbatch.NewOptions())
	b.Append(time.Now().UnixMilli(), nil, []byte(value))
	data, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan *storage.AppendResult, 1)
	n.Append(&storage.AppendRequest{
		Acks: storage.AcksAll, TimeoutMs: 5000, WriterEpoch: storage.NoWriterEpoch, APIVersion: 13,
		Partitions: []storage.PartitionAppend{{TopicID: topic, Records: mem.BufferSlice{mem.SliceBuffer(data)}}},
	}, func(r *storage.AppendResult) { done <- r })
	return (<-done).Partitions[0]
}

func read(t *testing.T, n storage.Node, topic uuid.UUID) []string {
	t.Helper()
	res, err := n.Fetch(t.Context(), &storage.FetchRequest{
		ReplicaID: -1, ReplicaEpoch: -1, MaxBytes: 1 << 20,
		Partitions: []storage.FetchPartition{{TopicID: topic, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, MaxBytes: 1 << 20}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Release()
	data, err := res.Partitions[0].Records.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for it := recordbatch.Iterate(data); it.Next(); {
		for r := recordbatch.RecordsOf(it.Bytes()); r.Next(); {
			out = append(out, string(r.Record().Value))
		}
	}
	return out
}

func TestRecordsOutliveTheNode(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t)
	m, _ := meter()
	s := start(t, w, m, dir)
	topic := w.topic("a")
	for _, v := range []string{"0", "1"} {
		if r := produce(t, s.Node(), topic, v); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
	}
	epoch := s.BrokerEpoch()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"meta.properties":                  "cluster.id=cluster-1",
		"replication-offset-checkpoint":    "0\n1\na 0 2\n",
		"recovery-point-offset-checkpoint": "0\n1\na 0 2\n",
		".kafka_cleanshutdown":             `"brokerEpoch":`,
		"a-0/partition.metadata":           topic.String(),
	} {
		if data, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: %s %v", file, data, err)
		}
	}

	s = start(t, w, m, dir)
	req, _ := w.last(func(r kmsg.Request) bool { _, ok := r.(*kmsg.BrokerRegistrationRequest); return ok }).(*kmsg.BrokerRegistrationRequest)
	if req.PreviousBrokerEpoch != epoch || *req.Rack != "r1" || len(req.LogDirs) != 1 || len(req.Features) == 0 {
		t.Errorf("%+v", req)
	}
	if got := read(t, s.Node(), topic); len(got) != 2 {
		t.Fatal(got)
	}
	if r := produce(t, s.Node(), topic, "2"); r.Error != errcode.None || r.BaseOffset != 2 {
		t.Fatalf("%+v", r)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSeveralLogDirectories(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	w := newWorld(t)
	m, _ := meter()
	s := start(t, w, m, a, b)
	for _, name := range []string{"w", "x", "y", "z"} {
		if r := produce(t, s.Node(), w.topic(name), "0"); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{a, b} {
		if found, _ := filepath.Glob(filepath.Join(dir, "?-0")); len(found) != 2 {
			t.Errorf("%s has %v", dir, found)
		}
	}
}

func handle[R kmsg.Response](t *testing.T, n storage.Node, req kmsg.Request, resp R) R {
	t.Helper()
	reply, err := n.Handle(t.Context(), &storagev1.HandleRequest{Envelope: &commonv1.Envelope{
		ApiKey: int32(req.Key()), ApiVersion: int32(req.GetVersion()), Body: req.AppendTo(nil),
	}})
	if err != nil {
		t.Fatal(err)
	}
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(reply.GetReply().GetBody()); err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestDescriptions(t *testing.T) {
	w := newWorld(t)
	m, reader := meter()
	s := start(t, w, m, t.TempDir())
	topic := w.topic("a")
	produce(t, s.Node(), topic, "0")
	n := s.Node()

	dirs := kmsg.NewPtrDescribeLogDirsRequest()
	dirs.Version = 5
	d := handle(t, n, dirs, kmsg.NewPtrDescribeLogDirsResponse())
	if len(d.Dirs) != 1 || len(d.Dirs[0].Topics) != 1 || d.Dirs[0].Topics[0].Partitions[0].Size == 0 || d.Dirs[0].TotalBytes <= 0 {
		t.Errorf("%+v", d)
	}
	dirs.Topics = []kmsg.DescribeLogDirsRequestTopic{{Topic: "nope", Partitions: []int32{0}}}
	if d := handle(t, n, dirs, kmsg.NewPtrDescribeLogDirsResponse()); len(d.Dirs) != 1 || len(d.Dirs[0].Topics) != 0 {
		t.Errorf("%+v", d)
	}

	configs := kmsg.NewPtrDescribeConfigsRequest()
	configs.Version = 4
	for kind, name := range map[kmsg.ConfigResourceType]string{4: "1", 8: "1"} {
		configs.Resources = append(configs.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kind, ResourceName: name})
	}
	configs.Resources = append(configs.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: 4, ResourceName: "2"})
	for _, r := range handle(t, n, configs, kmsg.NewPtrDescribeConfigsResponse()).Resources {
		switch {
		case r.ResourceName == "2":
			if r.ErrorCode != int16(errcode.InvalidRequest) {
				t.Errorf("%+v", r)
			}
		case r.ResourceType == 8:
			if len(r.Configs) != 1 || *r.Configs[0].Value != "INFO" {
				t.Errorf("%+v", r)
			}
		default:
			if len(r.Configs) < 100 {
				t.Errorf("only %d configs", len(r.Configs))
			}
		}
	}

	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	alter.Version = 1
	debug, bad := "DEBUG", "LOUD"
	for _, x := range []struct {
		name, logger string
		value        *string
		op           kmsg.IncrementalAlterConfigOp
		want         errcode.Code
	}{
		{"1", "root", &debug, 0, errcode.None}, {"2", "root", &debug, 0, errcode.InvalidRequest}, {"1", "other", &debug, 0, errcode.InvalidConfig},
		{"1", "root", &bad, 0, errcode.InvalidConfig}, {"1", "root", nil, 0, errcode.InvalidRequest}, {"1", "root", nil, 1, errcode.InvalidRequest},
	} {
		alter.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: 8, ResourceName: x.name,
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: x.logger, Op: x.op, Value: x.value}}}}
		r := handle(t, n, alter, kmsg.NewPtrIncrementalAlterConfigsResponse())
		if errcode.Code(r.Resources[0].ErrorCode) != x.want {
			t.Errorf("%+v: %+v", x, r.Resources[0])
		}
	}
	configs.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: 8, ResourceName: "1"}}
	if r := handle(t, n, configs, kmsg.NewPtrDescribeConfigsResponse()).Resources[0]; *r.Configs[0].Value != "DEBUG" {
		t.Errorf("%+v", r)
	}

	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "a", Partitions: []int32{0, 7}}}
	p := handle(t, n, producers, kmsg.NewPtrDescribeProducersResponse())
	if p.Topics[0].Partitions[0].ErrorCode != 0 || p.Topics[0].Partitions[1].ErrorCode != int16(errcode.UnknownTopicOrPartition) {
		t.Errorf("%+v", p)
	}

	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, scope := range got.ScopeMetrics {
		for _, metric := range scope.Metrics {
			found[metric.Name] = true
		}
	}
	for _, name := range []string{"chancery_storage_messages_in", "chancery_storage_log_end_offset", "chancery_storage_leaders", "chancery_storage_purgatory_size"} {
		if !found[name] {
			t.Errorf("no metric %s", name)
		}
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestBadConfigs(t *testing.T) {
	endpoints := []metadata.Endpoint{{Name: metadata.GRPCEndpoint}}
	for name, c := range map[string]storaged.Config{
		"no directory": {NodeID: 1, Endpoints: endpoints},
		"no endpoint":  {NodeID: 1, LogDirs: []string{"x"}},
		"no id":        {NodeID: -1, LogDirs: []string{"x"}, Endpoints: endpoints},
		"bad property": {NodeID: 1, LogDirs: []string{"x"}, Endpoints: endpoints, Properties: map[string]string{"num.replica.fetchers": "0"}},
	} {
		if _, err := storaged.New(c, storaged.Deps{}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	s, err := storaged.New(storaged.Config{NodeID: 1, LogDirs: []string{"/dev/null/x"}, Endpoints: endpoints}, storaged.Deps{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("started without a directory")
	}
	if r := produce(t, s.Node(), uuid.Random(), "x"); r.Error != errcode.NotLeaderOrFollower {
		t.Errorf("%+v", r)
	}
}
