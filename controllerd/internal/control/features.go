package control

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// The features that are asked about by name.
const (
	featureMetadataVersion = "metadata.version"
	featureKRaftVersion    = "kraft.version"
	featureELR             = "eligible.leader.replicas.version"
)

// feature is a feature that controllers know.
type feature struct {
	name string
	// min and max are the levels that are supported, initial is the one of a new cluster of Kafka 4.4.
	min, max, initial int16
	// needs is the metadata.version that the levels above 0 need, 0 for any.
	needs int16
}

// features are those of Kafka 4.4, in the order in which a new cluster's log has them.
func features() []feature {
	return []feature{
		{name: featureMetadataVersion, min: 7, max: 33, initial: 33},
		{name: featureELR, max: 1, initial: 1, needs: 23},
		{name: "group.version", max: 1, initial: 1},
		{name: "share.version", max: 2, initial: 2},
		{name: "streams.version", max: 1, initial: 1},
		{name: "transaction.version", max: 2, initial: 2},
	}
}

// supportedFeatures are the features of Kafka 4.4 and that of the quorum, which a new cluster does not have: its voters
// are those of the configuration.
func supportedFeatures() []feature {
	return append(features(), feature{name: featureKRaftVersion, max: 1})
}

func featureNamed(name string) (feature, bool) {
	all := supportedFeatures()
	i := slices.IndexFunc(all, func(f feature) bool { return f.name == name })
	if i < 0 {
		return feature{}, false
	}
	return all[i], true
}

// Bootstrap gives the first records of a new cluster, as one that is formatted with Kafka 4.4 has them.
func (m *Manager) Bootstrap() Decision {
	name := "Bootstrap records"
	records := []metarecord.Record{&metarecord.BeginTransactionRecord{Name: &name}}
	for _, f := range features() {
		records = append(records, &metarecord.FeatureLevelRecord{Name: f.name, FeatureLevel: f.initial})
	}
	minISR := strconv.Itoa(m.settings.Node.Int(minInsyncReplicas))
	records = append(records,
		&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: minInsyncReplicas, Value: &minISR},
		&metarecord.EndTransactionRecord{})
	return Decision{Records: records}
}

// The kinds of changes of UpdateFeatures.
const (
	upgradeOnly     = 1
	safeDowngrade   = 2
	unsafeDowngrade = 3
)

// UpdateFeatures sets the levels of features: of all that are named, or of none.
func (m *Manager) UpdateFeatures(req *kmsg.UpdateFeaturesRequest) Decision {
	resp := kmsg.NewPtrUpdateFeaturesResponse()
	resp.Version = req.Version
	proposed := map[string]int16{}
	for name, level := range m.image.Features() {
		proposed[name] = level
	}
	for i := range req.FeatureUpdates {
		proposed[req.FeatureUpdates[i].Feature] = req.FeatureUpdates[i].MaxVersionLevel
	}
	var records []metarecord.Record
	for i := range req.FeatureUpdates {
		u := &req.FeatureUpdates[i]
		kind := u.UpgradeType
		if req.Version == 0 {
			kind = upgradeOnly
			if u.AllowDowngrade {
				kind = safeDowngrade
			}
		}
		updated, err := m.updateFeature(u.Feature, u.MaxVersionLevel, kind, proposed)
		if err != nil {
			resp.ErrorCode = int16(errcode.Of(err))
			resp.ErrorMessage = kmsg.StringPtr("The update failed for all features since the following feature had an error: " + errcode.Text(err))
			return Decision{Reply: resp}
		}
		records = append(records, updated...)
	}
	for i := range req.FeatureUpdates {
		if req.Version > 1 {
			break
		}
		result := kmsg.NewUpdateFeaturesResponseResult()
		result.Feature = req.FeatureUpdates[i].Feature
		resp.Results = append(resp.Results, result)
	}
	if req.ValidateOnly {
		records = nil
	}
	return Decision{Records: records, Atomic: true, Reply: resp}
}

