package etcdlog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/uuid"
)

const (
	// beatInterval is how often the active controller gives a sign of life, silence how long the others miss it before one
	// of them claims the log.
	beatInterval = 400 * time.Millisecond
	silence      = 2 * time.Second
	dialTimeout  = 5 * time.Second
	rewatchPause = 200 * time.Millisecond
	farewell     = "bye"
)

// ExternalConfig describes an etcd that runs elsewhere.
type ExternalConfig struct {
	ID        int32
	Endpoints []string
	// Prefix is before all keys.
	Prefix string
	Logger *slog.Logger
}

// External is the metadata log in an etcd that runs elsewhere; it is a metalog.Log.
//
// That etcd elects nobody for us. The active controller writes signs of life beside its claim, and whoever misses them
// claims the log. Two that do so at once are told apart by the claim; so signs of life decide only when, never who.
type External struct {
	store
	logger     *slog.Logger
	leadership chan bool
	failed     chan error
	cancel     context.CancelFunc
	loops      sync.WaitGroup

	mu sync.Mutex
	// seen is when the active controller was last heard, or when we began to listen.
	seen time.Time
	// contact is when etcd was last heard.
	contact time.Time
	// own is our claim while we hold it.
	own *term
	// claimed is the epoch of the last claim heard of; released says that its holder has said farewell.
	claimed  int32
	released bool
	leads    bool
}

var _ metalog.Log = (*External)(nil)

// Connect reaches an etcd that runs elsewhere. It does not wait for it.
func Connect(c ExternalConfig) (*External, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    silence,
		DialKeepAliveTimeout: silence,
		Logger:               newZapLogger(c.Logger, new(atomic.Bool), func(error) {}).WithOptions(zap.IncreaseLevel(zap.ErrorLevel)),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &External{
		store:      store{client: client, prefix: c.Prefix + "/", id: c.ID},
		logger:     c.Logger,
		leadership: make(chan bool, 1),
		failed:     make(chan error, 1),
		cancel:     cancel,
		seen:       time.Now(),
	}
	e.leadership <- false
	e.loops.Go(func() { e.listen(ctx) })
	e.loops.Go(func() { e.decide(ctx) })
	return e, nil
}

// Claim makes this controller the active one, and begins its signs of life.
func (e *External) Claim(ctx context.Context, address string) (metalog.Term, error) {
	claimed, err := e.store.Claim(ctx, address)
	if err != nil {
		return nil, err
	}
	t := claimed.(*term)
	e.mu.Lock()
	e.own, e.claimed, e.released = t, max(e.claimed, t.epoch), false
	e.seen, e.contact = time.Now(), time.Now()
	e.mu.Unlock()
	if err := e.beat(ctx, ""); err != nil {
		return nil, fmt.Errorf("sign of life: %w", err)
	}
	return t, nil
}

// beat writes a sign of life, unless the claim is not ours any more.
func (e *External) beat(ctx context.Context, value string) error {
	e.mu.Lock()
	t := e.own
	e.mu.Unlock()
	if t == nil {
		return nil
	}
	resp, err := e.client.Txn(ctx).If(t.claimed()).Then(clientv3.OpPut(e.beatKey(), value)).Commit()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contact = time.Now()
	if !resp.Succeeded && e.own == t {
		e.own = nil
	}
	return nil
}

