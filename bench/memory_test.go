package bench

import (
	"os"
	"runtime"
	"testing"
)

func TestMemoryWatchTakes(t *testing.T) {
	w := &memoryWatch{samples: map[string][]float64{"n1": {10, 50, 20}, "n2": {7}}}
	got := w.take()
	if got["n1"] != (memorySeen{peak: 50, median: 20}) || got["n2"] != (memorySeen{peak: 7, median: 7}) {
		t.Errorf("%+v", got)
	}
	if again := w.take(); len(again) != 0 {
		t.Errorf("samples counted twice: %+v", again)
	}
	if over(5, 3) != 2 || over(3, 5) != 0 {
		t.Error("over")
	}
}

func TestAnonymousMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells it in /proc")
	}
	block := make([]byte, 64<<20)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	got, err := anonymousMemory(os.Getpid())
	if err != nil || got < uint64(len(block)) || got > 16<<30 {
		t.Errorf("%d bytes with a block of %d, %v", got, len(block), err)
	}
	runtime.KeepAlive(block)
	if _, err := anonymousMemory(-1); err == nil {
		t.Error("no process, and no error")
	}
}
