package kv

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Page token:
//
//	byte   version, 1
//	byte   space: the first byte of its prefix
//	byte   direction: 0 forward, 1 reverse
//	...    storage-independent user key: the last one of the page before
//	4B BE  CRC-32C of all bytes before
//
// It names a place, not a state: each page reads the state of its own time.
const (
	pageVersion = 1
	pageMinimum = 3 + 4
)

// appendPageToken appends the token that continues behind key.
func appendPageToken(dst []byte, space string, reverse bool, key []byte) []byte {
	begin := len(dst)
	direction := byte(0)
	if reverse {
		direction = 1
	}
	dst = append(append(dst, pageVersion, space[0], direction), key...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[begin:], castagnoli()))
}

// decodePageToken returns the key behind which to continue; it aliases token.
func decodePageToken(token []byte, space string, reverse bool) ([]byte, error) {
	if len(token) < pageMinimum || len(token) > pageMinimum+MaxKeyBytes {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrPageToken, len(token))
	}
	body, sum := token[:len(token)-4], binary.BigEndian.Uint32(token[len(token)-4:])
	switch {
	case crc32.Checksum(body, castagnoli()) != sum:
		return nil, fmt.Errorf("%w: its checksum is wrong", ErrPageToken)
	case body[0] != pageVersion:
		return nil, fmt.Errorf("%w: its version is %d", ErrPageToken, body[0])
	case body[1] != space[0] || body[2] > 1 || (body[2] == 1) != reverse:
		return nil, fmt.Errorf("%w: it was made for another direction or space", ErrPageToken)
	}
	return body[3:], nil
}
