package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/pickle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/regular"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// File is an open file. Its tensors use the mapped pages of the file, which are read at their first use. Writing to a
// tensor does not change the file. Tensors remain valid after the File is closed.
//
// While a File or one of its tensors exists, no program may write to the file or shorten it in place, as torch.save and
// cp do to a file that exists: the tensors may take the new values, and access to a page that no longer exists ends the
// process with SIGBUS, which a Go program cannot recover from. Replacing the file, as Save does, is safe. If another
// program may write to the file, or shorten it, for example on a network file system, use [Mapped](false): tensors are
// then copies, and a shortened file is an error.
//
// A File may be used from several goroutines.
type File struct {
	path   string
	header *header  // of a safetensors file, empty for other formats
	other  contents // of another format, or nil
	file   *os.File
	size   int64
	dataAt int64 // offset of the data
	skip   bool  // the objects of a PyTorch file that are not data

	mu      sync.Mutex
	closed  bool
	mapping *mapping // nil if the file is not mapped or was closed
	dropped runtime.Cleanup
}

// contents is what a file of another format than safetensors contains.
type contents interface {
	names() []string
	has(name string) bool
	// tensor returns errNoTensor if there is none of that name.
	tensor(name string) (*tensor.Tensor, error)
	// tensors calls add for each tensor whose name accept accepts, or for its error, and returns the first error of
	// add.
	tensors(accept func(name string) bool, add adder) error
	// value returns errNoValue if there is none of that name.
	value(name string) (any, error)
	close() error
}

// adder takes a tensor of a file, or the error of reading it.
type adder func(name string, t *tensor.Tensor, err error) error

// Option is an option of Load.
type Option func(*settings)

type settings struct {
	mapped bool
	skip   bool // objects
	shard  bool // of an index, so not an index
}

// Mapped sets whether tensors use the file's mapped pages (true, the default) or are read into their own memory
// at each call of Tensor. On a system that cannot map files they are always read.
func Mapped(on ...bool) Option { return func(s *settings) { s.mapped = options.On(on) } }

// Object is the value of an object that SkipObjects has skipped.
type Object struct{ Class string } // such as "argparse.Namespace"

// SkipObjects makes Load open PyTorch files that also contain objects of classes that are not data, such as an
// argparse.Namespace, a NumPy scalar or a class of a library; off by default. It calls nothing and reads nothing of these
// objects: [File.Value] returns an [Object] for each. Tensors within one, such as a whole nn.Module or a subclass of dict,
// are not found; in Python, save its state_dict().
func SkipObjects(on ...bool) Option { return func(s *settings) { s.skip = options.On(on) } }

// Load opens a file of one of these formats, which it recognises by the content:
//
//	safetensors        one file, or the index of several (model.safetensors.index.json)
//	PyTorch            what torch.save writes (.pt, .pth, .bin), in the zip format and in the one before it, or the
//	                   index of several (pytorch_model.bin.index.json)
//	NumPy              .npy and .npz
//
// For any other file it returns ErrFormat; the error names the format if it is a common one. Load opens only regular
// files. It reads and checks everything but the tensors' values:
//
//   - A safetensors file: its whole header, that keys are unique, that each tensor's bytes agree with its dtype and
//     shape, and that the tensors fill the data without overlap or gap. Load allocates at most the file's size and 16 MiB.
//   - A PyTorch file: its pickle is executed without calling anything, and refers to nothing but what
//     torch.load(weights_only=True) allows, empty bytes, defaultdict and nested tensors, unless [SkipObjects] is given;
//     each tensor lies within its storage. Load allocates at most 100 times the size of the pickle and of the archive's
//     directory, and 16 MiB; the size of the tensors does not matter.
//   - A NumPy file, and an index: the headers, or the files that it lists.
//
// It also opens a PyTorch file with sparse, nested or quantised tensors; for these [File.Tensor], [File.Value] and
// LoadModel return an error.
//
// Of several arrays in one .npy file, and several objects in one PyTorch file of the older format, it opens the first.
//
// PyTorch: torch.load(path, mmap=True, weights_only=True), safetensors.safe_open.
func Load(path string, opts ...Option) (*File, error) {
	s := settings{mapped: true}
	for _, o := range opts {
		if o == nil {
			return nil, refuse.NilOption("Load")
		}
		o(&s)
	}
	f, err := openRegular(path)
	if errors.Is(err, syscall.EMFILE) && vram.Collect() == nil { // a File that is unreachable is open
		f, err = openRegular(path)
	}
	if err == nil {
		var file *File
		if file, err = loadAt(path, f, s); err == nil {
			return file, nil
		}
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) && p.Path == path {
		err = p.Err // the path is added below
	}
	return nil, fmt.Errorf("linstock: checkpoint: %s: %w", path, err)
}

