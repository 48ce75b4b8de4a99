package handler

import (
	"cmp"
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	"chancery/services/kafka/errcode"
)

const (
	// describeNotFound is the first version of DescribeGroups that tells an unknown group from a dead one.
	describeNotFound = 6
	// describeOperations is the first one that can tell what the client may do.
	describeOperations = 3
	// allGroupOperations is what everyone may do with a group where there are no access rules: READ, DELETE, DESCRIBE,
	// DESCRIBE_CONFIGS and ALTER_CONFIGS.
	allGroupOperations = 1<<3 | 1<<6 | 1<<8 | 1<<10 | 1<<11
	// notFoundState is the state of a group that does not exist.
	notFoundState = "Dead"
)

// DescribeGroups 0-6. The groups of one request are all of this shard.
//
//	v3 authorized operations   v4 static members   v5 flexible   v6 error message, GROUP_ID_NOT_FOUND
func (h *Handler) describeGroups(ctx context.Context, c call, req *kmsg.DescribeGroupsRequest) (kmsg.Response, error) {
	list, code, err := do[[]group.DescribedGroup](ctx, h, c, &group.DescribeGroups{IDs: req.Groups})
	if err != nil {
		return nil, err
	}
	r := kmsg.NewPtrDescribeGroupsResponse()
	for i, id := range req.Groups {
		g := kmsg.NewDescribeGroupsResponseGroup()
		g.Group = id
		if code != errcode.None {
			g.ErrorCode = int16(code)
			r.Groups = append(r.Groups, g)
			continue
		}
		d := &list[i]
		g.State, g.ProtocolType, g.Protocol, g.Members = d.State, d.ProtocolType, d.Protocol, d.Members
		if !d.Exists {
			g.State = notFoundState
			if req.Version >= describeNotFound {
				g.ErrorCode, g.ErrorMessage = int16(errcode.GroupIdNotFound), &d.Missing
			}
		}
		if req.Version >= describeOperations && req.IncludeAuthorizedOperations && g.ErrorCode == 0 {
			g.AuthorizedOperations = allGroupOperations
		}
		r.Groups = append(r.Groups, g)
	}
	return r, nil
}

// ListGroups 0-5, for all shards of this instance.
//
//	v3 flexible   v4 states   v5 types
func (h *Handler) listGroups(ctx context.Context, c call, req *kmsg.ListGroupsRequest) (kmsg.Response, error) {
	command := &group.ListGroups{States: req.StatesFilter, Types: req.TypesFilter}
	r := kmsg.NewPtrListGroupsResponse()
	var replies []group.Reply
	var err error
	if c.shard == AllShards {
		replies, err = h.shards.DoAll(ctx, c.envelope.GetMetadataOffset(), command)
	} else {
		replies = make([]group.Reply, 1)
		replies[0], err = h.shards.Do(ctx, c.shard, c.envelope.GetMetadataOffset(), command)
	}
	if err != nil {
		if elsewhere(ctx, err) {
			return nil, err
		}
		r.ErrorCode = int16(errcode.Of(err))
		return r, nil
	}
	for _, reply := range replies {
		list, _ := reply.([]group.ListedGroup)
		for _, g := range list {
			r.Groups = append(r.Groups, kmsg.ListGroupsResponseGroup{
				Group: g.ID, ProtocolType: g.ProtocolType, GroupState: g.State, GroupType: g.Type,
			})
		}
	}
	slices.SortFunc(r.Groups, func(a, b kmsg.ListGroupsResponseGroup) int { return cmp.Compare(a.Group, b.Group) })
	return r, nil
}

// DeleteGroups 0-3. The groups of one request are all of this shard.
//
//	v2 flexible   v3 error message
func (h *Handler) deleteGroups(ctx context.Context, c call, req *kmsg.DeleteGroupsRequest) (kmsg.Response, error) {
	var ids []string
	named := map[string]bool{}
	for _, id := range req.Groups {
		if !named[id] {
			named[id] = true
			ids = append(ids, id)
		}
	}
	codes, code, err := do[[]errcode.Code](ctx, h, c, &group.DeleteGroups{IDs: ids})
	if err != nil {
		return nil, err
	}
	r := kmsg.NewPtrDeleteGroupsResponse()
	for i, id := range ids {
		g := kmsg.NewDeleteGroupsResponseGroup()
		g.Group, g.ErrorCode = id, int16(code)
		if code == errcode.None {
			g.ErrorCode = int16(codes[i])
		}
		r.Groups = append(r.Groups, g)
	}
	return r, nil
}
