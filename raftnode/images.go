package raftnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode/raftlog"
	"github.com/streamraft/streamraft/snapshot"
)

// SnapshotOptions configures how images of groups travel. State machines take
// part that implement snapshot.Capturer and snapshot.Stager. Three more methods
// are used where they have them: Have() snapshot.Have tells what the replica has
// and in which formats, for deltas; KeepStaged(func() [][]byte) is called before
// Open with a function that returns the ids of the images that are staged and
// not installed, whose files Open must not sweep. ReportDamage(func(error)) is
// called before Open with a function that takes what a check of the state found;
// it quarantines the replica.
type SnapshotOptions struct {
	// Receiver fetches images from other nodes, for all groups of the node.
	// Required.
	Receiver *snapshot.Receiver
	// Counters take what the images of all groups do; the receiver's and the
	// source's, so that one Metrics tells it all. nil: counters of their own.
	Counters *snapshot.Counters
	// FullOnly: the node's replicas take full images only, even where an image of
	// what changed would do. It is for measurements and for doubts about a state.
	FullOnly bool
	// ImageExpiry is how long an image lives after its last use. 0: 10 minutes.
	ImageExpiry time.Duration
	// MaxImages and MaxImageBytes bound the images that a group keeps, in number
	// and in bytes of their files; the oldest that no transfer holds go first. The
	// newest stays until its expiry. 0: 8, and no bound of bytes.
	MaxImages     int
	MaxImageBytes uint64
}

// kinds are the kinds of images that the node takes.
func (o *SnapshotOptions) kinds() []snapshotv1.Kind {
	kinds := []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES, snapshotv1.Kind_KIND_STREAM}
	if !o.FullOnly {
		kinds = append(kinds, snapshotv1.Kind_KIND_RECORDS)
	}
	return kinds
}

func (d directory) images(group uint64) string { return d.fs.PathJoin(d.group(group), "images") }
func (d directory) inbox(group uint64) string  { return d.fs.PathJoin(d.group(group), "inbox") }

// openImages opens what a group keeps of images and incoming transfers, before
// its state machine is opened.
func (g *Group) openImages() error {
	o := g.node.opts.Snapshots
	if o == nil {
		return nil
	}
	var err error
	g.inboxes, err = snapshot.OpenInboxes(g.node.opts.FS, g.node.dir.inbox(g.id), o.Counters)
	if err != nil {
		return fmt.Errorf("raftnode: group %d: %w", g.id, err)
	}
	g.images, err = snapshot.OpenImages(snapshot.ImagesOptions{
		FS: g.node.opts.FS, Dir: g.node.dir.images(g.id),
		ClusterID: g.node.identity.node.GetClusterId(), HistoryEpoch: g.node.identity.node.GetHistoryEpoch(), Group: g.id,
		Expiry: o.ImageExpiry, MaxImages: o.MaxImages, MaxBytes: o.MaxImageBytes, Now: g.node.opts.Clock.Now, Counters: o.Counters, Logger: g.log,
	})
	if err != nil {
		return fmt.Errorf("raftnode: group %d: %w", g.id, err)
	}
	return nil
}

// imageExpiryCheck is the time between two looks for kept images that may go.
const imageExpiryCheck = time.Minute

// expireImages removes kept images that nobody wants any more; they hold the
// disk space of everything that was deleted since.
func (n *Node) expireImages() {
	for _, g := range n.ordered {
		if g.images == nil {
			continue
		}
		g.expirePins(n.opts.Clock.Now())
		if err := g.images.Expire(); err != nil {
			g.log.Warn("kept images that have expired cannot be removed; trying again later", "error", err)
		}
	}
}

// stagedImages are the images that an inbox names. READY or not: a state machine
// may have moved files before the record was written.
func (g *Group) stagedImages() [][]byte {
	infos, err := g.inboxes.List()
	if err != nil {
		g.log.Warn("the inboxes cannot be listed", "error", err)
		return nil
	}
	var images [][]byte
	for _, info := range infos {
		if info.Manifest != nil {
			images = append(images, info.Manifest.GetImage())
		}
	}
	return images
}

