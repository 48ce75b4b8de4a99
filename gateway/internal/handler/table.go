package handler

// table is every API that this gateway serves, in the order of the keys, and nothing else: what stands here is what
// ApiVersions tells. Produce is told from version 0 on because librdkafka stops compressing otherwise, though versions below
// 3 are refused, as by Kafka.
func table() []API {
	return []API{
		{Key: 0, Name: "Produce", Min: 3, Max: 13, Advertised: 0, FlexibleFrom: 9, Order: producesOrder, Start: (*Handlers).startProduce},
		{Key: 1, Name: "Fetch", Min: 4, Max: 18, Advertised: 4, FlexibleFrom: 12, Order: fetchesOrder, EndsOnDrain: true, Handle: (*Handlers).fetch},
		{Key: 2, Name: "ListOffsets", Min: 1, Max: 11, Advertised: 1, FlexibleFrom: 6, Handle: on((*Handlers).listOffsets)},
		{Key: 3, Name: "Metadata", Min: 0, Max: 13, Advertised: 0, FlexibleFrom: 9, Handle: on((*Handlers).metadata)},
		{Key: 8, Name: "OffsetCommit", Min: 2, Max: 10, Advertised: 2, FlexibleFrom: 8, LapsesWithClient: true, Handle: toGroup(offsetCommitGroup, offsetCommitFailed)},
		{Key: 9, Name: "OffsetFetch", Min: 1, Max: 10, Advertised: 1, FlexibleFrom: 6, Handle: (*Handlers).offsetFetch},
		{Key: 10, Name: "FindCoordinator", Min: 0, Max: 6, Advertised: 0, FlexibleFrom: 3, Handle: on((*Handlers).findCoordinator)},
		{Key: 11, Name: "JoinGroup", Min: 0, Max: 9, Advertised: 0, FlexibleFrom: 6, EndsOnDrain: true, LapsesWithClient: true, Handle: toGroup(joinGroupGroup, joinGroupFailed)},
		{Key: 12, Name: "Heartbeat", Min: 0, Max: 4, Advertised: 0, FlexibleFrom: 4, Handle: toGroup(heartbeatGroup, heartbeatFailed)},
		{Key: 13, Name: "LeaveGroup", Min: 0, Max: 5, Advertised: 0, FlexibleFrom: 4, Handle: toGroup(leaveGroupGroup, leaveGroupFailed)},
		{Key: 14, Name: "SyncGroup", Min: 0, Max: 5, Advertised: 0, FlexibleFrom: 4, EndsOnDrain: true, Handle: toGroup(syncGroupGroup, syncGroupFailed)},
		{Key: 15, Name: "DescribeGroups", Min: 0, Max: 6, Advertised: 0, FlexibleFrom: 5, Handle: on((*Handlers).describeGroups)},
		{Key: 16, Name: "ListGroups", Min: 0, Max: 5, Advertised: 0, FlexibleFrom: 3, Handle: on((*Handlers).listGroups)},
		{Key: 18, Name: "ApiVersions", Min: 0, Max: 5, Advertised: 0, FlexibleFrom: 3, Handle: (*Handlers).apiVersions},
		{Key: 19, Name: "CreateTopics", Min: 2, Max: 7, Advertised: 2, FlexibleFrom: 5, Handle: toController(createTopicsFailed)},
		{Key: 20, Name: "DeleteTopics", Min: 1, Max: 6, Advertised: 1, FlexibleFrom: 4, Handle: toController(deleteTopicsFailed)},
		{Key: 21, Name: "DeleteRecords", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 2, Handle: on((*Handlers).deleteRecords)},
		{Key: 22, Name: "InitProducerId", Min: 0, Max: 5, Advertised: 0, FlexibleFrom: 2, Handle: on((*Handlers).initProducerID)},
		{Key: 23, Name: "OffsetForLeaderEpoch", Min: 2, Max: 4, Advertised: 2, FlexibleFrom: 4, Handle: on((*Handlers).offsetForLeaderEpoch)},
		{Key: 32, Name: "DescribeConfigs", Min: 1, Max: 4, Advertised: 1, FlexibleFrom: 4, Handle: on((*Handlers).describeConfigs)},
		{Key: 33, Name: "AlterConfigs", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 2, Handle: on((*Handlers).alterConfigs)},
		{Key: 34, Name: "AlterReplicaLogDirs", Min: 1, Max: 2, Advertised: 1, FlexibleFrom: 2, Handle: on((*Handlers).alterReplicaLogDirs)},
		{Key: 35, Name: "DescribeLogDirs", Min: 1, Max: 5, Advertised: 1, FlexibleFrom: 2, Handle: on((*Handlers).describeLogDirs)},
		{Key: 37, Name: "CreatePartitions", Min: 0, Max: 3, Advertised: 0, FlexibleFrom: 2, Handle: toController(createPartitionsFailed)},
		{Key: 42, Name: "DeleteGroups", Min: 0, Max: 3, Advertised: 0, FlexibleFrom: 2, Handle: on((*Handlers).deleteGroups)},
		{Key: 43, Name: "ElectLeaders", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 2, Handle: toController(electLeadersFailed)},
		{Key: 44, Name: "IncrementalAlterConfigs", Min: 0, Max: 1, Advertised: 0, FlexibleFrom: 1, Handle: on((*Handlers).incrementalAlterConfigs)},
		{Key: 45, Name: "AlterPartitionReassignments", Min: 0, Max: 1, Advertised: 0, FlexibleFrom: 0, Handle: toController(alterReassignmentsFailed)},
		{Key: 46, Name: "ListPartitionReassignments", Min: 0, Max: 0, Advertised: 0, FlexibleFrom: 0, Handle: toController(listReassignmentsFailed)},
		{Key: 47, Name: "OffsetDelete", Min: 0, Max: 0, Advertised: 0, FlexibleFrom: neverFlexible, Handle: toGroup(offsetDeleteGroup, offsetDeleteFailed)},
		{Key: 55, Name: "DescribeQuorum", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 0, Handle: toController(describeQuorumFailed)},
		{Key: 57, Name: "UpdateFeatures", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 0, Handle: toController(updateFeaturesFailed)},
		{Key: 60, Name: "DescribeCluster", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 0, Handle: on((*Handlers).describeCluster)},
		{Key: 61, Name: "DescribeProducers", Min: 0, Max: 0, Advertised: 0, FlexibleFrom: 0, Handle: on((*Handlers).describeProducers)},
		{Key: 64, Name: "UnregisterBroker", Min: 0, Max: 0, Advertised: 0, FlexibleFrom: 0, Handle: toController(unregisterBrokerFailed)},
		{Key: 68, Name: "ConsumerGroupHeartbeat", Min: 0, Max: 1, Advertised: 0, FlexibleFrom: 0, Handle: toGroup(consumerHeartbeatGroup, consumerHeartbeatFailed)},
		{Key: 69, Name: "ConsumerGroupDescribe", Min: 0, Max: 1, Advertised: 0, FlexibleFrom: 0, Handle: on((*Handlers).consumerGroupDescribe)},
		{Key: 74, Name: "ListConfigResources", Min: 0, Max: 1, Advertised: 0, FlexibleFrom: 0, Handle: on((*Handlers).listConfigResources)},
		{Key: 75, Name: "DescribeTopicPartitions", Min: 0, Max: 0, Advertised: 0, FlexibleFrom: 0, Handle: on((*Handlers).describeTopicPartitions)},
		{Key: 94, Name: "UnregisterController", Min: 0, Max: 0, Advertised: 0, FlexibleFrom: 0, Handle: toController(unregisterControllerFailed)},
	}
}
