package snapshot

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cespare/xxhash/v2"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// maxResends is how often a receiver may ask for the same file again in one
// attempt: what arrives wrong twice is wrong at the source.
const maxResends = 1

// produce is the producer goroutine: it waits for a slot, gets the image, and
// makes its messages. It holds the image until it returns.
func (a *sending) produce() error {
	s := a.source
	begin := time.Now()
	slot, err := s.opts.Slots.Acquire(a.ctx, Claim{Class: a.open.Class, BytesLeft: a.open.BytesLeft}, func(at int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.position = at
	})
	if err != nil {
		return err
	}
	defer slot.Release()
	s.opts.Counters.stage(StageQueue, time.Since(begin))
	a.mu.Lock()
	a.slot, a.phase, a.position = slot, snapshotv1.Phase_PHASE_CAPTURE, 0
	a.timeline.enter(StageCapture, time.Now())
	a.mu.Unlock()

	image, _, err := s.opts.Provider.Provide(a.ctx, a.open, func(done, total uint64) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.built = [2]uint64{done, total}
	})
	if err != nil {
		return err
	}
	defer image.Release()
	a.mu.Lock()
	a.image, a.phase = image, snapshotv1.Phase_PHASE_SEND
	a.timeline.enter(StageSend, time.Now())
	a.mu.Unlock()
	slot.Excuse()
	s.wg.Go(func() {
		select {
		case <-slot.Evicted():
			a.cancel(errEvicted(s.opts.Slots.opts))
		case <-a.ctx.Done():
		}
	})
	pace := s.opts.Pacer.Begin(a.open.Class)
	defer pace.End()

	begin = time.Now()
	p, err := newProducer(a, image, pace)
	if err != nil {
		return err
	}
	if err := p.run(); err != nil {
		return err
	}
	s.opts.Counters.stage(StageSend, time.Since(begin))
	// The receiver ends the stream when it has seen the end.
	<-a.ctx.Done()
	return nil
}

// producer makes the messages of one attempt.
type producer struct {
	a        *sending
	image    OpenedImage
	manifest *snapshotv1.Manifest
	pace     Pace
	sum      chunkSum
	packer   *packer // nil: no compression
	size     chunkSize
	seq      uint64
	digest   *endDigest
	waiting  int // files whose FileAck is awaited
	resends  map[uint32]int
}

func newProducer(a *sending, image OpenedImage, pace Pace) (*producer, error) {
	opts := &a.source.opts
	limit := min(opts.ChunkBytes, int(min(a.open.ChunkMax, MaxChunkBytes)))
	p := &producer{
		a: a, image: image, manifest: image.Manifest(), pace: pace,
		sum: newChunkSum(a.open.Transfer, a.open.Attempt), digest: newEndDigest(),
		size: chunkSize{now: limit, limit: limit}, resends: make(map[uint32]int),
	}
	if opts.WireCompression {
		packer, err := newPacker()
		if err != nil {
			return nil, err
		}
		p.packer = packer
	}
	return p, nil
}

func (p *producer) run() error {
	if err := p.send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Manifest{Manifest: p.manifest}}); err != nil {
		return err
	}
	done := make([]bool, len(p.manifest.Files))
	var partial uint32
	var offset uint64
	if r := p.a.open.Resume; r != nil && string(r.Image) == string(p.manifest.Image) {
		for _, no := range r.Done {
			if int(no) >= len(done) {
				return fmt.Errorf("%w: it has file %d of an image of %d", ErrProtocol, no, len(done))
			}
			done[no] = true
		}
		if partial, offset = r.File, r.Offset; offset > 0 && (int(partial) >= len(done) || offset > p.manifest.Files[partial].Size) {
			return fmt.Errorf("%w: it has %d bytes of file %d", ErrProtocol, offset, partial)
		}
	}
	p.a.setResumed(resumedBytes(p.manifest, done, offset))
	for no := range p.manifest.Files {
		if done[no] {
			continue
		}
		from := uint64(0)
		if uint32(no) == partial {
			from = offset
		}
		if err := p.sendFile(uint32(no), from); err != nil {
			return err
		}
		if err := p.takeAcks(false); err != nil {
			return err
		}
	}
	if err := p.takeAcks(true); err != nil {
		return err
	}
	return p.send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_End{End: p.digest.end()}})
}

// takeAcks handles the FileAcks that came, all that are awaited if wait is set.
// A file that arrived wrong is sent again.
func (p *producer) takeAcks(wait bool) error {
	for p.waiting > 0 {
		ack := p.a.acks.take()
		if ack == nil && !wait {
			return nil
		}
		if ack == nil {
			select {
			case <-p.a.acks.some:
			case <-p.a.ctx.Done():
				return context.Cause(p.a.ctx)
			}
			continue
		}
		p.waiting--
		if ack.Ok {
			continue
		}
		p.a.source.opts.Counters.add(&p.a.source.opts.Counters.checksums, 1)
		file := p.manifest.Files[ack.File]
		if p.resends[ack.File]++; p.resends[ack.File] > maxResends {
			err := fmt.Errorf("%w: file %q arrived wrong %d times", ErrCorrupt, file.Name, p.resends[ack.File])
			p.image.Condemn(err)
			return err
		}
		if ack.ResendFrom > file.Size {
			return fmt.Errorf("%w: it wants byte %d of file %q again", ErrProtocol, ack.ResendFrom, file.Name)
		}
		if err := p.sendFile(ack.File, ack.ResendFrom); err != nil {
			return err
		}
	}
	return nil
}

