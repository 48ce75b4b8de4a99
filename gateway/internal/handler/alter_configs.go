package handler

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// AlterConfigs (33), versions 0 to 2, replaces all configs of resources; IncrementalAlterConfigs (44), versions 0 to 1,
// changes some (KIP-339).
//
// What is wrong with a resource by itself is answered here, the log levels of a node are changed by that node, and all
// else goes to the controller. Kafka takes a node's configs only at that node; here any connection will do.

// outcome is what became of one resource.
type outcome struct {
	code errcode.Code
	text string
}

func outcomeOf(err error) outcome { return outcome{code: errcode.Of(err), text: errcode.Text(err)} }

// altered is the part of a config resource that both requests have.
type altered struct {
	kind metadata.ResourceType
	name string
	// keys are the names of the configs; nulls those among them whose value is null where it must not be.
	keys, nulls []string
	// cordons are the log directories that a node is told to cordon.
	cordons []string
}

// cordonedLogDirs is the config that names log directories of one node, which only that node knows.
const cordonedLogDirs = "cordoned.log.dirs"

func (a *altered) set(key, value string) {
	if key == cordonedLogDirs {
		a.cordons = append(a.cordons, configdef.SplitList(value)...)
	}
}

// checkAltered finds the resources that are wrong by themselves; those without an entry are fine.
func checkAltered(img metadata.Reader, resources []altered, loggers bool) map[int]outcome {
	type key struct {
		kind metadata.ResourceType
		name string
	}
	out := make(map[int]outcome)
	first := make(map[key]int, len(resources))
	for i, r := range resources {
		k := key{r.kind, r.name}
		if j, ok := first[k]; ok {
			twice := outcome{errcode.InvalidRequest, "Each resource must appear at most once."}
			out[i], out[j] = twice, twice
			continue
		}
		first[k] = i
		if err := checkResource(img, r, loggers); err != nil {
			out[i] = outcomeOf(err)
		}
	}
	return out
}

func checkResource(img metadata.Reader, r altered, loggers bool) error {
	seen := make(map[string]bool, len(r.keys))
	for _, k := range r.keys {
		if seen[k] {
			return errcode.InvalidRequest.Errorf("Error due to duplicate config keys")
		}
		seen[k] = true
	}
	if len(r.nulls) > 0 {
		return errcode.InvalidRequest.Errorf("Null value not supported for : %s", strings.Join(r.nulls, ", "))
	}
	switch r.kind {
	case metadata.ResourceTopic, metadata.ResourceClientMetrics, metadata.ResourceGroup:
		return nil
	case metadata.ResourceBroker:
		if r.name == "" {
			return nil
		}
		_, err := nodeOfResource(img, r.name)
		return err
	case metadata.ResourceBrokerLogger:
		if loggers {
			_, err := nodeOfResource(img, r.name)
			return err
		}
	}
	return errcode.InvalidRequest.Errorf("Unknown resource type %d", int8(r.kind))
}

// nodeOfResource reads the name of a broker resource, which is the id of a node of the cluster.
func nodeOfResource(img metadata.Reader, name string) (int32, error) {
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return 0, errcode.InvalidRequest.Errorf("Node id must be an integer, but it is: %s", name)
	}
	if img.Broker(int32(id)) == nil {
		return 0, errcode.InvalidRequest.Errorf("Unexpected broker id: there is no broker %s in this cluster", name)
	}
	return int32(id), nil
}