// loadAt is load of a file that was opened at path. After an error it closes the file. If a file of an index is missing
// because SaveSharded has replaced the index meanwhile, it loads the new one.
func loadAt(path string, f *os.File, s settings) (*File, error) {
	for {
		file, err := load(f, s)
		if err == nil {
			file.path = path
			return file, nil
		}
		var next *os.File
		if errors.Is(err, fs.ErrNotExist) {
			next = replacement(path, f)
		}
		_ = f.Close()
		if next == nil {
			return nil, err
		}
		f = next
	}
}

// replacement opens the file at path, or returns nil if it is still the file f.
func replacement(path string, f *os.File) *os.File {
	next, err := openRegular(path)
	if err != nil {
		return nil
	}
	was, err := f.Stat()
	is, nextErr := next.Stat()
	if err != nil || nextErr != nil || os.SameFile(was, is) {
		_ = next.Close()
		return nil
	}
	return next
}

func load(f *os.File, s settings) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkRegular(info.Mode()); err != nil { // the file may have been replaced since openRegular checked it
		return nil, err
	}
	size := info.Size()
	if other, err := loadOther(f, size, s); other != nil || err != nil {
		return other, err
	}
	file, err := loadSafetensors(f, size, s)
	if errors.Is(err, ErrFormat) {
		if what := foreign(f); what != "" {
			return nil, malformed("%s", what)
		}
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return file, err
}

func loadSafetensors(f *os.File, size int64, s settings) (*File, error) {
	if size < 8 {
		return nil, malformed("it has %d bytes", size)
	}
	var first [8]byte
	if _, err := f.ReadAt(first[:], 0); err != nil {
		return nil, err
	}
	n, err := headerSize(first, size)
	if err != nil {
		return nil, err
	}
	text := make([]byte, n)
	if _, err := f.ReadAt(text, 8); err != nil {
		return nil, err
	}
	file := &File{file: f, size: size, dataAt: 8 + int64(n)}
	if file.header, err = parseHeader(text, size-file.dataAt); err != nil {
		return nil, err
	}
	if s.mapped {
		err = file.mapPages()
	}
	return file, err
}

// mapPages maps the file. The pages are released by Close, or when f is unreachable.
func (f *File) mapPages() error {
	m, err := newMapping(f.file, f.size, f.dataAt)
	if errors.Is(err, syscall.ENOMEM) && vram.Collect() == nil { // a File that is unreachable is mapped
		m, err = newMapping(f.file, f.size, f.dataAt)
	}
	if m != nil {
		f.mapping = m
		f.dropped = runtime.AddCleanup(f, (*mapping).release, m)
	}
	return err
}

// loadOther opens a file of another format than safetensors. It returns nil if the file is none.
func loadOther(f *os.File, size int64, s settings) (*File, error) {
	head := make([]byte, min(size, 4<<10))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, shortened(err)
	}
	if likeSafetensors(head) {
		return nil, nil
	}
	file := &File{file: f, size: size, header: &header{}, skip: s.skip}
	var read func(*File) (contents, error)
	what := ""
	switch {
	case isZip(head):
		read = readZip
	case isLegacy(head):
		what, read = "torch.save: ", readLegacy
	case isNPY(head):
		what, read = "NumPy: ", readNPY
	case isJSON(head) && !s.shard:
		what, read = "index of files: ", func(f *File) (contents, error) { return readIndex(f, head, s) }
	default:
		return nil, nil
	}
	var err error
	if file.other, err = read(file); err != nil {
		if errors.Is(err, pickle.ErrFormat) && !errors.Is(err, ErrFormat) {
			err = fmt.Errorf("%w: %w", ErrFormat, err)
		}
		return nil, fmt.Errorf("%s%w", what, err)
	}
	if file.other == nil {
		return nil, nil
	}
	if _, several := file.other.(*shards); s.mapped && !several {
		err = file.mapPages()
	}
	return file, err
}

// checkRegular returns an error unless the path leads to a regular file. The error names what it is instead.
func checkRegular(mode os.FileMode) error {
	if mode.IsRegular() {
		return nil
	}
	return malformed("it is %s", regular.Kind(mode))
}

// opened reports whether Load has returned f, which is neither nil nor a File literal.
func (f *File) opened() bool { return f != nil && f.header != nil }

func notOpened(op string) error {
	return refuse.Error(op, tensor.ErrNil, "a File that Load has opened is needed, got nil or a File literal")
}

