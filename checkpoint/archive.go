package checkpoint

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
)

func isZip(head []byte) bool {
	return bytes.HasPrefix(head, []byte("PK\x03\x04")) || bytes.HasPrefix(head, []byte("PK\x05\x06"))
}

// readZip reads a zip archive of PyTorch or NumPy.
func readZip(f *File) (contents, error) {
	a, err := readArchive(f, f.size)
	if err != nil {
		return nil, err
	}
	if what := a.kind(); what != "" {
		return nil, malformed("%s", what)
	}
	what, read := "NumPy", readNPZ
	if a.members[a.root+"data.pkl"] != nil {
		what, read = "torch.save", readPyTorch
	}
	c, err := read(f, a)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return c, nil
}

// archive is a zip archive: one of torch.save, or a .npz.
type archive struct {
	members map[string]*member
	names   []string // in the archive's order
	root    string   // the folder of the first member, with "/"
	bytes   int64    // of the file
}

type member struct{ *zip.File }

func (m *member) compressed() bool { return m.Method != zip.Store }

// bytes returns the size of the member's contents, which readArchive has checked.
func (m *member) bytes() int64 { return int64(m.UncompressedSize64) }

func (m *member) open() (io.ReadCloser, error) {
	if at, err := m.DataOffset(); err != nil || at < 0 {
		return nil, malformed("the member %s is not where the directory places it", quoted(m.Name))
	}
	if m.CRC32 == 0 && !m.compressed() { // perhaps none: torch.serialization.set_crc32_options(False)
		r, err := m.OpenRaw()
		return io.NopCloser(r), err
	}
	return m.Open()
}

// maxRatio is the most that the compression of zip archives (deflate) can save.
const maxRatio = 1032

// readArchive reads the directory of a zip archive.
func readArchive(f *File, fileBytes int64) (*archive, error) {
	z, err := zip.NewReader(f.file, fileBytes)
	if err != nil {
		return nil, malformed("its zip directory: %v", err)
	}
	a := &archive{members: make(map[string]*member, len(z.File)), bytes: fileBytes}
	for i, m := range z.File {
		if i == 0 {
			if at := strings.IndexByte(m.Name, '/'); at >= 0 {
				a.root = m.Name[:at+1]
			}
		}
		switch {
		case a.members[m.Name] != nil:
			return nil, malformed("the member %s occurs twice", quoted(m.Name))
		case m.Method != zip.Store && m.Method != zip.Deflate, m.Flags&1 != 0:
			return nil, malformed("the member %s is encrypted, or compressed by a method other than deflate", quoted(m.Name))
		case m.CompressedSize64 > uint64(fileBytes), m.Method == zip.Store && m.UncompressedSize64 != m.CompressedSize64,
			m.UncompressedSize64 > maxRatio*(m.CompressedSize64+1):
			return nil, malformed("the member %s has %d bytes, stored as %d", quoted(m.Name), m.UncompressedSize64, m.CompressedSize64)
		}
		a.members[m.Name] = &member{m}
		a.names = append(a.names, m.Name)
	}
	return a, nil
}

// text returns the contents of a small member, or "" if it is missing.
func (a *archive) text(name string) (string, error) {
	m := a.members[name]
	if m == nil {
		return "", nil
	}
	if m.bytes() > 100 {
		return "", malformed("the member %s has %d bytes", quoted(name), m.bytes())
	}
	r, err := m.open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, 200))
	if err != nil {
		err = malformed("the member %s: %v", quoted(name), err)
	}
	return string(b), err
}

// storage returns the contents of a member as a storage.
func (a *archive) storage(m *member) (*storage, error) {
	s := &storage{key: m.Name, bytes: m.bytes(), member: m, known: true}
	if m.compressed() {
		return s, nil
	}
	at, err := m.DataOffset()
	if err != nil || at < 0 || at > a.bytes-s.bytes {
		return nil, malformed("the member %s is beyond the end of the file", quoted(m.Name))
	}
	s.begin = at
	return s, nil
}

// kind returns a description of what the archive is if it is not one that can be loaded, or "".
func (a *archive) kind() string {
	has := func(name string) bool { return a.members[a.root+name] != nil }
	under := func(folder string) bool {
		for _, n := range a.names {
			if strings.HasPrefix(n, a.root+folder) {
				return true
			}
		}
		return false
	}
	if !slices.ContainsFunc(a.names, func(n string) bool { return !strings.HasSuffix(n, ".npy") }) {
		return ""
	}
	switch {
	case has("archive_format"), has("models/model.json"), a.members["serialized_exported_program.json"] != nil:
		return "it is a package of torch.export (.pt2); in Python: torch.save(torch.export.load(path).state_dict, \"model.pt\")"
	case has(".data/extern_modules"):
		return "it is a package of torch.package, which contains Python code; in Python, save the state_dict() of the model in it"
	case has("constants.pkl"), under("code/"):
		return "it is a TorchScript archive; in Python: torch.save(torch.jit.load(path).state_dict(), \"model.pt\")"
	case has("data.pkl"):
		return ""
	}
	return "it is a zip archive; unpack it first"
}