func (m *Manager) updateFeature(name string, level int16, kind int8, proposed map[string]int16) ([]metarecord.Record, error) {
	refuse := func(format string, args ...any) error {
		return errcode.InvalidUpdateVersion.Errorf("Invalid update version %d for feature %s. %s", level, name, fmt.Sprintf(format, args...))
	}
	if kind < upgradeOnly || kind > unsafeDowngrade {
		return nil, refuse("The controller does not support the given upgrade type.")
	}
	if level < 0 {
		return nil, refuse("A feature version cannot be less than 0.")
	}
	if reason := m.reasonNotSupported(name, level); reason != "" {
		return nil, refuse("%s", reason)
	}
	now := m.image.FeatureLevel(name)
	switch {
	case level < now && kind == upgradeOnly:
		return nil, refuse("Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.")
	case level > now && kind != upgradeOnly:
		return nil, refuse("Can't downgrade to a newer version.")
	}
	switch name {
	case featureMetadataVersion:
		return m.updateMetadataVersion(now, level, kind)
	case featureKRaftVersion:
		if level < now {
			return nil, refuse("Can't downgrade the version of this feature.")
		}
	default:
		f, known := featureNamed(name)
		switch {
		case !known:
			return nil, refuse("Feature %s not found.", name)
		case level > 0 && proposed[featureMetadataVersion] < f.needs:
			return nil, refuse("%s could not be set to %d because it depends on %s level %d", name, level, featureMetadataVersion, f.needs)
		}
	}
	var records []metarecord.Record
	if name == featureELR && level > 0 {
		records = m.elrSafety()
	}
	return append(records, &metarecord.FeatureLevelRecord{Name: name, FeatureLevel: level}), nil
}

// reasonNotSupported says who of the cluster does not support a level of a feature, empty for nobody.
func (m *Manager) reasonNotSupported(name string, level int16) string {
	check := func(who string, r metadata.VersionRange) string {
		switch {
		case level >= r.Min && level <= r.Max:
			return ""
		case r.Max == 0:
			return who + " does not support this feature."
		}
		return fmt.Sprintf("%s only supports versions %d-%d", who, r.Min, r.Max)
	}
	f, _ := featureNamed(name)
	if reason := check(fmt.Sprintf("Local controller %d", m.settings.ControllerID), metadata.VersionRange{Min: f.min, Max: f.max}); reason != "" {
		return reason
	}
	for _, b := range m.image.Brokers() {
		if name == featureKRaftVersion {
			break // Storage nodes do not vote.
		}
		if reason := check(fmt.Sprintf("Broker %d", b.ID), b.SupportedFeatures[name]); reason != "" {
			return reason
		}
	}
	for _, c := range m.image.Controllers() {
		if c.ID == m.settings.ControllerID {
			continue
		}
		if reason := check(fmt.Sprintf("Controller %d", c.ID), c.SupportedFeatures[name]); reason != "" {
			return reason
		}
	}
	return ""
}

// versionsWithChanges are the metadata versions that brought new records or fields; to go below one of them would lose
// what those hold.
var versionsWithChanges = []int16{8, 11, 13, 14, 15, 17, 23, 30, 32, 33}

// updateMetadataVersion goes to a newer version, or to an older one that knows all that the present one knows.
func (m *Manager) updateMetadataVersion(now, level int16, kind int8) ([]metarecord.Record, error) {
	changed := slices.ContainsFunc(versionsWithChanges, func(v int16) bool { return v > level && v <= now })
	switch {
	case changed && kind == unsafeDowngrade:
		return nil, errcode.InvalidUpdateVersion.Errorf("Unsupported metadata.version downgrade from %d to %d. Unsafe metadata downgrade "+
			"is not supported in this version.", now, level)
	case changed:
		return nil, errcode.InvalidUpdateVersion.Errorf("Unsupported metadata.version downgrade from %d to %d. Refusing to perform the "+
			"requested downgrade because it might delete metadata information.", now, level)
	}
	return []metarecord.Record{&metarecord.FeatureLevelRecord{Name: featureMetadataVersion, FeatureLevel: level}}, nil
}

