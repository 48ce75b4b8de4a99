package etcdlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/uuid"
)

const (
	// membershipPause is how long a step of a change of members waits before it is tried again.
	membershipPause = 200 * time.Millisecond
	// withdrawTimeout bounds taking back a member that did not become a voter.
	withdrawTimeout = 5 * time.Second
)

// identity is who a member of etcd is. etcd's own id of a member says nothing of the controller, and a member that has not
// started yet has no name there.
type identity struct {
	ID          int32     `json:"id"`
	DirectoryID uuid.UUID `json:"directory_id"`
}

func (s *store) identityKey(member uint64) string {
	return fmt.Sprintf("%svoters/%016x", s.prefix, member)
}

// announce writes down who this member is and where the others reach it, once it can.
func (m *Member) announce(self identity, peerURL string) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), withdrawTimeout)
		err := m.putIdentity(ctx, uint64(m.etcd.Server.MemberID()), self)
		if err == nil {
			err = m.updateAddress(ctx, peerURL)
		}
		cancel()
		if err == nil {
			return
		}
		t := time.NewTimer(membershipPause)
		select {
		case <-t.C:
		case <-m.stop:
			t.Stop()
			return
		}
	}
}

// updateAddress tells the quorum a new address of this member: its files keep the one that it had before.
func (m *Member) updateAddress(ctx context.Context, peerURL string) error {
	own := m.etcd.Server.Cluster().Member(m.etcd.Server.MemberID())
	if m.portless || own == nil || len(own.PeerURLs) == 1 && own.PeerURLs[0] == peerURL {
		return nil
	}
	_, err := m.client.MemberUpdate(ctx, uint64(own.ID), []string{peerURL})
	return err
}

func (s *store) putIdentity(ctx context.Context, member uint64, who identity) error {
	value, err := json.Marshal(who)
	if err != nil {
		return err
	}
	key := s.identityKey(member)
	_, err = s.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", string(value))).Else(clientv3.OpPut(key, string(value))).Commit()
	return err
}

// member is a member of etcd, and who it is as far as is known.
type member struct {
	*etcdserverpb.Member
	who   identity
	known bool
}

// members are all members, learners too.
func (m *Member) members(ctx context.Context) ([]member, error) {
	resp, err := m.client.Get(ctx, m.key("voters/"), append([]clientv3.OpOption{clientv3.WithPrefix()}, m.read...)...)
	if err != nil {
		return nil, fmt.Errorf("who the voters are: %w", err)
	}
	identities := map[string]identity{}
	for _, kv := range resp.Kvs {
		var who identity
		if err := json.Unmarshal(kv.Value, &who); err != nil {
			return nil, fmt.Errorf("%w: voter: %w", metalog.ErrCorrupt, err)
		}
		identities[string(kv.Key)] = who
	}
	var list []member
	for _, e := range m.etcd.Server.Cluster().Members() {
		next := member{Member: &etcdserverpb.Member{ID: uint64(e.ID), Name: e.Name, PeerURLs: e.PeerURLs, IsLearner: e.IsLearner}}
		next.who, next.known = identities[m.identityKey(next.ID)]
		if !next.known {
			if _, err := fmt.Sscanf(e.Name, "controller-%d", &next.who.ID); err == nil {
				next.known = true
			}
		}
		list = append(list, next)
	}
	return list, nil
}

// Voters are the members of the quorum.
func (m *Member) Voters(ctx context.Context) ([]metalog.Voter, error) {
	all, err := m.members(ctx)
	if err != nil {
		return nil, err
	}
	leader := uint64(m.etcd.Server.Leader())
	var voters []metalog.Voter
	for _, e := range all {
		if e.known && !e.IsLearner {
			voters = append(voters, metalog.Voter{ID: e.who.ID, DirectoryID: e.who.DirectoryID, Leader: e.ID == leader})
		}
	}
	return sortVoters(voters), nil
}

// Members are all members as a new one must know them.
func (m *Member) Members(ctx context.Context, id int32, directoryID uuid.UUID) ([]metalog.Member, error) {
	all, err := m.members(ctx)
	if err != nil {
		return nil, err
	}
	admitted := false
	var list []metalog.Member
	for _, e := range all {
		name := e.Name
		if e.known && e.who.ID == id && e.who.DirectoryID == directoryID {
			admitted, name = true, memberName(id)
		}
		if name == "" {
			name = fmt.Sprintf("member-%x", e.ID)
		}
		for _, u := range e.PeerURLs {
			list = append(list, metalog.Member{Name: name, Address: strings.TrimPrefix(u, "http://")})
		}
	}
	if !admitted {
		return nil, nil
	}
	return list, nil
}

