package listener

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"

	"chancery/controllerd/internal/kraftlog"
)

// Kafka's controllers vote with these requests; here the quorum does so by itself. Whoever sends one learns what it could
// have known: whether it is of this cluster, and who leads.

const clusterMetadata = "__cluster_metadata"

// checkQuorumRequest says what is wrong with a request about the quorum, which must name the partition of the metadata log and
// nothing else.
func (l *Listener) checkQuorumRequest(clusterID *string, topics []string, partitions []int32) errcode.Code {
	switch {
	case clusterID != nil && *clusterID != l.State().Image.ClusterID():
		return errcode.InconsistentClusterId
	case len(topics) != 1 || topics[0] != clusterMetadata || len(partitions) != 1 || partitions[0] != 0:
		return errcode.InvalidRequest
	}
	return errcode.None
}

func (l *Listener) vote(req *kmsg.VoteRequest) kmsg.Response {
	resp := kmsg.NewPtrVoteResponse()
	var topics []string
	var partitions []int32
	for _, t := range req.Topics {
		topics = append(topics, t.Topic)
		for _, p := range t.Partitions {
			partitions = append(partitions, p.Partition)
		}
	}
	if code := l.checkQuorumRequest(req.ClusterID, topics, partitions); code != errcode.None {
		resp.ErrorCode = int16(code)
		return resp
	}
	holder := l.State().Holder
	p := kmsg.NewVoteResponseTopicPartition()
	p.LeaderID, p.LeaderEpoch = holder.ID, holder.Epoch
	t := kmsg.NewVoteResponseTopic()
	t.Topic, t.Partitions = clusterMetadata, []kmsg.VoteResponseTopicPartition{p}
	resp.Topics = append(resp.Topics, t)
	return resp
}

func (l *Listener) beginQuorumEpoch(req *kmsg.BeginQuorumEpochRequest) kmsg.Response {
	resp := kmsg.NewPtrBeginQuorumEpochResponse()
	var topics []string
	var partitions []int32
	for _, t := range req.Topics {
		topics = append(topics, t.Topic)
		for _, p := range t.Partitions {
			partitions = append(partitions, p.Partition)
		}
	}
	if code := l.checkQuorumRequest(req.ClusterID, topics, partitions); code != errcode.None {
		resp.ErrorCode = int16(code)
		return resp
	}
	holder := l.State().Holder
	p := kmsg.NewBeginQuorumEpochResponseTopicPartition()
	p.ErrorCode, p.LeaderID, p.LeaderEpoch = int16(errcode.FencedLeaderEpoch), holder.ID, holder.Epoch
	t := kmsg.NewBeginQuorumEpochResponseTopic()
	t.Topic, t.Partitions = clusterMetadata, []kmsg.BeginQuorumEpochResponseTopicPartition{p}
	resp.Topics = append(resp.Topics, t)
	return resp
}

func (l *Listener) endQuorumEpoch(req *kmsg.EndQuorumEpochRequest) kmsg.Response {
	resp := kmsg.NewPtrEndQuorumEpochResponse()
	var topics []string
	var partitions []int32
	for _, t := range req.Topics {
		topics = append(topics, t.Topic)
		for _, p := range t.Partitions {
			partitions = append(partitions, p.Partition)
		}
	}
	if code := l.checkQuorumRequest(req.ClusterID, topics, partitions); code != errcode.None {
		resp.ErrorCode = int16(code)
		return resp
	}
	holder := l.State().Holder
	p := kmsg.NewEndQuorumEpochResponseTopicPartition()
	p.ErrorCode, p.LeaderID, p.LeaderEpoch = int16(errcode.FencedLeaderEpoch), holder.ID, holder.Epoch
	t := kmsg.NewEndQuorumEpochResponseTopic()
	t.Topic, t.Partitions = clusterMetadata, []kmsg.EndQuorumEpochResponseTopicPartition{p}
	resp.Topics = append(resp.Topics, t)
	return resp
}

// maxSnapshotPart is the most of a snapshot that one answer has.
const maxSnapshotPart = 1 << 20

// fetchSnapshot gives a part of a snapshot of this controller's copy of the metadata log.
func (l *Listener) fetchSnapshot(req *kmsg.FetchSnapshotRequest) kmsg.Response {
	resp := kmsg.NewPtrFetchSnapshotResponse()
	if req.ClusterID != nil && *req.ClusterID != l.State().Image.ClusterID() {
		resp.ErrorCode = int16(errcode.InconsistentClusterId)
		return resp
	}
	if len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 {
		resp.ErrorCode = int16(errcode.InvalidRequest)
		return resp
	}
	in := &req.Topics[0].Partitions[0]
	if req.Topics[0].Topic != clusterMetadata || in.Partition != 0 {
		resp.ErrorCode = int16(errcode.UnknownServerError) // Kafka has an error for it, which it fails to answer
		return resp
	}
	out := kmsg.NewFetchSnapshotResponseTopicPartition()
	out.Partition, out.Position = in.Partition, in.Position
	out.SnapshotID.EndOffset, out.SnapshotID.Epoch = in.SnapshotID.EndOffset, in.SnapshotID.Epoch
	holder := l.State().Holder
	out.CurrentLeader.LeaderID, out.CurrentLeader.LeaderEpoch = holder.ID, holder.Epoch
	switch {
	case in.CurrentLeaderEpoch < holder.Epoch:
		out.ErrorCode = int16(errcode.FencedLeaderEpoch)
	case in.CurrentLeaderEpoch > holder.Epoch:
		out.ErrorCode = int16(errcode.UnknownLeaderEpoch)
	default:
		l.readSnapshot(req, in, &out)
	}
	t := kmsg.NewFetchSnapshotResponseTopic()
	t.Topic, t.Partitions = clusterMetadata, []kmsg.FetchSnapshotResponseTopicPartition{out}
	resp.Topics = append(resp.Topics, t)
	return resp
}

func (l *Listener) readSnapshot(req *kmsg.FetchSnapshotRequest, in *kmsg.FetchSnapshotRequestTopicPartition, out *kmsg.FetchSnapshotResponseTopicPartition) {
	part, size, ok, err := kraftlog.ReadSnapshot(l.SnapshotDir, in.SnapshotID.EndOffset, in.SnapshotID.Epoch, in.Position,
		min(int(req.MaxBytes), maxSnapshotPart))
	switch {
	case err != nil:
		l.Logger.Warn("reading a snapshot of the metadata log", "error", err)
		out.ErrorCode = int16(errcode.UnknownServerError)
	case !ok:
		out.ErrorCode = int16(errcode.SnapshotNotFound)
	case in.Position < 0 || in.Position >= size:
		out.ErrorCode = int16(errcode.PositionOutOfRange)
	default:
		out.Size, out.Bytes = size, part
	}
}
