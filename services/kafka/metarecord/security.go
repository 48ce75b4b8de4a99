package metarecord

import "chancery/services/kafka/uuid"

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

func (r *AccessControlEntryRecord) fields(c *codec) {
	c.uuid(&r.ID)
	c.int8(&r.ResourceType)
	c.string(&r.ResourceName)
	c.int8(&r.PatternType)
	c.string(&r.Principal)
	c.string(&r.Host)
	c.int8(&r.Operation)
	c.int8(&r.PermissionType)
	c.tags()
}

// RemoveAccessControlEntryRecord removes an access rule.
type RemoveAccessControlEntryRecord struct {
	ID uuid.UUID
}

// RecordType is RemoveAccessControlEntry.
func (*RemoveAccessControlEntryRecord) RecordType() Type { return RemoveAccessControlEntry }

func (r *RemoveAccessControlEntryRecord) fields(c *codec) {
	c.uuid(&r.ID)
	c.tags()
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

func (r *UserScramCredentialRecord) fields(c *codec) {
	c.string(&r.Name)
	c.int8(&r.Mechanism)
	c.bytes(&r.Salt)
	c.bytes(&r.StoredKey)
	c.bytes(&r.ServerKey)
	c.int32(&r.Iterations)
	c.tags()
}

// RemoveUserScramCredentialRecord removes a user's credential for a SCRAM mechanism.
type RemoveUserScramCredentialRecord struct {
	Name      string
	Mechanism int8
}

// RecordType is RemoveUserScramCredential.
func (*RemoveUserScramCredentialRecord) RecordType() Type { return RemoveUserScramCredential }

func (r *RemoveUserScramCredentialRecord) fields(c *codec) {
	c.string(&r.Name)
	c.int8(&r.Mechanism)
	c.tags()
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

func (r *DelegationTokenRecord) fields(c *codec) {
	c.string(&r.Owner)
	c.string(&r.Requester)
	c.strings(&r.Renewers)
	c.int64(&r.IssueTimestamp)
	c.int64(&r.MaxTimestamp)
	c.int64(&r.ExpirationTimestamp)
	c.string(&r.TokenID)
	c.tags()
}

// RemoveDelegationTokenRecord removes a delegation token.
type RemoveDelegationTokenRecord struct {
	TokenID string
}

// RecordType is RemoveDelegationToken.
func (*RemoveDelegationTokenRecord) RecordType() Type { return RemoveDelegationToken }

func (r *RemoveDelegationTokenRecord) fields(c *codec) {
	c.string(&r.TokenID)
	c.tags()
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

func (r *ClientQuotaRecord) fields(c *codec) {
	array(c, &r.Entity, 3, func(c *codec, e *QuotaEntity) {
		c.string(&e.Type)
		c.nullableString(&e.Name)
		c.tags()
	})
	c.string(&r.Key)
	c.float64(&r.Value)
	c.bool(&r.Remove)
	c.tags()
}
