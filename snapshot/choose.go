package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// CaptureFunc pins the state for an image, as Capturer.Capture does; who makes
// one calls Capture between two Applies, pins the log, and flushes where Capture
// says ErrTooOld. It may block until ctx ends.
type CaptureFunc func(ctx context.Context, have Have, minIndex uint64) (Capture, error)

// Choice is why a source serves what it serves.
type Choice string

// The choices, in the order they are looked at.
const (
	// ChoiceResume: the image the receiver holds a part of.
	ChoiceResume Choice = "resume"
	// ChoiceDelta: what changed since the receiver's state.
	ChoiceDelta Choice = "delta"
	// ChoiceKept: a full image that was kept.
	ChoiceKept Choice = "kept"
	// ChoiceFull: a full image made for this transfer.
	ChoiceFull Choice = "full"
)

// Provide returns the image to serve a request with, held: the one the receiver
// has a part of; else a delta from its applied index, if that is legal and less
// than half of a full image; else a full image, a kept one if it is new enough.
// It captures where there is none; those who ask at the same time share it.
//
// Errors: ErrRefused for another cluster, history epoch or group; ErrUnfit if
// the receiver takes none of the kinds there are; those of capture and Create.
func (s *Images) Provide(ctx context.Context, req *snapshotv1.Open, capture CaptureFunc) (*Image, Choice, error) {
	image, choice, err := s.provide(ctx, req, capture)
	if err == nil {
		s.opts.Counters.decided(choice, reasonFor(choice, req))
	}
	return image, choice, err
}

// reasonFor is the Reason of a Decision.
func reasonFor(choice Choice, req *snapshotv1.Open) string {
	switch {
	case choice == ChoiceResume:
		return "staged"
	case choice == ChoiceDelta:
		return "behind"
	case !takesDelta(req):
		return "no_state"
	}
	return "no_delta"
}

// takesDelta tells whether a receiver has a state that a delta adds to.
func takesDelta(req *snapshotv1.Open) bool {
	return req.GetApplied().GetIndex() > 0 && slices.Contains(req.GetKinds(), snapshotv1.Kind_KIND_RECORDS)
}

func (s *Images) provide(ctx context.Context, req *snapshotv1.Open, capture CaptureFunc) (*Image, Choice, error) {
	if !bytes.Equal(req.ClusterId, s.opts.ClusterID) || req.HistoryEpoch != s.opts.HistoryEpoch || req.Group != s.opts.Group {
		return nil, "", fmt.Errorf("%w: asked for group %d of cluster %x, history epoch %d; this is group %d of cluster %x, history epoch %d",
			ErrRefused, req.Group, req.ClusterId, req.HistoryEpoch, s.opts.Group, s.opts.ClusterID, s.opts.HistoryEpoch)
	}
	if len(req.Condemned) > 0 {
		s.opts.Logger.Error("image condemned by a receiver", "group", s.opts.Group, "image", FormatID(req.Condemned), "node", req.Node)
		if err := s.Remove(req.Condemned); err != nil {
			return nil, "", err
		}
	}
	if resume := req.Resume; resume != nil && len(resume.Image) > 0 {
		image, err := s.Open(resume.Image)
		switch {
		case err == nil && s.fits(req, image.Manifest()):
			return image, ChoiceResume, nil
		case err == nil:
			image.Release()
		case !errors.Is(err, ErrImageGone):
			return nil, "", err
		}
	}

	// One capture at a time: it costs the apply goroutine a moment, and the next
	// in line can mostly use what it made.
	select {
	case s.capturing <- struct{}{}:
		defer func() { <-s.capturing }()
	case <-ctx.Done():
		return nil, "", context.Cause(ctx)
	}
	image, choice, err := s.provideDelta(ctx, req, capture)
	if image != nil || err != nil {
		return image, choice, err
	}
	if image := s.newest(func(m *snapshotv1.Manifest) bool { return isFull(m) && s.fits(req, m) }); image != nil {
		return image, ChoiceKept, nil
	}
	image, err = s.capture(ctx, req, Have{}, capture)
	return image, ChoiceFull, err
}

// provideDelta returns no image and no error where a full one is to be served.
func (s *Images) provideDelta(ctx context.Context, req *snapshotv1.Open, capture CaptureFunc) (*Image, Choice, error) {
	applied := req.GetApplied()
	if !takesDelta(req) {
		return nil, "", nil
	}
	image := s.newest(func(m *snapshotv1.Manifest) bool {
		// From exactly there: what lies between would need the term of the
		// receiver's index to be checked again.
		return m.Kind == snapshotv1.Kind_KIND_RECORDS && m.FromIndex == applied.Index && m.FromTerm == applied.Term &&
			m.Schema == applied.Schema && m.Index > applied.Index && s.fits(req, m)
	})
	if image != nil {
		return image, ChoiceDelta, nil
	}
	image, err := s.capture(ctx, req, Have{
		Index: applied.Index, Term: applied.Term, Schema: applied.Schema, StateFormat: applied.StateFormat,
	}, capture)
	switch {
	case errors.Is(err, ErrNoDelta):
		return nil, "", nil
	case err != nil:
		return nil, "", err
	case isFull(image.Manifest()):
		return image, ChoiceFull, nil
	}
	// The state machine weighs its own cost; a full image at hand settles it.
	delta := image.Manifest().Bytes
	full := s.newest(func(m *snapshotv1.Manifest) bool {
		return isFull(m) && s.fits(req, m) && m.Bytes/2 <= delta
	})
	if full == nil {
		return image, ChoiceDelta, nil
	}
	image.Condemn(fmt.Errorf("%w: %d bytes, and a full image of %d is kept", ErrNoDelta, delta, full.Manifest().Bytes))
	image.Release()
	return full, ChoiceKept, nil
}

// capture makes an image and sees that it fits the request.
func (s *Images) capture(ctx context.Context, req *snapshotv1.Open, have Have, capture CaptureFunc) (*Image, error) {
	c, err := capture(ctx, have, req.MinIndex)
	if err != nil {
		return nil, fmt.Errorf("snapshot: capture the state of group %d: %w", s.opts.Group, err)
	}
	image, err := s.Create(ctx, c)
	if err != nil {
		return nil, err
	}
	if m := image.Manifest(); !s.fits(req, m) {
		image.Release()
		return nil, fmt.Errorf("%w: an image of kind %v at index %d, and kinds %v from index %d on are taken", ErrUnfit, m.Kind, m.Index, req.Kinds, req.MinIndex)
	}
	return image, nil
}

// fits tells whether a receiver can use an image at all. An image below
// min_index would be ignored by raft for ever.
func (s *Images) fits(req *snapshotv1.Open, m *snapshotv1.Manifest) bool {
	return m.Index >= req.MinIndex && slices.Contains(req.Kinds, m.Kind)
}

func isFull(m *snapshotv1.Manifest) bool { return m.Kind != snapshotv1.Kind_KIND_RECORDS }