// Names returns the tensors' names, sorted. A tensor in nested dicts and lists has the keys and numbers on the way to it
// as its name, with dots between them: of a file of torch.save({"model": model.state_dict(), "optimizer": …}), for
// example model.fc.weight and optimizer.state.0.exp_avg. If the file is a single tensor, its name is "". Tensors under
// keys that are neither strings nor numbers of at most 64 bits, such as None and tuples, have no name and are left out.
// If two tensors have the same name, as in {1: …, "1": …}, Tensor returns an error for it.
func (f *File) Names() []string {
	if !f.opened() {
		return nil
	}
	if f.other != nil {
		return f.other.names()
	}
	names := make([]string, len(f.header.entries))
	for i := range names {
		names[i] = f.header.entries[i].name
	}
	return names
}

// Metadata returns a copy of a safetensors file's metadata, or of that of an index; it is empty if the file has none.
func (f *File) Metadata() map[string]string {
	if !f.opened() {
		return nil
	}
	return maps.Clone(f.header.metadata)
}

// Has reports whether the file has a tensor of that name.
func (f *File) Has(name string) bool {
	if !f.opened() {
		return false
	}
	if f.other != nil {
		return f.other.has(name)
	}
	_, ok := f.header.find(name)
	return ok
}

// Tensor returns a tensor by its name, on the CPU, in the file's dtype and with the file's strides. It belongs to the
// current scope and requires no gradient. It uses the file's mapped pages, or is a copy if the file is not mapped, the
// tensor is not aligned for its dtype or compressed, or its dtype is bool. Tensors that shared a storage in Python share
// the mapped pages; those that are copies share only if [File.Tensors] or [File.Value] returned them together.
//
// Sparse, nested and quantised tensors, and those whose dtype Linstock does not support, are an error.
func (f *File) Tensor(name string) *tensor.Tensor {
	if !f.opened() {
		return tensor.Failed(notOpened("Tensor"))
	}
	t, err := f.tensor(name)
	switch {
	case err == errNoTensor:
		return tensor.Failed(fmt.Errorf("linstock: checkpoint: %s has no tensor %s", f.path, quoted(name)))
	case err != nil:
		return tensor.Failed(fmt.Errorf("linstock: checkpoint: %s: tensor %s: %w", f.path, quoted(name), err))
	}
	return t
}

// tensor is Tensor with errors that do not name the file and the tensor. It returns errNoTensor if there is none of that
// name.
func (f *File) tensor(name string) (*tensor.Tensor, error) {
	if e, ok := f.header.find(name); ok {
		return f.open(e)
	}
	if f.other != nil {
		return f.other.tensor(name)
	}
	return nil, errNoTensor
}

// each is tensors of contents for any file.
func (f *File) each(accept func(name string) bool, add adder) error {
	if f.other != nil {
		return f.other.tensors(accept, add)
	}
	for _, name := range f.Names() {
		if !accept(name) {
			continue
		}
		t, err := f.tensor(name)
		if err := add(name, t, err); err != nil {
			return err
		}
	}
	return nil
}

// Value returns an object of a PyTorch file by its name, which is formed as that of a tensor is; "" is the whole
// object. A dict is a map[string]any, or a map[int]any if all its keys are integers, and an error if a key has no name
// (see [File.Names]); an OrderedDict, too, is a map, which loses its order; a list, a tuple and a set are a []any; an
// int is an int, or a *big.Int if it has more than 64 bits; bytes are a []byte; None is nil; a dtype is its name in
// Python; what [SkipObjects] has skipped is an [Object]. An object that occurs several times in Python is one map or slice
// here, too; one that contains itself has no value. Tensors are like those that [File.Tensor] returns, and belong to the
// current scope. For other formats a tensor is the only kind of value.
func (f *File) Value(name string) (any, error) {
	if !f.opened() {
		return nil, notOpened("Value")
	}
	if f.other == nil {
		t := f.Tensor(name)
		if err := t.Err(); err != nil {
			return nil, err
		}
		return t, nil
	}
	v, err := f.other.value(name)
	if err == errNoValue {
		return nil, fmt.Errorf("linstock: checkpoint: %s has no value %s", f.path, quoted(name))
	}
	if err != nil {
		return nil, fmt.Errorf("linstock: checkpoint: %s: %s: %w", f.path, quoted(name), err)
	}
	return v, nil
}

