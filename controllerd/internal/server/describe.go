package server

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/transport"

	"chancery/controllerd/internal/feed"
)

const (
	clusterMetadata = "__cluster_metadata"
	// controllerListener is the name under which clients see the endpoints of controllers.
	controllerListener = "CONTROLLER"
	// observerAge is how long an observer that went silent is still told of.
	observerAge = 5 * time.Minute

	endpointBrokers     = 1
	endpointControllers = 2
)

// describeQuorum tells of the voters and of who follows, with the offsets of the metadata log.
func (s *Server) describeQuorum(ctx context.Context, req *kmsg.DescribeQuorumRequest, state feed.State) *kmsg.DescribeQuorumResponse {
	resp := kmsg.NewPtrDescribeQuorumResponse()
	resp.Version = req.Version
	resp.ErrorMessage = kmsg.StringPtr("") // Kafka's text for "no error", in version 2.
	for i := range req.Topics {
		topic := kmsg.NewDescribeQuorumResponseTopic()
		topic.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			p := kmsg.NewDescribeQuorumResponseTopicPartition()
			p.Partition, p.ErrorMessage = req.Topics[i].Partitions[j].Partition, kmsg.StringPtr("")
			if topic.Topic != clusterMetadata || p.Partition != 0 {
				p.ErrorCode = int16(errcode.UnknownTopicOrPartition)
				p.ErrorMessage = kmsg.StringPtr(errcode.UnknownTopicOrPartition.Message())
			} else if err := s.describeLog(ctx, &p, state); err != nil {
				p.ErrorCode = int16(errcode.UnknownServerError)
				p.ErrorMessage = kmsg.StringPtr(errcode.UnknownServerError.Message())
			} else {
				resp.Nodes = controllerNodes(state.Image, p.CurrentVoters)
			}
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func (s *Server) describeLog(ctx context.Context, p *kmsg.DescribeQuorumResponseTopicPartition, state feed.State) error {
	voters, err := s.Log.Voters(ctx)
	if err != nil {
		return err
	}
	p.LeaderID, p.LeaderEpoch, p.HighWatermark = state.Holder.ID, state.Holder.Epoch, state.Next
	acks, now := s.Acks.All(), time.Now()
	// Without kraft.version the voters are those of the configuration, and nobody's directory is told.
	dynamic := state.Image.FeatureLevel("kraft.version") >= 1
	isVoter := map[int32]bool{}
	for _, v := range voters {
		isVoter[v.ID] = true
		r := replicaState(v.ID, acks[feed.Follower{Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, ID: v.ID}])
		if dynamic {
			r.ReplicaDirectoryID = v.DirectoryID
		}
		if v.ID == state.Holder.ID {
			r.LogEndOffset, r.LastFetchTimestamp, r.LastCaughtUpTimestamp = state.Next, now.UnixMilli(), now.UnixMilli()
		}
		p.CurrentVoters = append(p.CurrentVoters, r)
	}
	for who, ack := range acks {
		if who.Kind == controllerv1.ServiceKind_SERVICE_KIND_STORAGE && !isVoter[who.ID] && now.Sub(ack.At) < observerAge {
			r := replicaState(who.ID, ack)
			if b := state.Image.Broker(who.ID); dynamic && b != nil && len(b.Directories) > 0 {
				r.ReplicaDirectoryID = b.Directories[0]
			}
			p.Observers = append(p.Observers, r)
		}
	}
	for id, who := range s.joiners.all(now) {
		if !isVoter[id] {
			r := replicaState(id, feed.Ack{At: who.heard, Offset: -1})
			r.ReplicaDirectoryID = who.directoryID
			p.Observers = append(p.Observers, r)
		}
	}
	slices.SortFunc(p.Observers, func(a, b kmsg.DescribeQuorumResponseTopicPartitionReplicaState) int {
		return int(a.ReplicaID) - int(b.ReplicaID)
	})
	return nil
}

func replicaState(id int32, ack feed.Ack) kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
	r := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
	r.ReplicaID, r.LogEndOffset = id, -1
	if !ack.At.IsZero() {
		r.LogEndOffset, r.LastFetchTimestamp = ack.Offset+1, ack.At.UnixMilli()
	}
	if !ack.CaughtUp.IsZero() {
		r.LastCaughtUpTimestamp = ack.CaughtUp.UnixMilli()
	}
	return r
}

// controllerNodes are the endpoints of the voters that have registered.
func controllerNodes(image *metadata.Image, voters []kmsg.DescribeQuorumResponseTopicPartitionReplicaState) []kmsg.DescribeQuorumResponseNode {
	var nodes []kmsg.DescribeQuorumResponseNode
	for _, v := range voters {
		e, ok := controllerEndpoint(image, v.ReplicaID)
		if !ok {
			continue
		}
		n := kmsg.NewDescribeQuorumResponseNode()
		n.NodeID = v.ReplicaID
		l := kmsg.NewDescribeQuorumResponseNodeListener()
		l.Name, l.Host, l.Port = e.Name, e.Host, e.Port
		n.Listeners = append(n.Listeners, l)
		nodes = append(nodes, n)
	}
	return nodes
}

// controllerEndpoint is where clients find a controller: its listener for them, or, if it has none, where services find it.
func controllerEndpoint(image *metadata.Image, id int32) (found metadata.Endpoint, ok bool) {
	for _, c := range image.Controllers() {
		if c.ID != id {
			continue
		}
		for _, e := range c.Endpoints {
			switch {
			case e.Name != metadata.GRPCEndpoint:
				return e, true
			case !ok:
				found, ok = e, true
				found.Name = controllerListener
			}
		}
	}
	return found, ok
}

// DescribeCluster tells of the controllers. Whoever asks for storage nodes has come to the wrong door.
func DescribeCluster(req *kmsg.DescribeClusterRequest, state feed.State) *kmsg.DescribeClusterResponse {
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.Version = req.Version
	if req.Version < 1 || req.EndpointType != endpointControllers {
		const text = "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
		err := errcode.MismatchedEndpointType.Errorf(text)
		switch {
		case req.Version < 1:
			err = errcode.InvalidRequest.Errorf(text) // The version knows no types of endpoints.
		case req.EndpointType != endpointBrokers:
			err = errcode.UnsupportedEndpointType.Errorf("Unsupported endpoint type %d", req.EndpointType)
		}
		resp.ErrorCode, resp.ErrorMessage = int16(errcode.Of(err)), kmsg.StringPtr(errcode.Text(err))
		return resp
	}
	resp.EndpointType, resp.ClusterID, resp.ControllerID = endpointControllers, state.Image.ClusterID(), state.Holder.ID
	for _, c := range state.Image.Controllers() {
		e, ok := controllerEndpoint(state.Image, c.ID)
		if !ok {
			continue
		}
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port = c.ID, e.Host, int32(e.Port)
		resp.Brokers = append(resp.Brokers, b)
	}
	return resp
}

// Endpoint is the address of a controller in Kafka's form.
func Endpoint(address string) (kmsg.ControllerRegistrationRequestListener, error) {
	l := kmsg.NewControllerRegistrationRequestListener()
	host, port, err := transport.SplitAddress(address)
	l.Name, l.Host, l.Port = metadata.GRPCEndpoint, host, port
	return l, err
}
