package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/snapshot"
)

func newSnapshotInspectCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Tell what an archive holds, without reading all of it",
		Long: `Tell what an archive holds: cluster, time, and each group's index, records and
bytes. It reads the index only, and needs no cluster; streamraft snapshot verify
tells whether all of the file is sound.`,
		Example: "  streamraft snapshot inspect backup.srarchive",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			file, size, err := openArchive(arguments[0])
			if err != nil {
				return err
			}
			defer file.Close()
			archive, err := snapshot.InspectArchive(file, size)
			if err != nil {
				return damagedArchive(arguments[0], err)
			}
			return g.printArchive(cmd.OutOrStdout(), reportArchive(arguments[0], archive), "")
		},
	}
}

func newSnapshotVerifyCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE",
		Short: "Read all of an archive and check every byte",
		Long: `Read an archive to its end and check every checksum and digest. It needs no
cluster. With - it reads the standard input. Exit code 1 tells that the archive is
damaged; the message names the byte.`,
		Example: "  streamraft snapshot verify backup.srarchive",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			var in io.Reader = cmd.InOrStdin()
			size := int64(0)
			if arguments[0] != "-" {
				file, bytes, err := openArchive(arguments[0])
				if err != nil {
					return err
				}
				defer file.Close()
				in, size = file, bytes
			}
			progress := cliui.StartProgress(cmd.ErrOrStderr(), "verifying", uint64(size))
			archive, err := snapshot.VerifyArchive(cmd.Context(), io.TeeReader(in, progressWriter{progress}))
			progress.Stop(err != nil)
			if err != nil {
				return damagedArchive(arguments[0], err)
			}
			report := reportArchive(arguments[0], archive)
			report.Verified = true
			return g.printArchive(cmd.OutOrStdout(), report, "every checksum and digest is right")
		},
	}
}

// progressWriter counts what is written as done.
type progressWriter struct{ progress *cliui.Progress }

// Write implements io.Writer.
func (w progressWriter) Write(p []byte) (int, error) {
	w.progress.Add(uint64(len(p)))
	return len(p), nil
}

// openArchive opens a file that should be an archive.
func openArchive(path string) (*os.File, int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("archive: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("archive: %s is no regular file", path)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// damagedArchive says what to do about an archive that cannot be used.
func damagedArchive(path string, err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, snapshot.ErrCorrupt):
		return fmt.Errorf("archive %s cannot be used: %w; take another copy of it, or another backup", path, err)
	}
	return fmt.Errorf("archive %s: %w", path, err)
}

// archiveReport is what snapshot save, inspect, verify and restore tell of an
// archive.
type archiveReport struct {
	File         string         `json:"file"`
	Bytes        uint64         `json:"bytes"`
	ClusterID    string         `json:"cluster_id"`
	HistoryEpoch uint64         `json:"history_epoch"`
	Created      string         `json:"created"`
	Release      string         `json:"release,omitempty"`
	Node         string         `json:"node,omitempty"`
	Stale        bool           `json:"stale,omitempty"`
	Groups       []archiveGroup `json:"groups"`
	// Missing are groups of the cluster that it does not hold: then it cannot be
	// restored.
	Missing  []uint64 `json:"missing_groups,omitempty"`
	Verified bool     `json:"verified"`
}

// archiveGroup is a group in an archive.
type archiveGroup struct {
	Group    uint64 `json:"group"`
	Kind     string `json:"kind"`
	Index    uint64 `json:"index"`
	Term     uint64 `json:"term"`
	Records  uint64 `json:"records"`
	Files    int    `json:"files"`
	Bytes    uint64 `json:"bytes"`
	RawBytes uint64 `json:"raw_bytes,omitempty"`
	// ArchiveBytes is what it takes in the file.
	ArchiveBytes uint64 `json:"archive_bytes"`
}

func reportArchive(path string, a *snapshot.Archive) archiveReport {
	h := a.Header
	report := archiveReport{
		File: path, Bytes: a.Bytes, ClusterID: fmt.Sprintf("%x", h.GetClusterId()), HistoryEpoch: h.GetHistoryEpoch(),
		Created: time.UnixMilli(h.GetCreatedUnixMs()).UTC().Format(time.RFC3339Nano), Release: h.GetRelease(), Node: h.GetNode(), Stale: h.GetStale(),
		Groups: []archiveGroup{},
	}
	held := map[uint64]bool{}
	for i, m := range a.Manifests {
		held[m.GetGroup()] = true
		report.Groups = append(report.Groups, archiveGroup{
			Group: m.GetGroup(), Kind: enumName(m.GetKind().String(), "KIND_"), Index: m.GetIndex(), Term: m.GetTerm(),
			Records: m.GetRecords(), Files: len(m.GetFiles()), Bytes: m.GetBytes(), RawBytes: m.GetRawBytes(), ArchiveBytes: a.Entries[i].GetBytes(),
		})
	}
	for _, group := range h.GetGroups() {
		if !held[group] {
			report.Missing = append(report.Missing, group)
		}
	}
	slices.Sort(report.Missing)
	return report
}

// printArchive prints an archive's content, and what else is known of it.
func (g *globals) printArchive(w io.Writer, report archiveReport, remark string) error {
	if g.json {
		return printJSON(w, report)
	}
	if _, err := fmt.Fprintf(w, "%s: %s, saved from node %s of cluster %s, history epoch %d, at %s by release %s\n", report.File, cliui.Bytes(report.Bytes),
		cmp.Or(report.Node, "?"), report.ClusterID, report.HistoryEpoch, report.Created, cmp.Or(report.Release, "?")); err != nil {
		return err
	}
	var rows [][]string
	for _, a := range report.Groups {
		raw := "-"
		if a.RawBytes > 0 {
			raw = cliui.Bytes(a.RawBytes)
		}
		rows = append(rows, []string{
			fmt.Sprint(a.Group), a.Kind, cliui.Count(a.Index), cliui.Count(a.Term), cliui.Count(a.Records), cliui.Count(uint64(a.Files)),
			cliui.Bytes(a.Bytes), raw, cliui.Bytes(a.ArchiveBytes),
		})
	}
	if err := cliui.Table(w, []cliui.Column{
		{Name: "group", Number: true}, {Name: "kind"}, {Name: "index", Number: true}, {Name: "term", Number: true}, {Name: "rows (about)", Number: true},
		{Name: "files", Number: true}, {Name: "bytes", Number: true}, {Name: "raw", Number: true}, {Name: "in the archive", Number: true},
	}, rows); err != nil {
		return err
	}
	if report.Stale {
		remark = "saved with --stale: acknowledged writes may be missing\n" + remark
	}
	if len(report.Missing) > 0 {
		remark = fmt.Sprintf("groups %v of the cluster are not in it, so it cannot be restored\n", report.Missing) + remark
	}
	if remark != "" {
		_, err := fmt.Fprintln(w, remark)
		return err
	}
	return nil
}
