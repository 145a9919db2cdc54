package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/renameio/v2"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/regular"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/internal/syncdir"
	"github.com/linstock-ml/linstock/tensor"
)

// Save writes tensors to a safetensors file under their names, with the given metadata (nil for none). Other programs
// see either the old file or the complete new one, also after a crash: Save writes the new file beside the old one,
// syncs and renames it. If path is a symbolic link, the file that it leads to is replaced; a path that leads to a
// device or a pipe is an error. If the process is killed meanwhile, a file named .NAME and a number is left (for a NAME
// of more than 235 bytes, its beginning and a hash), which the next Save to the same path removes (on Unix). The same
// tensors give the same bytes. Tensors may be on any device and have any strides. They are written in row-major order,
// and each in full if several share storage. A parameter that package dist divides is an error: package dist/dcp saves it.
//
// Hugging Face's transformers opens only files with the metadata "format": "pt", which SaveSharded and SaveModel add.
//
// Save does not touch other files, such as an older model.safetensors.index.json next to a new model.safetensors, which
// another loader may prefer.
//
// The format has no complex128 and complex32. Names and metadata may take 100 MB together, metadata may have
// 16,384 entries, and a file may hold 131,072 tensors, or more if they have at least 64 bytes on average.
// PyTorch: safetensors.torch.save_file.
func Save(path string, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	return saveTensors("Save", path, tensors, metadata)
}

func saveTensors(op, path string, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	all := make(map[string]content, len(tensors))
	for name, t := range tensors {
		c, err := contentOf(t)
		if err != nil {
			return called(op, fmt.Errorf("linstock: checkpoint: tensor %s: %w", quoted(name), err))
		}
		all[name] = c
	}
	return called(op, save(path, all, metadata))
}

// content is a tensor to be written: a *tensor.Tensor, or bytes.
type content struct {
	element uint8 // index in elementTypes
	shape   []int
	write   func(io.Writer) error
	dtype   tensor.DType // of a tensor
}

func (c content) bytes() int64 {
	n := int64(elementTypes[c.element].bits / 8)
	for _, s := range c.shape {
		n *= int64(s)
	}
	return n
}

func contentOf(t *tensor.Tensor) (content, error) {
	c, err := anyContentOf(t)
	if err != nil {
		return c, err
	}
	d := c.dtype
	for i, element := range elementTypes {
		if element.dtype == d && d != tensor.Invalid {
			c.element = uint8(i)
			return c, nil
		}
	}
	return content{}, fmt.Errorf("the format has no dtype for %v", d)
}

// anyContentOf returns the contents of a tensor of a dtype that safetensors may not have.
func anyContentOf(t *tensor.Tensor) (content, error) {
	if err := refuse.Unusable("Save", "", t); err != nil {
		return content{}, err
	}
	if err := writable(t); err != nil {
		return content{}, err
	}
	c := content{shape: slices.Clone(t.Shape()), dtype: t.DType()}
	c.write = func(w io.Writer) error {
		return tensor.WithScope(func() error {
			// Another goroutine may have converted t since its dtype and shape were put in the header.
			now := t.Detach()
			if err := now.Err(); err != nil {
				return err
			}
			if now.DType() != c.dtype || !slices.Equal(now.Shape(), c.shape) {
				return fmt.Errorf("it has changed from %v %v to %v %v while it was being saved", c.dtype, c.shape, now.DType(), now.Shape())
			}
			return write(w, now)
		})
	}
	return c, nil
}

// writable returns an error for a tensor of a layout that no format has, and for a part of a parameter, which a reader
// would take for the whole.
func writable(t *tensor.Tensor) error {
	if l := t.Layout(); l != tensor.Strided {
		return fmt.Errorf("a tensor of layout %v cannot be written; use ToDense", l)
	}
	if sharding.Groups(t) != nil {
		return refuse.Error("Save", tensor.ErrArgument, "it is this process's part of a parameter that package dist divides: save the model with package "+
			"dist/dcp, or the result of dist.FullStateDict; to write the part alone, give its Detach()")
	}
	return nil
}

