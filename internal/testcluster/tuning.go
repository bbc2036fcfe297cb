package testcluster

import (
	"net"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/kv"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/transport"
	"github.com/streamraft/streamraft/snapshot"
)

// tuning is what a test that looks at one thing has otherwise than the
// simulation; nil fields change nothing.
type tuning struct {
	node     func(*member, *raftnode.Options)
	store    func(*member, *kv.Options)
	source   func(*member, *snapshot.SourceOptions)
	receiver func(*member, *snapshot.ReceiverOptions)
	// files wraps what a node sees of its disk.
	files func(*member, vfs.FS) vfs.FS
	// stream wraps the streams over which a node receives images.
	stream func(*member, net.Conn) net.Conn
	// received is called when all files of an image are there and checked one by
	// one, before they are opened.
	received func(m *member, manifest *snapshotv1.Manifest, dir string)
	// hears and sends are called with each message a node gets and sends.
	hears, sends func(*member, transport.GroupMessage)
	// loses tells which messages a node sends and nobody gets.
	loses func(*member, transport.GroupMessage) bool
	// applies is called right before entries are applied.
	applies func(*member)
	// installs is called right before the state is replaced by an image.
	installs func(*member)
}

// files is the disk as the node sees it.
func (m *member) files() vfs.FS {
	if wrap := m.cluster.tuning.files; wrap != nil {
		return wrap(m, m.disk.fs)
	}
	return m.disk.fs
}
