package snapshot

import (
	"fmt"

	"github.com/klauspost/compress/zstd"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// packer compresses chunks where that pays: at least an eighth must be saved.
// After a few chunks that do not compress it looks at only some of those that
// follow, so that compressed tables cost next to nothing. One goroutine uses it.
type packer struct {
	encoder *zstd.Encoder
	buffer  []byte
	losses  int // chunks in a row that did not pay
	skip    int // chunks to send as they are
}

func newPacker() (*packer, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("snapshot: make a zstd encoder: %w", err)
	}
	return &packer{encoder: encoder}, nil
}

// begin looks anew: files differ in whether they compress.
func (p *packer) begin() {
	if p != nil {
		p.skip = 0
	}
}

// pack sets codec and data of a chunk whose bytes are raw. The chunk may refer to
// raw or to memory of its own.
func (p *packer) pack(c *snapshotv1.Chunk, raw []byte) {
	c.Codec, c.Data, c.RawLen = snapshotv1.Codec_CODEC_NONE, raw, uint32(len(raw))
	if p == nil {
		return
	}
	if p.skip > 0 {
		p.skip--
		return
	}
	p.buffer = p.encoder.EncodeAll(raw, p.buffer[:0])
	if len(p.buffer) > len(raw)-len(raw)/8 {
		if p.losses++; p.losses >= 4 {
			p.skip = 64
		}
		return
	}
	p.losses = 0
	c.Codec, c.Data = snapshotv1.Codec_CODEC_ZSTD, append([]byte(nil), p.buffer...)
}

// unpacker gives back the bytes of chunks. One goroutine uses it.
type unpacker struct {
	decoder *zstd.Decoder
	buffer  []byte
}

// unpack returns the bytes of a chunk that was checked; they are valid until the
// next call. What does not have exactly raw_len bytes is ErrCorrupt; it never
// takes more memory than the largest chunk.
func (u *unpacker) unpack(c *snapshotv1.Chunk) ([]byte, error) {
	if c.Codec == snapshotv1.Codec_CODEC_NONE {
		return c.Data, nil
	}
	if u.decoder == nil {
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxChunkBytes))
		if err != nil {
			return nil, fmt.Errorf("snapshot: make a zstd decoder: %w", err)
		}
		u.decoder = decoder
	}
	if cap(u.buffer) < int(c.RawLen) {
		u.buffer = make([]byte, 0, c.RawLen)
	}
	raw, err := u.decoder.DecodeAll(c.Data, u.buffer[:0])
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %d does not unpack: %v", ErrCorrupt, c.Seq, err)
	}
	if uint64(len(raw)) != uint64(c.RawLen) {
		return nil, fmt.Errorf("%w: chunk %d unpacks to %d bytes and says %d", ErrCorrupt, c.Seq, len(raw), c.RawLen)
	}
	u.buffer = raw
	return raw, nil
}

func (u *unpacker) close() {
	if u.decoder != nil {
		u.decoder.Close()
	}
}
