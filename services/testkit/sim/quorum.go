package sim

import (
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/controllerd/simulation"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

// sessionTimeout is broker.session.timeout.ms.
const sessionTimeout = 4 * time.Second

// quorum is the metadata log as it is durable, with one claim at a time.
type quorum struct {
	epoch   int32
	batches []metadataBatch
	loader  *metadata.Loader
	image   *metadata.Image
}

type metadataBatch struct {
	base    int64
	epoch   int32
	records []metarecord.Record
}

// controller is one that may become active.
type controller struct {
	process
	id     int32
	core   *simulation.Controller
	active bool
	epoch  int32
	// pending has been decided and is to be appended, in order; appending says that the first of it is under way.
	pending   []pendingAppend
	appending bool
}

type pendingAppend struct {
	decided simulation.Decided
	answer  func(ok bool)
}

func (w *World) newController(id int32) *controller {
	c := &controller{process: w.newProcess("controller %d", id), id: id}
	w.add(&c.process)
	var edit func([]metarecord.Record)
	if w.o.Wrong.ForgetELR {
		edit = forgetELR
	}
	c.core = simulation.New(simulation.Options{
		ID: id, Static: staticConfig(), SessionTimeout: sessionTimeout, Random: w.random,
		Logger: slog.New(slog.DiscardHandler), Edit: edit,
	})
	return c
}

func forgetELR(records []metarecord.Record) {
	for _, r := range records {
		if p, ok := r.(*metarecord.PartitionChangeRecord); ok && len(p.EligibleLeaderReplicas) > 0 {
			p.EligibleLeaderReplicas = nil
		}
	}
}

// claim makes a controller the active one.
func (w *World) claim(c *controller) {
	w.quorum.epoch++
	c.active, c.epoch, c.pending, c.appending = true, w.quorum.epoch, nil, false
	c.core.Activate(w.clock(&c.process), w.quorum.image, c.epoch)
	w.stamp(3, int64(c.id), int64(c.epoch))
	w.note("%s is active in epoch %d", c.name, c.epoch)
	if c.core.Image().FeatureLevel("metadata.version") == 0 {
		d, err := c.core.Bootstrap(w.clock(&c.process))
		w.submit(c, d, err, func(bool) {})
	}
	for _, other := range w.controllers {
		if other != c && other.active {
			// It goes on as if nothing had happened until it notices.
			epoch := other.epoch
			w.later(&other.process, w.between(0, 2*time.Second), func() {
				if other.epoch == epoch {
					other.active = false
				}
			})
		}
	}
	w.periodic(c, c.epoch, 0)
}

// periodic does what an active controller does by itself.
func (w *World) periodic(c *controller, epoch int32, round int) {
	if !c.active || c.epoch != epoch {
		return
	}
	now := w.clock(&c.process)
	for range len(w.nodes) {
		d, err := c.core.FenceSilent(now)
		w.submit(c, d, err, func(bool) {})
	}
	if round%30 == 29 {
		d, err := c.core.Balance(now)
		w.submit(c, d, err, func(bool) {})
	}
	if round%10 == 9 {
		d, err := c.core.ElectUnclean(now)
		w.submit(c, d, err, func(bool) {})
	}
	w.later(&c.process, 200*time.Millisecond, func() { w.periodic(c, epoch, round+1) })
}

// submit appends what was decided; the answer goes out when that is durable, and all that was decided before.
func (w *World) submit(c *controller, d simulation.Decided, err error, answer func(ok bool)) {
	if err != nil {
		w.fail("%s cannot apply its own decision: %w", c.name, err)
		return
	}
	if len(d.Records) == 0 && len(c.pending) == 0 && !c.appending {
		answer(true)
		return
	}
	c.pending = append(c.pending, pendingAppend{d, answer})
	w.append(c)
}

func (w *World) append(c *controller) {
	if c.appending || len(c.pending) == 0 {
		return
	}
	batch, epoch, incarnation := c.pending, c.epoch, c.incarnation
	c.pending, c.appending = nil, true
	latency := w.between(500*time.Microsecond, 5*time.Millisecond)
	if !w.healed && w.chance(2) {
		latency = w.between(10*time.Millisecond, time.Second)
	}
	w.after(latency, func() {
		ok := w.quorum.epoch == epoch
		for i := range batch {
			if ok && len(batch[i].decided.Records) > 0 {
				w.commit(metadataBatch{batch[i].decided.BaseOffset, epoch, batch[i].decided.Records})
			}
		}
		w.after(w.between(0, time.Millisecond), func() {
			w.within(&c.process, incarnation, func() {
				if c.epoch != epoch {
					return
				}
				c.appending = false
				if !ok {
					batch = append(batch, c.pending...)
					c.active, c.pending = false, nil
				}
				for i := range batch {
					batch[i].answer(ok)
				}
				w.append(c)
			})
		})
	})
}

// commit makes a batch durable.
func (w *World) commit(b metadataBatch) {
	q := &w.quorum
	before := q.image
	if err := q.loader.Add(b.base, b.epoch, b.records); err != nil {
		w.fail("the metadata log: %w", err)
		return
	}
	q.batches = append(q.batches, b)
	if delta := q.loader.Take(); delta != nil {
		q.image = delta.Image()
	}
	w.stamp(4, b.base, int64(len(b.records)))
	w.checker.metadataChanged(w, before, b)
}

// request sends a request of a process to the controller that it takes for the active one. done gets the answer, or nil when
// there was none.
func (w *World) request(from *process, believed *int, req kmsg.Request, done func(kmsg.Response)) {
	to := w.controllers[*believed]
	failed := func() {
		*believed = (*believed + 1) % len(w.controllers)
		done(nil)
	}
	w.call(from, &to.process, time.Second, func(answer func(func())) {
		if !to.active {
			answer(failed)
			return
		}
		d, err := to.core.Handle(w.clock(&to.process), req)
		w.submit(to, d, err, func(ok bool) {
			answer(func() {
				if !ok {
					failed()
					return
				}
				done(d.Reply)
			})
		})
	}, failed)
}

// codeOf is the error of an answer, or that there was none.
func codeOf(answered bool, code int16) errcode.Code {
	if !answered {
		return errcode.NetworkException
	}
	return errcode.Code(code)
}
