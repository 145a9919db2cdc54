package pickle

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// ErrFormat reports an invalid pickle, or one that uses what this package does not support.
var ErrFormat = errors.New("invalid pickle")

// Values of a pickle, besides nil (None), bool, int64, *big.Int, float64 and string.
type (
	// Bytes is a bytes object, or a str of Python 2 that is not ASCII.
	Bytes string
	// Tuple is a tuple. It does not change.
	Tuple []any
	// List is a list.
	List struct{ Items []any }
	// Dict is a dict. Read does not compare the keys, so one may occur twice.
	Dict struct{ Items []Item }
	// Set is a set or frozenset.
	Set struct{ Items []any }
	// Class is a class or function by its name.
	Class struct{ Module, Name string }
	// Object is an object of a class that is not read. What the pickle adds to it is dropped.
	Object struct{ Class string }
)

// Item is a key of a Dict with its value.
type Item struct{ Key, Value any }

// String returns the class's name in Python.
func (c Class) String() string { return c.Module + "." + c.Name }

// Reader reads pickles that follow each other. The functions may be nil, which refuses what they would decide.
type Reader struct {
	// Class decides about a class or function to which the pickle refers; it returns an error to refuse it.
	Class func(c Class) (any, error)
	// Reduce returns what a call of the value f, which Class has returned, stands for.
	Reduce func(f any, args Tuple) (any, error)
	// Build changes the object v by a state (the operation BUILD).
	Build func(v, state any) error
	// Persistent returns the object outside of the pickle that id stands for.
	Persistent func(id any) (any, error)

	in    *bufio.Reader
	left  int64 // bytes of input
	size  int64
	used  int64 // bytes that the values take
	stack []any
	most  int // the greatest length of stack
	marks []int
	memo  []any
}

// The values of pickles may take ratio times the bytes that were read, and spareBytes. What picklers write takes up to 65
// times: a list of empty lists, of a byte each if they are not in the memo.
const (
	ratio      = 64
	spareBytes = 8 << 20
)

// NewReader returns a Reader of the first size bytes of r.
func NewReader(r io.Reader, size int64) *Reader {
	return &Reader{in: bufio.NewReader(r), left: size, size: size}
}

// Limit returns the most bytes that the values may take: 64 times the bytes that were read, and 8 MiB.
func (r *Reader) Limit() int64 {
	return ratio*min(r.Offset(), math.MaxInt64/ratio-spareBytes) + spareBytes
}

// Offset returns the number of bytes that were read.
func (r *Reader) Offset() int64 { return r.size - r.left }

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
}

// unset is the value of a memo's place that was not set.
type unset struct{}

// errStop is the error with which STOP ends the loop.
var errStop = errors.New("stop")

// Read reads one pickle.
func (r *Reader) Read() (any, error) {
	r.stack, r.marks, r.memo = r.stack[:0], r.marks[:0], nil
	for {
		at := r.Offset()
		op, err := r.byte()
		if err == nil {
			err = r.do(op)
		}
		switch {
		case err == errStop:
			v, err := r.pop()
			if err == nil && (len(r.stack) != 0 || len(r.marks) != 0) {
				err = malformed("%d values are left on the stack", len(r.stack)+1)
			}
			return v, err
		case err != nil:
			return nil, fmt.Errorf("%w (at byte %d of the pickle)", err, at)
		}
	}
}

// use counts n bytes of memory before they are allocated.
func (r *Reader) use(n int64) error {
	if r.used += n; r.used > r.Limit() {
		return malformed("its values take more than %d times its size", ratio)
	}
	return nil
}

// Use counts n bytes that the caller allocates for values.
func (r *Reader) Use(n int) error { return r.use(int64(n)) }

func (r *Reader) byte() (byte, error) {
	if r.left == 0 {
		return 0, malformed("it ends too early")
	}
	b, err := r.in.ReadByte()
	if err != nil {
		return 0, short(err)
	}
	r.left--
	return b, nil
}

