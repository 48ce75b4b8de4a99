package metarecord

import (
	"chancery/services/kafka/fieldcodec"
	"chancery/services/kafka/uuid"
)

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

func (r *RegisterBrokerRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.BrokerID)
	if c.Version() >= 2 {
		c.Bool(&r.IsMigratingZkBroker)
	}
	c.UUID(&r.IncarnationID)
	c.Int64(&r.BrokerEpoch)
	endpoints(c, &r.EndPoints)
	features(c, &r.Features)
	c.NullableString(&r.Rack)
	c.Bool(&r.Fenced)
	if c.Version() >= 1 {
		c.Bool(&r.InControlledShutdown)
	}
	c.Tags(
		fieldcodec.Tagged{Tag: 0, Since: 3, Present: len(r.LogDirs) > 0, Walk: func(c *fieldcodec.Codec) { c.UUIDs(&r.LogDirs) }},
		fieldcodec.Tagged{Tag: 1, Since: 4, Present: r.CordonedLogDirs != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableUUIDs(&r.CordonedLogDirs) }},
	)
}

// UnregisterBrokerRecord ends a broker's membership.
type UnregisterBrokerRecord struct {
	BrokerID    int32
	BrokerEpoch int64
}

// RecordType is UnregisterBroker.
func (*UnregisterBrokerRecord) RecordType() Type { return UnregisterBroker }

func (r *UnregisterBrokerRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.BrokerID)
	c.Int64(&r.BrokerEpoch)
	c.Tags()
}

// FenceBrokerRecord takes a broker out of service.
type FenceBrokerRecord struct {
	ID    int32
	Epoch int64
}

// RecordType is FenceBroker.
func (*FenceBrokerRecord) RecordType() Type { return FenceBroker }

func (r *FenceBrokerRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.ID)
	c.Int64(&r.Epoch)
	c.Tags()
}

// UnfenceBrokerRecord puts a broker into service.
type UnfenceBrokerRecord struct {
	ID    int32
	Epoch int64
}

// RecordType is UnfenceBroker.
func (*UnfenceBrokerRecord) RecordType() Type { return UnfenceBroker }

func (r *UnfenceBrokerRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.ID)
	c.Int64(&r.Epoch)
	c.Tags()
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

func (r *BrokerRegistrationChangeRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.BrokerID)
	c.Int64(&r.BrokerEpoch)
	c.Tags(
		fieldcodec.Tagged{Tag: 0, Present: r.Fenced != 0, Walk: func(c *fieldcodec.Codec) { c.Int8(&r.Fenced) }},
		fieldcodec.Tagged{Tag: 1, Since: 1, Present: r.InControlledShutdown != 0,
			Walk: func(c *fieldcodec.Codec) { c.Int8(&r.InControlledShutdown) }},
		fieldcodec.Tagged{Tag: 2, Since: 2, Present: len(r.LogDirs) > 0, Walk: func(c *fieldcodec.Codec) { c.UUIDs(&r.LogDirs) }},
		fieldcodec.Tagged{Tag: 3, Since: 3, Present: r.CordonedLogDirs != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableUUIDs(&r.CordonedLogDirs) }},
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

func (r *RegisterControllerRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.ControllerID)
	c.UUID(&r.IncarnationID)
	c.Bool(&r.ZkMigrationReady)
	endpoints(c, &r.EndPoints)
	features(c, &r.Features)
	c.Tags()
}

// UnregisterControllerRecord forgets a controller.
type UnregisterControllerRecord struct {
	ControllerID int32
}

// RecordType is UnregisterController.
func (*UnregisterControllerRecord) RecordType() Type { return UnregisterController }

func (r *UnregisterControllerRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.ControllerID)
	c.Tags()
}

// FeatureLevelRecord sets the finalized level of a feature; level 0 switches it off.
type FeatureLevelRecord struct {
	Name         string
	FeatureLevel int16
}

// RecordType is FeatureLevel.
func (*FeatureLevelRecord) RecordType() Type { return FeatureLevel }

func (r *FeatureLevelRecord) fields(c *fieldcodec.Codec) {
	c.String(&r.Name)
	c.Int16(&r.FeatureLevel)
	c.Tags()
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

func (r *ProducerIDsRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.BrokerID)
	c.Int64(&r.BrokerEpoch)
	c.Int64(&r.NextProducerID)
	c.Tags()
}

// NoOpRecord moves the end of the log and changes nothing.
type NoOpRecord struct{}

// RecordType is NoOp.
func (*NoOpRecord) RecordType() Type { return NoOp }

func (*NoOpRecord) fields(c *fieldcodec.Codec) { c.Tags() }

// ZkMigrationStateRecord is left over from clusters that once used ZooKeeper; it has no effect.
type ZkMigrationStateRecord struct {
	ZkMigrationState int8
}

// RecordType is ZkMigrationState.
func (*ZkMigrationStateRecord) RecordType() Type { return ZkMigrationState }

func (r *ZkMigrationStateRecord) fields(c *fieldcodec.Codec) {
	c.Int8(&r.ZkMigrationState)
	c.Tags()
}

// BeginTransactionRecord opens a transaction: the records up to its end take effect together or not at all.
type BeginTransactionRecord struct {
	Name *string
}

// RecordType is BeginTransaction.
func (*BeginTransactionRecord) RecordType() Type { return BeginTransaction }

func (r *BeginTransactionRecord) fields(c *fieldcodec.Codec) {
	c.Tags(fieldcodec.Tagged{Tag: 0, Present: r.Name != nil, Walk: func(c *fieldcodec.Codec) { c.NullableString(&r.Name) }})
}

// EndTransactionRecord commits the open transaction.
type EndTransactionRecord struct{}

// RecordType is EndTransaction.
func (*EndTransactionRecord) RecordType() Type { return EndTransaction }

func (*EndTransactionRecord) fields(c *fieldcodec.Codec) { c.Tags() }

// AbortTransactionRecord takes the open transaction back.
type AbortTransactionRecord struct {
	Reason *string
}

// RecordType is AbortTransaction.
func (*AbortTransactionRecord) RecordType() Type { return AbortTransaction }

func (r *AbortTransactionRecord) fields(c *fieldcodec.Codec) {
	c.Tags(fieldcodec.Tagged{Tag: 0, Present: r.Reason != nil, Walk: func(c *fieldcodec.Codec) { c.NullableString(&r.Reason) }})
}
