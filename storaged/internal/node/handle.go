package node

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
)

// Handle is part of storage.Node.
func (n *Node) Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	env := req.GetEnvelope()
	key, version := int16(env.GetApiKey()), int16(env.GetApiVersion())
	body := kmsg.RequestForKey(key)
	if body == nil || version < 0 || version > body.MaxVersion() {
		return nil, errcode.UnsupportedVersion.Errorf("a storage node does not answer request %d of version %d", key, version)
	}
	body.SetVersion(version)
	if err := body.ReadFrom(env.GetBody()); err != nil {
		return nil, errcode.InvalidRequest.Wrap(fmt.Errorf("body of request %d: %w", key, err))
	}
	n.await(ctx, env.GetMetadataOffset(), defaultTimeout)
	var resp kmsg.Response
	switch r := body.(type) {
	case *kmsg.DescribeLogDirsRequest:
		resp = n.describeLogDirs(r)
	case *kmsg.AlterReplicaLogDirsRequest:
		resp = n.alterReplicaLogDirs(r)
	case *kmsg.DescribeProducersRequest:
		resp = n.describeProducers(r)
	case *kmsg.WriteTxnMarkersRequest:
		resp = n.writeTxnMarkers(ctx, r)
	case *kmsg.DescribeConfigsRequest:
		resp = n.describeConfigs(r)
	case *kmsg.IncrementalAlterConfigsRequest:
		resp = n.alterLoggers(r)
	default:
		return nil, errcode.UnsupportedVersion.Errorf("a storage node does not answer request %d", key)
	}
	resp.SetVersion(version)
	return &storagev1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}}, nil
}