// fixed reads n ≤ 8 bytes as a little-endian number.
func (r *Reader) fixed(n int) (uint64, error) {
	var b [8]byte
	if r.left < int64(n) {
		return 0, malformed("it ends too early")
	}
	if _, err := io.ReadFull(r.in, b[:n]); err != nil {
		return 0, short(err)
	}
	r.left -= int64(n)
	return binary.LittleEndian.Uint64(b[:]), nil
}

func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrFormat, io.ErrUnexpectedEOF)
	}
	return err
}

// bytes reads n bytes as a string. n comes from the pickle and is compared with what is left of the input first.
func (r *Reader) bytes(n uint64) (string, error) {
	if n > uint64(r.left) {
		return "", malformed("a string of %d bytes, and %d are left", n, r.left)
	}
	r.left -= int64(n)
	if err := r.use(int64(n)); err != nil {
		return "", err
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", short(err)
	}
	return unsafe.String(unsafe.SliceData(b), len(b)), nil
}

// counted reads a string after its length of width bytes.
func (r *Reader) counted(width int) (string, error) {
	n, err := r.fixed(width)
	if err != nil {
		return "", err
	}
	return r.bytes(n)
}

// maxLine is the length of a line: the name of a class, or a number in text.
const maxLine = 4096

func (r *Reader) line() (string, error) {
	var b strings.Builder
	for {
		c, err := r.byte()
		if err != nil {
			return "", err
		}
		if c == '\n' {
			return b.String(), r.use(int64(b.Len()))
		}
		if b.Len() == maxLine {
			return "", malformed("a line of more than %d bytes", maxLine)
		}
		b.WriteByte(c)
	}
}

// Sizes of values in memory, with room for the growth of slices.
const (
	slotBytes  = 32 // a slot of the stack, a list or the memo, or half an item of a dict
	tupleBytes = 48
	emptyBytes = 32 // a list, dict or set without its slots
	boxBytes   = 16
)

// grown returns s with room for n more elements. It doubles s, so that a slice that grows takes at most 64 bytes an
// element in all; append takes up to 100.
func grown(s []any, n int) []any {
	if cap(s)-len(s) < n {
		s = slices.Grow(s, max(n, len(s)))
	}
	return s
}

func (r *Reader) push(v any) error {
	r.stack = append(grown(r.stack, 1), v)
	if len(r.stack) <= r.most {
		return nil
	}
	r.most = len(r.stack)
	return r.use(slotBytes)
}

// base returns the index of the first value above the topmost mark.
func (r *Reader) base() int {
	if len(r.marks) == 0 {
		return 0
	}
	return r.marks[len(r.marks)-1]
}

func (r *Reader) pop() (any, error) {
	n := len(r.stack)
	if n <= r.base() {
		return nil, malformed("the stack is empty")
	}
	v := r.stack[n-1]
	r.stack = r.stack[:n-1]
	return v, nil
}

func (r *Reader) top() (any, error) {
	if len(r.stack) <= r.base() {
		return nil, malformed("the stack is empty")
	}
	return r.stack[len(r.stack)-1], nil
}

// marked pops the topmost mark and returns the values above it, which are valid until the next push.
func (r *Reader) marked() ([]any, error) {
	if len(r.marks) == 0 {
		return nil, malformed("no mark")
	}
	at := r.base()
	r.marks = r.marks[:len(r.marks)-1]
	values := r.stack[at:]
	r.stack = r.stack[:at]
	return values, nil
}

// tuple replaces the topmost n values by a tuple of them.
func (r *Reader) tuple(n int) error {
	if len(r.stack)-r.base() < n {
		return malformed("the stack is empty")
	}
	return r.tupleOf(r.popN(n))
}

func (r *Reader) popN(n int) []any {
	values := r.stack[len(r.stack)-n:]
	r.stack = r.stack[:len(r.stack)-n]
	return values
}

