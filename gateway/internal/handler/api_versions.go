package handler

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
)

// ApiVersions (18), versions 0 to 5: which APIs, versions and features there are.
//
// Version 3 tells the client's software, 4 allows feature levels of zero in the answer, 5 says which cluster and node the client
// believes to talk to (KIP-1242). A version that is not served is answered in version 0 with UNSUPPORTED_VERSION and the
// versions of this API. Unlike a broker of Kafka, a gateway is any node of its cluster: each one that is live is right.

// supportedFeatures are the features whose levels this cluster knows.
var supportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{
	{Name: "eligible.leader.replicas.version", MinVersion: 0, MaxVersion: 1},
	{Name: "group.version", MinVersion: 0, MaxVersion: 1},
	{Name: "kraft.version", MinVersion: 0, MaxVersion: 1},
	{Name: "metadata.version", MinVersion: 7, MaxVersion: 33},
	{Name: "share.version", MinVersion: 0, MaxVersion: 2},
	{Name: "streams.version", MinVersion: 0, MaxVersion: 1},
	{Name: "transaction.version", MinVersion: 0, MaxVersion: 2},
}

// apiVersions is a Handle of its own, since it answers versions that cannot be decoded.
func (h *Handlers) apiVersions(_ context.Context, r *Request) (*wire.Message, error) {
	row := h.byKey[r.Key]
	if !row.Serves(r.Version) {
		return h.apiVersionsUnsupported(r), nil
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.SetVersion(r.Version)
	if err := req.ReadFrom(r.Body); err != nil {
		return nil, wire.ErrMalformed
	}
	return h.encode(r, h.apiVersionsFor(r, req)), nil
}

func (h *Handlers) apiVersionsUnsupported(r *Request) *wire.Message {
	row := h.byKey[r.Key]
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode = int16(errcode.UnsupportedVersion)
	resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: row.Key, MinVersion: row.Advertised, MaxVersion: row.Max}}
	m := h.Messages.New(r.CorrelationID, false)
	m.B = resp.AppendTo(m.B)
	return m
}

func (h *Handlers) apiVersionsFor(r *Request, req *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := kmsg.NewPtrApiVersionsResponse()
	if !validAPIVersions(req) {
		resp.ErrorCode = int16(errcode.InvalidRequest)
		return resp
	}
	img := h.Image()
	if req.Version >= 5 && req.ClusterID != nil {
		node := img.Broker(req.NodeID)
		if *req.ClusterID != img.ClusterID() || node == nil || node.Fenced {
			resp.ErrorCode = int16(errcode.RebootstrapRequired)
			return resp
		}
		r.Conn.NodeID = req.NodeID
	}
	if req.Version >= 3 {
		r.Conn.SoftwareName, r.Conn.SoftwareVersion = req.ClientSoftwareName, req.ClientSoftwareVersion
	}
	for i := range h.apis {
		a := &h.apis[i]
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: a.Key, MinVersion: a.Advertised, MaxVersion: a.Max})
	}
	for _, f := range supportedFeatures {
		if f.MinVersion > 0 || req.Version >= 4 {
			resp.SupportedFeatures = append(resp.SupportedFeatures, f)
		}
	}
	for name, level := range img.Features() {
		if level == 0 {
			continue
		}
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{
			Name: name, MinVersionLevel: level, MaxVersionLevel: level,
		})
	}
	slices.SortFunc(resp.FinalizedFeatures, func(a, b kmsg.ApiVersionsResponseFinalizedFeature) int {
		return strings.Compare(a.Name, b.Name)
	})
	resp.FinalizedFeaturesEpoch = img.Offset()
	return resp
}

func validAPIVersions(req *kmsg.ApiVersionsRequest) bool {
	if req.Version >= 5 && (req.ClusterID == nil) != (req.NodeID == -1) {
		return false
	}
	return req.Version < 3 || validSoftware(req.ClientSoftwareName) && validSoftware(req.ClientSoftwareVersion)
}

// validSoftware says whether s is of ASCII letters, digits, dots and dashes, with a letter or digit at both ends.
func validSoftware(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case (c == '.' || c == '-') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}