func save(path string, all map[string]content, metadata map[string]string) error {
	write, err := writer(all, metadata)
	if err == nil {
		err = replace(path, write)
	}
	if err != nil {
		return fmt.Errorf("linstock: checkpoint: %w", err)
	}
	return nil
}

// writer returns a function that writes a safetensors file.
func writer(all map[string]content, metadata map[string]string) (write func(io.Writer) error, err error) {
	order, head, err := layout(all, metadata)
	if err != nil {
		return nil, err
	}
	return func(w io.Writer) error {
		if _, err := w.Write(head); err != nil {
			return err
		}
		for _, name := range order {
			if err := all[name].write(w); err != nil {
				return fmt.Errorf("tensor %s: %w", quoted(name), err)
			}
		}
		return nil
	}, nil
}

// saved returns the error of op, a function that the program called.
func saved(op string, err error) error {
	if err == nil {
		return nil
	}
	return called(op, fmt.Errorf("linstock: checkpoint: %w", err))
}

// replace replaces the file by what write writes, completely or not at all.
func replace(path string, write func(io.Writer) error) error {
	p, err := stage(path, write)
	if err != nil {
		return err
	}
	defer p.discard()
	if err := p.replace(); err != nil {
		return err
	}
	return syncdir.Sync(p.dir)
}

// staged is a complete file beside the one that it is to replace.
type staged struct {
	file      *renameio.PendingFile
	dir, path string
	replaced  bool
	release   func()
}

// discard removes the file unless it has replaced the other.
func (s *staged) discard() {
	if !s.replaced {
		_ = s.file.Cleanup()
	}
	s.release()
}

// rename is os.Rename, except in tests of what a crash or an error leaves.
var rename = os.Rename

// replace renames the file to its destination. The file's own method would rename it to the path from which the name of
// the pending file was made.
func (s *staged) replace() error {
	if err := s.file.Sync(); err != nil {
		return err
	}
	if err := s.file.File.Close(); err != nil {
		return err
	}
	err := rename(s.file.Name(), s.path)
	s.replaced = err == nil
	return err
}

// stage writes the file that is to replace the one at path. The caller discards it.
func stage(path string, write func(io.Writer) error) (s *staged, err error) {
	if path, err = regular.Destination(path); err != nil {
		return nil, err
	}
	return stageLike(path, path, write)
}

// stageLike is stage with the permissions of the file like, if it exists, for a path that is not a symbolic link.
func stageLike(path, like string, write func(io.Writer) error) (s *staged, err error) {
	s = &staged{dir: filepath.Dir(path), path: path}
	removeAbandoned(path)
	if s.file, s.release, err = pendingFile(path, like); err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(s.file, 1<<20)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	if err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}

// maxBase is the maximum length of the part before the 19-digit number in the name of a pending file.
const maxBase = 255 - len(".") - 19

// pendingBase returns the part between the dot and the number in the names of pending files for path: the file's name,
// or its beginning and a hash if it is too long.
func pendingBase(path string) string {
	base := filepath.Base(path)
	if len(base) <= maxBase {
		return base
	}
	sum := sha256.Sum256([]byte(base))
	hash := fmt.Sprintf("-%x-", sum[:8])
	return strings.ToValidUTF8(base[:maxBase-len(hash)], "") + hash
}

