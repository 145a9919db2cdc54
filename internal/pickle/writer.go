package pickle

import (
	"encoding/binary"
	"math"
	"math/big"
)

// Writer writes a pickle of protocol 2. Go's pickle libraries cannot write shared values once.
type Writer struct {
	out  []byte
	next uint32
	memo map[any]uint32 // of strings and of the caller's shared values
}

// NewWriter returns a Writer of one pickle.
func NewWriter() *Writer {
	return &Writer{out: []byte{0x80, 2}, memo: map[any]uint32{}}
}

// Op writes operations.
func (w *Writer) Op(b ...byte) { w.out = append(w.out, b...) }

func (w *Writer) uint32(n uint32) { w.out = binary.LittleEndian.AppendUint32(w.out, n) }

// Share calls f to write the value of key the first time, and writes a reference to it after that.
func (w *Writer) Share(key any, f func()) {
	if id, ok := w.memo[key]; ok {
		if id < 256 {
			w.Op('h', byte(id))
			return
		}
		w.Op('j')
		w.uint32(id)
		return
	}
	f()
	id := w.next
	w.next++
	w.memo[key] = id
	if id < 256 {
		w.Op('q', byte(id))
		return
	}
	w.Op('r')
	w.uint32(id)
}

// Class writes a reference to a class or function, which the Reader gets as c.
func (w *Writer) Class(c Class) {
	w.Share(c, func() {
		w.Op('c')
		w.out = append(append(append(append(w.out, c.Module...), '\n'), c.Name...), '\n')
	})
}

// Str writes a str.
func (w *Writer) Str(s string) {
	w.Share(s, func() {
		w.Op('X')
		w.uint32(uint32(len(s)))
		w.out = append(w.out, s...)
	})
}

// Int writes an int.
func (w *Writer) Int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		w.Op('K', byte(n))
	case n >= 0 && n < 1<<16:
		w.Op('M', byte(n), byte(n>>8))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		w.Op('J')
		w.uint32(uint32(n))
	default:
		w.Op(0x8a, 8)
		w.out = binary.LittleEndian.AppendUint64(w.out, uint64(n))
	}
}

// Big writes an int of up to 254 bytes and reports whether it fits.
func (w *Writer) Big(n *big.Int) bool {
	if n.IsInt64() {
		w.Int(n.Int64())
		return true
	}
	size := n.BitLen()/8 + 1
	if size > 254 {
		return false
	}
	x := n
	if n.Sign() < 0 {
		x = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	b := x.FillBytes(make([]byte, size))
	w.Op(0x8a, byte(size))
	for i := range b {
		w.Op(b[size-1-i])
	}
	return true
}

// Float writes a float.
func (w *Writer) Float(f float64) {
	w.Op('G')
	w.out = binary.BigEndian.AppendUint64(w.out, math.Float64bits(f))
}

// Bool writes a bool.
func (w *Writer) Bool(b bool) {
	if b {
		w.Op(0x88)
	} else {
		w.Op(0x89)
	}
}

// None writes None.
func (w *Writer) None() { w.Op('N') }

// List writes a list of n elements; f writes one.
func (w *Writer) List(n int, f func(i int)) {
	w.Op(']')
	w.batches(n, 'e', f)
}

// Tuple writes a tuple of n elements; f writes one.
func (w *Writer) Tuple(n int, f func(i int)) {
	w.Op('(')
	for i := range n {
		f(i)
	}
	w.Op('t')
}

// Dict writes a dict of n pairs; f writes a key and a value.
func (w *Writer) Dict(n int, f func(i int)) {
	w.Op('}')
	w.Items(n, f)
}

// Items adds n pairs to the object written before; f writes a key and a value.
func (w *Writer) Items(n int, f func(i int)) { w.batches(n, 'u', f) }

// batches writes a thousand elements at a time, as Python does: readers push a batch on a stack.
func (w *Writer) batches(n int, end byte, f func(i int)) {
	for at := 0; at < n; at += 1000 {
		w.Op('(')
		for i := at; i < min(n, at+1000); i++ {
			f(i)
		}
		w.Op(end)
	}
}

// Bytes ends the pickle and returns it.
func (w *Writer) Bytes() []byte { return append(w.out, '.') }
