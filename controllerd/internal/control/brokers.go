package control

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// checkBrokerEpoch refuses a storage node whose registration is not the present one.
func (m *Manager) checkBrokerEpoch(id int32, epoch int64) (*metadata.Broker, error) {
	b := m.image.Broker(id)
	if b == nil {
		return nil, errcode.StaleBrokerEpoch.Errorf("No broker registration found for broker id %d", id)
	}
	if b.Epoch != epoch {
		return nil, errcode.StaleBrokerEpoch.Errorf("Expected broker epoch %d, but got broker epoch %d", b.Epoch, epoch)
	}
	return b, nil
}

// RegisterBroker makes a storage node a member.
func (m *Manager) RegisterBroker(req *kmsg.BrokerRegistrationRequest) Decision {
	resp := kmsg.NewPtrBrokerRegistrationResponse()
	resp.Version = req.Version
	records, epoch, err := m.registerBroker(req)
	if err != nil {
		m.logger.Info("refusing the registration of a storage node", "node", req.BrokerID, "error", err)
		resp.ErrorCode, _ = fail(err)
		return Decision{Reply: resp}
	}
	resp.BrokerEpoch = epoch
	return Decision{Records: records, Reply: resp}
}

func (m *Manager) registerBroker(req *kmsg.BrokerRegistrationRequest) ([]metarecord.Record, int64, error) {
	old := m.image.Broker(req.BrokerID)
	if err := m.checkRegistration(req, old); err != nil {
		return nil, 0, err
	}
	record := &metarecord.RegisterBrokerRecord{
		BrokerID:      req.BrokerID,
		IncarnationID: req.IncarnationID,
		Rack:          req.Rack,
		Fenced:        true,
	}
	for _, l := range req.Listeners {
		record.EndPoints = append(record.EndPoints, metarecord.Endpoint{
			Name: l.Name, Host: l.Host, Port: l.Port, SecurityProtocol: l.SecurityProtocol,
		})
	}
	for _, f := range req.Features {
		record.Features = append(record.Features, metarecord.Feature{
			Name: f.Name, MinSupportedVersion: f.MinSupportedVersion, MaxSupportedVersion: f.MaxSupportedVersion,
		})
	}
	for _, d := range req.LogDirs {
		record.LogDirs = append(record.LogDirs, d)
	}
	if old != nil && old.IncarnationID == req.IncarnationID {
		record.Fenced, record.InControlledShutdown, record.BrokerEpoch = old.Fenced, old.InControlledShutdown, old.Epoch
		m.logger.Info("amending the registration of a storage node", "node", req.BrokerID, "epoch", old.Epoch)
		if s := m.sessions[storageNode(req.BrokerID)]; s != nil {
			s.registered = m.next
		}
		return []metarecord.Record{record}, old.Epoch, nil
	}
	record.BrokerEpoch = m.next
	// What an earlier incarnation left behind goes first: this one leads nothing, and may have lost records.
	clean := old != nil && req.Version >= 3 && req.PreviousBrokerEpoch == old.Epoch
	var records []metarecord.Record
	if m.elrEnabled() && !clean {
		records = m.afterUncleanShutdown(req.BrokerID)
	} else {
		records = m.withoutNode(req.BrokerID)
	}
	m.logger.Info("registering a storage node", "node", req.BrokerID, "epoch", m.next, "incarnation", record.IncarnationID.String(),
		"clean_shutdown", clean, "partitions_changed", len(records))
	return append(records, record), m.next, nil
}

func (m *Manager) checkRegistration(req *kmsg.BrokerRegistrationRequest, old *metadata.Broker) error {
	if req.ClusterID != m.image.ClusterID() {
		return errcode.InconsistentClusterId.Errorf("Expected cluster ID %s, but got cluster ID %s", m.image.ClusterID(), req.ClusterID)
	}
	if old != nil && old.IncarnationID != req.IncarnationID && m.alive(storageNode(req.BrokerID), old.Epoch) {
		return errcode.DuplicateBrokerRegistration.Errorf("Another broker is registered with that broker id.")
	}
	if req.IsMigratingZkBroker {
		return errcode.BrokerIdNotRegistered.Errorf("Controller does not support registering ZK brokers.")
	}
	if err := m.checkLogDirs(req); err != nil {
		return err
	}
	return m.checkRegistrationFeatures(req)
}

