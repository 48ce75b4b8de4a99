package metarecord

import (
	"chancery/services/kafka/fieldcodec"
	"chancery/services/kafka/uuid"
)

// RegisterServiceRecord makes a gateway, coordinator or tiering instance a member, or replaces its registration. A new
// registration is fenced until a ServiceChangeRecord says otherwise.
type RegisterServiceRecord struct {
	// Kind is that of proto/controller/v1.
	Kind          int8
	ID            int32
	Epoch         int64
	IncarnationID uuid.UUID
	EndPoints     []Endpoint
	Rack          *string
	Version       string
	Fenced        bool
}

// RecordType is RegisterService.
func (*RegisterServiceRecord) RecordType() Type { return RegisterService }

func (r *RegisterServiceRecord) fields(c *fieldcodec.Codec) {
	c.Int8(&r.Kind)
	c.Int32(&r.ID)
	c.Int64(&r.Epoch)
	c.UUID(&r.IncarnationID)
	endpoints(c, &r.EndPoints)
	c.NullableString(&r.Rack)
	c.String(&r.Version)
	c.Bool(&r.Fenced)
	c.Tags()
}

// ServiceChangeRecord fences or unfences a member.
type ServiceChangeRecord struct {
	Kind   int8
	ID     int32
	Epoch  int64
	Fenced bool
}

// RecordType is ServiceChange.
func (*ServiceChangeRecord) RecordType() Type { return ServiceChange }

func (r *ServiceChangeRecord) fields(c *fieldcodec.Codec) {
	c.Int8(&r.Kind)
	c.Int32(&r.ID)
	c.Int64(&r.Epoch)
	c.Bool(&r.Fenced)
	c.Tags()
}

// UnregisterServiceRecord ends a membership.
type UnregisterServiceRecord struct {
	Kind  int8
	ID    int32
	Epoch int64
}

// RecordType is UnregisterService.
func (*UnregisterServiceRecord) RecordType() Type { return UnregisterService }

func (r *UnregisterServiceRecord) fields(c *fieldcodec.Codec) {
	c.Int8(&r.Kind)
	c.Int32(&r.ID)
	c.Int64(&r.Epoch)
	c.Tags()
}

// ShardRecord gives a coordinator shard to an instance, or to nobody when Owner is -1. Each one has a higher epoch than
// the one before it for the same shard.
type ShardRecord struct {
	// Kind is that of proto/coordinator/v1.
	Kind  int8
	Shard int32
	Owner int32
	Epoch int32
}

// RecordType is Shard.
func (*ShardRecord) RecordType() Type { return Shard }

func (r *ShardRecord) fields(c *fieldcodec.Codec) {
	c.Int8(&r.Kind)
	c.Int32(&r.Shard)
	c.Int32(&r.Owner)
	c.Int32(&r.Epoch)
	c.Tags()
}
