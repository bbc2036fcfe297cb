package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/internal/importer"
)

// importFlags are the flags of kv import.
type importFlags struct {
	format                 string
	keyColumn, valueColumn string
	prefix                 string
	chunkBytes             int
	skipBad, atMostOnce    bool
}

func newKVImportCommand(f *kvFlags) *cobra.Command {
	var flags importFlags
	cmd := &cobra.Command{
		Use:   "import FILE|DIRECTORY|-",
		Short: "Load records from JSON lines, CSV or a directory",
		Long: `Load records, many at a time. A change of leader does not end the import.

JSON lines (.jsonl, .ndjson, .json): {"key":"a","value":"b"} on each line;
key_base64 and value_base64 take binary data.

CSV (.csv): a header line names the columns.

A directory: the key of a file is --prefix and its path, the value its content.
A file larger than --chunk-bytes becomes several records, whose keys end in
#00000000of00000003 and so on; export --dir puts them together again.

What is no record ends the import with exit code 2, unless --skip-bad is given;
what was written before stays written and is told.`,
		Example: `  streamraft kv import users.jsonl
  streamraft kv import users.csv --key-column id --value-column name
  streamraft kv import ./site --prefix site/
  generate | streamraft kv import - --format jsonl`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			source, err := openSource(cmd, arguments[0], flags)
			if err != nil {
				return usageErrorf("%w", err)
			}
			defer source.Close()
			return f.runImport(cmd, source, flags)
		},
	}
	cmd.Flags().StringVar(&flags.format, "format", "", "jsonl or csv; default: by the ending of the file's name")
	cmd.Flags().StringVar(&flags.keyColumn, "key-column", "key", "CSV column of the keys")
	cmd.Flags().StringVar(&flags.valueColumn, "value-column", "value", "CSV column of the values")
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "put this in front of every key")
	cmd.Flags().IntVar(&flags.chunkBytes, "chunk-bytes", importer.DefaultChunkBytes, "directory: split files larger than this")
	cmd.Flags().BoolVar(&flags.skipBad, "skip-bad", false, "count what is no record and go on")
	cmd.Flags().BoolVar(&flags.atMostOnce, "at-most-once", false, "use no client session: end where a write's outcome is uncertain")
	return cmd
}

// openSource opens what is to be imported.
func openSource(cmd *cobra.Command, path string, flags importFlags) (importer.Source, error) {
	if flags.chunkBytes <= 0 {
		return nil, errors.New("--chunk-bytes must be above zero")
	}
	if path == "-" {
		if flags.format == "" {
			return nil, errors.New("say with --format what the standard input is: jsonl or csv")
		}
		return newSource("stdin", flags.format, cmd.InOrStdin(), 0, nil, flags)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if flags.format != "" {
			return nil, fmt.Errorf("%s is a directory: --format is for files", path)
		}
		return importer.NewTree(path, importer.TreeOptions{Prefix: flags.prefix, ChunkBytes: flags.chunkBytes})
	}
	format := flags.format
	if format == "" {
		switch strings.ToLower(filepath.Ext(path)) {
		case ".jsonl", ".ndjson", ".json":
			format = "jsonl"
		case ".csv":
			format = "csv"
		default:
			return nil, fmt.Errorf("%s: the name does not tell the format; say --format jsonl or csv", path)
		}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	total := uint64(0)
	if info.Mode().IsRegular() {
		total = uint64(info.Size())
	}
	source, err := newSource(path, format, file, total, file, flags)
	if err != nil {
		file.Close()
	}
	return source, err
}

// runImport imports and tells what it did, in success and in failure.
func (f *kvFlags) runImport(cmd *cobra.Command, source importer.Source, flags importFlags) error {
	c, err := f.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer c.Close()
	stderr := cmd.ErrOrStderr()
	progress := cliui.StartProgress(stderr, "importing", source.Total())
	summary, err := importer.Run(cmd.Context(), c, source, importer.Options{
		SkipBad: flags.skipBad, AtMostOnce: flags.atMostOnce,
		OnInput: func(n int) { progress.Add(uint64(n)) },
		OnBad: func(err error) {
			// A bar draws over lines that are written below it.
			if !cliui.IsTerminal(stderr) {
				fmt.Fprintf(stderr, "skipped: %v\n", err)
			}
		},
	})
	progress.Stop(err != nil)
	if printErr := f.printImport(cmd, summary, err); err == nil {
		err = printErr
	}
	return err
}

// importReport is what an import prints with --json, also when it failed.
type importReport struct {
	Records            uint64  `json:"records"`
	Bytes              uint64  `json:"bytes"`
	Skipped            uint64  `json:"skipped"`
	Seconds            float64 `json:"seconds"`
	MegabytesPerSecond float64 `json:"megabytes_per_second"`
	Complete           bool    `json:"complete"`
}

func (f *kvFlags) printImport(cmd *cobra.Command, s importer.Summary, err error) error {
	out := cmd.OutOrStdout()
	if f.json {
		return printJSON(out, importReport{
			Records: s.Records, Bytes: s.Bytes, Skipped: s.Skipped, Seconds: s.Elapsed.Seconds(),
			MegabytesPerSecond: cliui.MegabytesPerSecond(s.Bytes, s.Elapsed), Complete: err == nil,
		})
	}
	verb := "imported"
	if err != nil {
		verb = "not complete: written were"
	}
	line := fmt.Sprintf("%s %s records, %s in %s, %s", verb, cliui.Count(s.Records), cliui.Bytes(s.Bytes),
		cliui.Duration(s.Elapsed), cliui.Rate(s.Bytes, s.Elapsed))
	if s.Skipped > 0 {
		line += fmt.Sprintf("; %s skipped", cliui.Count(s.Skipped))
	}
	_, printErr := fmt.Fprintln(out, line)
	return printErr
}
