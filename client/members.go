package client

import (
	"context"

	"google.golang.org/grpc"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// Members returns the nodes of the cluster, by name, with what is being changed.
// A removed node is listed until one of its name joins again.
func (c *Client) Members(ctx context.Context) ([]*adminv1.Member, error) {
	var members []*adminv1.Member
	err := c.onMembers(ctx, "list members", true, func(ctx context.Context, admin adminv1.AdminServiceClient) error {
		answer, err := admin.ListMembers(ctx, &adminv1.ListMembersRequest{})
		members = answer.GetMembers()
		return err
	})
	return members, err
}

// AddNode has the cluster take the node that runs at an address, started with
// --join, or with replace that node in the place of the one of its name. With
// learner it stays a learner. The plan it returns is durable, and being carried
// out; Members shows how far it is. Repeating it does no harm.
func (c *Client) AddNode(ctx context.Context, address string, replace, learner bool) (*adminv1.NodePlan, error) {
	var plan *adminv1.NodePlan
	err := c.onMembers(ctx, "add node", false, func(ctx context.Context, admin adminv1.AdminServiceClient) error {
		answer, err := admin.AddNode(ctx, &adminv1.AddNodeRequest{Address: address, Replace: replace, Learner: learner})
		plan = answer.GetPlan()
		return err
	})
	return plan, err
}

// PromoteNode makes a learner node a voter of every group; as AddNode otherwise.
// A node that is behind is refused with ErrInvalid.
func (c *Client) PromoteNode(ctx context.Context, node string) (*adminv1.NodePlan, error) {
	var plan *adminv1.NodePlan
	err := c.onMembers(ctx, "promote node", false, func(ctx context.Context, admin adminv1.AdminServiceClient) error {
		answer, err := admin.PromoteNode(ctx, &adminv1.PromoteNodeRequest{Node: node})
		plan = answer.GetPlan()
		return err
	})
	return plan, err
}

// RemoveNode takes a node out of every group for good; as AddNode otherwise. What
// would leave a group without a majority that answers is refused with ErrInvalid.
func (c *Client) RemoveNode(ctx context.Context, node string) (*adminv1.NodePlan, error) {
	var plan *adminv1.NodePlan
	err := c.onMembers(ctx, "remove node", false, func(ctx context.Context, admin adminv1.AdminServiceClient) error {
		answer, err := admin.RemoveNode(ctx, &adminv1.RemoveNodeRequest{Node: node})
		plan = answer.GetPlan()
		return err
	})
	return plan, err
}

// onMembers calls the leader of the meta group. Its requests may be repeated.
func (c *Client) onMembers(ctx context.Context, op string, read bool, ask func(context.Context, adminv1.AdminServiceClient) error) error {
	return c.call(ctx, callOptions{op: op, group: MetaGroup, target: toLeader, repeatable: true, read: read},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) error {
			return ask(ctx, adminv1.NewAdminServiceClient(conn))
		})
}
