package bench

import (
	"context"
	"fmt"
	"time"
)

// Limits are what the machine can do at best, with the means a recovery has, in
// 10^6 bytes a second and in time.
type Limits struct {
	// DiskWrite: one file written from start to end in pieces of 1 MiB, and synced.
	DiskWrite float64 `json:"disk_write_mb_s"`
	// DiskRead: the same file read from start to end, after the system was told to
	// forget it (on Linux; elsewhere it may come from memory).
	DiskRead float64 `json:"disk_read_mb_s"`
	// Append and Overwrite: a record of 512 bytes and fdatasync, at the end of a
	// growing file and inside a file that has its size; medians.
	Append    time.Duration `json:"append_sync_ns"`
	Overwrite time.Duration `json:"overwrite_sync_ns"`
	// GRPC: messages of 1 MiB through one gRPC stream over loopback, both ends in
	// this process.
	GRPC float64 `json:"grpc_mb_s"`
	// Encode and Decode: zstd at its fastest level, of JSON text, one goroutine, in
	// bytes of the text. Ratio is compressed to plain.
	Encode float64 `json:"zstd_encode_mb_s"`
	Decode float64 `json:"zstd_decode_mb_s"`
	Ratio  float64 `json:"zstd_ratio"`
}

// Transfer is the least time that many bytes take to be sent and written, where
// both go on at the same time: that of the slower one.
func (l *Limits) Transfer(bytes uint64) time.Duration {
	slowest := min(l.DiskWrite, l.GRPC)
	if slowest == 0 {
		return 0
	}
	return time.Duration(float64(bytes) / 1e6 / slowest * float64(time.Second))
}

const (
	limitsPiece = 1 << 20
	limitsSyncs = 200
	// limitsTime bounds each of the measurements that move bytes: on a slow disk or
	// link the speed is known long before all of them are through.
	limitsTime = 5 * time.Second
)

// MeasureLimits measures the machine, with files in dir that it removes. bytes is
// how much each of the measurements moves at most, in 5 s at most; it is kept
// within 1 MiB to 16 GiB. It takes a few seconds and wants the machine for itself.
func MeasureLimits(ctx context.Context, dir string, bytes uint64) (*Limits, error) {
	most := int64(min(max(bytes, limitsPiece), 16<<30))
	var l Limits
	var err error
	if l.DiskWrite, l.DiskRead, err = diskSpeed(ctx, dir, most); err != nil {
		return nil, fmt.Errorf("bench: limits: disk: %w", err)
	}
	if l.Append, l.Overwrite, err = syncTimes(ctx, dir); err != nil {
		return nil, fmt.Errorf("bench: limits: sync: %w", err)
	}
	if l.GRPC, err = grpcSpeed(ctx, most); err != nil {
		return nil, fmt.Errorf("bench: limits: gRPC: %w", err)
	}
	if l.Encode, l.Decode, l.Ratio, err = zstdSpeed(ctx, most/8); err != nil {
		return nil, fmt.Errorf("bench: limits: zstd: %w", err)
	}
	return &l, nil
}

// MedianLimits are the medians of limits that were measured repeatedly, each of
// its own; zero without any.
func MedianLimits(all []Limits) Limits {
	middle := func(value func(l *Limits) float64) float64 { return SpreadOf(each(all, value)).Median }
	return Limits{
		DiskWrite: middle(func(l *Limits) float64 { return l.DiskWrite }),
		DiskRead:  middle(func(l *Limits) float64 { return l.DiskRead }),
		Append:    time.Duration(middle(func(l *Limits) float64 { return float64(l.Append) })),
		Overwrite: time.Duration(middle(func(l *Limits) float64 { return float64(l.Overwrite) })),
		GRPC:      middle(func(l *Limits) float64 { return l.GRPC }),
		Encode:    middle(func(l *Limits) float64 { return l.Encode }),
		Decode:    middle(func(l *Limits) float64 { return l.Decode }),
		Ratio:     middle(func(l *Limits) float64 { return l.Ratio }),
	}
}
