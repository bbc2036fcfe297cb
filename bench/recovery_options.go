package bench

import (
	"errors"
	"fmt"
	"time"
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
	// CaseLeader: as behind, but the node takes full images only; the leader is
	// killed at a share of the bytes, while a follower is the source.
	CaseLeader Case = "leader"
	// CaseSource: as leader, but it is the source that goes, with its disk.
	CaseSource Case = "source"
)

// Cases returns all cases.
func Cases() []Case { return []Case{CaseLost, CaseBehind, CaseCut, CaseLeader, CaseSource} }

// replaces tells that the case takes the node's directory.
func (c Case) replaces() bool { return c == CaseLost || c == CaseCut }

// strikes tells that something happens in the middle of the transfer.
func (c Case) strikes() bool { return c == CaseCut || c == CaseLeader || c == CaseSource }

// full tells that the node takes full images only, so that the transfer is long
// enough to strike, and is that of a voter: without it no quorum would be left.
func (c Case) full() bool { return c == CaseLeader || c == CaseSource }

// Pacing of the nodes: whether images give way to clients.
const (
	PacingOff     = "off"
	PacingLatency = "latency"
)

// RecoveryOptions says what to measure.
type RecoveryOptions struct {
	// Binary is the streamraft program; default the running one.
	Binary string
	// Dir is where the nodes' directories are; it must exist and is left to the
	// caller. Required.
	Dir string
	// Cases to measure, in this order, in each round. Default: lost, behind, cut.
	Cases []Case
	// Bytes of the data set; default 1 GiB. Data; default DataRandom.
	Bytes uint64
	Data  Data
	// Repeat each case so often. Default 1.
	Repeat int
	// Percent of the records that CaseBehind, CaseLeader and CaseSource overwrite;
	// default 5. At is the percentage of the bytes at which CaseCut, CaseLeader and
	// CaseSource do what they do; default 50.
	Percent, At float64
	// Load is the rate of foreground writes a second, 0: none.
	Load int
	// Settle is the time over which latency and memory are watched before and
	// after a recovery. Default 30 s.
	Settle time.Duration
	// Pacing of the nodes, PacingOff or PacingLatency. Default PacingOff.
	Pacing string
	// NodeArgs are further arguments of every node.
	NodeArgs []string
	// Loaded is called once the data set is there, before the first round; an error
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
	setDefault(&o.Settle, 30*time.Second)
	setDefault(&o.Pacing, PacingOff)
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
	if o.Pacing != PacingOff && o.Pacing != PacingLatency {
		errs = append(errs, fmt.Errorf("unknown pacing %q; there are %s and %s", o.Pacing, PacingOff, PacingLatency))
	}
	if len(errs) > 0 {
		return fmt.Errorf("bench: recovery: %w", errors.Join(errs...))
	}
	return nil
}
