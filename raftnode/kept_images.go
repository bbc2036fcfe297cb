package raftnode

import (
	"context"
	"fmt"

	"github.com/streamraft/streamraft/snapshot"
)

// Images lists the images of the group that this node keeps, the newest first;
// none where its state machine makes no images.
func (g *Group) Images() []snapshot.ImageInfo {
	if g.images == nil {
		return nil
	}
	return g.images.Kept()
}

// CreateImage makes a full image of this replica's state, and holds it: until its
// Release nothing removes it. It has all that was applied here when CreateImage
// was called, which a flush makes durable first. It is durable itself when
// CreateImage returns. Release it before the node is closed.
//
// It blocks while the image is made; ctx ends that. Errors: snapshot.ErrRefused
// where the state machine makes no images, those of Images.Create, ErrFailed,
// ErrClosed.
func (g *Group) CreateImage(ctx context.Context) (*snapshot.Image, error) {
	if g.images == nil {
		return nil, fmt.Errorf("%w: the state machine of group %d makes no images", snapshot.ErrRefused, g.id)
	}
	capture, err := g.capture(ctx, snapshot.Have{}, g.Applied())
	if err != nil {
		return nil, fmt.Errorf("raftnode: group %d: capture an image: %w", g.id, err)
	}
	return g.images.Create(ctx, capture)
}

// RemoveImage removes a kept image, or lets it go with the last transfer that
// holds it. One that is gone is no error.
func (g *Group) RemoveImage(id []byte) error {
	if g.images == nil {
		return nil
	}
	return g.images.Remove(id)
}
