package main

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// Mutants of the files of torch.save and NumPy. A mutant of a zip archive is mostly made of mutated members that are
// packed anew, so that their checksums hold and the mutation reaches what reads them.

// objectSeed is a file from which mutants are made.
type objectSeed struct {
	bytes   []byte
	members []member // of a zip archive
}

type member struct {
	name string
	data []byte
}

// fromPython are seeds that PyTorch and NumPy wrote.
var fromPython = []string{"nested.pt", "legacy.pt", "protocol4.pt", "refused.pt", "objects.pt", "objects_legacy.pt", "arrays.npz", "compressed.npz", "fortran.npy"}

// makeObjectSeeds saves the files from which mutants are made.
func makeObjectSeeds(dir string) error {
	for _, name := range fromPython {
		b, err := os.ReadFile(filepath.Join("checkpoint", "testdata", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return tensor.WithScope(func() error {
		t, err := newTrainee()
		if err != nil {
			return err
		}
		x := tensor.Arange(0, 6).To(tensor.Float32).View(2, 3)
		return errors.Join(
			checkpoint.SavePyTorch(filepath.Join(dir, "small.pt"), map[string]any{"x": x, "y": x.Transpose(0, 1), "b": tensor.Ones([]int{3}, tensor.Bool),
				"8": tensor.Ones([]int{3}, tensor.Float8E5M2), "e": tensor.Zeros([]int{0, 4}), "v": []any{1, "x", nil, 2.5, []byte{1}}}),
			checkpoint.SavePyTorch(filepath.Join(dir, "run.pt"), map[string]any{"model": nn.StateDict(t.model), "optimizer": t.opt.StateDict()}),
			checkpoint.SaveNPY(filepath.Join(dir, "x.npy"), x),
		)
	})
}

func (m *mutators) readObjectSeeds(dir string) error {
	for _, name := range append([]string{"small.pt", "run.pt", "x.npy"}, fromPython...) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		s := objectSeed{bytes: b}
		if bytes.HasPrefix(b, []byte("PK")) {
			z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				return err
			}
			for _, f := range z.File {
				r, err := f.Open()
				if err != nil {
					return err
				}
				data, err := io.ReadAll(r)
				if err != nil {
					return err
				}
				s.members = append(s.members, member{f.Name, data[:min(len(data), 4096)]})
			}
		}
		m.objects = append(m.objects, s)
	}
	return nil
}

// object makes the n-th mutant of a seed.
func (m *mutators) object(seed uint64, n int64) mutant {
	m.pcg.Seed(seed, uint64(n))
	s := &m.objects[m.rng.IntN(len(m.objects))]
	r := mutant{n: n, kind: object, how: "bytes"}
	m.buf = append(m.buf[:0], s.bytes...)
	switch {
	case len(s.members) > 0 && !m.one(4):
		r.how = "members"
		m.pack(s)
	case m.one(8):
		r.how = "another length"
		if m.one(2) {
			m.buf = m.buf[:m.rng.IntN(len(m.buf)+1)]
		} else {
			m.buf = append(m.buf, make([]byte, m.rng.IntN(100))...)
		}
	case len(s.members) > 0:
		// The directory at the end, and the headers in front of members.
		for range 1 + m.rng.IntN(3) {
			at := bytes.LastIndex(m.buf[:m.rng.IntN(len(m.buf)+1)], []byte("PK"))
			m.change(max(0, at), 48)
		}
	default:
		// A .npy file or the older format of torch.save. Both begin with what is checked.
		if bytes.HasPrefix(m.buf, []byte("\x80\x02\x8a")) && !m.one(4) {
			r.how = "operations"
			m.older()
			break
		}
		for range 1 + m.rng.IntN(4) {
			m.change(0, min(len(m.buf), 7000))
		}
	}
	r.bytes = m.buf
	return r
}

// change changes a byte at most span after at.
func (m *mutators) change(at, span int) {
	if len(m.buf) == 0 {
		return
	}
	at = min(at+m.rng.IntN(max(1, span)), len(m.buf)-1)
	switch m.rng.IntN(4) {
	case 0:
		m.buf[at] ^= 1 << m.rng.IntN(8)
	case 1:
		m.buf[at] = byte(m.rng.IntN(256))
	case 2:
		m.buf[at] = pick[byte](m, 0, 1, 8, 0x7f, 0x80, 0xff, '.', 'q', 'R', '(', ')')
	default:
		n := min(len(m.buf)-at, 8)
		copy(m.buf[at:at+n], pick(m, "\xff\xff\xff\xff\xff\xff\xff\xff", "\xff\xff\xff\x7f", "\x00\x00\x00\x00", "\x00\x00\x00\x80", "\x40\x42\x0f\x00"))
	}
}

// pack makes an archive of the seed's members, of which some are changed.
func (m *mutators) pack(s *objectSeed) {
	members := append([]member(nil), s.members...)
	for range 1 + m.rng.IntN(2) {
		at := m.rng.IntN(len(members))
		for i := range members {
			if strings.HasSuffix(members[i].name, "data.pkl") && !m.one(5) {
				at = i
			}
		}
		x := &members[at]
		switch {
		case strings.HasSuffix(x.name, "data.pkl"):
			x.data = m.operations(x.data)
		case m.one(6):
			members = append(members[:at], members[at+1:]...)
			if len(members) == 0 {
				return
			}
		case m.one(6):
			x.name = members[m.rng.IntN(len(members))].name
		case m.one(6):
			x.name = pick(m, "archive/constants.pkl", "archive/code/x.py", "x", "", "a/b", "../x", "archive/data/0", "archive/byteorder", "x.npy")
		case m.one(3):
			x.data = x.data[:m.rng.IntN(len(x.data)+1)]
		default:
			old := m.buf
			m.buf = append([]byte(nil), x.data...)
			for range 1 + m.rng.IntN(3) {
				m.change(0, len(m.buf))
			}
			x.data, m.buf = m.buf, old
		}
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, x := range members {
		h := &zip.FileHeader{Name: x.name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(x.data), CompressedSize64: uint64(len(x.data)), UncompressedSize64: uint64(len(x.data))}
		if m.one(50) {
			h.Method = zip.Deflate
		}
		if m.one(50) {
			h.UncompressedSize64 += uint64(m.rng.IntN(2000))
		}
		w, err := z.CreateRaw(h)
		if err == nil {
			_, err = w.Write(x.data)
		}
		if err != nil {
			break
		}
	}
	_ = z.Close()
	m.buf = append(m.buf[:0], b.Bytes()...)
}

// older changes one of the pickles at the start of a file of the older format.
func (m *mutators) older() {
	end := 0
	for range 5 {
		if end >= len(m.buf) {
			return
		}
		at := end
		end += split(m.buf[at:], nil)
		if m.one(3) {
			changed := m.operations(m.buf[at:end])
			m.buf = append(append(append([]byte(nil), m.buf[:at]...), changed...), m.buf[end:]...)
			return
		}
	}
}

// split calls f for the operations of a pickle, and returns its length.
func split(b []byte, f func(op []byte)) int {
	at := 0
	for at < len(b) {
		n := 1
		rest := b[at+1:]
		counted := func(width int) {
			var size [8]byte
			copy(size[:], rest[:min(len(rest), width)])
			n += width + int(min(binary.LittleEndian.Uint64(size[:]), 1<<30))
		}
		switch b[at] {
		case 0x80, 'K', 'q', 'h':
			n += 1
		case 'M':
			n += 2
		case 'J', 'r', 'j':
			n += 4
		case 'G', 0x95:
			n += 8
		case 'U', 'C', 0x8c, 0x8a:
			counted(1)
		case 'X', 'T', 'B', 0x8b:
			counted(4)
		case 0x8d, 0x8e:
			counted(8)
		case 'c':
			for range 2 {
				line := bytes.IndexByte(b[min(at+n, len(b)):], '\n')
				if line < 0 {
					return len(b)
				}
				n += line + 1
			}
		}
		end := min(at+n, len(b))
		if f != nil {
			f(b[at:end])
		}
		if b[at] == '.' {
			return end
		}
		at = end
	}
	return at
}

var operations = []string{
	"N", "\x88", "\x89", ")", "]", "}", "(", "t", "\x85", "\x86", "\x87", "a", "e", "s", "u", "0", "1", "2", "R", "b", "Q", "\x81", "\x8f", "\x90", "\x91", ".", "h\x00", "h\x05", "h\x10",
	"q\x00", "q\x50", "r\xff\xff\xff\xff", "j\x01\x00\x00\x00", "\x94", "\x93", "K\x00", "K\x01", "K\xff", "J\xff\xff\xff\xff", "J\xff\xff\xff\x7f", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
	"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01", "\x8a\x00", "G\x7f\xf0\x00\x00\x00\x00\x00\x00", "X\x01\x00\x00\x000", "X\x01\x00\x00\x001",
	"X\x02\x00\x00\x0099", "X\x00\x00\x00\x00", "X\x07\x00\x00\x00storage", "X\x04\x00\x00\x00conj", "U\x01\xff", "X\xff\xff\xff\x7f", "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "I99\n", "L9999999999999999999999L\n",
	"ctorch\nFloatStorage\n", "ctorch\nBoolStorage\n", "ctorch\nDoubleStorage\n", "ctorch\nComplexDoubleStorage\n", "ctorch.storage\nUntypedStorage\n", "ctorch\nQInt8Storage\n", "ctorch\nfloat64\n", "ctorch\nbool\n",
	"ctorch\nfloat8_e8m0fnu\n", "ctorch._utils\n_rebuild_tensor\n", "ctorch._utils\n_rebuild_tensor_v2\n", "ctorch._utils\n_rebuild_tensor_v3\n", "ctorch._utils\n_rebuild_parameter\n",
	"ctorch._tensor\n_rebuild_from_type_v2\n", "ctorch._utils\n_rebuild_qtensor\n", "ctorch._utils\n_rebuild_sparse_tensor\n", "ccollections\nOrderedDict\n", "ccollections\ndefaultdict\n", "cbuiltins\nset\n", "cbuiltins\ncomplex\n",
	"c_codecs\nencode\n", "ctorch\nSize\n", "ctorch\ndevice\n", "cos\nsystem\n", "cbuiltins\neval\n", "c\n\n",
}

// operations changes a pickle.
func (m *mutators) operations(pickle []byte) []byte {
	var ops [][]byte
	split(pickle, func(op []byte) { ops = append(ops, op) })
	if len(ops) == 0 {
		return nil
	}
	// The same object with other numbers is the most likely to be accepted.
	for range 1 + m.rng.IntN(3) {
		if len(ops) == 0 {
			break
		}
		at := m.rng.IntN(len(ops))
		switch m.rng.IntN(10) {
		case 0:
			ops = append(ops[:at], ops[at+1:]...)
		case 1:
			ops = append(ops[:at], append([][]byte{ops[at]}, ops[at:]...)...)
		case 2:
			other := m.rng.IntN(len(ops))
			ops[at], ops[other] = ops[other], ops[at]
		case 3:
			ops[at] = ops[m.rng.IntN(len(ops))]
		case 4:
			ops[at] = []byte(pick(m, operations...))
		case 5:
			n := m.rng.IntN(300)
			if m.one(300) {
				n = 20_000
			}
			ops[at] = bytes.Repeat([]byte(pick(m, "]", "(", "\x85", "2", "\x94", "2\x86", "h\x00a", "}", "N", "](h\x01h\x01e")), n)
		case 6:
			// Repeat a run of operations, for example a tensor.
			end := min(len(ops), at+1+m.rng.IntN(40))
			ops[end-1] = bytes.Join(append([][]byte{ops[end-1]}, ops[at:end]...), nil)
		default:
			// Another operation of the same kind.
			for range 50 {
				at = m.rng.IntN(len(ops))
				o := []byte(pick(m, operations...))
				if k := kindOf(ops[at]); k != 0 && k == kindOf(o) {
					ops[at] = o
					if k == 'K' && m.one(2) {
						ops[at] = []byte{'K', byte(m.rng.IntN(30))}
					}
					break
				}
			}
		}
	}
	return bytes.Join(ops, nil)
}

// kindOf returns 'K' for a number, 'X' for a string, 'c' for a class, and 0 for others.
func kindOf(op []byte) byte {
	if len(op) == 0 {
		return 0
	}
	switch op[0] {
	case 'K', 'M', 'J', 0x8a:
		return 'K'
	case 'X', 'U', 0x8c:
		return 'X'
	case 'c':
		return 'c'
	case 'h', 'j':
		return 'h'
	}
	return 0
}

// readObject reads what an object file has.
func (v *victim) readObject(f *checkpoint.File, m mutant) error {
	for i, name := range f.Names() {
		if i == 60 {
			break
		}
		if !f.Has(name) {
			return fmt.Errorf("%q is listed, and not there", name)
		}
		x := f.Tensor(name)
		if err := x.Err(); err != nil {
			if errors.Is(err, os.ErrClosed) {
				return err
			}
			continue
		}
		v.tally.Tensors++
		if err := v.touch(x, len(m.bytes)); err != nil {
			return fmt.Errorf("tensor %q %v%v%v: %w", name, x.DType(), x.Shape(), x.Stride(), err)
		}
		x.Release()
	}
	if m.n%4 == 0 {
		if all, err := f.Tensors(); err == nil {
			for _, x := range all {
				x.Release()
			}
		}
		_, _ = f.Value("")
	}
	if s, err := f.OptimizerState("optimizer"); err == nil && m.n%4 == 1 {
		_ = v.trainee.opt.LoadStateDict(s)
	}
	return nil
}

// touch reads every element of x, or of a part of a large tensor. It compares none: what a mutated pickle's tensors
// should be is not known.
func (v *victim) touch(x *tensor.Tensor, fileBytes int) error {
	if x.Numel() == 0 {
		return nil
	}
	if n := x.StorageBytes(); n > 2000*fileBytes {
		return fmt.Errorf("a storage of %d bytes of a file of %d", n, fileBytes)
	}
	for x.Numel() > 20_000 {
		// The dimensions are at most 64; large ones are expanded, or of a compressed member.
		shape := x.Shape()
		dim := 0
		for i := range shape {
			if shape[i] > shape[dim] {
				dim = i
			}
		}
		x = x.Select(dim, shape[dim]-1)
	}
	if x.DType().IsComplex() {
		x = x.ResolveConj()
	}
	x = x.Contiguous()
	b, err := tensor.Data[uint8](x.AsStrided([]int{x.Numel()}, []int{1}, tensor.StorageOffset(x.StorageOffset())).ViewDType(tensor.Uint8))
	for _, c := range b {
		v.sink ^= c
	}
	return err
}