// elrSafety gives the records that make min.insync.replicas the same on all brokers, which eligible leaders rely on.
func (m *Manager) elrSafety() []metarecord.Record {
	var records []metarecord.Record
	if _, ok := m.image.Config(metadata.ResourceBroker, "")[minInsyncReplicas]; !ok {
		value := strconv.Itoa(m.settings.Node.Int(minInsyncReplicas))
		records = append(records, &metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: minInsyncReplicas, Value: &value})
	}
	for _, name := range m.image.ConfigResources(metadata.ResourceBroker) {
		if _, ok := m.image.Config(metadata.ResourceBroker, name)[minInsyncReplicas]; ok && name != "" {
			records = append(records, &metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), ResourceName: name, Name: minInsyncReplicas})
		}
	}
	return records
}

// RegisterController makes a controller known with its endpoints. Only controllers may ask.
func (m *Manager) RegisterController(req *kmsg.ControllerRegistrationRequest, trusted bool) Decision {
	resp := kmsg.NewPtrControllerRegistrationResponse()
	resp.Version = req.Version
	if !trusted {
		resp.ErrorCode, resp.ErrorMessage = fail(errcode.ClusterAuthorizationFailed.Err())
		return Decision{Reply: resp}
	}
	record := &metarecord.RegisterControllerRecord{ControllerID: req.ControllerID, IncarnationID: uuid.UUID(req.IncarnationID)}
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
	return Decision{Records: []metarecord.Record{record}, Reply: resp}
}

// UpdateControllerListeners takes note of where clients find a controller now. What services dial stays.
func (m *Manager) UpdateControllerListeners(id int32, listeners []metarecord.Endpoint) Decision {
	controllers := m.image.Controllers()
	i := slices.IndexFunc(controllers, func(c *metadata.Controller) bool { return c.ID == id })
	if i < 0 {
		return Decision{}
	}
	c := controllers[i]
	record := &metarecord.RegisterControllerRecord{ControllerID: id, IncarnationID: c.IncarnationID}
	if e, ok := c.Endpoint(metadata.GRPCEndpoint); ok {
		record.EndPoints = append(record.EndPoints, metarecord.Endpoint(e))
	}
	record.EndPoints = append(record.EndPoints, listeners...)
	for _, name := range slices.Sorted(maps.Keys(c.SupportedFeatures)) {
		r := c.SupportedFeatures[name]
		record.Features = append(record.Features, metarecord.Feature{Name: name, MinSupportedVersion: r.Min, MaxSupportedVersion: r.Max})
	}
	return Decision{Records: []metarecord.Record{record}}
}

// UnregisterController forgets a controller.
func (m *Manager) UnregisterController(req *kmsg.UnregisterControllerRequest) Decision {
	resp := kmsg.NewPtrUnregisterControllerResponse()
	resp.Version = req.Version
	if !slices.ContainsFunc(m.image.Controllers(), func(c *metadata.Controller) bool { return c.ID == req.ControllerID }) {
		resp.ErrorCode, resp.ErrorMessage = fail(errcode.ControllerIdNotRegistered.Errorf("Controller ID %d is not currently registered.", req.ControllerID))
		return Decision{Reply: resp}
	}
	return Decision{Records: []metarecord.Record{&metarecord.UnregisterControllerRecord{ControllerID: req.ControllerID}}, Reply: resp}
}

// ControllerFeatures are the features that this controller supports, for its registration.
func ControllerFeatures() []kmsg.ControllerRegistrationRequestFeature {
	var list []kmsg.ControllerRegistrationRequestFeature
	for _, f := range supportedFeatures() {
		e := kmsg.NewControllerRegistrationRequestFeature()
		e.Name, e.MinSupportedVersion, e.MaxSupportedVersion = f.name, f.min, f.max
		list = append(list, e)
	}
	return list
}
