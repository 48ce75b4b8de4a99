package handler

import (
	"context"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// DescribeConfigs (32), versions 1 to 4: the configs of topics, groups, client metrics subscriptions and nodes.
//
// Version 1 has synonyms, 3 types and documentation, 4 is flexible. Topics, groups and subscriptions are described here, from the
// image and this gateway's own settings, which are those of the cluster. A node describes itself and its loggers,
// whichever address the client asks at; Kafka does so only at that node.

func (h *Handlers) describeConfigs(ctx context.Context, r *Request, q *kmsg.DescribeConfigsRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	img := h.Image()
	for i := range q.Resources {
		x := &q.Resources[i]
		resp.Resources = append(resp.Resources, h.describeResource(ctx, r, img, q, x))
	}
	return resp, nil
}

func (h *Handlers) describeResource(ctx context.Context, r *Request, img metadata.Reader, q *kmsg.DescribeConfigsRequest, x *kmsg.DescribeConfigsRequestResource) kmsg.DescribeConfigsResponseResource {
	out := kmsg.NewDescribeConfigsResponseResource()
	out.ResourceType, out.ResourceName = x.ResourceType, x.ResourceName
	entries, err := h.entriesOf(img, r, q, x)
	// Kafka's text for "no error", and for topics that do not exist, is an empty one, not null.
	out.ErrorMessage = kmsg.StringPtr("")
	switch {
	case errcode.Of(err) == errcode.UnknownTopicOrPartition:
		out.ErrorCode = int16(errcode.UnknownTopicOrPartition)
	case err != nil:
		text := errcode.Text(err)
		out.ErrorCode, out.ErrorMessage = int16(errcode.Of(err)), &text
	case entries.node >= 0:
		h.describeAtNode(ctx, r, entries.node, q, x, &out)
	default:
		out.Configs = configdef.Response(q, entries.list)
	}
	return out
}

// resourceEntries are the configs of a resource, or the node that knows them.
type resourceEntries struct {
	list []configdef.Entry
	node int32
}

func (h *Handlers) entriesOf(img metadata.Reader, r *Request, q *kmsg.DescribeConfigsRequest, x *kmsg.DescribeConfigsRequestResource) (resourceEntries, error) {
	here := func(list []configdef.Entry) (resourceEntries, error) {
		return resourceEntries{list: list, node: -1}, nil
	}
	for i := range q.Resources {
		// One resource of no known type fails the request as a whole.
		if !describable(metadata.ResourceType(q.Resources[i].ResourceType)) {
			return resourceEntries{}, errcode.InvalidRequest.Errorf("Unexpected resource type %d for resource %s", q.Resources[i].ResourceType, q.Resources[i].ResourceName)
		}
	}
	kind, name := metadata.ResourceType(x.ResourceType), x.ResourceName
	layers := h.nodeConfig(img, r).Layers(img.Config(kind, name))
	switch {
	case kind == metadata.ResourceTopic:
		if !validTopicName(name) {
			return resourceEntries{}, errcode.InvalidTopicException.Err()
		}
		if img.TopicByName(name) == nil {
			return resourceEntries{}, errcode.UnknownTopicOrPartition.Err()
		}
		return here(layers.Describe(configdef.TopicResource, x.ConfigNames))
	case kind == metadata.ResourceBroker && name == "":
		return here(layers.DescribeClusterDefault(x.ConfigNames))
	case kind == metadata.ResourceBroker, kind == metadata.ResourceBrokerLogger:
		if name == "" {
			return resourceEntries{}, errcode.InvalidRequest.Errorf("Broker id must not be empty")
		}
		node, err := nodeOfResource(img, name)
		return resourceEntries{node: node}, err
	case name == "" && kind == metadata.ResourceGroup:
		return resourceEntries{}, errcode.InvalidRequest.Errorf("Group name must not be empty")
	case name == "":
		return resourceEntries{}, errcode.InvalidRequest.Errorf("Client metrics subscription name must not be empty")
	}
	return here(layers.Describe(configdef.Resource(kind), x.ConfigNames))
}

func describable(kind metadata.ResourceType) bool {
	switch kind {
	case metadata.ResourceTopic, metadata.ResourceBroker, metadata.ResourceBrokerLogger, metadata.ResourceGroup, metadata.ResourceClientMetrics:
		return true
	}
	return false
}

// nodeConfig is the configuration that topics and groups build on: this gateway's settings, with the dynamic ones of all
// nodes and of the node that the client means.
func (h *Handlers) nodeConfig(img metadata.Reader, r *Request) *configdef.Node {
	var own map[string]string
	if r.Conn.NodeID != UnknownNode {
		own = img.Config(metadata.ResourceBroker, strconv.Itoa(int(r.Conn.NodeID)))
	}
	return h.config.Node.WithDynamic(img.Config(metadata.ResourceBroker, ""), own)
}

// describeAtNode has a node describe itself.
func (h *Handlers) describeAtNode(ctx context.Context, r *Request, node int32, q *kmsg.DescribeConfigsRequest, x *kmsg.DescribeConfigsRequestResource, out *kmsg.DescribeConfigsResponseResource) {
	one := kmsg.NewPtrDescribeConfigsRequest()
	one.Version, one.IncludeSynonyms, one.IncludeDocumentation = q.Version, q.IncludeSynonyms, q.IncludeDocumentation
	one.Resources = []kmsg.DescribeConfigsRequestResource{*x}
	resp := kmsg.NewPtrDescribeConfigsResponse()
	err := h.askNode(ctx, r, node, one, resp)
	if err == nil && len(resp.Resources) == 1 {
		*out = resp.Resources[0]
		return
	}
	text := errcode.Text(err)
	out.ErrorCode, out.ErrorMessage = int16(errcode.Of(err)), &text
	if err == nil {
		out.ErrorCode = int16(errcode.UnknownServerError)
	}
}
