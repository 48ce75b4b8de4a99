package handler

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

// DescribeCluster (60), versions 0 to 2: the cluster's id and nodes.
//
// Version 1 asks for a type of endpoints, 2 for fenced nodes too. A gateway knows the storage nodes only: controllers
// are asked at a controller.

// The types of endpoints of DescribeCluster.
const (
	brokerEndpoints     int8 = 1
	controllerEndpoints int8 = 2
)

func (h *Handlers) describeCluster(_ context.Context, r *Request, req *kmsg.DescribeClusterRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrDescribeClusterResponse()
	switch req.EndpointType {
	case brokerEndpoints:
	case controllerEndpoints:
		resp.ErrorCode = int16(errcode.MismatchedEndpointType)
		resp.ErrorMessage = kmsg.StringPtr("The request was sent to an endpoint of type BROKER, but it asks for endpoints of type CONTROLLER")
		return resp, nil
	default:
		resp.ErrorCode = int16(errcode.UnsupportedEndpointType)
		resp.ErrorMessage = kmsg.StringPtr(fmt.Sprintf("Unsupported endpoint type %d", req.EndpointType))
		return resp, nil
	}
	img := h.Image()
	resp.ClusterID = img.ClusterID()
	nodes := h.nodes(img, r, req.Version >= 2 && req.IncludeFencedBrokers)
	for _, n := range nodes {
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack, b.IsFenced = n.ID, n.Host, n.Port, n.Rack, n.Fenced
		resp.Brokers = append(resp.Brokers, b)
	}
	resp.ControllerID = controllerOf(r, nodes)
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = clusterOperations
	}
	return resp, nil
}