// OptimizerState returns the state_dict() of an optimizer in a PyTorch file, under the name that it has there, for
// Optimizer.LoadStateDict:
//
//	state, err := file.OptimizerState("optimizer")
//	if err != nil {
//		return err
//	}
//	err = opt.LoadStateDict(state)
//
// The state knows parameters by their numbers alone: those of opt must be in PyTorch's order. Its tensors belong to the
// current scope.
func (f *File) OptimizerState(name string) (optim.State, error) {
	if !f.opened() {
		return optim.State{}, notOpened("OptimizerState")
	}
	v, err := f.Value(name)
	if err != nil {
		return optim.State{}, err
	}
	s, err := optimizerState(v)
	if err != nil {
		return optim.State{}, fmt.Errorf("linstock: checkpoint: %s: %s: %w", f.path, quoted(name), err)
	}
	return s, nil
}

func (f *File) open(e *entry) (*tensor.Tensor, error) {
	element := elementTypes[e.element]
	if element.dtype == tensor.Invalid {
		return nil, fmt.Errorf("tensors cannot have the dtype %s", element.name)
	}
	m, err := f.pages()
	if err != nil {
		return nil, err
	}
	shape := f.header.shape(e)
	if m == nil {
		return f.copied(e, element.dtype, shape)
	}
	data := m.data[e.begin:e.end:e.end]
	aligned := uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(min(element.dtype.Size(), 8)) == 0
	// Bools are copied before they are checked, so that no other program can change them afterwards.
	if !aligned || element.dtype == tensor.Bool {
		m.release()
		return f.copied(e, element.dtype, shape)
	}
	return tensor.FromMapped(element.dtype, shape, data, m.release), nil
}

// pages returns the mapping and counts one more user, who must release it. It returns nil if the file is not
// mapped.
func (f *File) pages() (*mapping, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, os.ErrClosed
	}
	if f.mapping != nil {
		f.mapping.users.Add(1)
	}
	return f.mapping, nil
}

// copied reads a tensor in pieces into memory that libtorch allocates.
func (f *File) copied(e *entry, dtype tensor.DType, shape []int) (*tensor.Tensor, error) {
	var failed error
	t := tensor.Tidy(func() *tensor.Tensor {
		n := int(e.end - e.begin)
		all := tensor.Empty([]int{n}, tensor.Uint8)
		piece := make([]byte, min(n, pieceBytes))
		for at := 0; at < n && failed == nil; at += len(piece) {
			piece = piece[:min(len(piece), n-at)]
			if failed = f.read(piece, e.begin+int64(at)); failed != nil {
				break
			}
			if dtype == tensor.Bool {
				failed = checkBools(piece)
			}
			from := tensor.FromSlice(piece, nil)
			to := all.Narrow(0, at, len(piece))
			failed = errors.Join(failed, to.Copy_(from).Err())
			from.Release()
			to.Release()
		}
		if failed != nil {
			return nil
		}
		return all.ViewDType(dtype).View(shape...)
	})
	return t, failed
}

// read reads len(b) bytes of the data, starting at offset at.
func (f *File) read(b []byte, at int64) error {
	_, err := f.file.ReadAt(b, f.dataAt+at)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the file was shortened after it was opened: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// checkBools returns an error if b has a byte other than 0 and 1, which would be undefined behaviour as a bool
// in C++ and in Go.
func checkBools(b []byte) error {
	if i := slices.IndexFunc(b, func(b byte) bool { return b > 1 }); i >= 0 {
		return malformed("a bool is %d", b[i])
	}
	return nil
}

// Tensors returns all tensors by their names, as nn.LoadStateDict takes them.
func (f *File) Tensors() (map[string]*tensor.Tensor, error) {
	if !f.opened() {
		return nil, notOpened("Tensors")
	}
	all := map[string]*tensor.Tensor{}
	err := f.each(func(string) bool { return true }, func(name string, t *tensor.Tensor, err error) error {
		if err != nil {
			return fmt.Errorf("linstock: checkpoint: %s: tensor %s: %w", f.path, quoted(name), err)
		}
		all[name] = t
		return nil
	})
	if err != nil {
		for _, t := range all {
			t.Release()
		}
		return nil, err
	}
	return all, nil
}

// Close closes the file. Tensors that Tensor has returned stay valid.
func (f *File) Close() error {
	if !f.opened() {
		return nil
	}
	f.mu.Lock()
	m, was := f.mapping, f.closed
	f.mapping, f.closed = nil, true
	f.mu.Unlock()
	if was {
		return nil
	}
	if m != nil {
		f.dropped.Stop() // before the last use of f: it has no effect on what is unreachable
		m.release()
	}
	err := f.file.Close()
	if f.other != nil {
		err = errors.Join(err, f.other.close())
	}
	return err
}