// finishInstall is the rest of an installation that a crash cut off between the
// switch of the state and its log batch: the state is at (Y, term), the log is
// not, and an inbox holds a READY record for exactly that. It returns false if
// there is no such record: then the log lost data.
func (g *Group) finishInstall(applied Applied) (bool, error) {
	if g.inboxes == nil {
		return false, nil
	}
	infos, err := g.inboxes.List()
	if err != nil {
		return false, fmt.Errorf("raftnode: group %d: %w", g.id, err)
	}
	for _, info := range infos {
		if !info.Ready || info.Manifest.GetIndex() != applied.Index || info.Manifest.GetTerm() != applied.Term {
			continue
		}
		hs := g.logs.HardState()
		if hs.GetTerm() < applied.Term {
			hs.Term, hs.Vote = new(applied.Term), new(uint64(0))
		}
		hs.Commit = new(applied.Index)
		update := raftlog.Update{Group: g.id, Marker: &raftlog.Marker{Index: applied.Index, Term: applied.Term}, Reset: true, HardState: hs}
		if g.reopening {
			err = g.appendAndWait(update)
		} else {
			err = g.node.logStore.Append([]raftlog.Update{update}, true)
		}
		if err != nil {
			return false, fmt.Errorf("raftnode: group %d: finish the installation of the image at index %d: %w", g.id, applied.Index, err)
		}
		g.log.Info("finished an installation that a crash cut off", "index", applied.Index)
		return true, nil
	}
	return false, nil
}

// sweepInboxes removes incoming transfers whose image is of no use any more.
func (g *Group) sweepInboxes() {
	if g.inboxes == nil {
		return
	}
	infos, err := g.inboxes.List()
	if err != nil {
		g.log.Warn("the inboxes cannot be listed", "error", err)
		return
	}
	for _, info := range infos {
		if info.Manifest == nil || info.Manifest.GetIndex() <= g.Applied() {
			if err := g.inboxes.Remove(info.Transfer); err != nil {
				g.log.Warn("an old inbox cannot be removed", "error", err)
			}
		}
	}
}

// Provide serves an image of one of the node's groups; it makes a Node a
// snapshot.Provider. It may be called from any goroutine and blocks while an
// image is captured. Errors as there.
func (n *Node) Provide(ctx context.Context, req *snapshotv1.Open, _ func(done, total uint64)) (snapshot.OpenedImage, snapshot.Choice, error) {
	if !n.ready.Load() {
		return nil, "", fmt.Errorf("%w: node %s is starting", snapshot.ErrBusy, n.opts.Node)
	}
	g, ok := n.groups[req.GetGroup()]
	if !ok || g.images == nil {
		return nil, "", fmt.Errorf("%w: node %s has no images of group %d", snapshot.ErrRefused, n.opts.Node, req.GetGroup())
	}
	if g.quarantined() {
		return nil, "", fmt.Errorf("%w: the state of group %d on node %s is unsound itself", snapshot.ErrRefused, req.GetGroup(), n.opts.Node)
	}
	image, choice, err := g.images.Provide(ctx, req, g.capture)
	if err != nil {
		return nil, choice, err
	}
	held, err := g.holdProvided(req, image, choice)
	if err != nil {
		image.Release()
		return nil, choice, err
	}
	return held, choice, nil
}

// maxFlushes is how often a capture flushes a state that is too old.
const maxFlushes = 3

