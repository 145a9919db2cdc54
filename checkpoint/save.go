package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
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

	"github.com/linstock-ml/linstock/tensor"
)

// Save writes tensors to a safetensors file under their names, with remarks of one's own as metadata (nil for
// none). Other programs see the old file or the whole new one, also after a crash: it is written beside it,
// synced, and renamed. What a process that was killed meanwhile has left there, a file called .NAME and a number, the
// next Save to the same path removes (on Unix). The same tensors give the same bytes. Tensors of any device and layout of strides are
// written, row-major; several that share storage are written each.
//
// complex128 and complex32 are not in the format. PyTorch: safetensors.torch.save_file.
func Save(path string, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	if err := save(path, tensors, metadata); err != nil {
		return fmt.Errorf("linstock: checkpoint: %w", err)
	}
	return nil
}

func save(path string, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	order, head, err := layout(tensors, metadata)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	removeAbandoned(path)
	file, release, err := pendingFile(dir, path)
	if err != nil {
		return err
	}
	defer release()
	defer func() { _ = file.Cleanup() }()
	w := bufio.NewWriterSize(file, 1<<20)
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, name := range order {
		if err := write(w, tensors[name]); err != nil {
			return fmt.Errorf("tensor %s: %w", quoted(name), err)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		return err
	}
	return syncDir(dir)
}

// pendingFile makes the file beside path that is to replace it, and claims it until release, so that another Save does
// not take it for abandoned.
func pendingFile(dir, path string) (file *renameio.PendingFile, release func(), err error) {
	for {
		file, err = renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithPermissions(0o666), renameio.WithExistingPermissions())
		if err != nil {
			return nil, nil, err
		}
		release, ours := claim(file.File)
		if ours {
			return file, release, nil
		}
		// Another was about to remove it, before it was ours.
		_ = file.Cleanup()
	}
}

// removeAbandoned removes what processes that were killed while they saved to path have left beside it: files with the
// name of a pending one that nobody has claimed.
func removeAbandoned(path string) {
	dir, prefix := filepath.Dir(path), "."+filepath.Base(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the Save will say why
	}
	for _, e := range entries {
		if number, ok := strings.CutPrefix(e.Name(), prefix); ok && e.Type().IsRegular() && pendingNumber(number) {
			removeUnclaimed(filepath.Join(dir, e.Name()))
		}
	}
}

// pendingNumber tells the end of a pending file's name, a random number of 63 bits. Short ones, which come once in
// 10,000 times, are left alone: a file of the user's might be called so.
func pendingNumber(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && len(s) >= 15 && strconv.FormatInt(n, 10) == s
}

type item struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// layout decides the tensors' order, widest dtype first so that each is aligned, and makes the header.
func layout(tensors map[string]*tensor.Tensor, metadata map[string]string) (order []string, head []byte, err error) {
	items := map[string]any{}
	width := map[string]int{}
	for name, t := range tensors {
		it, size, err := describe(name, t)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %s: %w", quoted(name), err)
		}
		items[name], width[name] = it, size
	}
	order = slices.SortedFunc(maps.Keys(tensors), func(a, b string) int {
		return cmp.Or(-cmp.Compare(width[a], width[b]), cmp.Compare(a, b))
	})
	at := int64(0)
	for _, name := range order {
		it := items[name].(*item)
		n := int64(width[name])
		for _, s := range it.Shape {
			n *= int64(s)
		}
		it.Offsets = [2]int64{at, at + n}
		at += n
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
	for (len(head)+8)%64 != 0 { // so that the data begins at a multiple of what vector instructions like
		head = append(head, ' ')
	}
	// What Save writes, Load must read.
	if len(head) > maxHeader {
		return nil, nil, fmt.Errorf("%d bytes of names and metadata; %d are allowed", len(head), maxHeader)
	}
	if _, err := parseHeader(bytes.Clone(head), at); err != nil {
		return nil, nil, err
	}
	return order, append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), nil
}

func describe(name string, t *tensor.Tensor) (*item, int, error) {
	if name == "__metadata__" || !utf8.ValidString(name) {
		return nil, 0, errors.New("a tensor cannot be called that")
	}
	// What cannot be used has no shape, and says why.
	used := t.Alias()
	defer used.Release()
	if err := used.Err(); err != nil {
		return nil, 0, err
	}
	d := t.DType()
	for _, element := range elementTypes {
		if element.dtype == d && d != tensor.Invalid {
			return &item{DType: element.name, Shape: append([]int{}, t.Shape()...)}, d.Size(), nil
		}
	}
	return nil, 0, fmt.Errorf("the format has no dtype for %v", d)
}

// pieceBytes is how much of a tensor is copied to Go's memory at once.
const pieceBytes = 4 << 20

// write writes a tensor's elements, row-major, without a second copy of the whole unless its strides need one.
func write(w io.Writer, t *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		x := t.Detach()
		if x.DType().IsComplex() {
			x = x.ResolveConj()
		}
		flat := x.ResolveNeg().To(tensor.CPU).Contiguous().View(-1)
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
