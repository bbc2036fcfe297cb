package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/snapshot"
)

func newSnapshotSaveCommand(g *globals) *cobra.Command {
	var node string
	var o client.SaveOptions
	var force bool
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save an archive of all groups, to restore a cluster from",
		Long: `Save an archive of a node's replicas of all groups in FILE, or on the standard
output with -. Each group is a consistent state at one index, which has every write
that was acknowledged before; the groups' indexes differ. The cluster goes on
meanwhile. What arrives is checked like streamraft snapshot verify does it.

The file appears under its name only once it is whole and durable; until then it
is FILE.part.`,
		Example: `  streamraft snapshot save backup.srarchive
  streamraft snapshot save - | ssh vault 'cat > backup.srarchive'`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			path := arguments[0]
			if path != "-" && !force {
				if err := wantsAbsent(path); err != nil {
					return err
				}
			}
			c, err := g.connectLazily(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			at, err := g.pickNode(cmd.Context(), c, node)
			if err != nil {
				return err
			}
			s := &saving{client: c, endpoint: at.Address, options: o, progressTo: cmd.ErrOrStderr()}
			begin := time.Now()
			var archive *snapshot.Archive
			if path == "-" {
				archive, err = s.run(cmd.Context(), cmd.OutOrStdout())
			} else {
				archive, err = s.toFile(cmd.Context(), path, force)
			}
			if err != nil {
				return err
			}
			report := saveReport{archiveReport: reportArchive(path, archive), Seconds: time.Since(begin).Seconds()}
			report.Verified = true
			report.MegabytesPerSecond = cliui.MegabytesPerSecond(s.done, time.Since(begin))
			out := cmd.OutOrStdout()
			if path == "-" {
				out = cmd.ErrOrStderr()
			}
			if g.json {
				return printJSON(out, report)
			}
			return g.printArchive(out, report.archiveReport, fmt.Sprintf("saved in %s, %s", cliui.Duration(time.Since(begin)), cliui.Rate(s.done, time.Since(begin))))
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "node to save from, by name or host:port (default: one that leads nothing)")
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	cmd.Flags().BoolVar(&o.Stale, "stale", false, "save what the node has, without a majority that confirms it: for a cluster without a leader")
	return cmd
}

// saveReport is what snapshot save prints with --json.
type saveReport struct {
	archiveReport
	Seconds            float64 `json:"seconds"`
	MegabytesPerSecond float64 `json:"megabytes_per_second"`
}

// wantsAbsent refuses a file that exists.
func wantsAbsent(path string) error {
	switch _, err := os.Lstat(path); {
	case err == nil:
		return withExitCode(exitUsage, fmt.Errorf("save: %s exists; choose another name, or --force to replace it", path))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

// saving is one archive on its way to a file.
type saving struct {
	client     *client.Client
	endpoint   string
	options    client.SaveOptions
	progressTo io.Writer
	done       uint64 // bytes of images
}

// run writes the archive to w, and checks it on the way.
func (s *saving) run(ctx context.Context, w io.Writer) (*snapshot.Archive, error) {
	checked, toCheck := io.Pipe()
	type outcome struct {
		archive *snapshot.Archive
		err     error
	}
	verified := make(chan outcome, 1)
	go func() {
		archive, err := snapshot.VerifyArchive(ctx, checked)
		// What follows an error must not wait for a reader.
		_ = checked.CloseWithError(err)
		verified <- outcome{archive, err}
	}()
	var progress *cliui.Progress
	s.options.Progress = func(done, total uint64) {
		if progress == nil && total > 0 {
			progress = cliui.StartProgress(s.progressTo, "saving", total)
		}
		if progress != nil {
			progress.Add(done - s.done)
		}
		s.done = done
	}
	err := s.client.SaveSnapshot(ctx, s.endpoint, s.options, io.MultiWriter(w, toCheck))
	_ = toCheck.CloseWithError(err) // nil is the end of the archive
	v := <-verified
	if progress != nil {
		progress.Stop(err != nil || v.err != nil)
	}
	if err != nil && !errors.Is(err, snapshot.ErrCorrupt) {
		return nil, err
	}
	if v.err != nil {
		return nil, fmt.Errorf("save: what arrived is no sound archive: %w; try again, or save from another node", v.err)
	}
	return v.archive, nil
}

// toFile saves to a file that appears under its name once it is whole.
func (s *saving) toFile(ctx context.Context, path string, force bool) (_ *snapshot.Archive, err error) {
	part := path + ".part"
	file, err := os.Create(part)
	if err != nil {
		return nil, fmt.Errorf("save: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(part))
		}
	}()
	archive, err := s.run(ctx, file)
	if err == nil {
		if err = file.Sync(); err != nil {
			err = fmt.Errorf("save: %w", err)
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if !force {
		// Somebody else may have made it meanwhile.
		if err := wantsAbsent(path); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(part, path); err != nil {
		return nil, fmt.Errorf("save: %w", err)
	}
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("save: whether %s survives a crash is unknown: %w", path, err)
	}
	return archive, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDirectory makes the names in a directory durable.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
