package metarecord

import "chancery/services/kafka/uuid"

// Endpoint is where a broker or a controller listens.
type Endpoint struct {
	Name             string
	Host             string
	Port             uint16
	SecurityProtocol int16
}

// Feature is the range of a feature's levels that a broker or a controller supports.
type Feature struct {
	Name                string
	MinSupportedVersion int16
	MaxSupportedVersion int16
}

// RegisterBrokerRecord makes a broker a member of the cluster, or replaces its registration.
type RegisterBrokerRecord struct {
	BrokerID             int32
	IsMigratingZkBroker  bool
	IncarnationID        uuid.UUID
	BrokerEpoch          int64
	EndPoints            []Endpoint
	Features             []Feature
	Rack                 *string
	Fenced               bool
	InControlledShutdown bool
	LogDirs              []uuid.UUID
	// CordonedLogDirs is nil until the broker has told.
	CordonedLogDirs []uuid.UUID
}

// RecordType is RegisterBroker.
func (*RegisterBrokerRecord) RecordType() Type { return RegisterBroker }

func (r *RegisterBrokerRecord) fields(c *codec) {
	c.int32(&r.BrokerID)
	if c.version >= 2 {
		c.bool(&r.IsMigratingZkBroker)
	}
	c.uuid(&r.IncarnationID)
	c.int64(&r.BrokerEpoch)
	c.endpoints(&r.EndPoints)
	c.features(&r.Features)
	c.nullableString(&r.Rack)
	c.bool(&r.Fenced)
	if c.version >= 1 {
		c.bool(&r.InControlledShutdown)
	}
	c.tags(
		taggedField{tag: 0, since: 3, present: len(r.LogDirs) > 0, walk: func(c *codec) { c.uuids(&r.LogDirs) }},
		taggedField{tag: 1, since: 4, present: r.CordonedLogDirs != nil,
			walk: func(c *codec) { c.nullableUUIDs(&r.CordonedLogDirs) }},
	)
}

// UnregisterBrokerRecord ends a broker's membership.
type UnregisterBrokerRecord struct {
	BrokerID    int32
	BrokerEpoch int64
}

// RecordType is UnregisterBroker.
func (*UnregisterBrokerRecord) RecordType() Type { return UnregisterBroker }

func (r *UnregisterBrokerRecord) fields(c *codec) {
	c.int32(&r.BrokerID)
	c.int64(&r.BrokerEpoch)
	c.tags()
}

// FenceBrokerRecord takes a broker out of service.
type FenceBrokerRecord struct {
	ID    int32
	Epoch int64
}

// RecordType is FenceBroker.
func (*FenceBrokerRecord) RecordType() Type { return FenceBroker }

func (r *FenceBrokerRecord) fields(c *codec) {
	c.int32(&r.ID)
	c.int64(&r.Epoch)
	c.tags()
}

// UnfenceBrokerRecord puts a broker into service.
type UnfenceBrokerRecord struct {
	ID    int32
	Epoch int64
}

// RecordType is UnfenceBroker.
func (*UnfenceBrokerRecord) RecordType() Type { return UnfenceBroker }

func (r *UnfenceBrokerRecord) fields(c *codec) {
	c.int32(&r.ID)
	c.int64(&r.Epoch)
	c.tags()
}

// The values of BrokerRegistrationChangeRecord's Fenced and InControlledShutdown.
const (
	// FencedNoChange leaves the broker as it is.
	FencedNoChange int8 = 0
	// FencedFence takes the broker out of service, FencedUnfence puts it into service.
	FencedFence   int8 = 1
	FencedUnfence int8 = -1
	// ControlledShutdownNoChange leaves the broker as it is, ControlledShutdownEnter says that it is about to stop.
	ControlledShutdownNoChange int8 = 0
	ControlledShutdownEnter    int8 = 1
)

// BrokerRegistrationChangeRecord changes parts of a broker's registration.
type BrokerRegistrationChangeRecord struct {
	BrokerID             int32
	BrokerEpoch          int64
	Fenced               int8
	InControlledShutdown int8
	// LogDirs replaces the log directories unless it is empty.
	LogDirs []uuid.UUID
	// CordonedLogDirs replaces the cordoned log directories unless it is nil.
	CordonedLogDirs []uuid.UUID
}

// RecordType is BrokerRegistrationChange.
func (*BrokerRegistrationChangeRecord) RecordType() Type { return BrokerRegistrationChange }