// pendingFile creates the file beside path that will replace it, and claims it until release is called, so that
// another Save does not remove it as abandoned. It gets the permissions of the file like, if it exists.
func pendingFile(path, like string) (file *renameio.PendingFile, release func(), err error) {
	mode := renameio.WithPermissions(0o666)
	switch info, err := os.Stat(like); {
	case err == nil:
		mode = renameio.WithStaticPermissions(info.Mode().Perm())
	case !errors.Is(err, os.ErrNotExist):
		return nil, nil, err
	}
	dir := filepath.Dir(path)
	for {
		file, err = renameio.NewPendingFile(filepath.Join(dir, pendingBase(path)), renameio.WithTempDir(dir), mode)
		if err != nil {
			return nil, nil, err
		}
		release, ours := claim(file.File)
		if ours {
			return file, release, nil
		}
		// Another process removed it before we claimed it.
		_ = file.Cleanup()
	}
}

// removeAbandoned removes the pending files of processes that were killed while they saved to path: those that
// no process has claimed.
func removeAbandoned(path string) {
	dir, prefix := filepath.Dir(path), "."+pendingBase(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // pendingFile will return the error
	}
	for _, e := range entries {
		if number, ok := strings.CutPrefix(e.Name(), prefix); ok && e.Type().IsRegular() && pendingNumber(number) {
			removeUnclaimed(filepath.Join(dir, e.Name()))
		}
	}
}

// pendingNumber reports whether s is the end of a pending file's name: a random number of 63 bits. It rejects numbers
// with few digits, one in 10,000, because such a file might be the user's.
func pendingNumber(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && len(s) >= 15 && strconv.FormatInt(n, 10) == s
}

type item struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// layout determines the order of the tensors, the widest dtype first so that each is aligned, and makes the
// header.
func layout(all map[string]content, metadata map[string]string) (order []string, head []byte, err error) {
	items := make(map[string]any, len(all)+1)
	order = slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(-cmp.Compare(elementTypes[all[a].element].bits, elementTypes[all[b].element].bits), cmp.Compare(a, b))
	})
	at := int64(0)
	for _, name := range order {
		if name == "__metadata__" || !utf8.ValidString(name) {
			return nil, nil, fmt.Errorf("tensor %s: a tensor cannot have that name", quoted(name))
		}
		c := all[name]
		end := at + c.bytes()
		items[name] = item{elementTypes[c.element].name, append([]int{}, c.shape...), [2]int64{at, end}}
		at = end
	}
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, nil, fmt.Errorf("metadata %s is not UTF-8", quoted(key))
		}
	}
	if len(metadata) > 0 {
		items["__metadata__"] = metadata
	}
	head, err = json.Marshal(items) // sorts the keys
	if err != nil {
		return nil, nil, err
	}
	for (len(head)+8)%64 != 0 { // aligns the data to 64 bytes, for vector instructions
		head = append(head, ' ')
	}
	// Load must be able to read the file.
	if len(head) > maxHeader {
		return nil, nil, fmt.Errorf("names and metadata take %d bytes; the format allows %d", len(head), maxHeader)
	}
	if _, err := parseHeader(bytes.Clone(head), at); err != nil {
		return nil, nil, err
	}
	return order, append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), nil
}

// pieceBytes is the most that is copied through Go memory at once.
const pieceBytes = 4 << 20

// write writes a tensor's elements in row-major order. It copies the whole tensor only if its strides require
// that.
func write(w io.Writer, t *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		x := t.Detach()
		if x.DType().IsComplex() {
			x = x.ResolveConj()
		}
		flat := x.ResolveNeg().To(tensor.CPU).Contiguous()
		// View would keep the stride of a tensor with one element, which may be any.
		flat = flat.AsStrided([]int{flat.Numel()}, []int{1}, tensor.StorageOffset(flat.StorageOffset()))
		if err := flat.Err(); err != nil {
			return err
		}
		n, step := flat.Numel(), pieceBytes/flat.DType().Size()
		for at := 0; at < n; at += step {
			piece := flat.Narrow(0, at, min(step, n-at)).ViewDType(tensor.Uint8)
			data, err := tensor.Data[uint8](piece)
			if err != nil {
				return err
			}
			piece.Release()
			if _, err := w.Write(data); err != nil {
				return err
			}
		}
		return nil
	})
}