func (h *Handlers) alterConfigs(ctx context.Context, r *Request, q *kmsg.AlterConfigsRequest) (kmsg.Response, error) {
	resources := make([]altered, len(q.Resources))
	for i, x := range q.Resources {
		resources[i] = altered{kind: metadata.ResourceType(x.ResourceType), name: x.ResourceName}
		for _, c := range x.Configs {
			resources[i].keys = append(resources[i].keys, c.Name)
			if c.Value == nil {
				resources[i].nulls = append(resources[i].nulls, c.Name)
			} else {
				resources[i].set(c.Name, *c.Value)
			}
		}
	}
	outcomes := checkAltered(h.Image(), resources, false)
	h.checkCordons(ctx, r, resources, outcomes)
	rest := kmsg.NewPtrAlterConfigsRequest()
	rest.Version, rest.ValidateOnly = q.Version, q.ValidateOnly
	for i, x := range q.Resources {
		if _, done := outcomes[i]; !done {
			rest.Resources = append(rest.Resources, x)
		}
	}
	answers := h.alterThere(ctx, r, rest, len(rest.Resources))
	resp := kmsg.NewPtrAlterConfigsResponse()
	for i, x := range q.Resources {
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = x.ResourceType, x.ResourceName
		o, done := outcomes[i]
		if !done {
			o = answers.of(x.ResourceType, x.ResourceName)
		}
		out.ErrorCode = int16(o.code)
		if o.code != errcode.None {
			out.ErrorMessage = &o.text
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

func (h *Handlers) incrementalAlterConfigs(ctx context.Context, r *Request, q *kmsg.IncrementalAlterConfigsRequest) (kmsg.Response, error) {
	resources := make([]altered, len(q.Resources))
	for i, x := range q.Resources {
		resources[i] = altered{kind: metadata.ResourceType(x.ResourceType), name: x.ResourceName}
		for _, c := range x.Configs {
			resources[i].keys = append(resources[i].keys, c.Name)
			switch {
			case c.Value == nil && c.Op != kmsg.IncrementalAlterConfigOpDelete:
				resources[i].nulls = append(resources[i].nulls, c.Name)
			case c.Op == kmsg.IncrementalAlterConfigOpSet, c.Op == kmsg.IncrementalAlterConfigOpAppend:
				resources[i].set(c.Name, *c.Value)
			}
		}
	}
	outcomes := checkAltered(h.Image(), resources, true)
	h.checkCordons(ctx, r, resources, outcomes)
	rest := kmsg.NewPtrIncrementalAlterConfigsRequest()
	rest.Version, rest.ValidateOnly = q.Version, q.ValidateOnly
	for i, x := range q.Resources {
		switch _, done := outcomes[i]; {
		case done:
		case resources[i].kind == metadata.ResourceBrokerLogger:
			outcomes[i] = h.alterLoggers(ctx, r, q, x)
		default:
			rest.Resources = append(rest.Resources, x)
		}
	}
	answers := h.alterThere(ctx, r, rest, len(rest.Resources))
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	for i, x := range q.Resources {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = x.ResourceType, x.ResourceName
		o, done := outcomes[i]
		if !done {
			o = answers.of(x.ResourceType, x.ResourceName)
		}
		out.ErrorCode = int16(o.code)
		if o.code != errcode.None {
			out.ErrorMessage = &o.text
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

// checkCordons refuses to cordon what a node does not have. A node that does not answer is not waited for: it will say in its own
// log what it does not know.
func (h *Handlers) checkCordons(ctx context.Context, r *Request, resources []altered, outcomes map[int]outcome) {
	for i, x := range resources {
		if _, done := outcomes[i]; done || x.kind != metadata.ResourceBroker || len(x.cordons) == 0 {
			continue
		}
		id, err := nodeOfResource(h.Image(), x.name)
		if err != nil {
			continue // the default of all nodes
		}
		q, resp := kmsg.NewPtrDescribeLogDirsRequest(), kmsg.NewPtrDescribeLogDirsResponse()
		q.Version, q.Topics = 4, []kmsg.DescribeLogDirsRequestTopic{} // of no partition
		if err := h.askNode(ctx, r, id, q, resp); err != nil {
			continue
		}
		for _, dir := range x.cordons {
			known := func(d kmsg.DescribeLogDirsResponseDir) bool { return filepath.Clean(d.Dir) == filepath.Clean(dir) }
			if dir != "*" && !slices.ContainsFunc(resp.Dirs, known) {
				outcomes[i] = outcomeOf(errcode.InvalidRequest.Errorf("Invalid value %s for configuration %s: node %d has no log directory %s; "+
					"want some of its log.dirs, or *", strings.Join(x.cordons, ","), cordonedLogDirs, id, dir))
				break
			}
		}
	}
}

// alterAnswers are the controller's answers by resource; failed is what holds for all when there is none.
type alterAnswers struct {
	byResource map[string]outcome
	failed     outcome
}

func resourceKey(kind kmsg.ConfigResourceType, name string) string {
	return strconv.Itoa(int(kind)) + "/" + name
}

func (a *alterAnswers) of(kind kmsg.ConfigResourceType, name string) outcome {
	if o, ok := a.byResource[resourceKey(kind, name)]; ok {
		return o
	}
	return a.failed
}

// alterThere has the controller change the resources of q, one of the two requests, and reads its answers.
func (h *Handlers) alterThere(ctx context.Context, r *Request, q kmsg.Request, resources int) *alterAnswers {
	out := &alterAnswers{byResource: make(map[string]outcome, resources)}
	out.failed = outcome{errcode.UnknownServerError, errcode.UnknownServerError.Message()}
	if resources == 0 {
		return out
	}
	body, err := h.forward(ctx, r, q, q.AppendTo(nil))
	if err != nil {
		out.failed = outcome{forwardCode(err), errcode.Text(err)}
		return out
	}
	resp := q.ResponseKind()
	if err := resp.ReadFrom(body); err != nil {
		h.Logger.Error("the controller's answer is broken", "api", h.byKey[r.Key].Name, "error", err)
		return out
	}
	out.read(resp)
	return out
}

func (a *alterAnswers) read(resp kmsg.Response) {
	add := func(kind kmsg.ConfigResourceType, name string, code int16, text *string) {
		o := outcome{code: errcode.Code(code)}
		if text != nil {
			o.text = *text
		}
		a.byResource[resourceKey(kind, name)] = o
	}
	switch resp := resp.(type) {
	case *kmsg.AlterConfigsResponse:
		for _, x := range resp.Resources {
			add(x.ResourceType, x.ResourceName, x.ErrorCode, x.ErrorMessage)
		}
	case *kmsg.IncrementalAlterConfigsResponse:
		for _, x := range resp.Resources {
			add(x.ResourceType, x.ResourceName, x.ErrorCode, x.ErrorMessage)
		}
	}
}

// alterLoggers has a node change its log levels.
func (h *Handlers) alterLoggers(ctx context.Context, r *Request, q *kmsg.IncrementalAlterConfigsRequest, x kmsg.IncrementalAlterConfigsRequestResource) outcome {
	id, err := nodeOfResource(h.Image(), x.ResourceName)
	if err != nil {
		return outcomeOf(err)
	}
	one := kmsg.NewPtrIncrementalAlterConfigsRequest()
	one.Version, one.ValidateOnly = q.Version, q.ValidateOnly
	one.Resources = []kmsg.IncrementalAlterConfigsRequestResource{x}
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	if err := h.askNode(ctx, r, id, one, resp); err != nil {
		return outcomeOf(err)
	}
	var answers alterAnswers
	answers.byResource = make(map[string]outcome, 1)
	answers.failed = outcome{errcode.UnknownServerError, errcode.UnknownServerError.Message()}
	answers.read(resp)
	return answers.of(x.ResourceType, x.ResourceName)
}

// askNode has a storage node answer a request that addresses this very node; resp is filled.
func (h *Handlers) askNode(ctx context.Context, r *Request, id int32, q kmsg.Request, resp kmsg.Response) error {
	node, err := h.Storage(id)
	if err != nil {
		return errcode.BrokerNotAvailable.Wrap(err)
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.RequestTimeout)
	defer cancel()
	began := h.Now()
	e := h.envelope(r, q.AppendTo(nil))
	e.ApiKey, e.ApiVersion = int32(q.Key()), int32(q.GetVersion())
	reply, err := node.Handle(ctx, &storagev1.HandleRequest{Envelope: e})
	r.Waited += h.Now().Sub(began)
	if err != nil {
		return err
	}
	resp.SetVersion(q.GetVersion())
	if err := resp.ReadFrom(reply.GetReply().GetBody()); err != nil {
		return errcode.UnknownServerError.Wrap(err)
	}
	return nil
}
