package cliui

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFormats(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{Bytes(0), "0 B"}, {Bytes(1023), "1023 B"}, {Bytes(1024), "1 KiB"}, {Bytes(1536), "1.5 KiB"},
		{Bytes(64 << 20), "64 MiB"}, {Bytes(1<<20 - 1), "1 MiB"}, {Bytes(1<<64 - 1), "16 EiB"},
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(1234567), "1,234,567"},
		{Duration(0), "0s"}, {Duration(850 * time.Millisecond), "850ms"}, {Duration(12300 * time.Millisecond), "12.3s"},
		{Duration(245 * time.Second), "4m05s"}, {Duration(182 * time.Minute), "3h02m"}, {Duration(-time.Second), "-1.0s"},
		{Bar(0, 0, 3), "░░░"}, {Bar(1, 2, 4), "██░░"}, {Bar(99, 100, 4), "███░"}, {Bar(9, 2, 2), "██"}, {Bar(1<<63, 1<<63, 2), "██"},
		{Rate(5_000_000, 2*time.Second), "2.5 MB/s"}, {Rate(1, 0), "0.0 MB/s"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	err := Table(&b, []Column{{Name: "node"}, {Name: "term", Number: true}}, [][]string{{"n1", "7"}, {"n2-long", "123456"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "NODE       TERM\nn1            7\nn2-long  123456\n"
	if b.String() != want {
		t.Fatalf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestProgressLine(t *testing.T) {
	p := StartProgress(&bytes.Buffer{}, "importing", 40<<20)
	defer p.Stop(false)
	p.Add(10 << 20)
	got := p.Line(p.started.Add(2 * time.Second))
	if want := "importing: 10 MiB of 40 MiB (25 %), 5.2 MB/s, 6.0s left"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestBarEnds(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{label: "importing", total: 100, started: time.Now(), stop: make(chan struct{})}
	p.startBar(&b)
	p.Add(100)
	p.Stop(false)
	if !strings.Contains(b.String(), "importing") {
		t.Fatalf("nothing was shown: %q", b.String())
	}
}

func TestIsTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if IsTerminal(null) || IsTerminal(&bytes.Buffer{}) {
		t.Fatal("the null device is no terminal")
	}
}
