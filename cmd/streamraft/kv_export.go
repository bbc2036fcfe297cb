package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/internal/importer"
)

func newKVExportCommand(f *kvFlags) *cobra.Command {
	var keys keyRange
	var o client.RangeOptions
	var dir string
	cmd := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Save records as JSON lines or a directory",
		Long: `Save records as JSON lines, in order of key, to a new file or the standard
output; or as a directory tree with --dir, as import reads it: --prefix is cut
off the keys, the rest is the path. Nothing is written outside that directory,
which must be empty or not exist.

Records are read in pages: each page is one consistent read, all together are
not.`,
		Example: `  streamraft kv export --prefix users/ > users.jsonl
  streamraft kv export --prefix site/ --dir ./restored`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) (err error) {
			if o.Start, o.End, err = keys.decode(f); err != nil {
				return err
			}
			if dir != "" && len(arguments) > 0 {
				return usageErrorf("give either FILE or --dir")
			}
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			started := time.Now()
			var report exportReport
			switch {
			case dir != "":
				prefix := ""
				if cmd.Flags().Changed("prefix") {
					prefix = string(o.Start)
				}
				report, err = exportTree(cmd, c, o, dir, prefix)
			case len(arguments) == 1:
				report, err = exportFile(cmd, c, o, arguments[0])
			default:
				report, err = exportLines(cmd, c, o, cmd.OutOrStdout())
			}
			report.Seconds = time.Since(started).Seconds()
			if err != nil {
				return fmt.Errorf("export ended after %s records: %w", cliui.Count(report.Records), err)
			}
			// On the standard error, since the records may stand on the output.
			return f.printExport(cmd, report, time.Since(started))
		},
	}
	keys.addFlags(cmd)
	cmd.Flags().StringVar(&dir, "dir", "", "write a directory tree here")
	addReadFlags(cmd, &o.ReadOptions)
	return cmd
}

// exportReport is what an export prints with --json, on the standard error.
type exportReport struct {
	Records uint64  `json:"records"`
	Bytes   uint64  `json:"bytes"`
	Files   int     `json:"files,omitempty"`
	Seconds float64 `json:"seconds"`
}

func (f *kvFlags) printExport(cmd *cobra.Command, report exportReport, elapsed time.Duration) error {
	if f.json {
		return printJSON(cmd.ErrOrStderr(), report)
	}
	line := fmt.Sprintf("exported %s records, %s in %s", cliui.Count(report.Records), cliui.Bytes(report.Bytes), cliui.Duration(elapsed))
	if report.Files > 0 {
		line += fmt.Sprintf(", to %s files", cliui.Count(uint64(report.Files)))
	}
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), line)
	return err
}

func exportLines(cmd *cobra.Command, c *client.Client, o client.RangeOptions, w io.Writer) (report exportReport, err error) {
	out := bufio.NewWriterSize(w, 1<<16)
	var line []byte
	for record, err := range c.Range(cmd.Context(), o) {
		if err == nil {
			line, err = importer.EncodeLine(line[:0], record.Key, record.Value, 0, false)
		}
		if err == nil {
			_, err = out.Write(line)
		}
		if err != nil {
			_ = out.Flush()
			return report, err
		}
		report.Records++
		report.Bytes += uint64(len(record.Key) + len(record.Value))
	}
	return report, out.Flush()
}

func exportFile(cmd *cobra.Command, c *client.Client, o client.RangeOptions, path string) (report exportReport, err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return report, usageErrorf("%w; choose a new file", err)
	}
	report, err = exportLines(cmd, c, o, file)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return report, err
}

func exportTree(cmd *cobra.Command, c *client.Client, o client.RangeOptions, dir, prefix string) (report exportReport, err error) {
	tree, err := importer.NewTreeWriter(dir)
	if err != nil {
		return report, usageErrorf("%w", err)
	}
	defer func() {
		// A bad key is what the cluster holds, not what the caller typed.
		if closeErr := tree.Close(); err == nil && closeErr != nil {
			err = withExitCode(exitFailure, closeErr)
		}
		report.Files = tree.Files
	}()
	for record, err := range c.Range(cmd.Context(), o) {
		if err != nil {
			return report, err
		}
		if err := tree.Add(strings.TrimPrefix(string(record.Key), prefix), record.Value); err != nil {
			return report, withExitCode(exitFailure, err)
		}
		report.Records++
		report.Bytes += uint64(len(record.Key) + len(record.Value))
	}
	return report, nil
}
