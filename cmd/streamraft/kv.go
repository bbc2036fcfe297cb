package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/importer"
)

// kvFlags are the flags that all commands on records have.
type kvFlags struct {
	*globals
	// base64 says that keys and values in arguments are base64.
	base64 bool
}

func newKVCommand(g *globals) *cobra.Command {
	f := &kvFlags{globals: g}
	cmd := parent(&cobra.Command{
		Use:   "kv",
		Short: "Read and write records",
		Example: `  streamraft kv put greeting hello
  streamraft kv get greeting
  streamraft kv range --prefix gre`,
	})
	cmd.PersistentFlags().BoolVar(&f.base64, "base64", false, "keys and values in arguments and flags are base64")
	cmd.AddCommand(
		newKVPutCommand(f), newKVGetCommand(f), newKVDelCommand(f), newKVRangeCommand(f), newKVTxnCommand(f),
		newKVImportCommand(f), newKVExportCommand(f), newKVDigestCommand(f),
	)
	return cmd
}

// bytes decodes a key or value from an argument.
func (f *kvFlags) bytes(what, argument string) ([]byte, error) {
	if !f.base64 {
		return []byte(argument), nil
	}
	data, err := base64.StdEncoding.DecodeString(argument)
	if err != nil {
		return nil, usageErrorf("%s is not base64: %w", what, err)
	}
	return data, nil
}

func newKVPutCommand(f *kvFlags) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "put KEY [VALUE]",
		Short: "Write one record",
		Long: `Write one record. It is durable on a majority of the nodes when the command
returns 0. The value is the argument, or the content of --file ("-" reads the
standard input).`,
		Example: `  streamraft kv put greeting hello
  streamraft kv put logo --file logo.png`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			key, err := f.bytes("KEY", arguments[0])
			if err != nil {
				return err
			}
			value, err := f.putValue(cmd, arguments[1:], file)
			if err != nil {
				return err
			}
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			result, err := c.Put(cmd.Context(), key, value)
			if err != nil {
				return err
			}
			return f.printWrite(cmd, writeReport{Revision: result.Revision})
		},
	}
	cmd.Flags().StringVar(&file, "file", "", `read the value from this file; "-": the standard input`)
	return cmd
}

// maxInputBytes bounds what is read into memory from a file or a pipe: more
// than any cluster takes in one message.
const maxInputBytes = 64 << 20

func (f *kvFlags) putValue(cmd *cobra.Command, rest []string, file string) ([]byte, error) {
	switch {
	case (len(rest) == 1) == (file != ""):
		return nil, usageErrorf("give the value either as VALUE or with --file; usage: %s", cmd.UseLine())
	case file != "":
		return readInput(cmd, file)
	default:
		return f.bytes("VALUE", rest[0])
	}
}

// readInput reads a whole file, or the standard input for "-".
func readInput(cmd *cobra.Command, file string) ([]byte, error) {
	in := cmd.InOrStdin()
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, usageErrorf("%w", err)
		}
		defer opened.Close()
		in = opened
	}
	data, err := io.ReadAll(io.LimitReader(in, maxInputBytes+1))
	if err != nil {
		return nil, usageErrorf("read %s: %w", file, err)
	}
	if len(data) > maxInputBytes {
		return nil, usageErrorf("%s has more than %d bytes", file, maxInputBytes)
	}
	return data, nil
}

// writeReport is what a write prints with --json.
type writeReport struct {
	Revision uint64 `json:"revision"`
	Existed  *bool  `json:"existed,omitempty"`
}

func (f *kvFlags) printWrite(cmd *cobra.Command, report writeReport) error {
	if f.json {
		return printJSON(cmd.OutOrStdout(), report)
	}
	line := fmt.Sprintf("revision %d", report.Revision)
	if report.Existed != nil && !*report.Existed {
		line += " (there was no such record)"
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), line)
	return err
}

func newKVGetCommand(f *kvFlags) *cobra.Command {
	var raw bool
	var read client.ReadOptions
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Print one record's value",
		Long: `Print one record's value and a newline; nothing and exit code 4 if there is no
such record.`,
		Example: `  streamraft kv get greeting
  streamraft kv get logo --raw > logo.png`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			key, err := f.bytes("KEY", arguments[0])
			if err != nil {
				return err
			}
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			record, err := c.Get(cmd.Context(), key, read)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch {
			case f.json:
				err = printRecordJSON(out, record, false)
			case raw:
				_, err = out.Write(record.Value)
			default:
				_, err = out.Write(append(record.Value, '\n'))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the value without a newline")
	addReadFlags(cmd, &read)
	return cmd
}

// addReadFlags adds the flags of all reads.
func addReadFlags(cmd *cobra.Command, o *client.ReadOptions) {
	cmd.Flags().BoolVar(&o.Stale, "stale", false, "read what the node has that answers, whatever its age")
	cmd.Flags().StringVar(&o.Endpoint, "node", "", "read from this node (host:port) and no other")
}

// printRecordJSON prints a record as a line that import takes as well.
func printRecordJSON(w io.Writer, record client.Record, keysOnly bool) error {
	line, err := importer.EncodeLine(nil, record.Key, record.Value, record.ModRevision, keysOnly)
	if err != nil {
		return err
	}
	_, err = w.Write(line)
	return err
}

func newKVDelCommand(f *kvFlags) *cobra.Command {
	var keys keyRange
	cmd := &cobra.Command{
		Use:   "del KEY | --prefix PREFIX | --start KEY --end KEY",
		Short: "Delete one record or a range",
		Long: `Delete one record, or all records of a range at once. That there was none is no
failure.`,
		Example: `  streamraft kv del greeting
  streamraft kv del --prefix tmp/`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			start, end, err := keys.decode(f)
			if err != nil {
				return err
			}
			if (len(arguments) == 1) == keys.given() {
				return usageErrorf("give either KEY or a range; usage: %s", cmd.UseLine())
			}
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if keys.given() {
				result, err := c.DeleteRange(cmd.Context(), start, end)
				if err != nil {
					return err
				}
				return f.printWrite(cmd, writeReport{Revision: result.Revision})
			}
			key, err := f.bytes("KEY", arguments[0])
			if err != nil {
				return err
			}
			result, err := c.Delete(cmd.Context(), key)
			if err != nil {
				return err
			}
			return f.printWrite(cmd, writeReport{Revision: result.Revision, Existed: &result.Existed})
		},
	}
	keys.addFlags(cmd)
	return cmd
}
