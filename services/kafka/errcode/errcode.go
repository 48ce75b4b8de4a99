// Package errcode is the one table of Kafka's error codes and the one place where they become Go errors and
// gRPC statuses.
//
// It owns the numbers and names of the protocol; it must never decide which code fits a situation: that is the
// business of the package that meets it.
package errcode

import "strconv"

// Code is an error code of the Kafka protocol, as clients see it on the wire.
type Code int16

// The error codes of Apache Kafka 4.4.
const (
	// UnknownServerError: unexpected failure inside the broker.
	UnknownServerError Code = -1
	// None: success.
	None Code = 0
	// OffsetOutOfRange: fetch or delete offset below log start or above the end.
	OffsetOutOfRange Code = 1
	// CorruptMessage: bad CRC, bad size, keyless record on a compacted topic or otherwise broken batch.
	CorruptMessage Code = 2
	// UnknownTopicOrPartition: topic or partition unknown here, or hidden by ACLs.
	UnknownTopicOrPartition Code = 3
	// InvalidFetchSize: negative fetch size.
	InvalidFetchSize Code = 4
	// LeaderNotAvailable: partition has no leader for now.
	LeaderNotAvailable Code = 5
	// NotLeaderOrFollower: this broker does not lead (or hold) the partition.
	NotLeaderOrFollower Code = 6
	// RequestTimedOut: operation did not finish within its timeout.
	RequestTimedOut Code = 7
	// BrokerNotAvailable: broker unreachable (not sent by current brokers).
	BrokerNotAvailable Code = 8
	// ReplicaNotAvailable: replica missing for a log directory or metadata request.
	ReplicaNotAvailable Code = 9
	// MessageTooLarge: record batch over max.message.bytes.
	MessageTooLarge Code = 10
	// StaleControllerEpoch: controller changed during the operation.
	StaleControllerEpoch Code = 11
	// OffsetMetadataTooLarge: offset metadata string over offset.metadata.max.bytes.
	OffsetMetadataTooLarge Code = 12
	// NetworkException: client side: connection lost before the response.
	NetworkException Code = 13
	// CoordinatorLoadInProgress: coordinator still loads its partition.
	CoordinatorLoadInProgress Code = 14
	// CoordinatorNotAvailable: coordinator unknown or not yet created.
	CoordinatorNotAvailable Code = 15
	// NotCoordinator: this broker does not coordinate that group or transactional id.
	NotCoordinator Code = 16
	// InvalidTopicException: illegal topic name or operation on an internal topic.
	InvalidTopicException Code = 17
	// RecordListTooLarge: batch larger than a segment.
	RecordListTooLarge Code = 18
	// NotEnoughReplicas: in-sync replicas below min.insync.replicas, nothing written.
	NotEnoughReplicas Code = 19
	// NotEnoughReplicasAfterAppend: written, but in-sync replicas fell below the minimum before the ack.
	NotEnoughReplicasAfterAppend Code = 20
	// InvalidRequiredAcks: acks not 0, 1 or -1.
	InvalidRequiredAcks Code = 21
	// IllegalGeneration: generation of the member is outdated.
	IllegalGeneration Code = 22
	// InconsistentGroupProtocol: protocol type or assignor list does not fit the group.
	InconsistentGroupProtocol Code = 23
	// InvalidGroupId: empty or illegal group id.
	InvalidGroupId Code = 24
	// UnknownMemberId: member id not in the group.
	UnknownMemberId Code = 25
	// InvalidSessionTimeout: session timeout outside group.min/max.session.timeout.ms.
	InvalidSessionTimeout Code = 26
	// RebalanceInProgress: rebalance under way, member must rejoin.
	RebalanceInProgress Code = 27
	// InvalidCommitOffsetSize: offset commit record too large.
	InvalidCommitOffsetSize Code = 28
	// TopicAuthorizationFailed: topic ACL refused.
	TopicAuthorizationFailed Code = 29
	// GroupAuthorizationFailed: group ACL refused.
	GroupAuthorizationFailed Code = 30
	// ClusterAuthorizationFailed: cluster ACL refused.
	ClusterAuthorizationFailed Code = 31
	// InvalidTimestamp: record timestamp outside the allowed window, or set with LogAppendTime.
	InvalidTimestamp Code = 32
	// UnsupportedSaslMechanism: SASL mechanism not enabled.
	UnsupportedSaslMechanism Code = 33
	// IllegalSaslState: request not allowed in this SASL step.
	IllegalSaslState Code = 34
	// UnsupportedVersion: request version not supported.
	UnsupportedVersion Code = 35
	// TopicAlreadyExists: topic exists already.
	TopicAlreadyExists Code = 36
	// InvalidPartitions: partition count below 1 or not an increase.
	InvalidPartitions Code = 37
	// InvalidReplicationFactor: replication factor below 1 or above the brokers alive.
	InvalidReplicationFactor Code = 38
	// InvalidReplicaAssignment: manual replica assignment broken.
	InvalidReplicaAssignment Code = 39
	// InvalidConfig: config name or value refused.
	InvalidConfig Code = 40
	// NotController: request needs the active controller.
	NotController Code = 41
	// InvalidRequest: malformed or contradictory request.
	InvalidRequest Code = 42
	// UnsupportedForMessageFormat: message format too old for the request.
	UnsupportedForMessageFormat Code = 43
	// PolicyViolation: create or alter policy plugin refused.
	PolicyViolation Code = 44
	// OutOfOrderSequenceNumber: gap in the sequence numbers of the producer.
	OutOfOrderSequenceNumber Code = 45
	// DuplicateSequenceNumber: sequence number already written (client treats it as success).
	DuplicateSequenceNumber Code = 46
	// InvalidProducerEpoch: producer epoch too old.
	InvalidProducerEpoch Code = 47
	// InvalidTxnState: transactional call not allowed in the current state.
	InvalidTxnState Code = 48
	// InvalidProducerIdMapping: producer id does not belong to that transactional id.
	InvalidProducerIdMapping Code = 49
	// InvalidTransactionTimeout: transaction timeout above transaction.max.timeout.ms.
	InvalidTransactionTimeout Code = 50
	// ConcurrentTransactions: previous transaction of the id not finished yet.
	ConcurrentTransactions Code = 51
	// TransactionCoordinatorFenced: marker from an outdated transaction coordinator.
	TransactionCoordinatorFenced Code = 52
	// TransactionalIdAuthorizationFailed: transactional id ACL refused.
	TransactionalIdAuthorizationFailed Code = 53
	// SecurityDisabled: authorizer not configured.
	SecurityDisabled Code = 54
	// OperationNotAttempted: skipped because another part of the batch failed.
	OperationNotAttempted Code = 55
	// KafkaStorageError: disk or log directory failure on the leader.
	KafkaStorageError Code = 56
	// LogDirNotFound: log directory path unknown.
	LogDirNotFound Code = 57
	// SaslAuthenticationFailed: SASL credentials refused.
	SaslAuthenticationFailed Code = 58
	// UnknownProducerId: producer state gone, for example after retention.
	UnknownProducerId Code = 59
	// ReassignmentInProgress: another reassignment of the partition is under way.
	ReassignmentInProgress Code = 60
	// DelegationTokenAuthDisabled: delegation tokens off (no secret key).
	DelegationTokenAuthDisabled Code = 61
	// DelegationTokenNotFound: token unknown.
	DelegationTokenNotFound Code = 62
	// DelegationTokenOwnerMismatch: principal neither owns nor may renew the token.
	DelegationTokenOwnerMismatch Code = 63
	// DelegationTokenRequestNotAllowed: token requests not allowed over this channel.
	DelegationTokenRequestNotAllowed Code = 64
	// DelegationTokenAuthorizationFailed: token ACL refused.
	DelegationTokenAuthorizationFailed Code = 65
	// DelegationTokenExpired: token expired.
	DelegationTokenExpired Code = 66
	// InvalidPrincipalType: principal type other than User.
	InvalidPrincipalType Code = 67
	// NonEmptyGroup: group still has members.
	NonEmptyGroup Code = 68
	// GroupIdNotFound: group does not exist.
	GroupIdNotFound Code = 69
	// FetchSessionIdNotFound: fetch session unknown to this broker.
	FetchSessionIdNotFound Code = 70
	// InvalidFetchSessionEpoch: fetch session epoch not the expected one.
	InvalidFetchSessionEpoch Code = 71
	// ListenerNotFound: leader has no endpoint for the listener the client used.
	ListenerNotFound Code = 72
	// TopicDeletionDisabled: delete.topic.enable is false.
	TopicDeletionDisabled Code = 73
	// FencedLeaderEpoch: leader epoch of the client is older.
	FencedLeaderEpoch Code = 74
	// UnknownLeaderEpoch: leader epoch of the client is newer.
	UnknownLeaderEpoch Code = 75
	// UnsupportedCompressionType: client version cannot read the compression of the data.
	UnsupportedCompressionType Code = 76
	// StaleBrokerEpoch: broker epoch outdated (broker to controller).
	StaleBrokerEpoch Code = 77
	// OffsetNotAvailable: new leader cannot yet vouch for the end offset.
	OffsetNotAvailable Code = 78
	// MemberIdRequired: first join: retry with the member id returned.
	MemberIdRequired Code = 79
	// PreferredLeaderNotAvailable: preferred leader not alive or not in sync.
	PreferredLeaderNotAvailable Code = 80
	// GroupMaxSizeReached: group at its member limit.
	GroupMaxSizeReached Code = 81
	// FencedInstanceId: static member id taken over by a newer instance.
	FencedInstanceId Code = 82
	// EligibleLeadersNotAvailable: no eligible leader for the election.
	EligibleLeadersNotAvailable Code = 83
	// ElectionNotNeeded: leader already as wanted.
	ElectionNotNeeded Code = 84
	// NoReassignmentInProgress: nothing to cancel.
	NoReassignmentInProgress Code = 85
	// GroupSubscribedToTopic: a member still subscribes to the topic.
	GroupSubscribedToTopic Code = 86
	// InvalidRecord: record refused by validation.
	InvalidRecord Code = 87
	// UnstableOffsetCommit: transactional offsets pending for the partition.
	UnstableOffsetCommit Code = 88
	// ThrottlingQuotaExceeded: controller mutation quota exceeded, retry after throttle time.
	ThrottlingQuotaExceeded Code = 89
	// ProducerFenced: a newer producer with this transactional id exists.
	ProducerFenced Code = 90
	// ResourceNotFound: named resource does not exist.
	ResourceNotFound Code = 91
	// DuplicateResource: resource named twice in the request.
	DuplicateResource Code = 92
	// UnacceptableCredential: SCRAM credential unacceptable (for example iterations).
	UnacceptableCredential Code = 93
	// InconsistentVoterSet: sender or receiver is not a voter.
	InconsistentVoterSet Code = 94
	// InvalidUpdateVersion: feature level outside the supported range.
	InvalidUpdateVersion Code = 95
	// FeatureUpdateFailed: feature update refused.
	FeatureUpdateFailed Code = 96
	// PrincipalDeserializationFailure: forwarded principal unreadable.
	PrincipalDeserializationFailure Code = 97
	// SnapshotNotFound: snapshot gone.
	SnapshotNotFound Code = 98
	// PositionOutOfRange: snapshot position outside the file.
	PositionOutOfRange Code = 99
	// UnknownTopicId: topic id unknown here.
	UnknownTopicId Code = 100
	// DuplicateBrokerRegistration: another live broker uses this id.
	DuplicateBrokerRegistration Code = 101
	// BrokerIdNotRegistered: broker id not registered.
	BrokerIdNotRegistered Code = 102
	// InconsistentTopicId: topic id differs from the one on disk or in the session.
	InconsistentTopicId Code = 103
	// InconsistentClusterId: cluster id differs.
	InconsistentClusterId Code = 104
	// TransactionalIdNotFound: transactional id unknown.
	TransactionalIdNotFound Code = 105
	// FetchSessionTopicIdError: fetch session mixes topic names and ids.
	FetchSessionTopicIdError Code = 106
	// IneligibleReplica: proposed ISR has a fenced or shutting-down broker.
	IneligibleReplica Code = 107
	// NewLeaderElected: ISR change accepted but a new leader was elected.
	NewLeaderElected Code = 108
	// OffsetMovedToTieredStorage: offset only in tiered storage (to followers).
	OffsetMovedToTieredStorage Code = 109
	// FencedMemberEpoch: member epoch fenced: give up partitions and rejoin with epoch 0.
	FencedMemberEpoch Code = 110
	// UnreleasedInstanceId: static id still held by another member.
	UnreleasedInstanceId Code = 111
	// UnsupportedAssignor: assignor unknown to the coordinator.
	UnsupportedAssignor Code = 112
	// StaleMemberEpoch: member epoch outdated: refresh by heartbeat and retry.
	StaleMemberEpoch Code = 113
	// MismatchedEndpointType: endpoint type of the listener differs from the one asked for.
	MismatchedEndpointType Code = 114
	// UnsupportedEndpointType: endpoint type unknown.
	UnsupportedEndpointType Code = 115
	// UnknownControllerId: controller id unknown.
	UnknownControllerId Code = 116
	// UnknownSubscriptionId: telemetry subscription id outdated.
	UnknownSubscriptionId Code = 117
	// TelemetryTooLarge: telemetry payload over telemetry.max.bytes.
	TelemetryTooLarge Code = 118
	// InvalidRegistration: controller refused the registration.
	InvalidRegistration Code = 119
	// TransactionAbortable: abort the transaction, then go on.
	TransactionAbortable Code = 120
	// InvalidRecordState: acknowledgement does not fit the record state.
	InvalidRecordState Code = 121
	// ShareSessionNotFound: share session unknown to this broker.
	ShareSessionNotFound Code = 122
	// InvalidShareSessionEpoch: share session epoch not the expected one.
	InvalidShareSessionEpoch Code = 123
	// FencedStateEpoch: share state epoch outdated.
	FencedStateEpoch Code = 124
	// InvalidVoterKey: voter key differs.
	InvalidVoterKey Code = 125
	// DuplicateVoter: voter exists already.
	DuplicateVoter Code = 126
	// VoterNotFound: voter unknown.
	VoterNotFound Code = 127
	// InvalidRegularExpression: RE2 expression does not compile.
	InvalidRegularExpression Code = 128
	// RebootstrapRequired: client metadata outdated: bootstrap again.
	RebootstrapRequired Code = 129
	// StreamsInvalidTopology: Streams topology invalid.
	StreamsInvalidTopology Code = 130
	// StreamsInvalidTopologyEpoch: Streams topology epoch invalid.
	StreamsInvalidTopologyEpoch Code = 131
	// StreamsTopologyFenced: Streams topology epoch outdated.
	StreamsTopologyFenced Code = 132
	// ShareSessionLimitReached: share sessions at their limit on this broker.
	ShareSessionLimitReached Code = 133
	// GroupDeletionFailed: group not deleted; message says why.
	GroupDeletionFailed Code = 134
	// StreamsTopologyDescriptionUpdateFailed: topology description not stored; message says why.
	StreamsTopologyDescriptionUpdateFailed Code = 135
	// ControllerIdNotRegistered: controller id not registered.
	ControllerIdNotRegistered Code = 136
)

