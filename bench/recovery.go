package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/localcluster"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// Recovery is one measured recovery.
type Recovery struct {
	Case Case   `json:"case"`
	Run  int    `json:"run"`
	Kind string `json:"kind"` // of the image: files, records or stream
	// Total is the time from the start of the process until it has applied what
	// the leader had applied then. ToTransfer is the part before the transfer.
	Total      time.Duration `json:"total_ns"`
	ToTransfer time.Duration `json:"to_transfer_ns"`
	// Stages of the transfer, as the receiver tells them; Other is the rest of
	// Total: a process that starts again, pauses between transfers.
	Stages map[string]time.Duration `json:"stages_ns"`
	Other  time.Duration            `json:"other_ns"`
	// Limit is the least time that disk and gRPC take for ImageBytes, by the
	// limits measured before this round.
	Limit time.Duration `json:"limit_ns"`
	// ImageBytes are the files of the images that were fetched (one, as a rule),
	// SentBytes what sources put on the wire for them, in all attempts, RawBytes
	// what they hold uncompressed.
	ImageBytes uint64 `json:"image_bytes"`
	SentBytes  uint64 `json:"sent_bytes"`
	RawBytes   uint64 `json:"raw_bytes"`
	Attempts   int    `json:"attempts"`
	// Restarts is how often staged bytes were lost.
	Restarts int `json:"restarts"`
	// Memory is the peak of anonymous memory over the median of the settle time:
	// before for the source, after for the receiver. 0 where it is not known.
	SourceMemory   uint64 `json:"source_memory_bytes"`
	ReceiverMemory uint64 `json:"receiver_memory_bytes"`
	// Foreground writes before and during.
	Before *Latencies `json:"foreground_before,omitempty"`
	During *Latencies `json:"foreground_during,omitempty"`
}

// recovery is a run of MeasureRecovery.
type recovery struct {
	o       RecoveryOptions
	cluster *localcluster.Cluster
	client  *client.Client
	data    *dataset
	// args are what nodes are started with beside what all have. Only this run's
	// goroutine starts nodes once the cluster is there.
	args map[string]*nodeArgs
	seed uint64
}

// nodeArgs are the arguments of one node.
type nodeArgs struct {
	replace string // the address of a member, for a directory that replaces another
	full    bool   // takes full images only
}

func (a *nodeArgs) list() []string {
	var args []string
	if a.replace != "" {
		args = append(args, "--replace", a.replace)
	}
	if a.full {
		args = append(args, "--snapshot-delta", "off")
	}
	return args
}

// logBudget of the nodes: small, so that little has to be written until no log
// reaches a node that was away.
const logBudget = 16 << 20

// MeasureRecovery runs a cluster of three node processes, fills it, and measures
// the cases, Repeat times, one round after another. limits are those measured
// before each round. It takes as long as it takes, until ctx ends; what it has
// measured by then comes with the error.
func MeasureRecovery(ctx context.Context, o RecoveryOptions) (results []Recovery, limits []Limits, err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, nil, err
	}
	r := &recovery{o: o, data: newDataset(o.Bytes, o.Data), args: make(map[string]*nodeArgs)}
	if err := r.open(ctx); err != nil {
		return nil, nil, errors.Join(err, r.close())
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.load(ctx); err != nil {
		return nil, nil, err
	}
	if o.Loaded != nil {
		if err := o.Loaded(); err != nil {
			return nil, nil, err
		}
	}
	for round := range o.Repeat {
		least, err := MeasureLimits(ctx, o.Dir, o.Bytes)
		if err != nil {
			return results, limits, err
		}
		limits = append(limits, *least)
		for _, c := range o.Cases {
			result, err := r.measure(ctx, c)
			if err != nil {
				return results, limits, fmt.Errorf("bench: recovery %s, run %d: %w", c, round+1, err)
			}
			result.Case, result.Run, result.Limit = c, round+1, least.Transfer(result.ImageBytes)
			results = append(results, *result)
			o.Log(fmt.Sprintf("%s %d: %.2f s (limit %.2f s), %.1f MB sent for %.1f MB of %s", c, round+1, result.Total.Seconds(),
				result.Limit.Seconds(), float64(result.SentBytes)/1e6, float64(result.ImageBytes)/1e6, result.Kind))
		}
	}
	return results, limits, nil
}

