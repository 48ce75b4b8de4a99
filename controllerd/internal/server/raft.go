package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
)

const (
	// joinerAge is how long a controller that wants to join counts after it was last heard.
	joinerAge = 10 * time.Second
	// voterTimeout bounds a change of the voters whose sender gives no time-out, and every removal.
	voterTimeout = 30 * time.Second
	joinerPoll   = 50 * time.Millisecond
)

// joiner is a controller that is no voter but would be one.
type joiner struct {
	directoryID uuid.UUID
	address     string
	heard       time.Time
}

// joiners are the controllers that have asked lately to join the quorum, by id.
type joiners struct {
	mu   sync.Mutex
	list map[int32]joiner
}

func (j *joiners) note(id int32, who joiner) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.list == nil {
		j.list = map[int32]joiner{}
	}
	j.list[id] = who
}

// all are those that were heard lately.
func (j *joiners) all(now time.Time) map[int32]joiner {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[int32]joiner{}
	for id, who := range j.list {
		if now.Sub(who.heard) < joinerAge {
			out[id] = who
		}
	}
	return out
}

// await waits until a controller has asked to join.
func (j *joiners) await(ctx context.Context, id int32, directoryID uuid.UUID) (joiner, error) {
	ticker := time.NewTicker(joinerPoll)
	defer ticker.Stop()
	for {
		if who, ok := j.all(time.Now())[id]; ok && who.directoryID == directoryID {
			return who, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return joiner{}, ctx.Err()
		}
	}
}

// JoinQuorum takes note of a controller that would be a voter, and tells it when it may be one.
func (s *Server) JoinQuorum(ctx context.Context, req *controllerv1.JoinQuorumRequest) (*controllerv1.JoinQuorumResponse, error) {
	if err := s.mustBeActive(ctx); err != nil {
		return nil, err
	}
	state := s.Feed.State()
	if id := state.Image.ClusterID(); req.GetClusterId() != "" && req.GetClusterId() != id {
		return nil, errcode.InconsistentClusterId.Errorf("Expected cluster ID %s, but got cluster ID %s", id, req.GetClusterId())
	}
	directoryID, ok := uuid.FromBytes(req.GetDirectoryId())
	if !ok || directoryID.IsZero() || req.GetQuorumAddress() == "" {
		return nil, errcode.InvalidRequest.Errorf("a controller that wants to join has a directory id and an address for the others")
	}
	s.joiners.note(req.GetControllerId(), joiner{directoryID: directoryID, address: req.GetQuorumAddress(), heard: time.Now()})
	members, err := s.Log.Members(ctx, req.GetControllerId(), directoryID)
	if err != nil {
		return nil, errcode.UnknownServerError.Wrap(err)
	}
	resp := &controllerv1.JoinQuorumResponse{ClusterId: state.Image.ClusterID()}
	for _, m := range members {
		resp.Members = append(resp.Members, &controllerv1.QuorumMember{Name: m.Name, QuorumAddress: m.Address})
	}
	return resp, nil
}

// mustBeActive fails unless this controller is the active one: an empty decision comes back once everything before it is
// durable, which shows that.
func (s *Server) mustBeActive(ctx context.Context) error {
	_, err := s.Controller.Do(ctx, 0, func(*control.Manager) (control.Decision, error) { return control.Decision{}, nil })
	return err
}

// changeVoters answers the three requests that change the quorum. One is carried out at a time.
func (s *Server) changeVoters(ctx context.Context, req kmsg.Request) (*commonv1.EnvelopeReply, error) {
	if err := s.mustBeActive(ctx); err != nil {
		return nil, err
	}
	switch r := req.(type) {
	case *kmsg.AddRaftVoterRequest:
		resp := kmsg.NewPtrAddRaftVoterResponse()
		resp.Version = r.Version
		resp.ErrorCode, resp.ErrorMessage = codeOf(s.addVoter(ctx, r))
		return reply(resp, 0)
	case *kmsg.RemoveRaftVoterRequest:
		resp := kmsg.NewPtrRemoveRaftVoterResponse()
		resp.Version = r.Version
		resp.ErrorCode, resp.ErrorMessage = codeOf(s.removeVoter(ctx, r))
		return reply(resp, 0)
	case *kmsg.UpdateRaftVoterRequest:
		resp := kmsg.NewPtrUpdateRaftVoterResponse()
		resp.Version = r.Version
		resp.ErrorCode, _ = codeOf(s.updateVoter(ctx, r))
		state := s.Feed.State()
		resp.CurrentLeader.LeaderID, resp.CurrentLeader.LeaderEpoch = state.Holder.ID, state.Holder.Epoch
		if e, ok := controllerEndpoint(state.Image, state.Holder.ID); ok {
			resp.CurrentLeader.Host, resp.CurrentLeader.Port = e.Host, int32(e.Port)
		}
		return reply(resp, 0)
	}
	return nil, errcode.UnsupportedVersion.Errorf("a controller does not answer %s", kmsg.NameForKey(req.Key()))
}

func codeOf(err error) (int16, *string) {
	if err == nil {
		return 0, nil
	}
	return int16(errcode.Of(err)), kmsg.StringPtr(errcode.Text(err))
}

// checkVoterChange says why the voters cannot be changed at all; doing is "adding" or so.
func checkVoterChange(state feed.State, clusterID *string, doing string) error {
	if id := state.Image.ClusterID(); clusterID != nil && *clusterID != id {
		return errcode.InconsistentClusterId.Errorf("The given id %q doesn't match the cluster id %q", *clusterID, id)
	}
	if level := state.Image.FeatureLevel("kraft.version"); level < 1 {
		return errcode.UnsupportedVersion.Errorf("Cluster doesn't support %s voter because the kraft.version feature is %d", doing, level)
	}
	return nil
}

