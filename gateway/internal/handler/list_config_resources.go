package handler

import (
	"context"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// ListConfigResources (74), versions 0 and 1: the names of what can be configured.
//
// Version 0 is about client metrics subscriptions only; version 1 says which types are wanted (KIP-1142), none means all.

func (h *Handlers) listConfigResources(_ context.Context, r *Request, q *kmsg.ListConfigResourcesRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrListConfigResourcesResponse()
	known := []metadata.ResourceType{metadata.ResourceClientMetrics}
	if r.Version >= 1 {
		known = append(known, metadata.ResourceGroup, metadata.ResourceBrokerLogger, metadata.ResourceBroker, metadata.ResourceTopic)
	}
	wanted := known
	if len(q.ResourceTypes) > 0 {
		wanted = nil
		for _, t := range q.ResourceTypes {
			kind := metadata.ResourceType(t)
			if !slices.Contains(known, kind) {
				resp.ErrorCode = int16(errcode.UnsupportedVersion)
				return resp, nil
			}
			if !slices.Contains(wanted, kind) {
				wanted = append(wanted, kind)
			}
		}
	}
	img := h.Image()
	for _, kind := range wanted {
		for _, name := range resourceNames(img, kind) {
			out := kmsg.NewListConfigResourcesResponseConfigResource()
			out.Name, out.Type = name, int8(kind)
			resp.ConfigResources = append(resp.ConfigResources, out)
		}
	}
	return resp, nil
}

// resourceNames are the resources of a type: groups and subscriptions are there only when they have configs.
func resourceNames(img metadata.Reader, kind metadata.ResourceType) []string {
	var names []string
	switch kind {
	case metadata.ResourceTopic:
		for t := range img.Topics() {
			names = append(names, t.Name)
		}
	case metadata.ResourceBroker, metadata.ResourceBrokerLogger:
		for _, b := range img.Brokers() {
			names = append(names, strconv.Itoa(int(b.ID)))
		}
	default:
		names = img.ConfigResources(kind)
	}
	return names
}