// open starts the cluster.
func (r *recovery) open(ctx context.Context) (err error) {
	r.cluster, err = localcluster.New(localcluster.Options{
		Binary: r.o.Binary, Dir: filepath.Join(r.o.Dir, "nodes"),
		ExtraArgs: append([]string{fmt.Sprintf("--log-budget=%d", logBudget), "--snapshot-pacing=" + r.o.Pacing}, r.o.NodeArgs...),
		NodeArgs: func(name string) []string {
			if args := r.args[name]; args != nil {
				return args.list()
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	for _, name := range r.cluster.Names() {
		r.args[name] = new(nodeArgs)
	}
	if err := r.cluster.StartAll(ctx); err != nil {
		return err
	}
	r.client, err = client.Open(ctx, client.Options{Endpoints: r.cluster.Endpoints()})
	return err
}

func (r *recovery) close() error {
	var errs []error
	if r.client != nil {
		errs = append(errs, r.client.Close())
	}
	if r.cluster != nil {
		errs = append(errs, r.cluster.Close())
	}
	return errors.Join(errs...)
}

func (r *recovery) load(ctx context.Context) error {
	r.o.Log(fmt.Sprintf("loading %d records, %.0f MB", r.data.records, float64(r.data.bytes())/1e6))
	begin := time.Now()
	if err := r.data.write(ctx, r.client, r.data.all); err != nil {
		return fmt.Errorf("bench: load the data set: %w", err)
	}
	r.o.Log(fmt.Sprintf("loaded, %.0f MB/s", MBPerSecond(r.data.bytes(), time.Since(begin))))
	return r.awaitCut(ctx)
}

// awaitCut waits until no log reaches back to its beginning: an empty node could
// be given the log else. Of little data the logs are never cut.
func (r *recovery) awaitCut(ctx context.Context) error {
	for r.data.bytes() >= 2*logBudget-recordBytes {
		whole := 0
		for _, name := range r.cluster.Names() {
			status, err := r.cluster.Status(ctx, name)
			if err != nil {
				return err
			}
			if groupOf(status).GetFirstIndex() <= 1 {
				whole++
			}
		}
		if whole == 0 {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// measure runs one case once.
func (r *recovery) measure(ctx context.Context, c Case) (*Recovery, error) {
	if err := r.heal(ctx); err != nil {
		return nil, err
	}
	node, leader, err := r.follower(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.injure(ctx, c, node, leader); err != nil {
		return nil, err
	}
	w := r.watch(ctx, c, node)
	defer w.end()
	if err := w.before(ctx); err != nil {
		return nil, err
	}
	if err := w.recover(ctx); err != nil {
		return nil, err
	}
	return w.result(ctx)
}

// heal waits until every node runs, is a voter and has caught up.
func (r *recovery) heal(ctx context.Context) error {
	for _, name := range r.cluster.Names() {
		if !r.cluster.Running(name) {
			if err := r.cluster.Launch(name); err != nil {
				return err
			}
		}
		if err := r.cluster.WaitCaughtUp(ctx, name, nil); err != nil {
			return err
		}
	}
	return r.awaitVoters(ctx)
}

// follower returns a node that does not lead the data group, and the one that
// does.
func (r *recovery) follower(ctx context.Context) (follower, leader string, err error) {
	if leader, err = r.cluster.Leader(ctx, client.DataGroup); err != nil {
		return "", "", err
	}
	for _, name := range r.cluster.Names() {
		if name != leader {
			return name, leader, nil
		}
	}
	return "", "", errors.New("no follower")
}

// awaitVoters waits until every node is a voter: one that was replaced is a
// learner for a moment.
func (r *recovery) awaitVoters(ctx context.Context) error {
	for {
		members, err := r.client.Members(ctx)
		if err != nil {
			return err
		}
		voters := 0
		for _, m := range members {
			if m.GetState() == adminv1.MemberState_MEMBER_STATE_VOTER {
				voters++
			}
		}
		if voters == len(r.cluster.Names()) {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// groupOf is what a node tells of the data group.
func groupOf(status *adminv1.StatusResponse) *adminv1.GroupStatus {
	for _, g := range status.GetGroups() {
		if g.GetGroup() == client.DataGroup {
			return g
		}
	}
	return nil
}

// pause waits, or ends with ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
