package handler

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

// Requests about one group that its coordinator answers: OffsetCommit (8), versions 2 to 10; JoinGroup (11), 0 to 9; Heartbeat
// (12), 0 to 4; LeaveGroup (13), 0 to 5; SyncGroup (14), 0 to 5; OffsetDelete (47), version 0; ConsumerGroupHeartbeat (68), 0
// to 1.
//
// They travel byte for byte; what stands here is where the group's name is, and the answer when the coordinator gives
// none. Clients take its error codes as a reason to look for the coordinator and to ask again.

func offsetCommitGroup(q *kmsg.OffsetCommitRequest) string { return q.Group }

func offsetCommitFailed(q *kmsg.OffsetCommitRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrOffsetCommitResponse()
	for _, t := range q.Topics {
		out := kmsg.NewOffsetCommitResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			o := kmsg.NewOffsetCommitResponseTopicPartition()
			o.Partition, o.ErrorCode = p.Partition, int16(code)
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func joinGroupGroup(q *kmsg.JoinGroupRequest) string { return q.Group }

func joinGroupFailed(q *kmsg.JoinGroupRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.ErrorCode, resp.Generation, resp.MemberID = int16(code), -1, q.MemberID
	if q.Version < 7 {
		// Before version 7 the protocol's name cannot be null.
		resp.Protocol = kmsg.StringPtr("")
	}
	return resp
}

func heartbeatGroup(q *kmsg.HeartbeatRequest) string { return q.Group }

func heartbeatFailed(_ *kmsg.HeartbeatRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrHeartbeatResponse()
	resp.ErrorCode = int16(code)
	return resp
}

func leaveGroupGroup(q *kmsg.LeaveGroupRequest) string { return q.Group }

func leaveGroupFailed(_ *kmsg.LeaveGroupRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrLeaveGroupResponse()
	resp.ErrorCode = int16(code)
	return resp
}

func syncGroupGroup(q *kmsg.SyncGroupRequest) string { return q.Group }

func syncGroupFailed(_ *kmsg.SyncGroupRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrSyncGroupResponse()
	resp.ErrorCode = int16(code)
	return resp
}

func consumerHeartbeatGroup(q *kmsg.ConsumerGroupHeartbeatRequest) string { return q.Group }

func consumerHeartbeatFailed(_ *kmsg.ConsumerGroupHeartbeatRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	text := code.Message()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func offsetDeleteGroup(q *kmsg.OffsetDeleteRequest) string { return q.Group }

func offsetDeleteFailed(_ *kmsg.OffsetDeleteRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrOffsetDeleteResponse()
	resp.ErrorCode = int16(code)
	return resp
}
