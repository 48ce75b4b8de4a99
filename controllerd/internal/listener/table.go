package listener

import (
	"github.com/twmb/franz-go/pkg/kmsg"
)

// api is one row of the table of APIs.
type api struct {
	key, min, max int16
	// answer gives the answer of this very controller; nil for what the active one answers.
	answer func(l *Listener, c client, req kmsg.Request) (kmsg.Response, error)
}

// here makes an answer function of one for a request's type.
func here[Q kmsg.Request](answer func(l *Listener, req Q) kmsg.Response) func(*Listener, client, kmsg.Request) (kmsg.Response, error) {
	return func(l *Listener, _ client, req kmsg.Request) (kmsg.Response, error) {
		q, ok := req.(Q)
		if !ok {
			return nil, errMalformed
		}
		return answer(l, q), nil
	}
}

// table is what a controller serves, in the order of the keys: what stands here is what ApiVersions tells.
func table() []api {
	return []api{
		{key: 18, max: 5, answer: here((*Listener).apiVersions)},
		{key: 19, min: 2, max: 7},
		{key: 20, min: 1, max: 6},
		{key: 32, min: 1, max: 4, answer: here((*Listener).describeConfigs)},
		{key: 33, max: 2},
		{key: 37, max: 3},
		{key: 43, max: 2},
		{key: 44, max: 1},
		{key: 45, max: 1},
		{key: 46},
		{key: 52, max: 2, answer: here((*Listener).vote)},
		{key: 53, max: 1, answer: here((*Listener).beginQuorumEpoch)},
		{key: 54, max: 1, answer: here((*Listener).endQuorumEpoch)},
		{key: 55, max: 2},
		{key: 56, min: 2, max: 3},
		{key: 57, max: 2},
		{key: 58},
		{key: 59, max: 1, answer: here((*Listener).fetchSnapshot)},
		{key: 60, max: 2, answer: here((*Listener).describeCluster)},
		{key: 62, max: 4},
		{key: 63, max: 2},
		{key: 64},
		{key: 67},
		{key: 70},
		{key: 73},
		{key: 80, max: 1},
		{key: 81},
		{key: 82},
		{key: 94},
	}
}
