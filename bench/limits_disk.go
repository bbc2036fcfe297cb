package bench

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// withFile makes a file for a measurement and removes it afterwards.
func withFile(dir, name string, use func(*os.File) error) (err error) {
	path := filepath.Join(dir, name)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(path)) }()
	return use(file)
}

func randomPiece() []byte {
	piece := make([]byte, limitsPiece)
	source := rand.New(rand.NewPCG(1, 2))
	for i := range piece {
		piece[i] = byte(source.Uint32())
	}
	return piece
}

// diskSpeed writes a file and reads it again.
func diskSpeed(ctx context.Context, dir string, bytes int64) (write, read float64, err error) {
	piece := randomPiece()
	err = withFile(dir, "limits.data", func(file *os.File) error {
		begin := time.Now()
		var written uint64
		for written < uint64(bytes) && time.Since(begin) < limitsTime {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if _, err := file.Write(piece); err != nil {
				return err
			}
			written += limitsPiece
		}
		if err := file.Sync(); err != nil {
			return err
		}
		write = MBPerSecond(written, time.Since(begin))
		read, err = readSpeed(ctx, file, piece)
		return err
	})
	return write, read, err
}

// readSpeed reads a file from its start, into a buffer.
func readSpeed(ctx context.Context, file *os.File, buffer []byte) (float64, error) {
	if err := dropCache(file); err != nil {
		return 0, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	begin := time.Now()
	var read uint64
	for time.Since(begin) < limitsTime {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		n, err := file.Read(buffer)
		read += uint64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	return MBPerSecond(read, time.Since(begin)), nil
}

// syncTimes are the medians of a small write and fdatasync: of appends, and of
// overwrites of what they wrote.
func syncTimes(ctx context.Context, dir string) (appended, overwritten time.Duration, err error) {
	record := randomPiece()[:512]
	err = withFile(dir, "limits.log", func(file *os.File) error {
		var times [2][]float64
		for pass := range times {
			for i := range limitsSyncs {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				begin := time.Now()
				if _, err := file.WriteAt(record, int64(i)*512); err != nil {
					return err
				}
				if err := dataSync(file); err != nil {
					return err
				}
				times[pass] = append(times[pass], float64(time.Since(begin)))
			}
		}
		appended, overwritten = time.Duration(SpreadOf(times[0]).Median), time.Duration(SpreadOf(times[1]).Median)
		return nil
	})
	return appended, overwritten, err
}
