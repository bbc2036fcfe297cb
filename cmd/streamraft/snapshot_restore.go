package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/server"
	"github.com/streamraft/streamraft/snapshot"
)

func newSnapshotRestoreCommand(g *globals) *cobra.Command {
	var o server.RestoreOptions
	var listen string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the first node of a new cluster from an archive",
		Long: `Make a directory for the first node of a new cluster, with the state of an archive.
Nothing may run there. Then it prints the commands that start this node and let
others join.

The cluster is a new one, with a higher history epoch: nodes of the old one are
refused, and must be started with empty directories. Revisions go on far above the
old ones, so that none comes again; client sessions stay.

A restore that was interrupted leaves a directory that no node starts in; --force
starts it over. It never touches a directory of any other origin.`,
		Example: `  streamraft snapshot restore backup.srarchive --name n1 --data-dir /var/lib/streamraft
  streamraft snapshot restore backup.srarchive --name n1 --data-dir data/n1 --listen 10.0.0.1:7601`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			path := arguments[0]
			if o.Name == "" || o.DataDir == "" {
				return usageErrorf("--name and --data-dir are required")
			}
			o.Advertise = cmp.Or(o.Advertise, listen)
			o.Archive = cmd.InOrStdin()
			size := int64(0)
			if path != "-" {
				file, bytes, err := openArchive(path)
				if err != nil {
					return err
				}
				defer file.Close()
				// What is no archive is told before anything is written.
				if _, err := snapshot.InspectArchive(file, bytes); err != nil {
					return damagedArchive(path, err)
				}
				o.Archive, size = file, bytes
			}
			progress := cliui.StartProgress(cmd.ErrOrStderr(), "restoring", uint64(size))
			o.Archive = io.TeeReader(o.Archive, progressWriter{progress})
			begin := time.Now()
			restored, err := server.Restore(cmd.Context(), o)
			progress.Stop(err != nil)
			if err != nil {
				return restoreError(path, err)
			}
			report := reportRestore(path, restored, o, listen)
			report.Seconds = time.Since(begin).Seconds()
			if g.json {
				return printJSON(cmd.OutOrStdout(), report)
			}
			return report.print(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Name, "name", "", "name of the node")
	flags.StringVar(&o.DataDir, "data-dir", "", "directory of the node, absent or empty")
	flags.StringVar(&listen, "listen", defaultEndpoint, "host:port the node will listen on")
	flags.StringVar(&o.Advertise, "advertise", "", "host:port at which others will reach it (default: --listen)")
	flags.BoolVar(&o.StartOver, "force", false, "start over where an earlier restore was interrupted")
	return cmd
}

// restoreError gives an error of a restore its exit code.
func restoreError(path string, err error) error {
	switch {
	case errors.Is(err, server.ErrConfig):
		return withExitCode(exitUsage, err)
	case server.KindOf(err) == server.KindRefused, server.KindOf(err) == server.KindLocked, errors.Is(err, snapshot.ErrUnfit):
		return withExitCode(exitRefused, fmt.Errorf("restore: %w", err))
	case errors.Is(err, snapshot.ErrNoSpace):
		return withExitCode(exitNodeFailed, fmt.Errorf("restore: %w; free space, or restore elsewhere. Nothing stays of this one", err))
	}
	return damagedArchive(path, err)
}

// restoreReport is what snapshot restore prints with --json.
type restoreReport struct {
	File         string         `json:"file"`
	ClusterID    string         `json:"cluster_id"`
	HistoryEpoch uint64         `json:"history_epoch"`
	Node         string         `json:"node"`
	DataDir      string         `json:"data_dir"`
	Address      string         `json:"address"`
	Archive      archiveReport  `json:"archive"`
	Groups       []restoreGroup `json:"groups"`
	Seconds      float64        `json:"seconds"`
	Start        string         `json:"start"`
	Join         []restoreJoin  `json:"join"`
}

// restoreGroup is where a group goes on.
type restoreGroup struct {
	Group        uint64 `json:"group"`
	ArchiveIndex uint64 `json:"archive_index"`
	Index        uint64 `json:"index"`
}

