package handler

// table is every API that this gateway serves, in the order of the keys, and nothing else: what stands here is what
// ApiVersions tells. Produce is told from version 0 on because librdkafka stops compressing otherwise, though versions below
// 3 are refused, as by Kafka.
func table() []API {
	return []API{
		{Key: 0, Name: "Produce", Min: 3, Max: 13, Advertised: 0, FlexibleFrom: 9, Order: producesOrder, Start: startProduce},
		{Key: 1, Name: "Fetch", Min: 4, Max: 18, Advertised: 4, FlexibleFrom: 12, Order: fetchesOrder, EndsOnDrain: true, Handle: fetch},
		{Key: 3, Name: "Metadata", Min: 0, Max: 13, Advertised: 0, FlexibleFrom: 9, Handle: on((*Handlers).metadata)},
		{Key: 18, Name: "ApiVersions", Min: 0, Max: 5, Advertised: 0, FlexibleFrom: 3, Handle: apiVersions},
		{Key: 19, Name: "CreateTopics", Min: 2, Max: 7, Advertised: 2, FlexibleFrom: 5, Handle: toController(createTopicsFailed)},
		{Key: 20, Name: "DeleteTopics", Min: 1, Max: 6, Advertised: 1, FlexibleFrom: 4, Handle: toController(deleteTopicsFailed)},
		{Key: 32, Name: "DescribeConfigs", Min: 1, Max: 4, Advertised: 1, FlexibleFrom: 4, Handle: on((*Handlers).describeConfigs)},
		{Key: 33, Name: "AlterConfigs", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 2, Handle: on((*Handlers).alterConfigs)},
		{Key: 37, Name: "CreatePartitions", Min: 0, Max: 3, Advertised: 0, FlexibleFrom: 2, Handle: toController(createPartitionsFailed)},
		{Key: 43, Name: "ElectLeaders", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 2, Handle: toController(electLeadersFailed)},
		{Key: 44, Name: "IncrementalAlterConfigs", Min: 0, Max: 1, Advertised: 0, FlexibleFrom: 1, Handle: on((*Handlers).incrementalAlterConfigs)},
		{Key: 60, Name: "DescribeCluster", Min: 0, Max: 2, Advertised: 0, FlexibleFrom: 0, Handle: on((*Handlers).describeCluster)},
		{Key: 75, Name: "DescribeTopicPartitions", Min: 0, Max: 0, Advertised: 0, FlexibleFrom: 0, Handle: on((*Handlers).describeTopicPartitions)},
	}
}
