package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/localcluster"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Case is a way to lose a node and get it back.
type Case string

// The cases.
const (
	// CaseLost: the node's disk is lost; an empty directory replaces it.
	CaseLost Case = "lost"
	// CaseBehind: the node was away, a share of the records was overwritten
	// uniformly at random, and no log reaches it any more.
	CaseBehind Case = "behind"
	// CaseCut: as lost, and the receiving process is killed at a share of the
	// bytes and started again.
	CaseCut Case = "cut"
	// CaseLeader: as behind, by so much that a full image travels; the leader is
	// killed at a share of the bytes, while a follower is the source.
	CaseLeader Case = "leader"
	// CaseSource: as leader, but the source is destroyed for good.
	CaseSource Case = "source"
)

// Cases returns all cases.
func Cases() []Case { return []Case{CaseLost, CaseBehind, CaseCut, CaseLeader, CaseSource} }

// fullPercent is what the cases leader and source overwrite: a delta of it would
// cost more than half of a full image, so a full one travels.
const fullPercent = 60

// RecoveryOptions says what to measure.
type RecoveryOptions struct {
	// Binary is the streamraft program; default the running one. Dir is where the
	// nodes' directories are; it must exist and is left to the caller. Required.
	Binary, Dir string
	Cases       []Case
	// Bytes of the data set; default 1 GiB. Data; default DataRandom.
	Bytes uint64
	Data  Data
	// Repeat each case so often. Default 1.
	Repeat int
	// Percent that CaseBehind overwrites; default 5. At is the percentage of the
	// bytes at which CaseCut, CaseLeader and CaseSource do what they do; default 50.
	Percent, At float64
	// Load is the rate of foreground writes a second, 0: none.
	Load int
	// Settle is the time over which latency and memory are watched before and
	// after a recovery. Default 5 s.
	Settle time.Duration
	// NodeArgs are further arguments of every node.
	NodeArgs []string
	// Loaded is called once the data set is there, before the first case; an error
	// ends the run. nil: nothing.
	Loaded func() error
	// Log is told what happens, a line at a time; nil: nobody.
	Log func(line string)
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *RecoveryOptions) EnsureDefaults() {
	if len(o.Cases) == 0 {
		o.Cases = []Case{CaseLost, CaseBehind, CaseCut}
	}
	setDefault(&o.Bytes, 1<<30)
	setDefault(&o.Data, DataRandom)
	setDefault(&o.Repeat, 1)
	setDefault(&o.Percent, 5)
	setDefault(&o.At, 50)
	setDefault(&o.Settle, 5*time.Second)
	if o.Log == nil {
		o.Log = func(string) {}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate tells what is wrong with the options.
func (o *RecoveryOptions) Validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("no directory"))
	}
	for _, c := range o.Cases {
		switch c {
		case CaseLost, CaseBehind, CaseCut, CaseLeader, CaseSource:
		default:
			errs = append(errs, fmt.Errorf("unknown case %q; there are %v", c, Cases()))
		}
	}
	if o.Bytes < 1<<20 || o.Bytes > 1<<40 {
		errs = append(errs, fmt.Errorf("a data set of %d bytes: 1 MiB to 1 TiB", o.Bytes))
	}
	if o.Data != DataRandom && o.Data != DataJSON {
		errs = append(errs, fmt.Errorf("unknown data %q; there are %s and %s", o.Data, DataRandom, DataJSON))
	}
	if o.Repeat < 1 || o.Percent <= 0 || o.Percent > 100 || o.At <= 0 || o.At >= 100 || o.Load < 0 || o.Settle < 0 {
		errs = append(errs, fmt.Errorf("repeat %d must be at least 1, percent %v above 0 to 100, at %v above 0 and below 100, load %d and settle %v not negative",
			o.Repeat, o.Percent, o.At, o.Load, o.Settle))
	}
	if len(errs) > 0 {
		return fmt.Errorf("bench: recovery: %w", errors.Join(errs...))
	}
	return nil
}

// Recovery is one measured recovery.
type Recovery struct {
	Case Case   `json:"case"`
	Run  int    `json:"run"`
	Kind string `json:"kind"` // of the image: files, records or stream
	// Total is the time from the start of the process until it has applied what
	// the leader had applied then. ToTransfer is the part before the transfer.
	Total      time.Duration `json:"total_ns"`
	ToTransfer time.Duration `json:"to_transfer_ns"`
	// Stages of the transfer, as the receiver tells them.
	Stages map[string]time.Duration `json:"stages_ns"`
	// ImageBytes are the files of the image, SentBytes what sources put on the
	// wire for it, in all attempts, RawBytes what the image holds uncompressed.
	ImageBytes uint64 `json:"image_bytes"`
	SentBytes  uint64 `json:"sent_bytes"`
	RawBytes   uint64 `json:"raw_bytes"`
	Attempts   uint64 `json:"attempts"`
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
	// replacing are the nodes whose directory replaces another one, with the
	// address they join through.
	replacing map[string]*atomic.Pointer[string]
	seed      uint64
}

// logBudget of the nodes: small, so that little has to be written until no log
// reaches a node that was away.
const logBudget = 16 << 20