func (m *Manager) checkLogDirs(req *kmsg.BrokerRegistrationRequest) error {
	if len(req.LogDirs) == 0 {
		return errcode.InvalidRegistration.Errorf("No directories specified in request")
	}
	for i, d := range req.LogDirs {
		id := uuid.UUID(d)
		if id == uuid.MigratingDir || id == uuid.UnassignedDir || id == uuid.LostDir {
			return errcode.InvalidRegistration.Errorf("Reserved directory ID in request")
		}
		if slices.Contains(req.LogDirs[:i], d) {
			return errcode.InvalidRegistration.Errorf("Duplicate directory ID in request")
		}
		for _, b := range m.image.Brokers() {
			if b.ID != req.BrokerID && slices.Contains(b.Directories, id) {
				return errcode.InvalidRegistration.Errorf("Broker %d is already registered with directory %s", b.ID, id)
			}
		}
	}
	return nil
}

// checkRegistrationFeatures makes sure that a node supports the level of each feature that is on.
func (m *Manager) checkRegistrationFeatures(req *kmsg.BrokerRegistrationRequest) error {
	ranges := map[string]metadata.VersionRange{}
	for _, f := range req.Features {
		ranges[f.Name] = metadata.VersionRange{Min: f.MinSupportedVersion, Max: f.MaxSupportedVersion}
	}
	if _, ok := ranges[featureMetadataVersion]; !ok {
		return errcode.InvalidRegistration.Errorf("Request features do not contain '%s'", featureMetadataVersion)
	}
	for name, level := range m.image.Features() {
		if name == featureKRaftVersion {
			continue // Storage nodes do not vote.
		}
		if r := ranges[name]; level < r.Min || level > r.Max {
			return errcode.UnsupportedVersion.Errorf("Unable to register because the broker does not support finalized version %d of %s. "+
				"The broker wants a version between %d and %d, inclusive.", level, name, r.Min, r.Max)
		}
	}
	return nil
}

// fenceBroker gives the records by which a storage node goes out of service.
func (m *Manager) fenceBroker(b *metadata.Broker) []metarecord.Record {
	return append(m.withoutNode(b.ID), &metarecord.BrokerRegistrationChangeRecord{
		BrokerID: b.ID, BrokerEpoch: b.Epoch, Fenced: metarecord.FencedFence,
	})
}

// brokerState is where a storage node is between starting and stopping.
type brokerState int

const (
	stateFenced brokerState = iota
	stateUnfenced
	stateLeaving
	stateStop
)

// BrokerHeartbeat keeps a storage node alive and moves it between the states of its life.
func (m *Manager) BrokerHeartbeat(req *kmsg.BrokerHeartbeatRequest) Decision {
	resp := kmsg.NewPtrBrokerHeartbeatResponse()
	resp.Version = req.Version
	b, err := m.checkBrokerEpoch(req.BrokerID, req.BrokerEpoch)
	if err != nil {
		resp.ErrorCode, _ = fail(err)
		return Decision{Reply: resp}
	}
	s := m.sessions[storageNode(b.ID)]
	s.heard = m.now
	s.applied = max(s.applied, req.CurrentMetadataOffset)
	d := Decision{Reply: resp}
	now, next := m.stateOf(b, s), m.nextState(req, b, s)
	if next != now {
		d.Records = m.enter(next, b)
	}
	switch {
	case next == stateStop:
		// Its session ends here, so that it can start again at once.
		s.shutdown, s.heard = -1, time.Time{}
	case next == stateFenced:
		s.shutdown = -1
	case next == stateLeaving && s.shutdown < 0:
		s.shutdown = m.next + int64(len(d.Records)) - 1
	}
	d.Records = append(d.Records, m.directoriesOffline(b, req.OfflineLogDirs)...)
	d.Records = append(d.Records, m.directoriesCordoned(b, req)...)
	resp.IsCaughtUp = req.CurrentMetadataOffset >= s.registered
	resp.IsFenced = next == stateFenced || next == stateStop
	resp.ShouldShutdown = next == stateStop
	return d
}

func (m *Manager) stateOf(b *metadata.Broker, s *session) brokerState {
	switch {
	case s.shutdown >= 0:
		return stateLeaving
	case b.Fenced:
		return stateFenced
	}
	return stateUnfenced
}

