package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	"chancery/services/kafka/errcode"
)

// JoinGroup 0-9.
//
//	v1 rebalance time-out (before: the session's)   v4 MEMBER_ID_REQUIRED   v5 static members   v6 flexible
//	v7 protocol type, null protocol                  v8 reason               v9 skipAssignment
func (h *Handler) joinGroup(ctx context.Context, c call, req *kmsg.JoinGroupRequest) (kmsg.Response, error) {
	session := int64(req.SessionTimeoutMillis)
	switch {
	case req.Group == "":
		return joinError(req.MemberID, errcode.InvalidGroupId), nil
	case session < h.config.MinSessionTimeout.Milliseconds() || session > h.config.MaxSessionTimeout.Milliseconds():
		return joinError(req.MemberID, errcode.InvalidSessionTimeout), nil
	}
	clientID := ""
	if c.envelope.ClientId != nil {
		clientID = c.envelope.GetClientId()
	}
	resp, code, err := do[*kmsg.JoinGroupResponse](ctx, h, c, &group.Join{
		Request: req, ClientID: clientID, ClientHost: c.envelope.GetClientHost(), Image: h.images.Image(),
	})
	if err != nil {
		return nil, err
	}
	if code != errcode.None {
		return joinError("", code), nil
	}
	return resp, nil
}

func joinError(memberID string, code errcode.Code) kmsg.Response {
	r := kmsg.NewPtrJoinGroupResponse()
	r.Generation, r.MemberID, r.ErrorCode = -1, memberID, int16(code)
	return r
}

// syncMandatoryProtocol is the first version of SyncGroup that must name the protocol.
const syncMandatoryProtocol = 5

// SyncGroup 0-5.
//
//	v3 static members   v4 flexible   v5 protocol type and protocol
func (h *Handler) syncGroup(ctx context.Context, c call, req *kmsg.SyncGroupRequest) (kmsg.Response, error) {
	switch {
	case req.Version >= syncMandatoryProtocol && (req.ProtocolType == nil || req.Protocol == nil):
		return syncError(errcode.InconsistentGroupProtocol), nil
	case req.Group == "":
		return syncError(errcode.InvalidGroupId), nil
	}
	resp, code, err := do[*kmsg.SyncGroupResponse](ctx, h, c, &group.Sync{Request: req})
	if err != nil {
		return nil, err
	}
	if code != errcode.None {
		return syncError(code), nil
	}
	return resp, nil
}

func syncError(code errcode.Code) kmsg.Response {
	r := kmsg.NewPtrSyncGroupResponse()
	r.ErrorCode, r.MemberAssignment = int16(code), []byte{}
	return r
}

// Heartbeat 0-4.
//
//	v3 static members   v4 flexible
//
// While the shard loads, a member is told that all is well: its session has not begun to run again.
func (h *Handler) heartbeat(ctx context.Context, c call, req *kmsg.HeartbeatRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrHeartbeatResponse()
	if req.Group == "" {
		r.ErrorCode = int16(errcode.InvalidGroupId)
		return r, nil
	}
	answer, code, err := do[errcode.Code](ctx, h, c, &group.Heartbeat{
		Group: req.Group, MemberID: req.MemberID, InstanceID: req.InstanceID, Generation: req.Generation,
	})
	switch {
	case err != nil:
		return nil, err
	case code == errcode.CoordinatorLoadInProgress:
	case code != errcode.None:
		r.ErrorCode = int16(code)
	default:
		r.ErrorCode = int16(answer)
	}
	return r, nil
}

// leaveSeveral is the first version of LeaveGroup that names several members.
const leaveSeveral = 3

// LeaveGroup 0-5.
//
//	v3 several members, also by instance   v4 flexible   v5 reason
func (h *Handler) leaveGroup(ctx context.Context, c call, req *kmsg.LeaveGroupRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrLeaveGroupResponse()
	if req.Group == "" {
		r.ErrorCode = int16(errcode.InvalidGroupId)
		return r, nil
	}
	members := req.Members
	if req.Version < leaveSeveral {
		members = []kmsg.LeaveGroupRequestMember{{MemberID: req.MemberID}}
	}
	command := &group.Leave{Group: req.Group, Members: make([]group.LeavingMember, len(members))}
	for i, m := range members {
		command.Members[i] = group.LeavingMember{ID: m.MemberID, InstanceID: m.InstanceID}
		if m.Reason != nil {
			command.Members[i].Reason = *m.Reason
		}
	}
	reply, code, err := do[group.LeaveReply](ctx, h, c, command)
	if err != nil {
		return nil, err
	}
	if code != errcode.None {
		r.ErrorCode = int16(code)
		return r, nil
	}
	for i, m := range members {
		code := errcode.UnknownMemberId
		if reply.Found {
			code = reply.Codes[i]
		}
		if req.Version < leaveSeveral {
			r.ErrorCode = int16(code)
			return r, nil
		}
		x := kmsg.NewLeaveGroupResponseMember()
		x.MemberID, x.InstanceID, x.ErrorCode = m.MemberID, m.InstanceID, int16(code)
		r.Members = append(r.Members, x)
	}
	return r, nil
}
