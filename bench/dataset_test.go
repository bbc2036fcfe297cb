package bench

import (
	"bytes"
	"slices"
	"testing"
)

func TestDataset(t *testing.T) {
	d := newDataset(1<<20, DataRandom)
	if d.records != 1<<20/272 || d.bytes() > 1<<20 {
		t.Errorf("%d records, %d bytes", d.records, d.bytes())
	}
	all := slices.Collect(d.all)
	if len(all) != d.records || all[0] != 0 || all[len(all)-1] != d.records-1 {
		t.Errorf("%d of %d", len(all), d.records)
	}
	share := slices.Collect(d.share(5, 1))
	if len(share) != d.records*5/100 {
		t.Errorf("5 %% are %d of %d", len(share), d.records)
	}
	if slices.IsSorted(share) {
		t.Error("a share is in order of the keys, which is what a delta likes")
	}
	slices.Sort(share)
	if len(slices.Compact(share)) != d.records*5/100 {
		t.Error("a record comes twice")
	}
	if first := slices.Collect(d.share(1, 1)); !slices.Contains(slices.Collect(d.share(5, 1)), first[0]) {
		t.Error("a smaller share of the same seed is not within the larger one")
	}
	if slices.Equal(slices.Collect(d.share(5, 1)), slices.Collect(d.share(5, 2))) {
		t.Error("two seeds, one share")
	}
}

func TestValues(t *testing.T) {
	for _, data := range []Data{DataRandom, DataJSON} {
		v := values{data: data}
		a := v.at(7)
		if len(a) < valueBytes-16 || len(a) > valueBytes+48 {
			t.Errorf("%s: %d bytes", data, len(a))
		}
		if !bytes.Equal(a, v.at(7)) || bytes.Equal(a, v.at(8)) {
			t.Errorf("%s: a value is not its number's", data)
		}
		v.generation++
		if bytes.Equal(a, v.at(7)) {
			t.Errorf("%s: overwriting changes nothing", data)
		}
	}
	if k := recordKey(42); len(k) != keyBytes {
		t.Errorf("%q", k)
	}
}
