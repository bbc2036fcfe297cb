package main

import (
	"bufio"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
)

// keyRange are the flags that name a range of keys.
type keyRange struct {
	prefix, start, end string
	cmd                *cobra.Command
}

func (k *keyRange) addFlags(cmd *cobra.Command) {
	k.cmd = cmd
	cmd.Flags().StringVar(&k.prefix, "prefix", "", "records whose key begins with this")
	cmd.Flags().StringVar(&k.start, "start", "", "records from this key on")
	cmd.Flags().StringVar(&k.end, "end", "", "records below this key")
}

// given reports whether any of the flags is there, an empty one too.
func (k *keyRange) given() bool {
	flags := k.cmd.Flags()
	return flags.Changed("prefix") || flags.Changed("start") || flags.Changed("end")
}

// decode returns the bounds: start <= key < end, an empty end for no bound.
func (k *keyRange) decode(f *kvFlags) (start, end []byte, err error) {
	if k.cmd.Flags().Changed("prefix") {
		if k.cmd.Flags().Changed("start") || k.cmd.Flags().Changed("end") {
			return nil, nil, usageErrorf("--prefix does not go together with --start and --end")
		}
		prefix, err := f.bytes("--prefix", k.prefix)
		return prefix, client.PrefixEnd(prefix), err
	}
	if start, err = f.bytes("--start", k.start); err != nil {
		return nil, nil, err
	}
	end, err = f.bytes("--end", k.end)
	return start, end, err
}

func newKVRangeCommand(f *kvFlags) *cobra.Command {
	var keys keyRange
	var o client.RangeOptions
	var count bool
	cmd := &cobra.Command{
		Use:   "range",
		Short: "List records in order of key",
		Long: `List records in order of key, one a line: the key, a tab, the value. What is not
printable is quoted. Long ranges are read in pages; each page is one consistent
read.`,
		Example: `  streamraft kv range --prefix users/ --limit 10
  streamraft kv range --prefix users/ --count
  streamraft kv range --start a --end c --reverse --keys-only`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Start, o.End, err = keys.decode(f); err != nil {
				return err
			}
			if o.Limit < 0 {
				return usageErrorf("--limit must not be negative")
			}
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if count {
				return f.printCount(cmd, c, o)
			}
			return f.printRange(cmd, c, o)
		},
	}
	keys.addFlags(cmd)
	cmd.Flags().IntVar(&o.Limit, "limit", 0, "list at most this many records; 0: all")
	cmd.Flags().BoolVar(&o.Reverse, "reverse", false, "from the highest key down")
	cmd.Flags().BoolVar(&o.KeysOnly, "keys-only", false, "leave the values out")
	cmd.Flags().BoolVar(&count, "count", false, "only count the records")
	addReadFlags(cmd, &o.ReadOptions)
	return cmd
}

func (f *kvFlags) printCount(cmd *cobra.Command, c *client.Client, o client.RangeOptions) error {
	n, err := c.Count(cmd.Context(), o)
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(cmd.OutOrStdout(), struct {
			Count uint64 `json:"count"`
		}{n})
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
	return err
}

func (f *kvFlags) printRange(cmd *cobra.Command, c *client.Client, o client.RangeOptions) error {
	out := bufio.NewWriter(cmd.OutOrStdout())
	for record, err := range c.Range(cmd.Context(), o) {
		if err == nil {
			switch {
			case f.json:
				err = printRecordJSON(out, record, o.KeysOnly)
			case o.KeysOnly:
				_, err = fmt.Fprintln(out, shown(record.Key))
			default:
				_, err = fmt.Fprintf(out, "%s\t%s\n", shown(record.Key), shown(record.Value))
			}
		}
		if err != nil {
			// What was read stands before the error.
			_ = out.Flush()
			return err
		}
	}
	return out.Flush()
}
