package control

import (
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

const minInsyncReplicas = "min.insync.replicas"

// resourceName names a resource that has configs.
type resourceName struct {
	kind kmsg.ConfigResourceType
	name string
}

// node is the configuration that all nodes have in common: what is static here, and the dynamic configs of all brokers.
func (m *Manager) node() *configdef.Node {
	return m.settings.Node.WithDynamic(m.image.Config(metadata.ResourceBroker, ""), nil)
}

// IncrementalAlterConfigs changes single configs of resources. Each resource has its own result; those that can be changed
// are changed together.
func (m *Manager) IncrementalAlterConfigs(req *kmsg.IncrementalAlterConfigsRequest) Decision {
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	resp.Version = req.Version
	counts := map[resourceName]int{}
	for i := range req.Resources {
		counts[resourceName{req.Resources[i].ResourceType, req.Resources[i].ResourceName}]++
	}
	d := Decision{Reply: resp, Atomic: true}
	for i := range req.Resources {
		r := &req.Resources[i]
		name := resourceName{r.ResourceType, r.ResourceName}
		alterations := make([]configdef.Alteration, len(r.Configs))
		for j := range r.Configs {
			alterations[j] = configdef.Alteration{Name: r.Configs[j].Name, Op: configdef.Op(r.Configs[j].Op), Value: r.Configs[j].Value}
		}
		records, err := m.alterConfigs(name, counts[name], alterations, func(kind configdef.Resource, current map[string]string) ([]configdef.Change, error) {
			_, changes, err := configdef.Alter(kind, current, alterations)
			return changes, err
		})
		d.Records = append(d.Records, records...)
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		out.ErrorCode, out.ErrorMessage = fail(err)
		resp.Resources = append(resp.Resources, out)
	}
	if err := tooMany(d.Records); err != nil {
		d.Records = nil
		for i := range resp.Resources {
			resp.Resources[i].ErrorCode, resp.Resources[i].ErrorMessage = fail(err)
		}
	}
	d.finishConfigs(m, req.ValidateOnly)
	return d
}

// AlterConfigs replaces all configs of resources.
func (m *Manager) AlterConfigs(req *kmsg.AlterConfigsRequest) Decision {
	resp := kmsg.NewPtrAlterConfigsResponse()
	resp.Version = req.Version
	counts := map[resourceName]int{}
	for i := range req.Resources {
		counts[resourceName{req.Resources[i].ResourceType, req.Resources[i].ResourceName}]++
	}
	d := Decision{Reply: resp, Atomic: true}
	for i := range req.Resources {
		r := &req.Resources[i]
		name := resourceName{r.ResourceType, r.ResourceName}
		given := make(map[string]string, len(r.Configs))
		alterations := make([]configdef.Alteration, len(r.Configs))
		for j := range r.Configs {
			alterations[j] = configdef.Alteration{Name: r.Configs[j].Name, Op: configdef.OpSet, Value: r.Configs[j].Value}
			if r.Configs[j].Value != nil {
				given[r.Configs[j].Name] = *r.Configs[j].Value
			}
		}
		records, err := m.alterConfigs(name, counts[name], alterations, func(kind configdef.Resource, current map[string]string) ([]configdef.Change, error) {
			return configdef.Replace(kind, current, given)
		})
		d.Records = append(d.Records, records...)
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		out.ErrorCode, out.ErrorMessage = fail(err)
		resp.Resources = append(resp.Resources, out)
	}
	if err := tooMany(d.Records); err != nil {
		d.Records = nil
		for i := range resp.Resources {
			resp.Resources[i].ErrorCode, resp.Resources[i].ErrorMessage = fail(err)
		}
	}
	d.finishConfigs(m, req.ValidateOnly)
	return d
}

func (d *Decision) finishConfigs(m *Manager, validateOnly bool) {
	if validateOnly {
		d.Records = nil
		return
	}
	d.Records = append(d.Records, m.clearELR(d.Records)...)
}

// alterConfigs gives the records for one resource; named is how often the request names it.
func (m *Manager) alterConfigs(r resourceName, named int, alterations []configdef.Alteration,
	alter func(configdef.Resource, map[string]string) ([]configdef.Change, error)) ([]metarecord.Record, error) {
	if named > 1 {
		return nil, errcode.InvalidRequest.Errorf("Each resource must appear at most once.")
	}
	if err := configdef.CheckAlterations(alterations); err != nil {
		return nil, err
	}
	kind, err := m.checkResource(r)
	if err != nil {
		return nil, err
	}
	current := m.image.Config(metadata.ResourceType(r.kind), r.name)
	changes, err := alter(kind, current)
	if err != nil {
		return nil, err
	}
	records := make([]metarecord.Record, len(changes))
	after := make(map[string]string, len(current)+len(changes))
	for k, v := range current {
		after[k] = v
	}
	for i, c := range changes {
		if err := m.checkMinISRChange(r, c); err != nil {
			return nil, err
		}
		records[i] = &metarecord.ConfigRecord{ResourceType: int8(r.kind), ResourceName: r.name, Name: c.Name, Value: c.Value}
		if c.Value == nil {
			delete(after, c.Name)
		} else {
			after[c.Name] = *c.Value
		}
	}
	if err := m.checkConfigs(r, kind, after, current); err != nil {
		return nil, err
	}
	return records, nil
}

// checkResource says whether there is such a resource, as far as a config of it must wait for that.
func (m *Manager) checkResource(r resourceName) (configdef.Resource, error) {
	switch metadata.ResourceType(r.kind) {
	case metadata.ResourceTopic:
		if r.name == "" {
			return 0, errcode.InvalidRequest.Errorf("Default topic resources are not allowed.")
		}
		return configdef.TopicResource, checkTopicName(r.name)
	case metadata.ResourceBroker:
		if r.name == "" {
			return configdef.BrokerResource, nil
		}
		id, err := strconv.ParseInt(r.name, 10, 32)
		if err != nil {
			return 0, errcode.InvalidRequest.Errorf("Node id must be an integer, but it is: %s", r.name)
		}
		if m.image.Broker(int32(id)) == nil {
			return 0, errcode.InvalidRequest.Errorf("Unexpected broker id: no node with id %d is registered", id)
		}
		return configdef.BrokerResource, nil
	case metadata.ResourceGroup:
		if r.name == "" {
			return 0, errcode.InvalidRequest.Errorf("Default group resources are not allowed.")
		}
		return configdef.GroupResource, nil
	case metadata.ResourceClientMetrics:
		return configdef.ClientMetricsResource, nil
	case metadata.ResourceBrokerLogger:
	}
	return 0, errcode.InvalidRequest.Errorf("Unknown resource type %d", r.kind)
}

// checkConfigs says whether the configs of a resource fit together, and whether the resource exists.
func (m *Manager) checkConfigs(r resourceName, kind configdef.Resource, after, before map[string]string) error {
	node := m.node()
	switch kind {
	case configdef.TopicResource:
		if err := node.CheckTopic(after, before); err != nil {
			return err
		}
		if m.image.TopicByName(r.name) == nil {
			return errcode.UnknownTopicOrPartition.Errorf("The topic '%s' does not exist.", r.name)
		}
		return nil
	case configdef.BrokerResource:
		if r.name != "" { // a step counts from what the broker has now
			node = m.settings.Node.WithDynamic(m.image.Config(metadata.ResourceBroker, ""), before)
		}
		return node.CheckBroker(after, r.name != "")
	case configdef.GroupResource:
		return node.CheckGroup(after)
	case configdef.ClientMetricsResource:
		return configdef.CheckClientMetrics(r.name, after)
	}
	return nil
}

// checkMinISRChange keeps min.insync.replicas where eligible leader replicas need it: once for the whole cluster.
func (m *Manager) checkMinISRChange(r resourceName, c configdef.Change) error {
	switch {
	case metadata.ResourceType(r.kind) != metadata.ResourceBroker || c.Name != minInsyncReplicas || !m.elrEnabled():
		return nil
	case r.name != "":
		return errcode.InvalidConfig.Errorf("Broker-level %s cannot be altered while ELR is enabled.", minInsyncReplicas)
	case c.Value == nil:
		return errcode.InvalidConfig.Errorf("Cluster-level %s cannot be removed while ELR is enabled.", minInsyncReplicas)
	}
	return nil
}

// clearELR gives the records that forget eligible leaders where records change how many replicas must be in sync: those were
// chosen for the number before.
func (m *Manager) clearELR(records []metarecord.Record) []metarecord.Record {
	if !m.elrEnabled() {
		return nil
	}
	var cleared []metarecord.Record
	for _, r := range records {
		c, ok := r.(*metarecord.ConfigRecord)
		if !ok || c.Name != minInsyncReplicas {
			continue
		}
		clearing := &metarecord.ClearElrRecord{}
		if c.ResourceType == int8(metadata.ResourceTopic) {
			clearing.TopicName = c.ResourceName
		}
		if !slices.ContainsFunc(cleared, func(r metarecord.Record) bool { return *r.(*metarecord.ClearElrRecord) == *clearing }) {
			cleared = append(cleared, clearing)
		}
	}
	return cleared
}
