// Package simulation lets a simulator play a controller step by step: the rules of the active controller and the image that
// they work on, without the loop, the clock and the quorum around them.
//
// It owns the image of what has been decided and may not be durable yet. It must never append anything: the simulated quorum
// does, and a controller that was too late starts from it again. Nothing but a simulation may use it.
package simulation

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/controllerd/internal/control"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// Options is what a controller is made of.
type Options struct {
	ID             int32
	Static         *configdef.Node
	SessionTimeout time.Duration
	Random         *rand.Rand
	Logger         *slog.Logger
	// Edit, if set, sees the records of each decision before they take effect: a simulation breaks rules with it, to see
	// that this is noticed.
	Edit func([]metarecord.Record)
}

// Controller is an active controller. It belongs to one goroutine.
type Controller struct {
	o       Options
	manager *control.Manager
	working *metadata.Loader
	epoch   int32
}

// New makes a controller, which begins to decide with Activate.
func New(o Options) *Controller {
	newID := func() uuid.UUID {
		var id uuid.UUID
		for i := range id {
			id[i] = byte(o.Random.Uint32())
		}
		return id
	}
	settings := control.Settings{Node: o.Static, SessionTimeout: o.SessionTimeout, ControllerID: o.ID}
	return &Controller{o: o, manager: control.New(settings, o.Random, newID, o.Logger)}
}

// Activate begins a time as the active controller, from an image at whose offset the log ends.
func (c *Controller) Activate(now time.Time, image *metadata.Image, epoch int32) {
	c.working, c.epoch = metadata.NewLoader(image), epoch
	c.manager.Reset(image, c.working.NextOffset(), now)
}

// Decided are records that are to be appended at an offset, and the answer that may go out after that.
type Decided struct {
	BaseOffset int64
	Records    []metarecord.Record
	Reply      kmsg.Response
}

// Handle decides about a request.
func (c *Controller) Handle(now time.Time, req kmsg.Request) (Decided, error) {
	c.manager.At(now)
	d, ok := c.manager.Handle(req, true)
	if !ok {
		return Decided{}, fmt.Errorf("controllers do not answer %T", req)
	}
	return c.accept(d)
}

// Bootstrap gives the first records of a new cluster.
func (c *Controller) Bootstrap(now time.Time) (Decided, error) {
	c.manager.At(now)
	return c.accept(c.manager.Bootstrap())
}

// FenceSilent fences one node that has been silent for too long, if there is one.
func (c *Controller) FenceSilent(now time.Time) (Decided, error) {
	c.manager.At(now)
	d, _ := c.manager.FenceSilent()
	return c.accept(d)
}

// Balance moves leaders to the preferred replicas.
func (c *Controller) Balance(now time.Time) (Decided, error) {
	c.manager.At(now)
	d, _ := c.manager.BalanceLeaders()
	return c.accept(d)
}

// ElectUnclean gives leaders to partitions whose topics prefer lost records to none.
func (c *Controller) ElectUnclean(now time.Time) (Decided, error) {
	c.manager.At(now)
	d, _ := c.manager.ElectUncleanLeaders()
	return c.accept(d)
}

// accept lets records take effect on what is decided next. They go through their encoded form, as they do in the log.
func (c *Controller) accept(d control.Decision) (Decided, error) {
	reply, _ := d.Reply.(kmsg.Response)
	out := Decided{BaseOffset: c.working.NextOffset(), Reply: reply}
	if len(d.Records) == 0 {
		return out, nil
	}
	if c.o.Edit != nil {
		c.o.Edit(d.Records)
	}
	records, err := metarecord.DecodeAll(metarecord.EncodeAll(d.Records))
	if err != nil {
		return out, fmt.Errorf("records of a decision: %w", err)
	}
	if err := c.working.Add(out.BaseOffset, c.epoch, records); err != nil {
		return out, fmt.Errorf("records of a decision: %w", err)
	}
	c.manager.Apply(c.working.Take(), c.working.NextOffset())
	out.Records = records
	return out, nil
}

// Image is the image of all that has been decided.
func (c *Controller) Image() *metadata.Image { return c.manager.Image() }
