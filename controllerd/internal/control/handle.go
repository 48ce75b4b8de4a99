package control

import (
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Handle decides about a request in Kafka's format. Trusted says that a service of the cluster asks. False says that
// controllers do not answer such requests.
func (m *Manager) Handle(req kmsg.Request, trusted bool) (Decision, bool) {
	switch r := req.(type) {
	case *kmsg.CreateTopicsRequest:
		return m.CreateTopics(r), true
	case *kmsg.DeleteTopicsRequest:
		return m.DeleteTopics(r), true
	case *kmsg.CreatePartitionsRequest:
		return m.CreatePartitions(r), true
	case *kmsg.IncrementalAlterConfigsRequest:
		return m.IncrementalAlterConfigs(r), true
	case *kmsg.AlterConfigsRequest:
		return m.AlterConfigs(r), true
	case *kmsg.ElectLeadersRequest:
		return m.ElectLeaders(r), true
	case *kmsg.AlterPartitionAssignmentsRequest:
		return m.AlterPartitionReassignments(r), true
	case *kmsg.ListPartitionReassignmentsRequest:
		return m.ListPartitionReassignments(r), true
	case *kmsg.UpdateFeaturesRequest:
		return m.UpdateFeatures(r), true
	case *kmsg.UnregisterBrokerRequest:
		return m.UnregisterBroker(r), true
	case *kmsg.UnregisterControllerRequest:
		return m.UnregisterController(r), true
	case *kmsg.BrokerRegistrationRequest:
		return m.RegisterBroker(r), true
	case *kmsg.BrokerHeartbeatRequest:
		return m.BrokerHeartbeat(r), true
	case *kmsg.AlterPartitionRequest:
		return m.AlterPartition(r), true
	case *kmsg.AssignReplicasToDirsRequest:
		return m.AssignReplicasToDirs(r), true
	case *kmsg.AllocateProducerIDsRequest:
		return m.AllocateProducerIDs(r, trusted), true
	case *kmsg.ControllerRegistrationRequest:
		return m.RegisterController(r, trusted), true
	}
	return Decision{}, false
}