// capture pins the state between two Applies, after a flush where its durable
// part is older than the receiver needs.
func (g *Group) capture(ctx context.Context, have snapshot.Have, minIndex uint64) (snapshot.Capture, error) {
	if _, ok := g.sm().(snapshot.Capturer); !ok {
		return nil, fmt.Errorf("%w: the state machine of group %d makes no images", snapshot.ErrRefused, g.id)
	}
	for flushes := 0; ; flushes++ {
		type outcome struct {
			capture snapshot.Capture
			err     error
		}
		c := make(chan outcome, 1)
		g.applier.call(func() error {
			machine, ok := g.sm().(snapshot.Capturer) // it may be another one by now
			if !ok || g.quarantined() {
				c <- outcome{nil, fmt.Errorf("%w: the state of group %d is unsound", snapshot.ErrBusy, g.id)}
				return nil
			}
			capture, err := machine.Capture(have, minIndex)
			c <- outcome{capture, err}
			return nil
		})
		var o outcome
		select {
		case o = <-c:
		case <-g.stopped:
			return nil, g.closedError()
		case <-ctx.Done():
			go func() { // nobody waits for it any more
				select {
				case late := <-c:
					if late.capture != nil {
						_ = late.capture.Close()
					}
				case <-g.stopped:
				}
			}()
			return nil, context.Cause(ctx)
		}
		if !errors.Is(o.err, snapshot.ErrTooOld) || flushes == maxFlushes {
			return o.capture, o.err
		}
		if err := g.sm().Flush(); err != nil {
			return nil, fmt.Errorf("raftnode: group %d: flush for an image: %w", g.id, err)
		}
	}
}

// fetchImage runs a transfer until its image is READY; on its own goroutine.
func (g *Group) fetchImage(ctx context.Context, in *incoming, stager snapshot.Stager) (*installation, error) {
	n := g.node
	if !g.quarantined() && g.have().Index < g.Applied() {
		// A delta starts from what is durable. After a crash that lies a whole memtable
		// behind what the log gave back, and all of it would travel again.
		if err := g.sm().Flush(); err != nil {
			return nil, fmt.Errorf("raftnode: group %d: flush before an image: %w", g.id, err)
		}
	}
	staged, err := n.opts.Snapshots.Receiver.Receive(ctx, in.run)
	if err != nil {
		return nil, err
	}
	if staged.Inbox.Manifest().GetKind() == snapshotv1.Kind_KIND_RECORDS {
		// What a delta adds to must not have to be flushed within the switch.
		if err := g.sm().Flush(); err != nil {
			return nil, errors.Join(fmt.Errorf("raftnode: group %d: flush before a delta: %w", g.id, err), staged.Inbox.Close())
		}
	}
	return &installation{manifest: staged.Inbox.Manifest(), stager: stager, sink: staged.Sink, inbox: staged.Inbox, run: in.run}, nil
}

// newTransfer describes a transfer to the receiver. What an earlier one staged
// is gone on with.
func (g *Group) newTransfer(offer *snapshotv1.Offer, stager snapshot.Stager) (*snapshot.Transfer, error) {
	n := g.node
	id := offer.GetTransfer()
	if infos, err := g.inboxes.List(); err == nil {
		for _, info := range infos {
			if g.quarantined() && info.Manifest.GetFromIndex() > 0 {
				continue // a delta would add to what is unsound
			}
			if info.Manifest.GetIndex() >= offer.GetMinIndex() && info.Bytes > 0 {
				id = info.Transfer
			}
		}
	}
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	return snapshot.NewTransfer(snapshot.TransferOptions{
		ID: id, ClusterID: n.identity.node.GetClusterId(), HistoryEpoch: n.identity.node.GetHistoryEpoch(), Group: g.id,
		Node: n.opts.Node, Incarnation: n.identity.node.GetNodeIncarnation(), Class: offer.GetClass(), MinIndex: offer.GetMinIndex(),
		Kinds:   n.opts.Snapshots.kinds(),
		Applied: g.have, Sources: sourceRefs(offer, n.opts.Node), Inboxes: g.inboxes, Stager: stager,
	})
}

// have is what this replica has, for a delta.
func (g *Group) have() snapshot.Have {
	if g.quarantined() {
		return snapshot.Have{}
	}
	if f, ok := g.sm().(interface{ Have() snapshot.Have }); ok {
		return f.Have() // with the formats a delta must fit
	}
	position := g.applier.position.Load()
	return snapshot.Have{Index: position.Index, Term: position.Term}
}

func sourceRefs(offer *snapshotv1.Offer, self string) []snapshot.SourceRef {
	var refs []snapshot.SourceRef
	for _, s := range offer.GetSources() {
		if s.GetNode() != self {
			refs = append(refs, snapshot.SourceRef{Node: s.GetNode(), Address: s.GetAddress()})
		}
	}
	return refs
}
