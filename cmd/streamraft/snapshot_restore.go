package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/server"
)

// restoreReport is what snapshot restore tells.
type restoreReport struct {
	Node         string         `json:"node"`
	DataDir      string         `json:"data_dir"`
	Advertise    string         `json:"advertise"`
	ClusterID    string         `json:"cluster_id"`
	HistoryEpoch uint64         `json:"history_epoch"`
	Groups       []restoreGroup `json:"groups"`
}

type restoreGroup struct {
	Group     uint64 `json:"group"`
	FromIndex uint64 `json:"from_index"`
	Index     uint64 `json:"index"`
	Records   uint64 `json:"records"`
}

func newSnapshotRestoreCommand(g *globals) *cobra.Command {
	var o server.RestoreOptions
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the first node of a new cluster from an archive",
		Long: `Make a directory from which the first node of a new cluster starts, with the state
of an archive. Nothing of the old cluster is needed, or touched.

The new cluster has an id of its own and a higher history epoch, so that nodes of
the old one are refused. Indexes and revisions go on far above those of the archive.
Start the node, and let the others join it with empty directories. With - the
archive is read from the standard input.`,
		Example: "  streamraft snapshot restore backup.srarchive --name n1 --data-dir data/n1 --advertise 127.0.0.1:7601",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			o.Archive = cmd.InOrStdin()
			size := int64(0)
			if arguments[0] != "-" {
				file, bytes, err := openArchive(arguments[0])
				if err != nil {
					return err
				}
				defer file.Close()
				o.Archive, size = file, bytes
			}
			progress := cliui.StartProgress(cmd.ErrOrStderr(), "restoring", uint64(size))
			o.Archive = io.TeeReader(o.Archive, progressWriter{progress})
			restored, err := server.Restore(cmd.Context(), o)
			progress.Stop(err != nil)
			if err != nil {
				return damagedArchive(arguments[0], err)
			}
			report := restoreReport{Node: o.Name, DataDir: o.DataDir, Advertise: o.Advertise, ClusterID: restored.ClusterID, HistoryEpoch: restored.HistoryEpoch}
			for i, m := range restored.Archive.Manifests {
				report.Groups = append(report.Groups, restoreGroup{Group: m.GetGroup(), FromIndex: m.GetIndex(), Index: restored.Index[i], Records: m.GetRecords()})
			}
			if g.json {
				return printJSON(cmd.OutOrStdout(), report)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), `Restored %d groups of the archive into %s: cluster %s, history epoch %d.
Start the node:
  streamraft node --name %s --data-dir %s --listen %s
then others, each with a name of its own and an empty directory:
  streamraft node --name NAME --data-dir DIR --listen HOST:PORT --http-listen HOST:PORT --join %s
`, len(report.Groups), o.DataDir, report.ClusterID, report.HistoryEpoch, o.Name, o.DataDir, o.Advertise, o.Advertise)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of the node (required)")
	f.StringVar(&o.DataDir, "data-dir", "", "its directory, absent or empty (required)")
	f.StringVar(&o.Advertise, "advertise", "127.0.0.1:7601", "host:port at which others will reach it")
	f.BoolVar(&o.StartOver, "force", false, "remove what an interrupted restore left in the directory")
	return cmd
}
