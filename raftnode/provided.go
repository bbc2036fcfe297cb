package raftnode

import (
	"fmt"
	"sync"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

const (
	// journalPinTime is how long the changes after an image are kept for a
	// transfer that nobody goes on with: a closing delta needs them.
	journalPinTime = 10 * time.Minute
	// fullImageGap is the least time between two full images for one replica: the
	// second one within that is a sign that something goes in circles.
	fullImageGap = 5 * time.Second
	// maxProvided bounds what is remembered of receivers and transfers.
	maxProvided = 256
)

// provided is what a source remembers of the images it serves for a group. The
// changes after an image are pinned from the moment it is served, so that what
// has changed meanwhile can follow as a delta, whatever the log holds by then.
// The state machine bounds what the pins keep.
type provided struct {
	mu    sync.Mutex
	pins  map[string]*journalPin // by transfer
	fulls map[string]fullImage   // by node incarnation of the receiver
}

type journalPin struct {
	release func()
	holders int
	at      time.Time // of the last release
}

type fullImage struct {
	image string
	at    time.Time
}

// providedImage is an image with its pin.
type providedImage struct {
	snapshot.OpenedImage
	release func()
}

// Release ends the hold; the pin stays for a while.
func (i *providedImage) Release() {
	i.OpenedImage.Release()
	i.release()
}

// holdProvided notes that an image is served, and pins what came after it. It refuses a
// second full image for the same receiver so soon.
func (g *Group) holdProvided(req *snapshotv1.Open, image snapshot.OpenedImage, choice snapshot.Choice) (snapshot.OpenedImage, error) {
	p, now := &g.provided, g.node.opts.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	m := image.Manifest()
	if choice == snapshot.ChoiceFull || choice == snapshot.ChoiceKept {
		receiver := string(req.GetNodeIncarnation())
		last := p.fulls[receiver]
		if last.image != "" && last.image != string(m.GetImage()) && now.Sub(last.at) < fullImageGap {
			return nil, fmt.Errorf("%w: node %s was sent another full image of group %d %v ago", snapshot.ErrBusy, req.GetNode(), g.id, now.Sub(last.at))
		}
		if p.fulls == nil || len(p.fulls) >= maxProvided {
			p.fulls = make(map[string]fullImage)
		}
		p.fulls[receiver] = fullImage{string(m.GetImage()), now}
	}
	machine, ok := g.sm().(interface{ PinJournal(from uint64) func() })
	if !ok || len(p.pins) >= maxProvided {
		return image, nil
	}
	transfer := string(req.GetTransfer())
	pin := p.pins[transfer]
	if pin == nil {
		pin = &journalPin{release: func() {}}
		if p.pins == nil {
			p.pins = make(map[string]*journalPin)
		}
		p.pins[transfer] = pin
	}
	before := pin.release
	pin.release = machine.PinJournal(m.GetIndex())
	before() // only now: in between nothing is dropped
	pin.holders++
	return &providedImage{image, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		pin.holders--
		pin.at = g.node.opts.Clock.Now()
	})}, nil
}

// expirePins gives up pins that nobody came back for.
func (g *Group) expirePins(now time.Time) {
	p := &g.provided
	p.mu.Lock()
	defer p.mu.Unlock()
	for transfer, pin := range p.pins {
		if pin.holders == 0 && now.Sub(pin.at) >= journalPinTime {
			pin.release()
			delete(p.pins, transfer)
		}
	}
}
