package tiering

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/metadata"
)

const (
	// topicRetry is the pause between attempts to make the topic: usually there are too few storage nodes yet.
	topicRetry = time.Second
	// topicTimeout bounds one attempt.
	topicTimeout = 30 * time.Second
)

// makeTopic makes __remote_log_metadata where it is not there, also when somebody deletes it.
func (s *Server) makeTopic(ctx context.Context) {
	told := false
	for ctx.Err() == nil {
		image := s.image.Load()
		if image.Offset() < 0 || image.TopicByName(internaltopic.RemoteLogMetadata) != nil || !enoughNodes(image, s.spec().ReplicationFactor) {
			s.pause(ctx, image)
			continue
		}
		if err := s.createTopic(ctx); err != nil && ctx.Err() == nil {
			if !told {
				s.deps.Logger.Warn("__remote_log_metadata cannot be made yet", "error", err)
			}
			told = true
			s.pause(ctx, image)
		}
	}
}

// pause waits for newer metadata, but at least a moment.
func (s *Server) pause(ctx context.Context, image *metadata.Image) {
	wait, cancel := context.WithTimeout(ctx, topicRetry)
	defer cancel()
	if s.deps.Metadata.Await(wait, image.Offset()+1) == nil {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func enoughNodes(image *metadata.Image, replicas int16) bool {
	n := int16(0)
	for _, b := range image.Brokers() {
		if !b.Fenced {
			n++
		}
	}
	return n >= max(1, replicas)
}

func (s *Server) spec() internaltopic.Spec {
	spec, _ := internaltopic.For(internaltopic.RemoteLogMetadata, s.settings.node)
	return spec
}

func (s *Server) createTopic(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	spec := s.spec()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = spec.Name, spec.Partitions, spec.ReplicationFactor
	for _, name := range slices.Sorted(maps.Keys(spec.Configs)) {
		value := spec.Configs[name]
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: name, Value: &value})
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis, req.Topics = 7, int32(topicTimeout.Milliseconds()), append(req.Topics, t)
	resp, err := s.deps.Controller.Request(ctx, req, controllerclient.Sender{MetadataOffset: s.image.Load().Offset(), Trusted: true})
	if err != nil {
		return err
	}
	answer, ok := resp.(*kmsg.CreateTopicsResponse)
	if !ok || len(answer.Topics) != 1 {
		return fmt.Errorf("the controller's answer to CreateTopics is %T", resp)
	}
	switch code := errcode.Code(answer.Topics[0].ErrorCode); code {
	case errcode.None, errcode.TopicAlreadyExists:
		return nil
	default:
		return code.Err()
	}
}