// decide says who should claim, and keeps our own signs of life going.
func (e *External) decide(ctx context.Context) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	for {
		beatCtx, cancel := context.WithTimeout(ctx, silence)
		if err := e.beat(beatCtx, ""); err != nil && ctx.Err() == nil {
			e.logger.Warn("sign of life to etcd", "error", err)
		}
		e.look(beatCtx)
		cancel()
		e.settle(time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// look asks etcd for the claim. While the active controller is silent, only this shows that etcd is not.
func (e *External) look(ctx context.Context) {
	e.mu.Lock()
	active := e.own != nil
	e.mu.Unlock()
	if active {
		return
	}
	resp, err := e.client.Get(ctx, e.activeKey())
	if err != nil {
		return // The lack of contact is what it tells.
	}
	for _, kv := range resp.Kvs {
		e.hear(kv.Value)
	}
	e.heard(func() {})
}

// sign takes note of a sign of life, or of a farewell.
func (e *External) sign(value []byte) {
	e.heard(func() { e.seen, e.released = time.Now(), string(value) == farewell })
}

// settle tells of a change of who should lead.
func (e *External) settle(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	silent := e.claimed == 0 || e.released || now.Sub(e.seen) > silence
	// Without contact we cannot know that the active controller is silent.
	leads := e.own != nil || silent && now.Sub(e.contact) < silence
	if leads == e.leads {
		return
	}
	e.leads = leads
	select {
	case <-e.leadership:
	default:
	}
	e.leadership <- leads
}

// listen hears claims and signs of life.
func (e *External) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := e.listenOnce(ctx); err != nil && ctx.Err() == nil {
			e.logger.Warn("listen for the active controller", "error", err)
			select {
			case <-time.After(rewatchPause):
			case <-ctx.Done():
			}
		}
	}
}

func (e *External) listenOnce(ctx context.Context) error {
	both := clientv3.WithRange(e.beatKey() + "\x00")
	resp, err := e.client.Get(ctx, e.activeKey(), both)
	if err != nil {
		return err
	}
	for _, kv := range resp.Kvs {
		if string(kv.Key) == e.activeKey() {
			e.hear(kv.Value)
		} else {
			e.sign(kv.Value)
		}
	}
	// Contact without a claim known means that there is none, so the claim comes first.
	e.heard(func() {})
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watch := e.client.Watch(ctx, e.activeKey(), both, clientv3.WithRev(resp.Header.Revision+1))
	for resp := range watch {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, event := range resp.Events {
			if string(event.Kv.Key) == e.activeKey() {
				e.hear(event.Kv.Value)
				continue
			}
			e.sign(event.Kv.Value)
		}
	}
	return ctx.Err()
}

// hear takes note of a claim.
func (e *External) hear(value []byte) {
	var h metalog.Holder
	if err := json.Unmarshal(value, &h); err != nil {
		e.logger.Error("claim of the metadata log", "error", err)
		return
	}
	e.heard(func() {
		if h.Epoch > e.claimed {
			e.claimed, e.released, e.seen = h.Epoch, false, time.Now()
		}
		if e.own != nil && h.Epoch > e.own.epoch {
			e.own = nil
		}
	})
}

func (e *External) heard(note func()) {
	e.mu.Lock()
	e.contact = time.Now()
	note()
	e.mu.Unlock()
	e.settle(time.Now())
}

// Leadership tells whether this controller should claim the log.
func (e *External) Leadership() <-chan bool { return e.leadership }

// InContact says whether etcd was heard lately.
func (e *External) InContact() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.contact) < silence
}

// Failed never tells anything: the connection is made again and again.
func (e *External) Failed() <-chan error { return e.failed }

// Voters are unknown: the quorum is not ours. The holder of the claim stands for it.
func (e *External) Voters(ctx context.Context) ([]metalog.Voter, error) {
	resp, err := e.client.Get(ctx, e.activeKey())
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	var h metalog.Holder
	if err := json.Unmarshal(resp.Kvs[0].Value, &h); err != nil {
		return nil, err
	}
	return []metalog.Voter{{ID: h.ID, Leader: true}}, nil
}

// Members are unknown, and nobody can be admitted.
func (e *External) Members(context.Context, int32, uuid.UUID) ([]metalog.Member, error) {
	return nil, nil
}

// AddVoter refuses: the quorum is not ours.
func (e *External) AddVoter(context.Context, metalog.NewVoter) error { return metalog.ErrStaticVoters }

// RemoveVoter refuses: the quorum is not ours.
func (e *External) RemoveVoter(context.Context, int32, uuid.UUID) error {
	return metalog.ErrStaticVoters
}

// Close says farewell, so that another controller takes over at once.
func (e *External) Close(ctx context.Context) error {
	e.cancel()
	e.loops.Wait()
	if err := e.beat(ctx, farewell); err != nil {
		e.logger.Warn("farewell to etcd", "error", err)
	}
	return e.client.Close()
}
