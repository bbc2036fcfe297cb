package localcluster

import (
	"net"
	"testing"
)

// TestPortStaysClaimed: the port of a node that is down refuses connections, and
// no other cluster gets it.
func TestPortStaysClaimed(t *testing.T) {
	p, err := holdPort()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.release(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", p.address); err == nil {
		_ = conn.Close()
		t.Error("something listens on the port of a node that is down")
	}
	if other, err := claimPort(p.address); err == nil {
		_ = other.free()
		t.Fatalf("port %s was given to another cluster", p.address)
	}
	if err := p.free(); err != nil {
		t.Fatal(err)
	}
	again, err := claimPort(p.address)
	if err != nil {
		t.Fatalf("port %s after its cluster is gone: %v", p.address, err)
	}
	if err := again.free(); err != nil {
		t.Fatal(err)
	}
}
