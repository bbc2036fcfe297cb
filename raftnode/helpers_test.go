package raftnode_test

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"testing"
)

// raiseRecordVersion makes a record file (package durable) claim a version from
// the future, with a right checksum.
func raiseRecordVersion(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(data[8:], 99)
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(data[:16], table), table, data[20:])
	binary.LittleEndian.PutUint32(data[16:], sum)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