func (r *Reader) tupleOf(values []any) error {
	if err := r.use(tupleBytes + 16*int64(len(values))); err != nil {
		return err
	}
	return r.push(append(make(Tuple, 0, len(values)), values...))
}

// do executes one operation.
func (r *Reader) do(op byte) error {
	switch op {
	case '.': // STOP
		return errStop
	case 0x80: // PROTO
		version, err := r.byte()
		if err == nil && version > 5 {
			err = malformed("protocol %d", version)
		}
		return err
	case 0x95: // FRAME
		_, err := r.fixed(8)
		return err
	case '(': // MARK
		r.marks = append(r.marks, len(r.stack))
		return r.use(boxBytes)
	case '0': // POP
		if len(r.marks) > 0 && len(r.stack) == r.base() {
			r.marks = r.marks[:len(r.marks)-1]
			return nil
		}
		_, err := r.pop()
		return err
	case '1': // POP_MARK
		_, err := r.marked()
		return err
	case '2': // DUP
		v, err := r.top()
		if err != nil {
			return err
		}
		return r.push(v)
	case 'N':
		return r.push(nil)
	case 0x88:
		return r.push(true)
	case 0x89:
		return r.push(false)
	case 'I', 'L', 'F', 'S', 'V':
		return r.text(op)
	case 'J', 'K', 'M', 'G', 0x8a, 0x8b:
		return r.number(op)
	case 'X', 'U', 'T', 'C', 'B', 0x8c, 0x8d, 0x8e, 0x96:
		return r.str(op)
	case 'q', 'r', 'p', 0x94, 'h', 'j', 'g':
		return r.memoized(op)
	case 'c', 'i', 0x93:
		return r.class(op)
	case 'R', 0x81, 'o', 'b', 'P', 'Q', 0x92:
		return r.call(op)
	}
	return r.container(op)
}

