package metarecord

import (
	"chancery/services/kafka/fieldcodec"
	"chancery/services/kafka/uuid"
)

// AccessControlEntryRecord adds an access rule.
type AccessControlEntryRecord struct {
	ID             uuid.UUID
	ResourceType   int8
	ResourceName   string
	PatternType    int8
	Principal      string
	Host           string
	Operation      int8
	PermissionType int8
}

// RecordType is AccessControlEntry.
func (*AccessControlEntryRecord) RecordType() Type { return AccessControlEntry }

func (r *AccessControlEntryRecord) fields(c *fieldcodec.Codec) {
	c.UUID(&r.ID)
	c.Int8(&r.ResourceType)
	c.String(&r.ResourceName)
	c.Int8(&r.PatternType)
	c.String(&r.Principal)
	c.String(&r.Host)
	c.Int8(&r.Operation)
	c.Int8(&r.PermissionType)
	c.Tags()
}

// RemoveAccessControlEntryRecord removes an access rule.
type RemoveAccessControlEntryRecord struct {
	ID uuid.UUID
}

// RecordType is RemoveAccessControlEntry.
func (*RemoveAccessControlEntryRecord) RecordType() Type { return RemoveAccessControlEntry }

func (r *RemoveAccessControlEntryRecord) fields(c *fieldcodec.Codec) {
	c.UUID(&r.ID)
	c.Tags()
}

// UserScramCredentialRecord sets a user's credential for a SCRAM mechanism.
type UserScramCredentialRecord struct {
	Name       string
	Mechanism  int8
	Salt       []byte
	StoredKey  []byte
	ServerKey  []byte
	Iterations int32
}

// RecordType is UserScramCredential.
func (*UserScramCredentialRecord) RecordType() Type { return UserScramCredential }

func (r *UserScramCredentialRecord) fields(c *fieldcodec.Codec) {
	c.String(&r.Name)
	c.Int8(&r.Mechanism)
	c.Bytes(&r.Salt)
	c.Bytes(&r.StoredKey)
	c.Bytes(&r.ServerKey)
	c.Int32(&r.Iterations)
	c.Tags()
}

// RemoveUserScramCredentialRecord removes a user's credential for a SCRAM mechanism.
type RemoveUserScramCredentialRecord struct {
	Name      string
	Mechanism int8
}

// RecordType is RemoveUserScramCredential.
func (*RemoveUserScramCredentialRecord) RecordType() Type { return RemoveUserScramCredential }

func (r *RemoveUserScramCredentialRecord) fields(c *fieldcodec.Codec) {
	c.String(&r.Name)
	c.Int8(&r.Mechanism)
	c.Tags()
}

// DelegationTokenRecord adds a delegation token, or replaces it.
type DelegationTokenRecord struct {
	Owner               string
	Requester           string
	Renewers            []string
	IssueTimestamp      int64
	MaxTimestamp        int64
	ExpirationTimestamp int64
	TokenID             string
}

// RecordType is DelegationToken.
func (*DelegationTokenRecord) RecordType() Type { return DelegationToken }

func (r *DelegationTokenRecord) fields(c *fieldcodec.Codec) {
	c.String(&r.Owner)
	c.String(&r.Requester)
	c.Strings(&r.Renewers)
	c.Int64(&r.IssueTimestamp)
	c.Int64(&r.MaxTimestamp)
	c.Int64(&r.ExpirationTimestamp)
	c.String(&r.TokenID)
	c.Tags()
}

// RemoveDelegationTokenRecord removes a delegation token.
type RemoveDelegationTokenRecord struct {
	TokenID string
}

// RecordType is RemoveDelegationToken.
func (*RemoveDelegationTokenRecord) RecordType() Type { return RemoveDelegationToken }

func (r *RemoveDelegationTokenRecord) fields(c *fieldcodec.Codec) {
	c.String(&r.TokenID)
	c.Tags()
}

// QuotaEntity is one part of whom a quota is for.
type QuotaEntity struct {
	// Type is user, client-id or ip.
	Type string
	// Name is nil for the default of all.
	Name *string
}

// ClientQuotaRecord sets a quota of an entity, or removes it.
type ClientQuotaRecord struct {
	Entity []QuotaEntity
	Key    string
	Value  float64
	Remove bool
}

// RecordType is ClientQuota.
func (*ClientQuotaRecord) RecordType() Type { return ClientQuota }

func (r *ClientQuotaRecord) fields(c *fieldcodec.Codec) {
	fieldcodec.Array(c, &r.Entity, 3, func(c *fieldcodec.Codec, e *QuotaEntity) {
		c.String(&e.Type)
		c.NullableString(&e.Name)
		c.Tags()
	})
	c.String(&r.Key)
	c.Float64(&r.Value)
	c.Bool(&r.Remove)
	c.Tags()
}