// beginVoterChange keeps others from changing the voters meanwhile.
func (s *Server) beginVoterChange() (end func(), err error) {
	if !s.changing.TryLock() {
		return nil, errcode.RequestTimedOut.Errorf("Request timed out waiting for leader to handle previous voter change request")
	}
	return s.changing.Unlock, nil
}

func voterName(id int32, directoryID uuid.UUID) string {
	return fmt.Sprintf("ReplicaKey(id=%d, directoryId=%s)", id, directoryID)
}

func voterNames(voters []metalog.Voter) string {
	var names []string
	for _, v := range voters {
		names = append(names, voterName(v.ID, v.DirectoryID))
	}
	return "[" + strings.Join(names, ", ") + "]"
}

func (s *Server) addVoter(ctx context.Context, req *kmsg.AddRaftVoterRequest) error {
	directoryID := uuid.UUID(req.VoterDirectoryID)
	switch err := checkVoterChange(s.Feed.State(), req.ClusterID, "adding"); {
	case errcode.Of(err) == errcode.InconsistentClusterId:
		return err
	case req.VoterID < 0 || directoryID.IsZero():
		return errcode.InvalidRequest.Errorf("Add voter request didn't include a valid voter")
	case !slices.ContainsFunc(req.Listeners, func(l kmsg.AddRaftVoterRequestListener) bool { return l.Name == controllerListener }):
		return errcode.InvalidRequest.Errorf("Add voter request didn't include the endpoint for the default listener %s", controllerListener)
	case err != nil:
		return err
	}
	end, err := s.beginVoterChange()
	if err != nil {
		return err
	}
	defer end()
	voters, err := s.Log.Voters(ctx)
	if err != nil {
		return errcode.UnknownServerError.Wrap(err)
	}
	if slices.ContainsFunc(voters, func(v metalog.Voter) bool { return v.ID == req.VoterID }) {
		return errcode.DuplicateVoter.Errorf("The voter id for %s is already part of the set of voters %s.",
			voterName(req.VoterID, directoryID), voterNames(voters))
	}
	limit := voterTimeout
	if req.TimeoutMillis > 0 {
		limit = time.Duration(req.TimeoutMillis) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	who, err := s.joiners.await(ctx, req.VoterID, directoryID)
	if err != nil {
		return errcode.RequestTimedOut.Errorf("New voter %s didn't ask to join: it must run, with controller.quorum.bootstrap.servers and "+
			"controller.quorum.listener set", voterName(req.VoterID, directoryID))
	}
	return voterError(s.Log.AddVoter(ctx, metalog.NewVoter{ID: req.VoterID, DirectoryID: directoryID, Address: who.address}))
}

// voterError gives what went wrong with a change of the voters its code.
func voterError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, metalog.ErrStaticVoters):
		return errcode.InvalidRequest.Wrap(err)
	case errors.Is(err, context.DeadlineExceeded):
		return errcode.RequestTimedOut.Wrap(err)
	}
	return errcode.UnknownServerError.Wrap(err)
}

func (s *Server) removeVoter(ctx context.Context, req *kmsg.RemoveRaftVoterRequest) error {
	directoryID := uuid.UUID(req.VoterDirectoryID)
	if err := checkVoterChange(s.Feed.State(), req.ClusterID, "removing"); err != nil {
		return err
	}
	end, err := s.beginVoterChange()
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, voterTimeout)
	defer cancel()
	voters, err := s.Log.Voters(ctx)
	if err != nil {
		return errcode.UnknownServerError.Wrap(err)
	}
	err = s.Log.RemoveVoter(ctx, req.VoterID, directoryID)
	if errors.Is(err, metalog.ErrNoVoter) {
		return errcode.VoterNotFound.Errorf("Cannot remove voter %s from the set of voters %s", voterName(req.VoterID, directoryID), voterNames(voters))
	}
	return voterError(err)
}

// updateVoter takes note of new listeners of a voter.
func (s *Server) updateVoter(ctx context.Context, req *kmsg.UpdateRaftVoterRequest) error {
	if id := s.Feed.State().Image.ClusterID(); req.ClusterID != nil && *req.ClusterID != id {
		return errcode.InconsistentClusterId.Errorf("The given id %q doesn't match the cluster id %q", *req.ClusterID, id)
	}
	switch epoch := s.Feed.State().Holder.Epoch; {
	case req.CurrentLeaderEpoch < epoch:
		return errcode.FencedLeaderEpoch.Err()
	case req.CurrentLeaderEpoch > epoch:
		return errcode.UnknownLeaderEpoch.Err()
	}
	voters, err := s.Log.Voters(ctx)
	if err != nil {
		return errcode.UnknownServerError.Wrap(err)
	}
	known := slices.ContainsFunc(voters, func(v metalog.Voter) bool {
		return v.ID == req.VoterID && v.DirectoryID == uuid.UUID(req.VoterDirectoryID)
	})
	if !known {
		return errcode.VoterNotFound.Err()
	}
	var listeners []metarecord.Endpoint
	for _, l := range req.Listeners {
		listeners = append(listeners, metarecord.Endpoint{Name: l.Name, Host: l.Host, Port: l.Port})
	}
	_, err = s.Controller.Do(ctx, 0, func(m *control.Manager) (control.Decision, error) {
		return m.UpdateControllerListeners(req.VoterID, listeners), nil
	})
	return err
}