// restoreJoin is how another node gets the data.
type restoreJoin struct {
	Node    string `json:"node"`
	Command string `json:"command"`
}

func reportRestore(path string, restored *server.Restored, o server.RestoreOptions, listen string) restoreReport {
	report := restoreReport{
		File: path, ClusterID: restored.ClusterID, HistoryEpoch: restored.HistoryEpoch, Node: o.Name, DataDir: o.DataDir, Address: o.Advertise,
		Archive: reportArchive(path, restored.Archive), Join: []restoreJoin{},
	}
	report.Archive.Verified = true
	for i, m := range restored.Archive.Manifests {
		report.Groups = append(report.Groups, restoreGroup{m.GetGroup(), m.GetIndex(), restored.Index[i]})
	}
	report.Start = nodeCommand(o.Name, o.DataDir, listen, "")
	if o.Advertise != listen {
		report.Start += " --advertise " + shellWord(o.Advertise)
	}
	for _, member := range restored.Members {
		if member.Node == o.Name {
			continue
		}
		// The directory of the old node must not be used again, and on this machine
		// neither can the one that was restored.
		command := nodeCommand(member.Node, filepath.Join(filepath.Dir(o.DataDir), member.Node+"-restored"), member.Address, sameHost(member.Address, o.Advertise)) +
			" --join " + shellWord(o.Advertise)
		report.Join = append(report.Join, restoreJoin{member.Node, command})
	}
	return report
}

// nodeCommand is the command that starts a node; http is its HTTP address, or "".
func nodeCommand(name, dir, listen, http string) string {
	command := "streamraft node --name " + shellWord(name) + " --data-dir " + shellWord(dir) + " --listen " + shellWord(listen)
	if http != "" {
		command += " --http-listen " + http
	}
	if host, _, err := net.SplitHostPort(listen); err != nil || !loopbackHost(host) {
		command += " --insecure-listen"
	}
	return command
}

// sameHost returns an HTTP address for a node that runs beside the restored one,
// where the default port is taken; any free one, which its log tells.
func sameHost(address, other string) string {
	host, _, err := net.SplitHostPort(address)
	if h, _, otherErr := net.SplitHostPort(other); err != nil || otherErr != nil || h != host {
		return ""
	}
	return net.JoinHostPort("127.0.0.1", "0")
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// shellWord quotes a word for a shell where that is needed.
func shellWord(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=@%+") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func (r *restoreReport) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "restored %s into %s in %s: node %s of the new cluster %s, history epoch %d\n\n", r.File, r.DataDir,
		cliui.Duration(durationOf(r.Seconds)), r.Node, r.ClusterID, r.HistoryEpoch)
	rows := make([][]string, 0, len(r.Groups))
	for i, g := range r.Groups {
		rows = append(rows, []string{
			fmt.Sprint(g.Group), cliui.Count(r.Archive.Groups[i].Records), cliui.Bytes(r.Archive.Groups[i].Bytes), cliui.Count(g.ArchiveIndex), cliui.Count(g.Index),
		})
	}
	if err := cliui.Table(&b, []cliui.Column{
		{Name: "group", Number: true}, {Name: "rows (about)", Number: true}, {Name: "bytes", Number: true}, {Name: "saved at", Number: true}, {Name: "goes on at", Number: true},
	}, rows); err != nil {
		return err
	}
	if r.Archive.Stale {
		b.WriteString("\nthe archive was saved with --stale: acknowledged writes may be missing\n")
	}
	fmt.Fprintf(&b, "\nStart this node:\n\n  %s\n", r.Start)
	if len(r.Join) > 0 {
		b.WriteString("\nthen the others, each on its machine with a directory that does not exist yet; the old ones are of no use any more:\n\n")
		for _, j := range r.Join {
			fmt.Fprintf(&b, "  %s\n", j.Command)
		}
	} else {
		fmt.Fprintf(&b, "\nOther nodes join it with --join %s.\n", r.Address)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
