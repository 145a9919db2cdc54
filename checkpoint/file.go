package checkpoint

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/linstock-ml/linstock/tensor"
)

// File is an open safetensors file. Its tensors lie in the file's pages, read as they are touched; a write to one
// stays in this process. They outlive the File. The file must not be shortened meanwhile by somebody who writes
// it in place: reading pages that are gone ends a process. Save never does that, it replaces files.
//
// A File may be used from any goroutine.
type File struct {
	path   string
	header *header

	mu      sync.Mutex
	mapping *mapping // nil once closed
}

// Load opens a safetensors file. The header is checked completely: its size, its JSON without doubled keys, that
// each tensor's bytes are its dtype's and shape's, and that the tensors fill the data without overlap or gap. A
// file that is not so gives ErrFormat. What is allocated for it is never more than the file's size and 16 MiB.
// PyTorch: safetensors.safe_open.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("linstock: checkpoint: %w", err)
	}
	defer f.Close()
	file, err := load(f)
	if err != nil {
		return nil, fmt.Errorf("linstock: checkpoint: %s: %w", path, err)
	}
	file.path = path
	return file, nil
}

func load(f *os.File) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, malformed("it is not a regular file")
	}
	size := info.Size()
	if size < 8 {
		return nil, malformed("it has %d bytes", size)
	}
	var first [8]byte
	if _, err := io.ReadFull(f, first[:]); err != nil {
		return nil, err
	}
	n, err := headerSize(first, size)
	if err != nil {
		return nil, err
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(f, text); err != nil {
		return nil, err
	}
	// Nobody writes text any more: a string that shares it spares a copy of up to 100 MB.
	h, err := parseHeader(unsafe.String(unsafe.SliceData(text), n), size-8-int64(n))
	if err != nil {
		return nil, err
	}
	m, err := newMapping(f, size, 8+int64(n))
	if err != nil {
		return nil, err
	}
	return &File{header: h, mapping: m}, nil
}

// Names are the tensors' names, sorted.
func (f *File) Names() []string {
	names := make([]string, len(f.header.entries))
	for i := range names {
		names[i] = f.header.entries[i].name
	}
	return names
}

// Metadata is the file's own remarks, a copy of them; empty if it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.header.metadata) }

// Has says whether there is a tensor of that name.
func (f *File) Has(name string) bool {
	_, ok := f.header.find(name)
	return ok
}

// Tensor gives a tensor by its name, on the CPU, in the file's dtype. It belongs to the scope as any other. It
// lies in the file's pages unless it is not aligned for its dtype there, or holds bools, which are copied.
func (f *File) Tensor(name string) *tensor.Tensor {
	e, ok := f.header.find(name)
	if !ok {
		return tensor.Failed(fmt.Errorf("linstock: checkpoint: %s has no tensor %s", f.path, quoted(name)))
	}
	element := elementTypes[e.element]
	if element.dtype == tensor.Invalid {
		return tensor.Failed(fmt.Errorf("linstock: checkpoint: %s: tensor %s: there are no tensors of dtype %s", f.path, quoted(name), element.name))
	}
	f.mu.Lock()
	m := f.mapping
	if m != nil {
		m.users.Add(1) // to that of the File, which Close gives up under the lock
	}
	f.mu.Unlock()
	if m == nil {
		return tensor.Failed(fmt.Errorf("linstock: checkpoint: %s: tensor %s: %w", f.path, quoted(name), os.ErrClosed))
	}
	data := m.data[e.begin:e.end:e.end]
	shape := f.header.shape(e)
	switch {
	case element.dtype == tensor.Bool:
		defer m.release()
		// Another byte than 0 or 1 in a bool is undefined behaviour in C++.
		if i := slices.IndexFunc(data, func(b byte) bool { return b > 1 }); i >= 0 {
			return tensor.Failed(fmt.Errorf("linstock: checkpoint: %s: %w", f.path, malformed("element %d of the bools %s is %d", i, quoted(name), data[i])))
		}
		return copied(data, element.dtype, shape)
	case m.copies || len(data) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(min(element.dtype.Size(), 8)) != 0:
		defer m.release()
		return copied(data, element.dtype, shape)
	}
	return tensor.FromMapped(element.dtype, shape, data, m.release)
}

// copied is a tensor with memory of its own, which libtorch aligns.
func copied(data []byte, dtype tensor.DType, shape []int) *tensor.Tensor {
	return tensor.Tidy(func() *tensor.Tensor {
		if len(data) == 0 {
			return tensor.Empty(shape, dtype)
		}
		return tensor.FromSlice(data, nil).ViewDType(dtype).View(shape...)
	})
}

// Tensors gives all tensors by their names, as nn.LoadStateDict takes them.
func (f *File) Tensors() (map[string]*tensor.Tensor, error) {
	all := make(map[string]*tensor.Tensor, len(f.header.entries))
	for _, name := range f.Names() {
		t := f.Tensor(name)
		if err := t.Err(); err != nil {
			for _, t := range all {
				t.Release()
			}
			return nil, err
		}
		all[name] = t
	}
	return all, nil
}

// Close lets go of the file. Tensors already taken from it stay.
func (f *File) Close() error {
	f.mu.Lock()
	m := f.mapping
	f.mapping = nil
	f.mu.Unlock()
	if m != nil {
		m.release()
	}
	return nil
}
