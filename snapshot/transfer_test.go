package snapshot

import (
	"testing"
)

func TestTransfer(t *testing.T) {
	for _, test := range []struct {
		name        string
		sizes       []int
		verified    bool
		compression bool
	}{
		{"several files", []int{3 << 20, 0, 1, 1 << 20, 1<<20 + 1}, false, false},
		{"verified", []int{3 << 20, 100}, true, false},
		{"compression", []int{3 << 20, 100}, false, true},
		{"no file", nil, false, false},
		{"one empty file", []int{0}, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := randomContent(1, test.sizes...)
			if test.compression {
				c["text"] = make([]byte, 5<<20)
			}
			s := newTestSource(t, c)
			s.verified = test.verified
			s.opts.WireCompression = test.compression
			s.start()
			defer s.stop()
			r := newTestReceiver(t, s)
			transfer := r.mustReceive()
			p := transfer.Progress()
			if p.BytesDone != c.bytes() || p.Index != 100 || p.Err != nil {
				t.Errorf("progress %+v", p)
			}
			if sent := s.counters.Metrics().SentBytes; test.compression != (sent < c.bytes()) || sent != p.WireBytes {
				t.Errorf("%d bytes sent for %d", sent, c.bytes())
			}
			if n := r.stager.checks.Load(); n != int64(len(c)) {
				t.Errorf("%d files checked of %d", n, len(c))
			}
			if n := s.captures.Load(); n != 1 {
				t.Errorf("%d captures", n)
			}
		})
	}
}
