package listener

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/server"
)

const (
	// anonymous is the principal of a connection without authentication.
	anonymous = "User:ANONYMOUS"
	// patience is how long the active controller may take for what has no time-out of its own, and how much longer for the
	// rest.
	patience = 30 * time.Second
)

// client is who asks.
type client struct {
	host, listener, principal string
}

// answer gives the whole answer to a frame. An error closes the connection.
func (l *Listener) answer(ctx context.Context, c client, frame []byte) ([]byte, error) {
	out, err := l.answerPart(ctx, c, frame)
	if err != nil {
		return nil, err
	}
	return framed(out), nil
}

// answerPart gives the answer to a request with its header, without the length in front.
func (l *Listener) answerPart(ctx context.Context, c client, frame []byte) ([]byte, error) {
	h, req, body, err := l.parse(frame)
	if err != nil {
		return nil, err
	}
	if req == nil {
		return l.unsupportedAPIVersions(h), nil
	}
	if q, ok := req.(*kmsg.EnvelopeRequest); ok {
		resp := l.envelope(ctx, c, q)
		return resp.AppendTo(response(h, resp.IsFlexible())), nil
	}
	if a := l.apis[h.key]; a.answer != nil {
		resp, err := a.answer(l, c, req)
		if err != nil {
			return nil, err
		}
		resp.SetVersion(h.version)
		return resp.AppendTo(response(h, resp.IsFlexible())), nil
	}
	reply, err := l.forward(ctx, c, h, req, body)
	if err != nil {
		// No answer is a reason for the client to look for another controller; it would take a made-up one for the truth.
		return nil, fmt.Errorf("no answer to %s from the active controller: %w", kmsg.NameForKey(h.key), err)
	}
	resp := req.ResponseKind()
	return append(response(h, resp.IsFlexible()), reply...), nil
}

// forward has the active controller answer.
func (l *Listener) forward(ctx context.Context, c client, h header, req kmsg.Request, body []byte) ([]byte, error) {
	limit := patience
	if t, ok := req.(kmsg.TimeoutRequest); ok && t.Timeout() > 0 {
		limit += time.Duration(t.Timeout()) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	reply, err := l.Handle(ctx, &commonv1.Envelope{
		ApiKey: int32(h.key), ApiVersion: int32(h.version), ClientId: h.clientID, Principal: c.principal, ClientHost: c.host,
		Listener: c.listener, Body: body, Trusted: true,
	})
	return reply.GetBody(), err
}

func (l *Listener) unsupportedAPIVersions(h header) []byte {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode = int16(errcode.UnsupportedVersion)
	resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: h.key, MaxVersion: l.apis[h.key].max}}
	return resp.AppendTo(response(h, false))
}

func (l *Listener) apiVersions(req *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := kmsg.NewPtrApiVersionsResponse()
	state := l.State()
	if req.Version >= 5 && req.ClusterID != nil && (*req.ClusterID != state.Image.ClusterID() || req.NodeID != l.NodeID) {
		resp.ErrorCode = int16(errcode.RebootstrapRequired)
		return resp
	}
	for _, a := range table() {
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: a.key, MinVersion: a.min, MaxVersion: a.max})
	}
	for _, f := range control.ControllerFeatures() {
		if f.MinSupportedVersion > 0 || req.Version >= 4 {
			resp.SupportedFeatures = append(resp.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{
				Name: f.Name, MinVersion: f.MinSupportedVersion, MaxVersion: f.MaxSupportedVersion,
			})
		}
	}
	for name, level := range state.Image.Features() {
		if level > 0 {
			resp.FinalizedFeatures = append(resp.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{
				Name: name, MinVersionLevel: level, MaxVersionLevel: level,
			})
		}
	}
	resp.FinalizedFeaturesEpoch = state.Image.Offset()
	return resp
}

func (l *Listener) describeCluster(req *kmsg.DescribeClusterRequest) kmsg.Response {
	return server.DescribeCluster(req, l.State())
}

// describeConfigs tells of this controller's configs, and of the dynamic ones of everything else.
func (l *Listener) describeConfigs(req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	image := l.State().Image
	for i := range req.Resources {
		r := &req.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		entries, err := l.entries(image, r)
		text := errcode.Text(err)
		if err != nil {
			out.ErrorCode = int16(errcode.Of(err))
		}
		out.ErrorMessage, out.Configs = &text, configdef.Response(req, entries)
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func (l *Listener) entries(image *metadata.Image, r *kmsg.DescribeConfigsRequestResource) ([]configdef.Entry, error) {
	kind, own := metadata.ResourceType(r.ResourceType), strconv.Itoa(int(l.NodeID))
	layers := configdef.Layers{
		Static:         l.Properties,
		ClusterDefault: image.Config(metadata.ResourceBroker, ""),
		Broker:         image.Config(metadata.ResourceBroker, own),
	}
	switch kind {
	case metadata.ResourceBroker:
		switch r.ResourceName {
		case "":
			return layers.DescribeClusterDefault(r.ConfigNames), nil
		case own:
			return layers.Describe(configdef.BrokerResource, r.ConfigNames), nil
		}
		return nil, errcode.InvalidRequest.Errorf("Unexpected broker id, expected %s or empty string, but received %s", own, r.ResourceName)
	case metadata.ResourceTopic:
		if image.TopicByName(r.ResourceName) == nil {
			return nil, errcode.UnknownTopicOrPartition.Err()
		}
	case metadata.ResourceGroup, metadata.ResourceClientMetrics:
	case metadata.ResourceBrokerLogger:
		return nil, errcode.InvalidRequest.Errorf("the loggers of controllers are not described here")
	default:
		return nil, errcode.InvalidRequest.Errorf("Unexpected resource type %d for resource %s", r.ResourceType, r.ResourceName)
	}
	layers.Resource = image.Config(kind, r.ResourceName)
	return layers.Describe(configdef.Resource(kind), r.ConfigNames), nil
}