// AddVoter makes a controller a learner, which catches up, and then a voter.
func (m *Member) AddVoter(ctx context.Context, v metalog.NewVoter) error {
	if m.portless {
		return fmt.Errorf("%w: this controller has no address for other voters; set controller.quorum.voters", metalog.ErrStaticVoters)
	}
	var added *clientv3.MemberAddResponse
	err := m.persist(ctx, func() (err error) {
		// A change soon after another is refused until all members have been seen for a while.
		added, err = m.client.MemberAddAsLearner(ctx, []string{"http://" + v.Address})
		return err
	})
	if err != nil {
		return fmt.Errorf("admit controller %d: %w", v.ID, err)
	}
	id := added.Member.ID
	err = m.putIdentity(ctx, id, identity{v.ID, v.DirectoryID})
	if err == nil {
		err = m.persist(ctx, func() error {
			_, err := m.client.MemberPromote(ctx, id)
			return err
		})
	}
	if err == nil {
		m.logger.Info("a controller has become a voter", "controller", v.ID, "directory", v.DirectoryID.String())
		return nil
	}
	withdraw, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	return errors.Join(fmt.Errorf("controller %d does not become a voter: %w", v.ID, err), m.removeMember(withdraw, id))
}

// persist tries a change of the members again while what stands in its way goes by itself.
func (m *Member) persist(ctx context.Context, change func() error) error {
	for {
		err := change()
		if err == nil || errors.Is(err, rpctypes.ErrPeerURLExist) || errors.Is(err, rpctypes.ErrMemberExist) || errors.Is(err, rpctypes.ErrMemberNotFound) {
			return err
		}
		t := time.NewTimer(membershipPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

func (m *Member) removeMember(ctx context.Context, id uint64) error {
	_, err := m.client.MemberRemove(ctx, id)
	if id == uint64(m.etcd.Server.MemberID()) && m.isGone() {
		return nil // It was this member, which ends with it.
	}
	if err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
		return err
	}
	if _, err := m.client.Delete(ctx, m.identityKey(id)); err != nil {
		m.logger.Info("forget who a removed voter was", "error", err) // No later member has its id.
	}
	return nil
}

// isGone says whether this member is no part of the quorum any more. Often it does not see the change itself, since nobody sends
// it anything from then on: its first message to another is refused, and its server ends by itself.
func (m *Member) isGone() bool {
	select {
	case <-m.etcd.Server.StopNotify():
		return true
	default:
		return m.etcd.Server.Cluster().Member(m.etcd.Server.MemberID()) == nil
	}
}

// RemoveVoter takes a voter out of the quorum. A leader first hands over, so that nobody has to notice its absence.
func (m *Member) RemoveVoter(ctx context.Context, id int32, directoryID uuid.UUID) error {
	all, err := m.members(ctx)
	if err != nil {
		return err
	}
	at, successor := -1, uint64(0)
	for i, e := range all {
		switch {
		case !e.known || e.IsLearner:
		case e.who.ID == id && e.who.DirectoryID == directoryID:
			at = i
		case successor == 0 || e.ID == uint64(m.etcd.Server.Leader()):
			successor = e.ID
		}
	}
	switch {
	case at < 0:
		return metalog.ErrNoVoter
	case successor == 0:
		return fmt.Errorf("%w: controller %d is the only voter", metalog.ErrStaticVoters, id)
	}
	if gone := all[at].ID; gone == uint64(m.etcd.Server.Leader()) && gone == uint64(m.etcd.Server.MemberID()) {
		if err := m.etcd.Server.MoveLeader(ctx, gone, successor); err != nil {
			m.logger.Warn("hand over the quorum before leaving it", "error", err)
		}
	}
	return m.persist(ctx, func() error { return m.removeMember(ctx, all[at].ID) })
}

// isOnlyVoter says whether there is nobody to hand over to.
func (m *Member) isOnlyVoter() bool {
	voters := 0
	for _, e := range m.etcd.Server.Cluster().Members() {
		if !e.IsLearner {
			voters++
		}
	}
	return voters <= 1
}
