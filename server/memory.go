package server

import (
	"bytes"
	"os"
	"strconv"
)

const (
	// cacheUnknown is the block cache where the memory's size is not known.
	cacheUnknown = 256 << 20
	// cacheMost is the largest cache chosen without being told; beyond it the
	// operating system's page cache does as well.
	cacheMost = 1 << 30
	// cacheShare is the part of the memory, 1/cacheShare.
	cacheShare = 4
)

// autoCacheBytes chooses the size of the block cache.
func autoCacheBytes() int64 {
	memory := memoryBytes()
	if memory <= 0 {
		return cacheUnknown
	}
	return min(memory/cacheShare, cacheMost)
}

// memoryBytes returns the memory this process may use as Linux tells it, the
// control group's limit if that is lower; 0 if unknown.
func memoryBytes() int64 {
	var memory int64
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		memory = parseMemTotal(data)
	}
	if data, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64); err == nil && limit > 0 && (memory == 0 || limit < memory) {
			memory = limit
		}
	}
	return memory
}

// parseMemTotal reads the line "MemTotal: 8000000 kB"; 0 if there is none.
func parseMemTotal(data []byte) int64 {
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemTotal:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
			if err != nil || kib < 0 || kib > 1<<50 {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