func (r *BrokerRegistrationChangeRecord) fields(c *codec) {
	c.int32(&r.BrokerID)
	c.int64(&r.BrokerEpoch)
	c.tags(
		taggedField{tag: 0, present: r.Fenced != 0, walk: func(c *codec) { c.int8(&r.Fenced) }},
		taggedField{tag: 1, since: 1, present: r.InControlledShutdown != 0,
			walk: func(c *codec) { c.int8(&r.InControlledShutdown) }},
		taggedField{tag: 2, since: 2, present: len(r.LogDirs) > 0, walk: func(c *codec) { c.uuids(&r.LogDirs) }},
		taggedField{tag: 3, since: 3, present: r.CordonedLogDirs != nil,
			walk: func(c *codec) { c.nullableUUIDs(&r.CordonedLogDirs) }},
	)
}

func (r *BrokerRegistrationChangeRecord) lowestVersion() int16 {
	switch {
	case r.CordonedLogDirs != nil:
		return 3
	case len(r.LogDirs) > 0:
		return 2
	case r.InControlledShutdown != 0:
		return 1
	}
	return 0
}

// RegisterControllerRecord makes a controller known.
type RegisterControllerRecord struct {
	ControllerID     int32
	IncarnationID    uuid.UUID
	ZkMigrationReady bool
	EndPoints        []Endpoint
	Features         []Feature
}

// RecordType is RegisterController.
func (*RegisterControllerRecord) RecordType() Type { return RegisterController }

func (r *RegisterControllerRecord) fields(c *codec) {
	c.int32(&r.ControllerID)
	c.uuid(&r.IncarnationID)
	c.bool(&r.ZkMigrationReady)
	c.endpoints(&r.EndPoints)
	c.features(&r.Features)
	c.tags()
}

// UnregisterControllerRecord forgets a controller.
type UnregisterControllerRecord struct {
	ControllerID int32
}

// RecordType is UnregisterController.
func (*UnregisterControllerRecord) RecordType() Type { return UnregisterController }

func (r *UnregisterControllerRecord) fields(c *codec) {
	c.int32(&r.ControllerID)
	c.tags()
}

// FeatureLevelRecord sets the finalized level of a feature; level 0 switches it off.
type FeatureLevelRecord struct {
	Name         string
	FeatureLevel int16
}

// RecordType is FeatureLevel.
func (*FeatureLevelRecord) RecordType() Type { return FeatureLevel }

func (r *FeatureLevelRecord) fields(c *codec) {
	c.string(&r.Name)
	c.int16(&r.FeatureLevel)
	c.tags()
}

// ProducerIDsRecord gives a block of producer ids to a broker.
type ProducerIDsRecord struct {
	BrokerID    int32
	BrokerEpoch int64
	// NextProducerID is the first id after the block.
	NextProducerID int64
}

// RecordType is ProducerIDs.
func (*ProducerIDsRecord) RecordType() Type { return ProducerIDs }

func (r *ProducerIDsRecord) fields(c *codec) {
	c.int32(&r.BrokerID)
	c.int64(&r.BrokerEpoch)
	c.int64(&r.NextProducerID)
	c.tags()
}

// NoOpRecord moves the end of the log and changes nothing.
type NoOpRecord struct{}

// RecordType is NoOp.
func (*NoOpRecord) RecordType() Type { return NoOp }

func (*NoOpRecord) fields(c *codec) { c.tags() }

// ZkMigrationStateRecord is left over from clusters that once used ZooKeeper; it has no effect.
type ZkMigrationStateRecord struct {
	ZkMigrationState int8
}

// RecordType is ZkMigrationState.
func (*ZkMigrationStateRecord) RecordType() Type { return ZkMigrationState }

func (r *ZkMigrationStateRecord) fields(c *codec) {
	c.int8(&r.ZkMigrationState)
	c.tags()
}

// BeginTransactionRecord opens a transaction: the records up to its end take effect together or not at all.
type BeginTransactionRecord struct {
	Name *string
}

// RecordType is BeginTransaction.
func (*BeginTransactionRecord) RecordType() Type { return BeginTransaction }

func (r *BeginTransactionRecord) fields(c *codec) {
	c.tags(taggedField{tag: 0, present: r.Name != nil, walk: func(c *codec) { c.nullableString(&r.Name) }})
}

// EndTransactionRecord commits the open transaction.
type EndTransactionRecord struct{}

// RecordType is EndTransaction.
func (*EndTransactionRecord) RecordType() Type { return EndTransaction }

func (*EndTransactionRecord) fields(c *codec) { c.tags() }

// AbortTransactionRecord takes the open transaction back.
type AbortTransactionRecord struct {
	Reason *string
}

// RecordType is AbortTransaction.
func (*AbortTransactionRecord) RecordType() Type { return AbortTransaction }

func (r *AbortTransactionRecord) fields(c *codec) {
	c.tags(taggedField{tag: 0, present: r.Reason != nil, walk: func(c *codec) { c.nullableString(&r.Reason) }})
}
