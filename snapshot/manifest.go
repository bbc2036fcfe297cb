package snapshot

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// manifestName is the file beside an image's files that describes them. It is a
// record file of package durable (magic, version, length, CRC-32C) whose payload
// is an encoded streamraft.snapshot.v1.Manifest.
const manifestName = "manifest"

// manifestFormat is the format of a manifest file, version 1.
func manifestFormat() durable.Format {
	return durable.Format{Magic: [8]byte([]byte("SRMANIF1")), Version: 1, Limit: MaxManifestBytes}
}

// partSuffix marks a file of an inbox that is not complete; no file of an image
// may have it.
const partSuffix = ".part"

// CheckFileName tells whether a name from the wire may become a file's:
// 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-', neither "." nor "..",
// and not ending as the files do that are being received. The error is
// ErrCorrupt.
func CheckFileName(name string) error {
	if len(name) == 0 || len(name) > MaxFileName {
		return fmt.Errorf("%w: a file name of %d characters; 1 to %d are allowed", ErrCorrupt, len(name), MaxFileName)
	}
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("%w: file name %q holds %q; letters, digits, '.', '_' and '-' are allowed", ErrCorrupt, name, c)
		}
	}
	if name == "." || name == ".." || strings.HasSuffix(name, partSuffix) {
		return fmt.Errorf("%w: file name %q is reserved", ErrCorrupt, name)
	}
	return nil
}

// ValidateManifest tells whether a manifest describes an image that can be kept,
// sent and received: ids, indexes, names and sizes are within the limits and
// agree with each other. It says nothing about the image's content. The error is
// ErrCorrupt.
func ValidateManifest(m *snapshotv1.Manifest) error {
	if err := validateManifest(m); err != nil {
		return fmt.Errorf("%w: manifest of image %s: %v", ErrCorrupt, FormatID(m.GetImage()[:min(len(m.GetImage()), idBytes)]), err)
	}
	return nil
}

func validateManifest(m *snapshotv1.Manifest) error {
	if m == nil {
		return errors.New("there is none")
	}
	switch {
	case len(m.Image) != idBytes:
		return fmt.Errorf("its id has %d bytes, not %d", len(m.Image), idBytes)
	case len(m.ClusterId) > maxNodeName:
		return fmt.Errorf("a cluster id of %d bytes", len(m.ClusterId))
	case m.Group == 0:
		return errors.New("it names no group")
	case m.Index == 0 || m.Term == 0:
		return fmt.Errorf("index %d of term %d; both begin at 1", m.Index, m.Term)
	case len(m.Membership) > MaxMembershipBytes:
		return fmt.Errorf("a membership of %d bytes, at most %d", len(m.Membership), MaxMembershipBytes)
	case len(m.Files) > MaxFiles:
		return fmt.Errorf("%d files, at most %d", len(m.Files), MaxFiles)
	}
	switch m.Kind {
	case snapshotv1.Kind_KIND_FILES, snapshotv1.Kind_KIND_STREAM:
		if m.FromIndex != 0 || m.FromTerm != 0 {
			return fmt.Errorf("a %v that starts at index %d of term %d; only a delta starts above 0", m.Kind, m.FromIndex, m.FromTerm)
		}
	case snapshotv1.Kind_KIND_RECORDS:
		if m.FromIndex > m.Index || m.FromTerm > m.Term {
			return fmt.Errorf("a delta from index %d of term %d to %d of %d goes backwards", m.FromIndex, m.FromTerm, m.Index, m.Term)
		}
	default:
		return fmt.Errorf("unknown kind %d", m.Kind)
	}
	names := make(map[string]struct{}, len(m.Files))
	var sum uint64
	for i, f := range m.Files {
		if f == nil {
			return fmt.Errorf("file %d is missing", i)
		}
		if err := CheckFileName(f.Name); err != nil {
			return fmt.Errorf("file %d: %v", i, err)
		}
		if _, twice := names[f.Name]; twice {
			return fmt.Errorf("two files are named %q", f.Name)
		}
		names[f.Name] = struct{}{}
		if f.Size > MaxFileBytes {
			return fmt.Errorf("file %q has %d bytes, at most %d", f.Name, f.Size, uint64(MaxFileBytes))
		}
		sum += f.Size // at most 2^16 * 2^44
	}
	if sum != m.Bytes || sum > MaxImageBytes {
		return fmt.Errorf("its files have %d bytes, it says %d, at most %d", sum, m.Bytes, uint64(MaxImageBytes))
	}
	if n := proto.Size(m); n > MaxManifestBytes {
		return fmt.Errorf("it has %d bytes, at most %d", n, MaxManifestBytes)
	}
	return nil
}

// encodeManifest returns the bytes of a valid manifest, always the same for the
// same manifest.
func encodeManifest(m *snapshotv1.Manifest) ([]byte, error) {
	if err := ValidateManifest(m); err != nil {
		return nil, err
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("snapshot: encode a manifest: %w", err)
	}
	return data, nil
}

// decodeManifest reads what encodeManifest wrote.
func decodeManifest(data []byte) (*snapshotv1.Manifest, error) {
	if len(data) > MaxManifestBytes {
		return nil, fmt.Errorf("%w: a manifest of %d bytes, at most %d", ErrCorrupt, len(data), MaxManifestBytes)
	}
	m := new(snapshotv1.Manifest)
	if err := proto.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("%w: manifest: %v", ErrCorrupt, err)
	}
	if err := ValidateManifest(m); err != nil {
		return nil, err
	}
	return m, nil
}

// WriteManifest writes the manifest of the image in dir; it is durable when
// WriteManifest returns nil, if dir is.
func WriteManifest(fsys vfs.FS, dir string, m *snapshotv1.Manifest) error {
	data, err := encodeManifest(m)
	if err != nil {
		return err
	}
	return durable.WriteRecord(fsys, fsys.PathJoin(dir, manifestName), manifestFormat(), data)
}

// ReadManifest reads and validates the manifest of the image in dir. A damaged
// one is ErrCorrupt, an absent one fs.ErrNotExist.
func ReadManifest(fsys vfs.FS, dir string) (*snapshotv1.Manifest, error) {
	data, _, err := durable.ReadRecord(fsys, fsys.PathJoin(dir, manifestName), manifestFormat())
	var damaged *durable.RecordError
	if errors.As(err, &damaged) {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err != nil {
		return nil, err
	}
	return decodeManifest(data)
}

// checkFiles tells whether dir holds the files of a manifest with their sizes.
func checkFiles(fsys vfs.FS, dir string, m *snapshotv1.Manifest) error {
	for _, f := range m.Files {
		info, err := fsys.Stat(fsys.PathJoin(dir, f.Name))
		if err != nil {
			return fmt.Errorf("%w: image %s: %w", ErrCorrupt, FormatID(m.Image), err)
		}
		if info.IsDir() || uint64(info.Size()) != f.Size {
			return fmt.Errorf("%w: image %s: file %q has %d bytes, not %d", ErrCorrupt, FormatID(m.Image), f.Name, info.Size(), f.Size)
		}
	}
	return nil
}
