package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/importer"
)

func newKVTxnCommand(f *kvFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "txn FILE",
		Short: "Compare and write atomically",
		Long: `Run a transaction from a YAML or JSON file ("-": the standard input): if every
compare holds, the steps of "then" run, otherwise those of "else", all at once.
Steps see those before them. Exit code 4 tells that a compare did not hold.

  compare:
    - {key: stock, value: "1"}            # exists with this value
    - {key: order/7, exists: false}
    - {key: price, revision: {less: 655360}}  # or equal, not_equal, greater
  then:
    - put: {key: stock, value: "0"}
    - get: price
    - delete: offer
    - delete_range: {prefix: tmp/}        # or start and end
  else:
    - get: stock

Instead of key, value, start, end and prefix, key_base64 and so on take binary
data.`,
		Example: `  streamraft kv txn order.yaml
  echo '{"compare":[{"key":"a","exists":false}],"then":[{"put":{"key":"a","value":"1"}}]}' | streamraft kv txn -`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			data, err := readInput(cmd, arguments[0])
			if err != nil {
				return err
			}
			txn, err := parseTxn(data)
			if err != nil {
				return usageErrorf("%s: %w", arguments[0], err)
			}
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			result, err := c.Txn(cmd.Context(), txn)
			if err != nil {
				return err
			}
			if err := f.printTxn(cmd, result); err != nil {
				return err
			}
			if !result.Succeeded {
				return withExitCode(exitNotFound, fmt.Errorf("txn: a compare did not hold; the steps of else were run"))
			}
			return nil
		},
	}
}

// txnReport is what a transaction prints with --json.
type txnReport struct {
	Succeeded bool         `json:"succeeded"`
	Revision  uint64       `json:"revision"`
	Results   []stepReport `json:"results"`
}

// stepReport is the answer of one step: a record for a get that found one,
// existed for a delete.
type stepReport struct {
	Record  *importer.Line `json:"record,omitempty"`
	Existed bool           `json:"existed,omitempty"`
}

func (f *kvFlags) printTxn(cmd *cobra.Command, result client.Result) error {
	out := cmd.OutOrStdout()
	if f.json {
		report := txnReport{Succeeded: result.Succeeded, Revision: result.Revision, Results: []stepReport{}}
		for _, step := range result.Steps {
			s := stepReport{Existed: step.Existed}
			if r := step.Record; r != nil {
				s.Record = new(importer.NewLine(r.Key, r.Value, r.ModRevision, false))
			}
			report.Results = append(report.Results, s)
		}
		return printJSON(out, report)
	}
	branch := "else"
	if result.Succeeded {
		branch = "then"
	}
	if _, err := fmt.Fprintf(out, "%s ran, revision %d\n", branch, result.Revision); err != nil {
		return err
	}
	for _, step := range result.Steps {
		if step.Record == nil {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s\t%s\n", shown(step.Record.Key), shown(step.Record.Value)); err != nil {
			return err
		}
	}
	return nil
}
