package handler

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

const (
	// heartbeatOwnID is the first version of ConsumerGroupHeartbeat whose clients make up their member ids themselves.
	heartbeatOwnID = 1
	// groupFeature is the feature that must be at level 1 for consumer groups.
	groupFeature = "group.version"
	// The member epochs of members that join and leave, for good or for a while.
	epochJoins, epochLeaves, epochLeavesForAWhile = 0, -1, -2
)

// consumerGroups says whether consumer groups are served.
func (h *Handler) consumerGroups() bool {
	return h.config.ConsumerProtocol && h.images.Image().FeatureLevel(groupFeature) >= 1
}

// ConsumerGroupHeartbeat 0-1.
//
//	v1 regular expressions, member ids made by the client
func (h *Handler) consumerGroupHeartbeat(ctx context.Context, c call, req *kmsg.ConsumerGroupHeartbeatRequest) (kmsg.Response, error) {
	if !h.consumerGroups() {
		return heartbeatError(errcode.UnsupportedVersion.Err()), nil
	}
	if err := h.checkHeartbeat(req); err != nil {
		return heartbeatError(err), nil
	}
	// The machine works by the newest image that any request has brought.
	image, err := h.imageKnowing(ctx, c, func(metadata.Reader) bool { return false })
	if err != nil {
		return nil, err
	}
	resp, code, err := do[*kmsg.ConsumerGroupHeartbeatResponse](ctx, h, c, &group.ConsumerHeartbeat{
		Request: req, ClientID: c.envelope.GetClientId(), ClientHost: c.envelope.GetClientHost(), Image: image,
	})
	if err != nil {
		return nil, err
	}
	if code != errcode.None {
		return heartbeatError(code.Err()), nil
	}
	return resp, nil
}

func heartbeatError(err error) kmsg.Response {
	r := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	text := errcode.Text(err)
	r.ErrorCode, r.ErrorMessage = int16(errcode.Of(err)), &text
	return r
}

// checkHeartbeat says what is wrong with a request by itself.
func (h *Handler) checkHeartbeat(req *kmsg.ConsumerGroupHeartbeatRequest) error {
	blank := func(s *string) bool { return s != nil && strings.TrimSpace(*s) == "" }
	invalid := errcode.InvalidRequest.Errorf
	needsID := req.Version >= heartbeatOwnID || req.MemberEpoch > epochJoins || req.MemberEpoch == epochLeaves
	switch {
	case needsID && blank(&req.MemberID):
		return invalid("MemberId can't be empty.")
	case blank(&req.Group):
		return invalid("GroupId can't be empty.")
	case blank(req.InstanceID):
		return invalid("InstanceId can't be empty.")
	case blank(req.RackID):
		return invalid("RackId can't be empty.")
	case req.MemberEpoch == epochJoins && req.RebalanceTimeoutMillis == -1:
		return invalid("RebalanceTimeoutMs must be provided in first request.")
	case req.MemberEpoch == epochJoins && (req.Topics == nil || len(req.Topics) > 0):
		return invalid("TopicPartitions must be empty when (re-)joining.")
	case req.MemberEpoch == epochJoins && req.SubscribedTopicNames == nil && req.SubscribedTopicRegex == nil:
		return invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
	case req.MemberEpoch == epochLeavesForAWhile && req.InstanceID == nil:
		return invalid("InstanceId can't be null.")
	case req.MemberEpoch < epochLeavesForAWhile:
		return invalid("MemberEpoch is invalid.")
	case req.ServerAssignor != nil && !slices.Contains(h.config.Assignors, *req.ServerAssignor):
		return errcode.UnsupportedAssignor.Errorf("ServerAssignor %s is not supported. Supported assignors: %s.",
			*req.ServerAssignor, strings.Join(h.config.Assignors, ", "))
	}
	return nil
}

// ConsumerGroupDescribe 0-1. The groups of one request are all of this shard.
//
//	v1 member type
func (h *Handler) consumerGroupDescribe(ctx context.Context, c call, req *kmsg.ConsumerGroupDescribeRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrConsumerGroupDescribeResponse()
	failed := func(id string, code errcode.Code) {
		g := kmsg.NewConsumerGroupDescribeResponseGroup()
		g.Group, g.ErrorCode = id, int16(code)
		r.Groups = append(r.Groups, g)
	}
	command := &group.DescribeConsumerGroups{Image: h.images.Image()}
	served := h.consumerGroups()
	for _, id := range req.Groups {
		switch {
		case !served:
			failed(id, errcode.UnsupportedVersion)
		case id == "":
			failed(id, errcode.InvalidGroupId)
		default:
			command.IDs = append(command.IDs, id)
		}
	}
	if len(command.IDs) == 0 {
		return r, nil
	}
	list, code, err := do[[]kmsg.ConsumerGroupDescribeResponseGroup](ctx, h, c, command)
	if err != nil {
		return nil, err
	}
	if code != errcode.None {
		for _, id := range command.IDs {
			failed(id, code)
		}
		return r, nil
	}
	for i := range list {
		if list[i].ErrorCode == 0 && req.IncludeAuthorizedOperations {
			list[i].AuthorizedOperations = allGroupOperations
		}
	}
	r.Groups = append(r.Groups, list...)
	return r, nil
}