type entry struct {
	name      string
	retriable bool
	refresh   bool
	message   string
}

var table = map[Code]entry{
	UnknownServerError:                     {"UNKNOWN_SERVER_ERROR", false, false, "Unexpected failure inside the broker."},
	None:                                   {"NONE", false, false, "Success."},
	OffsetOutOfRange:                       {"OFFSET_OUT_OF_RANGE", false, false, "Fetch or delete offset below log start or above the end."},
	CorruptMessage:                         {"CORRUPT_MESSAGE", true, false, "Bad CRC, bad size, keyless record on a compacted topic or otherwise broken batch."},
	UnknownTopicOrPartition:                {"UNKNOWN_TOPIC_OR_PARTITION", true, true, "Topic or partition unknown here, or hidden by ACLs."},
	InvalidFetchSize:                       {"INVALID_FETCH_SIZE", false, false, "Negative fetch size."},
	LeaderNotAvailable:                     {"LEADER_NOT_AVAILABLE", true, true, "Partition has no leader for now."},
	NotLeaderOrFollower:                    {"NOT_LEADER_OR_FOLLOWER", true, true, "This broker does not lead (or hold) the partition."},
	RequestTimedOut:                        {"REQUEST_TIMED_OUT", true, false, "Operation did not finish within its timeout."},
	BrokerNotAvailable:                     {"BROKER_NOT_AVAILABLE", false, false, "Broker unreachable (not sent by current brokers)."},
	ReplicaNotAvailable:                    {"REPLICA_NOT_AVAILABLE", true, true, "Replica missing for a log directory or metadata request."},
	MessageTooLarge:                        {"MESSAGE_TOO_LARGE", false, false, "Record batch over max.message.bytes."},
	StaleControllerEpoch:                   {"STALE_CONTROLLER_EPOCH", false, false, "Controller changed during the operation."},
	OffsetMetadataTooLarge:                 {"OFFSET_METADATA_TOO_LARGE", false, false, "Offset metadata string over offset.metadata.max.bytes."},
	NetworkException:                       {"NETWORK_EXCEPTION", true, true, "Client side: connection lost before the response."},
	CoordinatorLoadInProgress:              {"COORDINATOR_LOAD_IN_PROGRESS", true, false, "Coordinator still loads its partition."},
	CoordinatorNotAvailable:                {"COORDINATOR_NOT_AVAILABLE", true, true, "Coordinator unknown or not yet created."},
	NotCoordinator:                         {"NOT_COORDINATOR", true, true, "This broker does not coordinate that group or transactional id."},
	InvalidTopicException:                  {"INVALID_TOPIC_EXCEPTION", false, false, "Illegal topic name or operation on an internal topic."},
	RecordListTooLarge:                     {"RECORD_LIST_TOO_LARGE", false, false, "Batch larger than a segment."},
	NotEnoughReplicas:                      {"NOT_ENOUGH_REPLICAS", true, false, "In-sync replicas below min.insync.replicas, nothing written."},
	NotEnoughReplicasAfterAppend:           {"NOT_ENOUGH_REPLICAS_AFTER_APPEND", true, false, "Written, but in-sync replicas fell below the minimum before the ack."},
	InvalidRequiredAcks:                    {"INVALID_REQUIRED_ACKS", false, false, "Acks not 0, 1 or -1."},
	IllegalGeneration:                      {"ILLEGAL_GENERATION", false, false, "Generation of the member is outdated."},
	InconsistentGroupProtocol:              {"INCONSISTENT_GROUP_PROTOCOL", false, false, "Protocol type or assignor list does not fit the group."},
	InvalidGroupId:                         {"INVALID_GROUP_ID", false, false, "Empty or illegal group id."},
	UnknownMemberId:                        {"UNKNOWN_MEMBER_ID", false, false, "Member id not in the group."},
	InvalidSessionTimeout:                  {"INVALID_SESSION_TIMEOUT", false, false, "Session timeout outside group.min/max.session.timeout.ms."},
	RebalanceInProgress:                    {"REBALANCE_IN_PROGRESS", false, false, "Rebalance under way, member must rejoin."},
	InvalidCommitOffsetSize:                {"INVALID_COMMIT_OFFSET_SIZE", false, false, "Offset commit record too large."},
	TopicAuthorizationFailed:               {"TOPIC_AUTHORIZATION_FAILED", false, false, "Topic ACL refused."},
	GroupAuthorizationFailed:               {"GROUP_AUTHORIZATION_FAILED", false, false, "Group ACL refused."},
	ClusterAuthorizationFailed:             {"CLUSTER_AUTHORIZATION_FAILED", false, false, "Cluster ACL refused."},
	InvalidTimestamp:                       {"INVALID_TIMESTAMP", false, false, "Record timestamp outside the allowed window, or set with LogAppendTime."},
	UnsupportedSaslMechanism:               {"UNSUPPORTED_SASL_MECHANISM", false, false, "SASL mechanism not enabled."},
	IllegalSaslState:                       {"ILLEGAL_SASL_STATE", false, false, "Request not allowed in this SASL step."},
	UnsupportedVersion:                     {"UNSUPPORTED_VERSION", false, false, "Request version not supported."},
	TopicAlreadyExists:                     {"TOPIC_ALREADY_EXISTS", false, false, "Topic exists already."},
	InvalidPartitions:                      {"INVALID_PARTITIONS", false, false, "Partition count below 1 or not an increase."},
	InvalidReplicationFactor:               {"INVALID_REPLICATION_FACTOR", false, false, "Replication factor below 1 or above the brokers alive."},
	InvalidReplicaAssignment:               {"INVALID_REPLICA_ASSIGNMENT", false, false, "Manual replica assignment broken."},
	InvalidConfig:                          {"INVALID_CONFIG", false, false, "Config name or value refused."},
	NotController:                          {"NOT_CONTROLLER", true, false, "Request needs the active controller."},
	InvalidRequest:                         {"INVALID_REQUEST", false, false, "Malformed or contradictory request."},
	UnsupportedForMessageFormat:            {"UNSUPPORTED_FOR_MESSAGE_FORMAT", false, false, "Message format too old for the request."},
	PolicyViolation:                        {"POLICY_VIOLATION", false, false, "Create or alter policy plugin refused."},
	OutOfOrderSequenceNumber:               {"OUT_OF_ORDER_SEQUENCE_NUMBER", false, false, "Gap in the sequence numbers of the producer."},
	DuplicateSequenceNumber:                {"DUPLICATE_SEQUENCE_NUMBER", false, false, "Sequence number already written (client treats it as success)."},
	InvalidProducerEpoch:                   {"INVALID_PRODUCER_EPOCH", false, false, "Producer epoch too old."},
	InvalidTxnState:                        {"INVALID_TXN_STATE", false, false, "Transactional call not allowed in the current state."},
	InvalidProducerIdMapping:               {"INVALID_PRODUCER_ID_MAPPING", false, false, "Producer id does not belong to that transactional id."},
	InvalidTransactionTimeout:              {"INVALID_TRANSACTION_TIMEOUT", false, false, "Transaction timeout above transaction.max.timeout.ms."},
	ConcurrentTransactions:                 {"CONCURRENT_TRANSACTIONS", true, false, "Previous transaction of the id not finished yet."},
	TransactionCoordinatorFenced:           {"TRANSACTION_COORDINATOR_FENCED", false, false, "Marker from an outdated transaction coordinator."},
	TransactionalIdAuthorizationFailed:     {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", false, false, "Transactional id ACL refused."},
	SecurityDisabled:                       {"SECURITY_DISABLED", false, false, "Authorizer not configured."},
	OperationNotAttempted:                  {"OPERATION_NOT_ATTEMPTED", false, false, "Skipped because another part of the batch failed."},
	KafkaStorageError:                      {"KAFKA_STORAGE_ERROR", true, true, "Disk or log directory failure on the leader."},
	LogDirNotFound:                         {"LOG_DIR_NOT_FOUND", false, false, "Log directory path unknown."},
	SaslAuthenticationFailed:               {"SASL_AUTHENTICATION_FAILED", false, false, "SASL credentials refused."},
	UnknownProducerId:                      {"UNKNOWN_PRODUCER_ID", false, false, "Producer state gone, for example after retention."},
	ReassignmentInProgress:                 {"REASSIGNMENT_IN_PROGRESS", false, false, "Another reassignment of the partition is under way."},
	DelegationTokenAuthDisabled:            {"DELEGATION_TOKEN_AUTH_DISABLED", false, false, "Delegation tokens off (no secret key)."},
	DelegationTokenNotFound:                {"DELEGATION_TOKEN_NOT_FOUND", false, false, "Token unknown."},
	DelegationTokenOwnerMismatch:           {"DELEGATION_TOKEN_OWNER_MISMATCH", false, false, "Principal neither owns nor may renew the token."},
	DelegationTokenRequestNotAllowed:       {"DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", false, false, "Token requests not allowed over this channel."},
	DelegationTokenAuthorizationFailed:     {"DELEGATION_TOKEN_AUTHORIZATION_FAILED", false, false, "Token ACL refused."},
	DelegationTokenExpired:                 {"DELEGATION_TOKEN_EXPIRED", false, false, "Token expired."},
	InvalidPrincipalType:                   {"INVALID_PRINCIPAL_TYPE", false, false, "Principal type other than User."},
	NonEmptyGroup:                          {"NON_EMPTY_GROUP", false, false, "Group still has members."},
	GroupIdNotFound:                        {"GROUP_ID_NOT_FOUND", false, false, "Group does not exist."},
	FetchSessionIdNotFound:                 {"FETCH_SESSION_ID_NOT_FOUND", true, false, "Fetch session unknown to this broker."},
	InvalidFetchSessionEpoch:               {"INVALID_FETCH_SESSION_EPOCH", true, false, "Fetch session epoch not the expected one."},
	ListenerNotFound:                       {"LISTENER_NOT_FOUND", true, true, "Leader has no endpoint for the listener the client used."},
	TopicDeletionDisabled:                  {"TOPIC_DELETION_DISABLED", false, false, "Delete.topic.enable is false."},
	FencedLeaderEpoch:                      {"FENCED_LEADER_EPOCH", true, true, "Leader epoch of the client is older."},
	UnknownLeaderEpoch:                     {"UNKNOWN_LEADER_EPOCH", true, false, "Leader epoch of the client is newer."},
	UnsupportedCompressionType:             {"UNSUPPORTED_COMPRESSION_TYPE", false, false, "Client version cannot read the compression of the data."},
	StaleBrokerEpoch:                       {"STALE_BROKER_EPOCH", false, false, "Broker epoch outdated (broker to controller)."},
	OffsetNotAvailable:                     {"OFFSET_NOT_AVAILABLE", true, false, "New leader cannot yet vouch for the end offset."},
	MemberIdRequired:                       {"MEMBER_ID_REQUIRED", false, false, "First join: retry with the member id returned."},
	PreferredLeaderNotAvailable:            {"PREFERRED_LEADER_NOT_AVAILABLE", true, true, "Preferred leader not alive or not in sync."},
	GroupMaxSizeReached:                    {"GROUP_MAX_SIZE_REACHED", false, false, "Group at its member limit."},
	FencedInstanceId:                       {"FENCED_INSTANCE_ID", false, false, "Static member id taken over by a newer instance."},
	EligibleLeadersNotAvailable:            {"ELIGIBLE_LEADERS_NOT_AVAILABLE", true, true, "No eligible leader for the election."},
	ElectionNotNeeded:                      {"ELECTION_NOT_NEEDED", true, true, "Leader already as wanted."},
	NoReassignmentInProgress:               {"NO_REASSIGNMENT_IN_PROGRESS", false, false, "Nothing to cancel."},
	GroupSubscribedToTopic:                 {"GROUP_SUBSCRIBED_TO_TOPIC", false, false, "A member still subscribes to the topic."},
	InvalidRecord:                          {"INVALID_RECORD", false, false, "Record refused by validation."},
	UnstableOffsetCommit:                   {"UNSTABLE_OFFSET_COMMIT", true, false, "Transactional offsets pending for the partition."},
	ThrottlingQuotaExceeded:                {"THROTTLING_QUOTA_EXCEEDED", true, false, "Controller mutation quota exceeded, retry after throttle time."},
	ProducerFenced:                         {"PRODUCER_FENCED", false, false, "A newer producer with this transactional id exists."},
	ResourceNotFound:                       {"RESOURCE_NOT_FOUND", false, false, "Named resource does not exist."},
	DuplicateResource:                      {"DUPLICATE_RESOURCE", false, false, "Resource named twice in the request."},
	UnacceptableCredential:                 {"UNACCEPTABLE_CREDENTIAL", false, false, "SCRAM credential unacceptable (for example iterations)."},
	InconsistentVoterSet:                   {"INCONSISTENT_VOTER_SET", false, false, "Sender or receiver is not a voter."},
	InvalidUpdateVersion:                   {"INVALID_UPDATE_VERSION", false, false, "Feature level outside the supported range."},
	FeatureUpdateFailed:                    {"FEATURE_UPDATE_FAILED", false, false, "Feature update refused."},
	PrincipalDeserializationFailure:        {"PRINCIPAL_DESERIALIZATION_FAILURE", false, false, "Forwarded principal unreadable."},
	SnapshotNotFound:                       {"SNAPSHOT_NOT_FOUND", false, false, "Snapshot gone."},
	PositionOutOfRange:                     {"POSITION_OUT_OF_RANGE", false, false, "Snapshot position outside the file."},
	UnknownTopicId:                         {"UNKNOWN_TOPIC_ID", true, true, "Topic id unknown here."},
	DuplicateBrokerRegistration:            {"DUPLICATE_BROKER_REGISTRATION", false, false, "Another live broker uses this id."},
	BrokerIdNotRegistered:                  {"BROKER_ID_NOT_REGISTERED", false, false, "Broker id not registered."},
	InconsistentTopicId:                    {"INCONSISTENT_TOPIC_ID", true, true, "Topic id differs from the one on disk or in the session."},
	InconsistentClusterId:                  {"INCONSISTENT_CLUSTER_ID", false, false, "Cluster id differs."},
	TransactionalIdNotFound:                {"TRANSACTIONAL_ID_NOT_FOUND", false, false, "Transactional id unknown."},
	FetchSessionTopicIdError:               {"FETCH_SESSION_TOPIC_ID_ERROR", true, false, "Fetch session mixes topic names and ids."},
	IneligibleReplica:                      {"INELIGIBLE_REPLICA", false, false, "Proposed ISR has a fenced or shutting-down broker."},
	NewLeaderElected:                       {"NEW_LEADER_ELECTED", false, false, "ISR change accepted but a new leader was elected."},
	OffsetMovedToTieredStorage:             {"OFFSET_MOVED_TO_TIERED_STORAGE", false, false, "Offset only in tiered storage (to followers)."},
	FencedMemberEpoch:                      {"FENCED_MEMBER_EPOCH", false, false, "Member epoch fenced: give up partitions and rejoin with epoch 0."},
	UnreleasedInstanceId:                   {"UNRELEASED_INSTANCE_ID", false, false, "Static id still held by another member."},
	UnsupportedAssignor:                    {"UNSUPPORTED_ASSIGNOR", false, false, "Assignor unknown to the coordinator."},
	StaleMemberEpoch:                       {"STALE_MEMBER_EPOCH", false, false, "Member epoch outdated: refresh by heartbeat and retry."},
	MismatchedEndpointType:                 {"MISMATCHED_ENDPOINT_TYPE", false, false, "Endpoint type of the listener differs from the one asked for."},
	UnsupportedEndpointType:                {"UNSUPPORTED_ENDPOINT_TYPE", false, false, "Endpoint type unknown."},
	UnknownControllerId:                    {"UNKNOWN_CONTROLLER_ID", false, false, "Controller id unknown."},
	UnknownSubscriptionId:                  {"UNKNOWN_SUBSCRIPTION_ID", false, false, "Telemetry subscription id outdated."},
	TelemetryTooLarge:                      {"TELEMETRY_TOO_LARGE", false, false, "Telemetry payload over telemetry.max.bytes."},
	InvalidRegistration:                    {"INVALID_REGISTRATION", false, false, "Controller refused the registration."},
	TransactionAbortable:                   {"TRANSACTION_ABORTABLE", false, false, "Abort the transaction, then go on."},
	InvalidRecordState:                     {"INVALID_RECORD_STATE", false, false, "Acknowledgement does not fit the record state."},
	ShareSessionNotFound:                   {"SHARE_SESSION_NOT_FOUND", true, false, "Share session unknown to this broker."},
	InvalidShareSessionEpoch:               {"INVALID_SHARE_SESSION_EPOCH", true, false, "Share session epoch not the expected one."},
	FencedStateEpoch:                       {"FENCED_STATE_EPOCH", false, false, "Share state epoch outdated."},
	InvalidVoterKey:                        {"INVALID_VOTER_KEY", false, false, "Voter key differs."},
	DuplicateVoter:                         {"DUPLICATE_VOTER", false, false, "Voter exists already."},
	VoterNotFound:                          {"VOTER_NOT_FOUND", false, false, "Voter unknown."},
	InvalidRegularExpression:               {"INVALID_REGULAR_EXPRESSION", false, false, "RE2 expression does not compile."},
	RebootstrapRequired:                    {"REBOOTSTRAP_REQUIRED", false, false, "Client metadata outdated: bootstrap again."},
	StreamsInvalidTopology:                 {"STREAMS_INVALID_TOPOLOGY", false, false, "Streams topology invalid."},
	StreamsInvalidTopologyEpoch:            {"STREAMS_INVALID_TOPOLOGY_EPOCH", false, false, "Streams topology epoch invalid."},
	StreamsTopologyFenced:                  {"STREAMS_TOPOLOGY_FENCED", false, false, "Streams topology epoch outdated."},
	ShareSessionLimitReached:               {"SHARE_SESSION_LIMIT_REACHED", true, false, "Share sessions at their limit on this broker."},
	GroupDeletionFailed:                    {"GROUP_DELETION_FAILED", false, false, "Group not deleted; message says why."},
	StreamsTopologyDescriptionUpdateFailed: {"STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", false, false, "Topology description not stored; message says why."},
	ControllerIdNotRegistered:              {"CONTROLLER_ID_NOT_REGISTERED", false, false, "Controller id not registered."},
}

// Name is the code's name in Kafka's protocol, such as NOT_LEADER_OR_FOLLOWER.
func (c Code) Name() string {
	if e, ok := table[c]; ok {
		return e.name
	}
	return "UNKNOWN_ERROR_CODE_" + strconv.Itoa(int(c))
}

// Retriable says whether Kafka's clients send the request again after this code.
func (c Code) Retriable() bool { return table[c].retriable }

// RefreshesMetadata says whether Kafka's clients ask for new metadata after this code.
func (c Code) RefreshesMetadata() bool { return table[c].refresh }

// Message is the text for people that goes with this code where there is nothing more specific to say.
func (c Code) Message() string { return table[c].message }

// String is the code's name.
func (c Code) String() string { return c.Name() }
