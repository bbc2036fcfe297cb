package bench

import (
	"context"
	"time"

	"github.com/klauspost/compress/zstd"
)

// zstdSpeed compresses JSON text piece by piece and back, on this goroutine. share
// is compressed to plain.
func zstdSpeed(ctx context.Context, bytes int64) (encode, decode, share float64, err error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0, 0, 0, err
	}
	defer encoder.Close()
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*limitsPiece))
	if err != nil {
		return 0, 0, 0, err
	}
	defer decoder.Close()
	text := make([]byte, 0, limitsPiece)
	values := values{data: DataJSON}
	for i := 0; len(text)+2*valueBytes < limitsPiece; i++ {
		text = append(append(text, values.at(i)...), '\n')
	}
	var packed, plain []byte
	var encoding, decoding time.Duration
	var total uint64
	for ; total < uint64(bytes); total += uint64(len(text)) {
		if ctx.Err() != nil {
			return 0, 0, 0, context.Cause(ctx)
		}
		begin := time.Now()
		packed = encoder.EncodeAll(text, packed[:0])
		middle := time.Now()
		if plain, err = decoder.DecodeAll(packed, plain[:0]); err != nil {
			return 0, 0, 0, err
		}
		encoding, decoding = encoding+middle.Sub(begin), decoding+time.Since(middle)
	}
	return MBPerSecond(total, encoding), MBPerSecond(total, decoding), ratio(float64(len(packed)), float64(len(text))), nil
}
