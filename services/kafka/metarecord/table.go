package metarecord

// The record types of Apache Kafka 4.4.
const (
	RegisterBroker            Type = 0
	UnregisterBroker          Type = 1
	Topic                     Type = 2
	Partition                 Type = 3
	Config                    Type = 4
	PartitionChange           Type = 5
	FenceBroker               Type = 7
	UnfenceBroker             Type = 8
	RemoveTopic               Type = 9
	DelegationToken           Type = 10
	UserScramCredential       Type = 11
	FeatureLevel              Type = 12
	ClientQuota               Type = 14
	ProducerIDs               Type = 15
	BrokerRegistrationChange  Type = 17
	AccessControlEntry        Type = 18
	RemoveAccessControlEntry  Type = 19
	NoOp                      Type = 20
	ZkMigrationState          Type = 21
	RemoveUserScramCredential Type = 22
	BeginTransaction          Type = 23
	EndTransaction            Type = 24
	AbortTransaction          Type = 25
	RemoveDelegationToken     Type = 26
	RegisterController        Type = 27
	ClearElr                  Type = 28
	UnregisterController      Type = 29
)

// Our own record types, for the members and shards that Kafka does not know. They are far outside Kafka's range.
const (
	RegisterService   Type = 30001
	ServiceChange     Type = 30002
	UnregisterService Type = 30003
	Shard             Type = 30004

	firstOwnType = 30000
	maxType      = 30004
)

// spec is what the codec knows of a record type.
type spec struct {
	name string
	// version is the highest version known. It is also the one written, but for lowestVersioned records: a cluster at the
	// metadata.version of Kafka 4.4 (4.4-IV2) uses the newest version of each record.
	version int16
	make    func() Record
}

// specs is the table of record types.
var specs = map[Type]spec{
	RegisterBroker:            {"REGISTER_BROKER_RECORD", 4, func() Record { return new(RegisterBrokerRecord) }},
	UnregisterBroker:          {"UNREGISTER_BROKER_RECORD", 0, func() Record { return new(UnregisterBrokerRecord) }},
	Topic:                     {"TOPIC_RECORD", 0, func() Record { return new(TopicRecord) }},
	Partition:                 {"PARTITION_RECORD", 2, func() Record { return new(PartitionRecord) }},
	Config:                    {"CONFIG_RECORD", 0, func() Record { return new(ConfigRecord) }},
	PartitionChange:           {"PARTITION_CHANGE_RECORD", 2, func() Record { return new(PartitionChangeRecord) }},
	FenceBroker:               {"FENCE_BROKER_RECORD", 0, func() Record { return new(FenceBrokerRecord) }},
	UnfenceBroker:             {"UNFENCE_BROKER_RECORD", 0, func() Record { return new(UnfenceBrokerRecord) }},
	RemoveTopic:               {"REMOVE_TOPIC_RECORD", 0, func() Record { return new(RemoveTopicRecord) }},
	DelegationToken:           {"DELEGATION_TOKEN_RECORD", 0, func() Record { return new(DelegationTokenRecord) }},
	UserScramCredential:       {"USER_SCRAM_CREDENTIAL_RECORD", 0, func() Record { return new(UserScramCredentialRecord) }},
	FeatureLevel:              {"FEATURE_LEVEL_RECORD", 0, func() Record { return new(FeatureLevelRecord) }},
	ClientQuota:               {"CLIENT_QUOTA_RECORD", 0, func() Record { return new(ClientQuotaRecord) }},
	ProducerIDs:               {"PRODUCER_IDS_RECORD", 0, func() Record { return new(ProducerIDsRecord) }},
	BrokerRegistrationChange:  {"BROKER_REGISTRATION_CHANGE_RECORD", 3, func() Record { return new(BrokerRegistrationChangeRecord) }},
	AccessControlEntry:        {"ACCESS_CONTROL_ENTRY_RECORD", 0, func() Record { return new(AccessControlEntryRecord) }},
	RemoveAccessControlEntry:  {"REMOVE_ACCESS_CONTROL_ENTRY_RECORD", 0, func() Record { return new(RemoveAccessControlEntryRecord) }},
	NoOp:                      {"NO_OP_RECORD", 0, func() Record { return new(NoOpRecord) }},
	ZkMigrationState:          {"ZK_MIGRATION_STATE_RECORD", 0, func() Record { return new(ZkMigrationStateRecord) }},
	RemoveUserScramCredential: {"REMOVE_USER_SCRAM_CREDENTIAL_RECORD", 0, func() Record { return new(RemoveUserScramCredentialRecord) }},
	BeginTransaction:          {"BEGIN_TRANSACTION_RECORD", 0, func() Record { return new(BeginTransactionRecord) }},
	EndTransaction:            {"END_TRANSACTION_RECORD", 0, func() Record { return new(EndTransactionRecord) }},
	AbortTransaction:          {"ABORT_TRANSACTION_RECORD", 0, func() Record { return new(AbortTransactionRecord) }},
	RemoveDelegationToken:     {"REMOVE_DELEGATION_TOKEN_RECORD", 0, func() Record { return new(RemoveDelegationTokenRecord) }},
	RegisterController:        {"REGISTER_CONTROLLER_RECORD", 0, func() Record { return new(RegisterControllerRecord) }},
	ClearElr:                  {"CLEAR_ELR_RECORD", 0, func() Record { return new(ClearElrRecord) }},
	UnregisterController:      {"UNREGISTER_CONTROLLER_RECORD", 0, func() Record { return new(UnregisterControllerRecord) }},
	RegisterService:           {"REGISTER_SERVICE_RECORD", 0, func() Record { return new(RegisterServiceRecord) }},
	ServiceChange:             {"SERVICE_CHANGE_RECORD", 0, func() Record { return new(ServiceChangeRecord) }},
	UnregisterService:         {"UNREGISTER_SERVICE_RECORD", 0, func() Record { return new(UnregisterServiceRecord) }},
	Shard:                     {"SHARD_RECORD", 0, func() Record { return new(ShardRecord) }},
}