// MeasureRecovery runs a cluster of three node processes, fills it, and measures
// the cases. It takes as long as it takes, until ctx ends; what it has measured
// by then comes with the error.
func MeasureRecovery(ctx context.Context, o RecoveryOptions) ([]Recovery, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &recovery{o: o, data: newDataset(o.Bytes, o.Data), replacing: make(map[string]*atomic.Pointer[string])}
	for _, name := range []string{"n1", "n2", "n3"} {
		r.replacing[name] = new(atomic.Pointer[string])
	}
	var err error
	r.cluster, err = localcluster.Start(ctx, localcluster.Options{
		Binary: o.Binary, Dir: filepath.Join(o.Dir, "nodes"), ExtraArgs: append([]string{fmt.Sprintf("--log-budget=%d", logBudget)}, o.NodeArgs...),
		NodeArgs: func(name string) []string {
			if through := r.replacing[name].Load(); through != nil {
				return []string{"--replace", *through}
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	defer r.cluster.Close()
	if r.client, err = client.Open(ctx, client.Options{Endpoints: r.cluster.Endpoints()}); err != nil {
		return nil, err
	}
	defer r.client.Close()
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	if o.Loaded != nil {
		if err := o.Loaded(); err != nil {
			return nil, err
		}
	}
	var results []Recovery
	for run := range o.Repeat {
		for _, c := range o.Cases {
			result, err := r.measure(ctx, c, run+1)
			if err != nil {
				return results, fmt.Errorf("bench: recovery %s, run %d: %w", c, run+1, err)
			}
			results = append(results, *result)
		}
	}
	return results, nil
}

func (r *recovery) load(ctx context.Context) error {
	r.o.Log(fmt.Sprintf("loading %d records, %.0f MB", r.data.records, float64(r.data.bytes())/1e6))
	begin := time.Now()
	if err := r.data.write(ctx, r.client, r.data.all, nil); err != nil {
		return fmt.Errorf("bench: load the data set: %w", err)
	}
	r.o.Log(fmt.Sprintf("loaded, %.0f MB/s", MBPerSecond(r.data.bytes(), time.Since(begin))))
	return nil
}

// follower returns a node that does not lead the data group.
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

// measure runs one case once.
func (r *recovery) measure(ctx context.Context, c Case, run int) (*Recovery, error) {
	for _, name := range r.cluster.Names() {
		if !r.cluster.Running(name) {
			if err := r.cluster.Launch(name); err != nil {
				return nil, err
			}
		}
		if err := r.cluster.WaitCaughtUp(ctx, name, nil); err != nil {
			return nil, err
		}
	}
	if err := r.awaitVoters(ctx); err != nil {
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
	result, err := w.result(ctx)
	if err != nil {
		return nil, err
	}
	result.Case, result.Run = c, run
	r.o.Log(fmt.Sprintf("%s %d: %.2f s, %.1f MB sent for an image of %.1f MB (%s)", c, run, result.Total.Seconds(),
		float64(result.SentBytes)/1e6, float64(result.ImageBytes)/1e6, result.Kind))
	return result, nil
}

// injure takes the node away and leaves it behind.
func (r *recovery) injure(ctx context.Context, c Case, node, leader string) error {
	status, err := r.cluster.Status(ctx, node)
	if err != nil {
		return err
	}
	if err := r.cluster.Kill(node); err != nil {
		return err
	}
	switch c {
	case CaseLost, CaseCut:
		if err := r.cluster.Wipe(node); err != nil {
			return err
		}
		r.replacing[node].Store(new(r.cluster.Endpoint(leader)))
		return nil
	case CaseBehind:
		return r.leaveBehind(ctx, node, groupOf(status), r.o.Percent)
	default:
		return r.leaveBehind(ctx, node, groupOf(status), fullPercent)
	}
}

// leaveBehind overwrites a share of the records and goes on writing them until
// the log of no other node reaches a node that is away.
func (r *recovery) leaveBehind(ctx context.Context, away string, had *adminv1.GroupStatus, percent float64) error {
	r.seed++
	r.data.values.generation++
	if err := r.data.write(ctx, r.client, r.data.share(percent, r.seed), nil); err != nil {
		return err
	}
	// Where that was less than the logs hold, some of the same records again.
	again := r.data.share(min(percent, 1), r.seed)
	for {
		reached := false
		for _, name := range r.cluster.Names() {
			if name == away || !r.cluster.Running(name) {
				continue
			}
			status, err := r.cluster.Status(ctx, name)
			if err != nil {
				return err
			}
			reached = reached || groupOf(status).GetFirstIndex() <= had.GetLastIndex()+1
		}
		if !reached {
			return nil
		}
		if err := r.data.write(ctx, r.client, again, nil); err != nil {
			return err
		}
	}
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

func kindName(k snapshotv1.Kind) string {
	switch k {
	case snapshotv1.Kind_KIND_FILES:
		return "files"
	case snapshotv1.Kind_KIND_RECORDS:
		return "records"
	case snapshotv1.Kind_KIND_STREAM:
		return "stream"
	}
	return "none"
}

// destroy kills a node and removes its directory.
func (r *recovery) destroy(name string) error {
	if err := r.cluster.Kill(name); err != nil {
		return err
	}
	return os.RemoveAll(r.cluster.DataDir(name))
}
