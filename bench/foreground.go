package bench

import (
	"context"
	"fmt"

	"github.com/streamraft/streamraft/client"
)

// foregroundKey is the key of a foreground write; they stand apart from the data
// set, so that its size stays what it is.
func foregroundKey(i int) []byte { return fmt.Appendf(nil, "~foreground/%04d", i%1000) }

func startForeground(ctx context.Context, c *client.Client, rate int, values *values) *openLoop {
	return startOpenLoop(ctx, rate, func(ctx context.Context, i int) error {
		_, err := c.Put(ctx, foregroundKey(i), values.at(i))
		return err
	})
}