func (m *Manager) nextState(req *kmsg.BrokerHeartbeatRequest, b *metadata.Broker, s *session) brokerState {
	switch m.stateOf(b, s) {
	case stateFenced:
		switch {
		case req.WantShutdown:
			return stateStop
		case b.InControlledShutdown:
			// No record takes this back: a node that was about to stop, and was silent for too long on the way, must register
			// again before it may lead.
			return stateFenced
		case !req.WantFence && req.CurrentMetadataOffset >= s.registered:
			return stateUnfenced
		}
		return stateFenced
	case stateUnfenced:
		switch {
		case req.WantFence && req.WantShutdown:
			return stateStop
		case req.WantFence:
			return stateFenced
		case req.WantShutdown && m.hasLeaderships(b.ID):
			return stateLeaving
		case req.WantShutdown:
			return stateStop
		}
		return stateUnfenced
	case stateLeaving, stateStop:
	}
	// The others must know of the new leaders before this node stops answering as one.
	if m.hasLeaderships(b.ID) || s.shutdown > m.lowestActiveOffset() {
		return stateLeaving
	}
	return stateStop
}

// enter gives the records by which a storage node gets into a state.
func (m *Manager) enter(state brokerState, b *metadata.Broker) []metarecord.Record {
	switch state {
	case stateFenced, stateStop:
		m.logger.Info("fencing a storage node", "node", b.ID, "epoch", b.Epoch, "stops", state == stateStop)
		if b.Fenced {
			return nil
		}
		return m.fenceBroker(b)
	case stateUnfenced:
		m.logger.Info("unfencing a storage node", "node", b.ID, "epoch", b.Epoch)
		unfence := &metarecord.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, Fenced: metarecord.FencedUnfence}
		return append([]metarecord.Record{unfence}, m.withNode(b.ID)...)
	case stateLeaving:
		m.logger.Info("a storage node is leaving", "node", b.ID, "epoch", b.Epoch)
		var records []metarecord.Record
		if !b.InControlledShutdown {
			records = append(records, &metarecord.BrokerRegistrationChangeRecord{
				BrokerID: b.ID, BrokerEpoch: b.Epoch, InControlledShutdown: metarecord.ControlledShutdownEnter,
			})
		}
		return append(records, m.withoutNode(b.ID)...)
	}
	return nil
}

// directoriesOffline gives the records for log directories that have failed.
func (m *Manager) directoriesOffline(b *metadata.Broker, offline [][16]byte) []metarecord.Record {
	lost := func(d uuid.UUID) bool { return slices.Contains(offline, [16]byte(d)) }
	if !slices.ContainsFunc(b.Directories, lost) {
		return nil
	}
	c := m.newChanges(removal{gone: b.ID, back: metadata.NoLeader, unclean: metadata.NoLeader})
	m.partitionsWhere(func(p *metadata.Partition) bool {
		dir := directoryOf(p, b.ID)
		return slices.Contains(p.Replicas, b.ID) && lost(dir) && slices.Contains(b.Directories, dir)
	}, c.visit)
	online := slices.DeleteFunc(slices.Clone(b.Directories), lost)
	m.logger.Warn("log directories of a storage node have failed", "node", b.ID, "left", len(online), "partitions_changed", len(c.records))
	return append(c.records, &metarecord.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, LogDirs: online})
}

// directoriesCordoned gives the record for log directories that take no more replicas, if they have changed.
func (m *Manager) directoriesCordoned(b *metadata.Broker, req *kmsg.BrokerHeartbeatRequest) []metarecord.Record {
	if req.CordonedLogDirs == nil || req.Version < 2 {
		return nil
	}
	cordoned := make([]uuid.UUID, 0, len(req.CordonedLogDirs))
	for _, d := range req.CordonedLogDirs {
		cordoned = append(cordoned, d)
	}
	same := len(cordoned) == len(b.CordonedDirectories) &&
		!slices.ContainsFunc(cordoned, func(d uuid.UUID) bool { return !slices.Contains(b.CordonedDirectories, d) })
	if same {
		return nil
	}
	return []metarecord.Record{&metarecord.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, CordonedLogDirs: cordoned}}
}

// UnregisterBroker ends a storage node's membership.
func (m *Manager) UnregisterBroker(req *kmsg.UnregisterBrokerRequest) Decision {
	resp := kmsg.NewPtrUnregisterBrokerResponse()
	resp.Version = req.Version
	b := m.image.Broker(req.BrokerID)
	if b == nil {
		resp.ErrorCode, resp.ErrorMessage = fail(errcode.BrokerIdNotRegistered.Errorf("Broker ID %d is not currently registered", req.BrokerID))
		return Decision{Reply: resp}
	}
	c := m.newChanges(removal{gone: b.ID, back: metadata.NoLeader, unclean: metadata.NoLeader})
	m.partitionsWhere(inISROrELR(b.ID), c.visit)
	return Decision{
		Records: append(c.records, &metarecord.UnregisterBrokerRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch}),
		Reply:   resp,
	}
}
