package server

import (
	"bytes"
	"errors"
	"testing"
)

func TestDirectoryFormats(t *testing.T) {
	node := nodeEntry{address: "h:1", incarnation: []byte{1, 2}}
	if got, want := node.encode(), []byte{1, 3, 'h', ':', '1', 2, 1, 2}; !bytes.Equal(got, want) {
		t.Errorf("a node is encoded as %v, want %v", got, want)
	}
	group := groupEntry{kind: groupData, first: 1, last: 1<<32 - 1}
	if got, want := group.encode(), []byte{1, 2, 0, 0, 0, 1, 255, 255, 255, 255}; !bytes.Equal(got, want) {
		t.Errorf("a group is encoded as %v, want %v", got, want)
	}
	for _, bad := range [][]byte{nil, {2, 0, 0}, {1}, {1, 0}, {1, 5, 'a'}, {1, 0, 0, 9}, {1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}} {
		if _, err := decodeNodeEntry(bad); !errors.Is(err, errDirectory) {
			t.Errorf("node %v: %v", bad, err)
		}
		if _, err := decodeGroupEntry(bad); !errors.Is(err, errDirectory) {
			t.Errorf("group %v: %v", bad, err)
		}
	}
	if _, err := decodeGroupEntry(groupEntry{kind: groupData, first: 2, last: 1}.encode()); err == nil {
		t.Error("an empty range was read")
	}
}

func FuzzDecodeDirectory(f *testing.F) {
	f.Add(nodeEntry{address: "h:1", incarnation: []byte{1, 2}}.encode())
	f.Add(groupEntry{kind: groupMeta}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		if e, err := decodeNodeEntry(data); err == nil {
			again, err := decodeNodeEntry(e.encode())
			if err != nil || again.address != e.address || !bytes.Equal(again.incarnation, e.incarnation) {
				t.Fatalf("node %v becomes %v, %v", e, again, err)
			}
		}
		if e, err := decodeGroupEntry(data); err == nil {
			if again, err := decodeGroupEntry(e.encode()); err != nil || again != e {
				t.Fatalf("group %v becomes %v, %v", e, again, err)
			}
		}
	})
}

func TestParseMemTotal(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:        8000000 kB\nMemFree: 1 kB\n": 8000000 << 10, "": 0, "MemTotal: x kB\n": 0, "MemTotal: 99999999999999999 kB\n": 0,
	} {
		if got := parseMemTotal([]byte(text)); got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
	if got := autoCacheBytes(); got <= 0 || got > cacheMost {
		t.Errorf("the chosen cache is %d", got)
	}
}
