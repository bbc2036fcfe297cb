package client

import (
	"context"

	"google.golang.org/grpc"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// Transfers returns the images that one node receives and sends, and those that
// ended there lately. It is asked of that node only, once. Its name is in the
// answer.
func (c *Client) Transfers(ctx context.Context, endpoint string) (*adminv1.ListTransfersResponse, error) {
	var response *adminv1.ListTransfersResponse
	err := c.call(ctx, callOptions{op: "list transfers", endpoint: endpoint, target: toEndpoint, read: true},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) (err error) {
			response, err = adminv1.NewAdminServiceClient(conn).ListTransfers(ctx, &adminv1.ListTransfersRequest{})
			return err
		})
	return response, err
}
