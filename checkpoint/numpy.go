package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/linstock-ml/linstock/internal/pickle"
	"github.com/linstock-ml/linstock/tensor"
)

// NumPy's formats: .npy is a header, which is a Python dict as text, and the array's bytes; .npz is a zip archive of
// such files.

const npyMagic = "\x93NUMPY"

func isNPY(head []byte) bool { return bytes.HasPrefix(head, []byte(npyMagic)) }

// maxNPYHeader is the size of the largest header that is read. NumPy's limit is 10,000 bytes.
const maxNPYHeader = 64 << 10

// npyTypes are the dtypes by NumPy's codes.
var npyTypes = map[string]tensor.DType{
	"b1": tensor.Bool, "u1": tensor.Uint8, "i1": tensor.Int8, "u2": tensor.Uint16, "i2": tensor.Int16, "u4": tensor.Uint32, "i4": tensor.Int32,
	"u8": tensor.Uint64, "i8": tensor.Int64, "f2": tensor.Float16, "f4": tensor.Float32, "f8": tensor.Float64, "c8": tensor.Complex64, "c16": tensor.Complex128,
}

func readNPY(f *File) (contents, error) {
	t, err := npyArray(io.NewSectionReader(f.file, 0, f.size), &storage{bytes: f.size, known: true})
	if err != nil {
		return nil, err
	}
	return newObjects(f, t, func(int) error { return nil }, f.size+1<<20)
}

func readNPZ(f *File, a *archive) (contents, error) {
	root := &pickle.Dict{}
	for _, name := range a.names {
		m := a.members[name]
		s, err := a.storage(m)
		if err != nil {
			return nil, err
		}
		r, err := m.open()
		if err != nil {
			return nil, err
		}
		t, err := npyArray(r, s)
		_ = r.Close()
		if err != nil {
			return nil, fmt.Errorf("%w (member %s)", err, quoted(name))
		}
		root.Items = append(root.Items, pickle.Item{Key: strings.TrimSuffix(name, ".npy"), Value: t})
	}
	return newObjects(f, root, func(int) error { return nil }, f.size+1<<20)
}