func (p *producer) sendFile(no uint32, from uint64) (err error) {
	info := p.manifest.Files[no]
	file, err := p.image.OpenFile(info.Name)
	if err != nil {
		return fmt.Errorf("%w: open file %q of image %s: %w", ErrImageGone, info.Name, FormatID(p.manifest.Image), err)
	}
	defer func() {
		if closeErr := file.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("snapshot: close file %q: %w", info.Name, closeErr)
		}
	}()
	p.packer.begin()
	hash := xxhash.New()
	// The digest is over the whole file. Where it is known, the first part need
	// not be read again; the receiver compares with all that it has.
	trusted := from > 0 && info.Verified
	if from > 0 && !trusted {
		if _, err := io.CopyBuffer(hash, io.NewSectionReader(file, 0, int64(from)), make([]byte, 256<<10)); err != nil {
			return fmt.Errorf("snapshot: read file %q: %w", info.Name, err)
		}
	}
	for offset := from; offset < info.Size; {
		n := int(min(uint64(p.size.now), info.Size-offset))
		if err := p.admit(n); err != nil {
			return err
		}
		raw := p.a.buffers.get(n)
		if got, err := file.ReadAt(raw, int64(offset)); got < n {
			err = fmt.Errorf("%w: read %d bytes at %d of file %q of image %s, got %d: %w", ErrCorrupt, n, offset, info.Name, FormatID(p.manifest.Image), got, err)
			p.image.Condemn(err)
			return err
		}
		hash.Write(raw)
		p.seq++
		c := &snapshotv1.Chunk{Seq: p.seq, File: no, Offset: offset}
		p.packer.pack(c, raw)
		if saved := n - len(c.Data); saved > 0 {
			p.a.credit.refund(saved)
			p.a.buffers.put(raw)
		}
		c.Crc32C = p.sum.of(c)
		if err := p.waitPace(len(c.Data)); err != nil {
			return err
		}
		wire := len(c.Data) // the data is the sender's from here on
		if err := p.send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Chunk{Chunk: c}}); err != nil {
			return err
		}
		offset += uint64(n)
		p.a.source.opts.Counters.moved(RoleSource, wire, n)
		p.a.count(n, wire)
		p.a.slot.Progress(n)
	}
	sum := hash.Sum64()
	if trusted {
		sum = info.Digest
	}
	if info.Verified && sum != info.Digest {
		err := fmt.Errorf("%w: file %q of image %s has digest %016x, and had %016x when it was checked", ErrCorrupt, info.Name, FormatID(p.manifest.Image), sum, info.Digest)
		p.image.Condemn(err)
		return err
	}
	end := &snapshotv1.FileEnd{File: no, Size: info.Size, Xxhash64: sum}
	p.digest.add(end)
	p.waiting++
	p.a.unacked.Store(no, struct{}{})
	return p.send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_FileEnd{FileEnd: end}})
}

// send hands a message to the sender.
func (p *producer) send(m *snapshotv1.FetchResponse) error {
	select {
	case p.a.out <- m:
		return nil
	case <-p.a.ctx.Done():
		return context.Cause(p.a.ctx)
	}
}

// admit waits for credit.
func (p *producer) admit(n int) error {
	ok, changed := p.a.credit.tryTake(n)
	if ok {
		p.size.prompt()
		return nil
	}
	begin := time.Now()
	p.a.setNoCredit(begin)
	defer p.a.setNoCredit(time.Time{})
	for {
		select {
		case <-changed:
		case <-p.a.ctx.Done():
			return context.Cause(p.a.ctx)
		}
		if ok, changed = p.a.credit.tryTake(n); ok {
			break
		}
	}
	waited := time.Since(begin)
	p.a.source.opts.Counters.stalled("credit", waited)
	if waited >= p.a.source.opts.SlowAfter {
		p.size.slow()
	} else {
		p.size.prompt()
	}
	return nil
}

// waitPace waits for the pacing, and lets keepalives say so.
func (p *producer) waitPace(bytes int) error {
	begin := time.Now()
	p.a.waitsForPace(begin)
	err := p.pace.Wait(p.a.ctx, bytes)
	end := time.Now()
	waited := end.Sub(begin)
	p.a.waitedForPace(end, waited >= pacedNotice)
	if waited >= pacedNotice {
		p.a.slot.Pause(waited)
		p.a.source.opts.Counters.stalled("pacing", waited)
	}
	return err
}

// chunkSize is halved when the receiver is slow, so that it can show progress,
// and doubled when it was not for a while.
type chunkSize struct {
	now, limit int
	prompts    int
}

func (c *chunkSize) slow() {
	c.prompts = 0
	c.now = max(c.now/2, min(c.limit, MinChunkBytes))
}

func (c *chunkSize) prompt() {
	if c.prompts++; c.prompts >= 64 {
		c.prompts = 0
		c.now = min(c.now*2, c.limit)
	}
}