// text reads the values that protocol 0 writes as lines.
func (r *Reader) text(op byte) error {
	s, err := r.line()
	if err != nil {
		return err
	}
	if err := r.use(boxBytes); err != nil {
		return err
	}
	switch op {
	case 'I':
		if s == "00" || s == "01" {
			return r.push(s == "01")
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return malformed("%q is not an integer", s)
		}
		return r.push(n)
	case 'L':
		n, ok := new(big.Int).SetString(strings.TrimSuffix(s, "L"), 10)
		if !ok {
			return malformed("%q is not an integer", s)
		}
		return r.push(small(n))
	case 'F':
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return malformed("%q is not a number", s)
		}
		return r.push(f)
	}
	// A quoted str or a unicode string with escapes, of which PyTorch's files of protocol 0 contain none.
	if op == 'S' {
		if len(s) < 2 || s[0] != s[len(s)-1] || s[0] != '\'' && s[0] != '"' {
			return malformed("a string without quotes")
		}
		s = s[1 : len(s)-1]
	}
	if strings.ContainsAny(s, `\`) || !utf8.ValidString(s) {
		return malformed("a string with escapes")
	}
	return r.push(s)
}

// small returns n as an int64 if it fits.
func small(n *big.Int) any {
	if n.IsInt64() {
		return n.Int64()
	}
	return n
}

func (r *Reader) number(op byte) error {
	if err := r.use(boxBytes); err != nil {
		return err
	}
	switch op {
	case 'J':
		n, err := r.fixed(4)
		if err != nil {
			return err
		}
		return r.push(int64(int32(n)))
	case 'K', 'M':
		n, err := r.fixed(map[byte]int{'K': 1, 'M': 2}[op])
		if err != nil {
			return err
		}
		return r.push(int64(n))
	case 'G':
		n, err := r.fixed(8)
		if err != nil {
			return err
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], n)
		return r.push(math.Float64frombits(binary.BigEndian.Uint64(b[:])))
	}
	s, err := r.counted(map[byte]int{0x8a: 1, 0x8b: 4}[op])
	if err != nil {
		return err
	}
	if err := r.use(2 * int64(len(s))); err != nil {
		return err
	}
	return r.push(small(long(s)))
}

// long decodes a little-endian number in two's complement.
func long(s string) *big.Int {
	b := make([]byte, len(s))
	for i := range s {
		b[len(s)-1-i] = s[i]
	}
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return n
}

func (r *Reader) str(op byte) error {
	width := map[byte]int{'X': 4, 'U': 1, 'T': 4, 'C': 1, 'B': 4, 0x8c: 1, 0x8d: 8, 0x8e: 8, 0x96: 8}[op]
	if err := r.use(boxBytes); err != nil {
		return err
	}
	s, err := r.counted(width)
	if err != nil {
		return err
	}
	switch op {
	case 'X', 0x8c, 0x8d:
		if !utf8.ValidString(s) {
			return malformed("a string that is not UTF-8")
		}
		return r.push(s)
	case 'U', 'T': // a str of Python 2
		for i := range len(s) {
			if s[i] >= 0x80 {
				return r.push(Bytes(s))
			}
		}
		return r.push(s)
	}
	return r.push(Bytes(s))
}

// maxGap is the most places of the memo that may be left out.
const maxGap = 256

func (r *Reader) memoized(op byte) error {
	n, err := uint64(len(r.memo)), error(nil)
	switch op {
	case 'q', 'h':
		n, err = r.fixed(1)
	case 'r', 'j':
		n, err = r.fixed(4)
	case 'p', 'g':
		var s string
		if s, err = r.line(); err == nil {
			if n, err = strconv.ParseUint(s, 10, 32); err != nil {
				err = malformed("%q is not a number", s)
			}
		}
	}
	if err != nil {
		return err
	}
	if op == 'h' || op == 'j' || op == 'g' {
		if n >= uint64(len(r.memo)) || r.memo[n] == (unset{}) {
			return malformed("nothing was stored under %d", n)
		}
		return r.push(r.memo[n])
	}
	v, err := r.top()
	if err != nil {
		return err
	}
	// Python's picklers count from 0 or 1.
	if n > uint64(len(r.memo))+maxGap {
		return malformed("entry %d of the memo, which has %d", n, len(r.memo))
	}
	for n >= uint64(len(r.memo)) {
		if err := r.use(slotBytes); err != nil {
			return err
		}
		r.memo = append(r.memo, unset{})
	}
	r.memo[n] = v
	return nil
}

func (r *Reader) class(op byte) error {
	var c Class
	if op == 0x93 {
		name, err := r.pop()
		if err != nil {
			return err
		}
		module, err := r.pop()
		if err != nil {
			return err
		}
		var ok [2]bool
		c.Module, ok[0] = module.(string)
		c.Name, ok[1] = name.(string)
		if ok != [2]bool{true, true} || len(c.Module) > maxLine || len(c.Name) > maxLine {
			return malformed("a class whose name is not a string")
		}
	} else {
		var err error
		if c.Module, err = r.line(); err != nil {
			return err
		}
		if c.Name, err = r.line(); err != nil {
			return err
		}
	}
	v, err := r.resolve(c)
	if err != nil {
		return err
	}
	if op != 'i' { // GLOBAL, STACK_GLOBAL
		return r.push(v)
	}
	args, err := r.marked() // INST
	if err != nil {
		return err
	}
	if err := r.tupleOf(args); err != nil {
		return err
	}
	a, err := r.pop()
	if err != nil {
		return err
	}
	return r.reduce(v, a)
}

func (r *Reader) resolve(c Class) (any, error) {
	if r.Class == nil {
		return nil, malformed("it refers to %q", c.String())
	}
	if err := r.use(tupleBytes); err != nil {
		return nil, err
	}
	return r.Class(c)
}

func (r *Reader) reduce(f, args any) error {
	a, ok := args.(Tuple)
	if !ok || r.Reduce == nil {
		return malformed("a call without a tuple of arguments")
	}
	v, err := r.Reduce(f, a)
	if err != nil {
		return err
	}
	return r.push(v)
}

func (r *Reader) call(op byte) error {
	switch op {
	case 'R', 0x81, 0x92: // REDUCE, NEWOBJ, NEWOBJ_EX
		var named any
		if op == 0x92 {
			var err error
			if named, err = r.pop(); err != nil {
				return err
			}
		}
		args, err := r.pop()
		if err != nil {
			return err
		}
		f, err := r.pop()
		if err != nil {
			return err
		}
		if _, ok := f.(*Object); !ok && named != nil {
			return malformed("a call with arguments by name")
		}
		return r.reduce(f, args)
	case 'b':
		state, err := r.pop()
		if err != nil {
			return err
		}
		v, err := r.top()
		if err != nil {
			return err
		}
		if r.Build == nil {
			return malformed("a state for an object")
		}
		return r.Build(v, state)
	case 'P', 'Q':
		if op == 'P' || r.Persistent == nil {
			return malformed("an object outside of the pickle")
		}
		id, err := r.pop()
		if err != nil {
			return err
		}
		v, err := r.Persistent(id)
		if err != nil {
			return err
		}
		return r.push(v)
	}
	return malformed("operation %#02x is not supported", op)
}

func (r *Reader) container(op byte) error {
	switch op {
	case ')':
		return r.push(Tuple(nil))
	case 0x85, 0x86, 0x87:
		return r.tuple(int(op - 0x84))
	case ']', '}', 0x8f:
		if err := r.use(emptyBytes); err != nil {
			return err
		}
		switch op {
		case ']':
			return r.push(&List{})
		case '}':
			return r.push(&Dict{})
		}
		return r.push(&Set{})
	case 'a', 's':
		return r.one(op)
	case 't', 'l', 'd', 'e', 'u', 0x90, 0x91:
		values, err := r.marked()
		if err != nil {
			return err
		}
		return r.many(op, values)
	}
	return malformed("operation %#02x is not supported", op)
}

// one executes APPEND and SETITEM.
func (r *Reader) one(op byte) error {
	n := 1
	if op == 's' {
		n = 2
	}
	if len(r.stack)-r.base() < n+1 {
		return malformed("the stack is empty")
	}
	return r.add(r.popN(n), op == 's')
}

func (r *Reader) many(op byte, values []any) error {
	switch op {
	case 't':
		return r.tupleOf(values)
	case 'e':
		return r.add(values, false)
	case 'u':
		return r.add(values, true)
	}
	var into any
	switch op {
	case 'l':
		into = &List{}
	case 'd':
		into = &Dict{}
	case 0x91:
		into = &Set{}
	case 0x90:
		set, err := r.top()
		if err != nil {
			return err
		}
		switch set.(type) {
		case *Set, *Object:
			return r.fill(set, values)
		}
		return malformed("ADDITEMS to another object than a set")
	}
	if err := r.use(emptyBytes); err != nil {
		return err
	}
	if err := r.fill(into, values); err != nil {
		return err
	}
	return r.push(into)
}

// add adds values to the list, dict or other object on top of the stack.
func (r *Reader) add(values []any, pairs bool) error {
	into, err := r.top()
	if err != nil {
		return err
	}
	switch into.(type) {
	case *Object:
		return r.fill(into, values)
	case *List:
		if !pairs {
			return r.fill(into, values)
		}
	case *Dict:
		if pairs {
			return r.fill(into, values)
		}
	}
	return malformed("values are added to an object that takes none")
}

func (r *Reader) fill(into any, values []any) error {
	if err := r.use(slotBytes * int64(len(values))); err != nil {
		return err
	}
	switch into := into.(type) {
	case *List:
		into.Items = append(grown(into.Items, len(values)), values...)
	case *Set:
		into.Items = append(grown(into.Items, len(values)), values...)
	case *Dict:
		if len(values)%2 != 0 {
			return malformed("a dict with a key without a value")
		}
		for i := 0; i < len(values); i += 2 {
			into.Items = append(into.Items, Item{values[i], values[i+1]})
		}
	}
	return nil
}