// npyArray reads the header at the start of r. s is the whole .npy file.
func npyArray(r io.Reader, s *storage) (*stored, error) {
	var begins [8]byte
	if _, err := io.ReadFull(r, begins[:]); err != nil || string(begins[:6]) != npyMagic {
		return nil, malformed("it does not begin as a .npy file")
	}
	width := 2
	if begins[6] != 1 {
		width = 4
	}
	var size [4]byte
	if _, err := io.ReadFull(r, size[:width]); err != nil || begins[6] < 1 || begins[6] > 3 {
		return nil, malformed("the version %d of .npy", begins[6])
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxNPYHeader || int64(n) > s.bytes {
		return nil, malformed("a header of %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, malformed("its header is truncated")
	}
	t, err := npyHeader(string(text))
	if err != nil {
		return nil, err
	}
	begin := int64(8 + width + int(n))
	s.begin, s.skip, s.bytes, t.storage = s.begin+begin, begin, s.bytes-begin, s
	if t.refused != "" {
		return t, nil
	}
	if err := t.check(s.bytes); err != nil {
		return nil, err
	}
	total := t.element.bytes
	for _, n := range t.shape {
		total *= int64(n)
	}
	if total > s.bytes {
		return nil, malformed("an array of %d bytes, and it has %d", total, s.bytes)
	}
	s.bytes = total // another array may follow
	return t, nil
}

// npyField is a key of the header with its value.
var npyField = regexp.MustCompile(`^\s*'(descr|fortran_order|shape)'\s*:\s*('[^']*'|True|False|\([0-9,L\s]*\)|\[.*\])\s*(,|$)`)

func npyHeader(text string) (*stored, error) {
	body := strings.TrimSpace(text)
	if !strings.HasPrefix(body, "{") || !strings.HasSuffix(body, "}") {
		return nil, malformed("a header that is not a dict")
	}
	body = body[1 : len(body)-1]
	fields := map[string]string{}
	for strings.TrimSpace(body) != "" {
		m := npyField.FindStringSubmatch(body)
		if m == nil || fields[m[1]] != "" {
			return nil, malformed("the header %s", quoted(text))
		}
		fields[m[1]] = m[2]
		body = body[len(m[0]):]
	}
	if len(fields) != 3 || !strings.HasPrefix(fields["shape"], "(") || fields["fortran_order"][0] == '\'' {
		return nil, malformed("a header without descr, fortran_order or shape")
	}
	t := &stored{}
	code := strings.Trim(fields["descr"], "'")
	if order := strings.TrimLeft(code, "<|="); order != code && npyTypes[order] != 0 || order == "u1" && code != order {
		d := npyTypes[order]
		t.element = element{d.String(), d, int64(d.Size())}
	} else {
		t.element.dtype = tensor.Invalid
		t.refused = fmt.Sprintf("tensors cannot have NumPy's dtype %s", quoted(code))
		if strings.HasPrefix(code, ">") {
			t.refused += " (big-endian); in Python: array.astype(array.dtype.newbyteorder(\"<\"))"
		}
	}
	for _, s := range strings.Split(strings.Trim(fields["shape"], "()"), ",") {
		if s = strings.TrimSuffix(strings.TrimSpace(s), "L"); s == "" {
			continue
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || len(t.shape) == maxDims {
			return nil, malformed("the shape %s", quoted(fields["shape"]))
		}
		t.shape = append(t.shape, int(n))
	}
	stride := 1
	t.stride = make([]int, len(t.shape))
	for i := range t.shape {
		at := len(t.shape) - 1 - i
		if fields["fortran_order"] == "True" {
			at = i
		}
		t.stride[at] = stride
		if n := t.shape[at]; n > 0 && stride > math.MaxInt/16/n {
			return nil, malformed("the product of the shape is too large")
		}
		stride *= max(1, t.shape[at])
	}
	return t, nil
}

// SaveNPY writes a tensor as an array of NumPy (.npy), in row-major order. Like Save it replaces path completely or not at
// all. NumPy has no bfloat16 and no float8. NumPy: numpy.save.
func SaveNPY(path string, t *tensor.Tensor) error {
	head, c, err := npyOf(t)
	if err == nil {
		err = replace(path, func(w io.Writer) error {
			if _, err := w.Write(head); err != nil {
				return err
			}
			return c.write(w)
		})
	}
	return saved("SaveNPY", err)
}

// SaveNPZ writes tensors as arrays of NumPy under their names (.npz), not compressed. Like Save it replaces path
// completely or not at all, and the same tensors give the same bytes. NumPy: numpy.savez(path, **tensors).
func SaveNPZ(path string, tensors map[string]*tensor.Tensor) error {
	names := slices.Sorted(maps.Keys(tensors))
	heads, all := make([][]byte, len(names)), make([]content, len(names))
	var err error
	for i, name := range names {
		if strings.ContainsAny(name, "\x00\\") || strings.HasPrefix(name, "/") || !utf8.ValidString(name) {
			err = errors.New("a member of an archive cannot have that name")
		} else {
			heads[i], all[i], err = npyOf(tensors[name])
		}
		if err != nil {
			return saved("SaveNPZ", fmt.Errorf("tensor %s: %w", quoted(name), err))
		}
	}
	return saved("SaveNPZ", replace(path, func(w io.Writer) error {
		z := zip.NewWriter(w)
		for i, name := range names {
			m, err := z.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: zip.Store})
			if err != nil {
				return err
			}
			if _, err := m.Write(heads[i]); err != nil {
				return err
			}
			if err := all[i].write(m); err != nil {
				return fmt.Errorf("tensor %s: %w", quoted(name), err)
			}
		}
		return z.Close()
	}))
}

// npyOf returns the header of a tensor as a .npy file, and its contents.
func npyOf(t *tensor.Tensor) ([]byte, content, error) {
	c, err := anyContentOf(t)
	if err != nil {
		return nil, c, err
	}
	code := ""
	for k, d := range npyTypes {
		if d == c.dtype {
			code = k
		}
	}
	if code == "" {
		return nil, c, fmt.Errorf("NumPy has no dtype for %v", c.dtype)
	}
	order := "<"
	if c.dtype.Size() == 1 {
		order = "|"
	}
	shape := ""
	for _, n := range c.shape {
		shape += strconv.Itoa(n) + ", "
	}
	if shape = strings.TrimSuffix(shape, " "); len(c.shape) != 1 {
		shape = strings.TrimSuffix(shape, ",")
	}
	head := fmt.Sprintf("{'descr': '%s%s', 'fortran_order': False, 'shape': (%s), }", order, code, shape)
	head += strings.Repeat(" ", 63-(10+len(head))%64) + "\n" // the array begins at a multiple of 64
	return append(binary.LittleEndian.AppendUint16([]byte(npyMagic+"\x01\x00"), uint16(len(head))), head...), c, nil
}
