package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/linstock-ml/linstock/tensor"
)

// Limits on a header. They bound the memory that a hostile file can make Load allocate to the file's size plus
// 16 MiB: the header is read once, its strings are substrings of it, and a tensor's entry takes 52 bytes more.
const (
	maxHeader   = 100_000_000 // the reference implementation's
	maxMetadata = 1 << 14
	maxDims     = 64
)

// maxTensors returns the number of tensors that a file with this many bytes of data may list.
func maxTensors(dataSize int64) int { return int(max(1<<17, min(dataSize/64, maxHeader))) }

// ErrFormat reports a file that is not valid, or not of a format that Load reads. Use errors.Is to test for it.
var ErrFormat = errors.New("invalid file")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
}

// elementTypes are the dtypes of the format with their names in it.
var elementTypes = []struct {
	name  string
	bits  int
	dtype tensor.DType
}{
	{"BOOL", 8, tensor.Bool}, {"U8", 8, tensor.Uint8}, {"I8", 8, tensor.Int8}, {"U16", 16, tensor.Uint16}, {"I16", 16, tensor.Int16},
	{"U32", 32, tensor.Uint32}, {"I32", 32, tensor.Int32}, {"U64", 64, tensor.Uint64}, {"I64", 64, tensor.Int64},
	{"F16", 16, tensor.Float16}, {"BF16", 16, tensor.BFloat16}, {"F32", 32, tensor.Float32}, {"F64", 64, tensor.Float64}, {"C64", 64, tensor.Complex64},
	{"F8_E5M2", 8, tensor.Float8E5M2}, {"F8_E4M3", 8, tensor.Float8E4M3FN},
	{"F8_E5M2FNUZ", 8, tensor.Float8E5M2FNUZ}, {"F8_E4M3FNUZ", 8, tensor.Float8E4M3FNUZ},
	// A file may contain these, but Linstock has no tensors of them.
	{"F4", 4, tensor.Invalid}, {"F6_E2M3", 6, tensor.Invalid}, {"F6_E3M2", 6, tensor.Invalid}, {"F8_E8M0", 8, tensor.Invalid},
}

// entry is a tensor in the file. Its shape stays as text in the header and is parsed on demand.
type entry struct {
	name       string
	begin, end int64 // offsets in the data
	shapeAt    int32 // offset of the shape's list in the header
	element    uint8 // index in elementTypes
}

type header struct {
	text     []byte
	entries  []entry // sorted by name
	metadata map[string]string
}

// headerSize reads the first eight bytes of a file.
func headerSize(first [8]byte, fileSize int64) (int, error) {
	n := binary.LittleEndian.Uint64(first[:])
	switch {
	case n > maxHeader:
		return 0, malformed("a header of %d bytes; %d are allowed", n, maxHeader)
	case n > uint64(fileSize-8):
		return 0, malformed("a header of %d bytes in a file of %d", n, fileSize)
	case n < 2:
		return 0, malformed("a header of %d bytes", n)
	}
	return int(n), nil
}

// parseHeader parses and checks the header of a file with dataSize bytes of data. The strings of the result are
// substrings of text; strings with escapes are decoded in place.
func parseHeader(text []byte, dataSize int64) (*header, error) {
	if len(text) == 0 || text[0] != '{' {
		return nil, malformed("the header does not begin with {")
	}
	if !utf8.Valid(text) {
		return nil, malformed("the header is not UTF-8")
	}
	// One allocation for all entries: growing a list would need memory for two copies.
	n, most := bytes.Count(text, []byte(`"data_offsets"`)), maxTensors(dataSize)
	if n > most {
		return nil, malformed("more than %d tensors in %d bytes of data", most, dataSize)
	}
	h := &header{text: text, entries: make([]entry, 0, n), metadata: map[string]string{}}
	p := &parser{text: text}
	if err := h.read(p); err != nil {
		return nil, err
	}
	if err := h.checkNames(); err != nil {
		return nil, err
	}
	return h, h.checkOffsets(dataSize)
}

func (h *header) read(p *parser) error {
	hasMetadata := false
	err := p.object(func(name string) error {
		if name == "__metadata__" {
			if hasMetadata {
				return malformed("__metadata__ occurs twice")
			}
			hasMetadata = true
			return h.readMetadata(p)
		}
		e, err := p.entry(name)
		if err != nil {
			return fmt.Errorf("%w (tensor %s)", err, quoted(name))
		}
		if len(h.entries) == cap(h.entries) { // the count missed "data_offsets" written with escapes
			return malformed("the field data_offsets of tensor %s is written with escapes", quoted(name))
		}
		h.entries = append(h.entries, e)
		return nil
	})
	if err != nil {
		return err
	}
	if p.space(); p.at != len(p.text) {
		return malformed("unexpected data after the header's object, at byte %d", p.at)
	}
	return nil
}

func (h *header) readMetadata(p *parser) error {
	return p.object(func(key string) error {
		if _, twice := h.metadata[key]; twice {
			return malformed("the metadata has %s twice", quoted(key))
		}
		if len(h.metadata) == maxMetadata {
			return malformed("more than %d entries of metadata", maxMetadata)
		}
		value, err := p.str()
		h.metadata[key] = value
		return err
	})
}

func (h *header) checkNames() error {
	slices.SortFunc(h.entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(h.entries); i++ {
		if h.entries[i].name == h.entries[i-1].name {
			return malformed("tensor %s occurs twice", quoted(h.entries[i].name))
		}
	}
	return nil
}

// checkOffsets checks that the tensors are contiguous, without overlap or gap, and fill the file.
func (h *header) checkOffsets(dataSize int64) error {
	byPlace := make([]int32, len(h.entries))
	for i := range byPlace {
		byPlace[i] = int32(i)
	}
	slices.SortFunc(byPlace, func(a, b int32) int {
		x, y := &h.entries[a], &h.entries[b]
		return cmp.Or(cmp.Compare(x.begin, y.begin), cmp.Compare(x.end, y.end))
	})
	at := int64(0)
	for _, i := range byPlace {
		e := &h.entries[i]
		if e.begin != at {
			return malformed("tensor %s begins at byte %d of the data, and byte %d was expected", quoted(e.name), e.begin, at)
		}
		at = e.end
	}
	if at != dataSize {
		return malformed("the tensors take %d bytes, and the file has %d for them", at, dataSize)
	}
	return nil
}

func (h *header) find(name string) (*entry, bool) {
	i, ok := slices.BinarySearchFunc(h.entries, name, func(e entry, name string) int { return strings.Compare(e.name, name) })
	if !ok {
		return nil, false
	}
	return &h.entries[i], true
}

// shape reads an entry's shape, which parseHeader has checked.
func (h *header) shape(e *entry) []int {
	p := &parser{text: h.text, at: int(e.shapeAt)}
	shape := []int{}
	_ = p.list(func() error {
		n, err := p.number()
		shape = append(shape, int(n))
		return err
	})
	return shape
}

// quoted quotes a name for an error message and truncates it if it is long.
func quoted(name string) string {
	const most = 80
	if len(name) > most {
		return fmt.Sprintf("%q…", name[:most])
	}
	return fmt.Sprintf("%q", name)
}

// parser parses the subset of JSON that a header may contain. Its depth of recursion is fixed by the format,
// not by the file.
type parser struct {
	text []byte
	at   int
}

func (p *parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// skip skips spaces and then c, and reports whether c was there.
func (p *parser) skip(c byte) bool {
	p.space()
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(c byte) error {
	if !p.skip(c) {
		return malformed("%q is missing in the header at byte %d", c, p.at)
	}
	return nil
}

// object parses { "key": value, … }; value parses the value of a key.
func (p *parser) object(value func(key string) error) error {
	if err := p.expect('{'); err != nil {
		return err
	}
	return p.items('}', func() error {
		key, err := p.str()
		if err != nil {
			return err
		}
		if err := p.expect(':'); err != nil {
			return err
		}
		return value(key)
	})
}

// list parses [ item, … ].
func (p *parser) list(item func() error) error {
	if err := p.expect('['); err != nil {
		return err
	}
	return p.items(']', item)
}

func (p *parser) items(closing byte, item func() error) error {
	if p.skip(closing) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if p.skip(closing) {
			return nil
		}
		if err := p.expect(','); err != nil {
			return err
		}
	}
}

// number parses a non-negative integer that fits an int.
func (p *parser) number() (int64, error) {
	p.space()
	start, n := p.at, int64(0)
	for ; p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9'; p.at++ {
		digit := int64(p.text[p.at] - '0')
		if n > (math.MaxInt-digit)/10 {
			return 0, malformed("the number at byte %d of the header is too large", start)
		}
		n = n*10 + digit
	}
	if p.at == start || p.text[start] == '0' && p.at > start+1 {
		return 0, malformed("no integer in the header at byte %d", start)
	}
	return n, nil
}

// str parses a string. The result is a substring of the header and needs no memory: a decoded escape is never
// longer than the escape and overwrites it.
func (p *parser) str() (string, error) {
	if err := p.expect('"'); err != nil {
		return "", err
	}
	start, end := p.at, p.at // text[start:end] is the string so far
	for p.at < len(p.text) {
		c := p.text[p.at]
		p.at++
		switch {
		case c == '"':
			return unsafe.String(unsafe.SliceData(p.text[start:]), end-start), nil
		case c < ' ':
			return "", malformed("a control character in a string at byte %d", p.at-1)
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			end += utf8.EncodeRune(p.text[end:p.at], r)
		case end < p.at-1:
			p.text[end] = c
			end++
		default:
			end++
		}
	}
	return "", malformed("the string at byte %d of the header does not end", start)
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape parses what follows a backslash.
func (p *parser) escape() (rune, error) {
	if p.at >= len(p.text) {
		return 0, malformed("the header ends within an escape")
	}
	c := p.text[p.at]
	p.at++
	if c != 'u' {
		r, ok := escapes[c]
		if !ok {
			return 0, malformed("invalid escape at byte %d of the header", p.at-2)
		}
		return r, nil
	}
	r, err := p.hex4()
	if err != nil {
		return 0, err
	}
	if r < 0xd800 || r > 0xdfff {
		return r, nil
	}
	// A character beyond the basic plane is written as two surrogates.
	if r > 0xdbff || !bytes.HasPrefix(p.text[p.at:], []byte(`\u`)) {
		return 0, malformed("half a surrogate pair at byte %d of the header", p.at)
	}
	p.at += 2
	low, err := p.hex4()
	if err != nil {
		return 0, err
	}
	if low < 0xdc00 || low > 0xdfff {
		return 0, malformed("half a surrogate pair at byte %d of the header", p.at)
	}
	return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, nil
}

func (p *parser) hex4() (rune, error) {
	if len(p.text)-p.at < 4 {
		return 0, malformed("the header ends within an escape")
	}
	var r rune
	for _, c := range p.text[p.at : p.at+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, malformed("invalid escape at byte %d of the header", p.at)
		}
	}
	p.at += 4
	return r, nil
}

// entry parses {"dtype": …, "shape": …, "data_offsets": …} and checks that the three agree.
func (p *parser) entry(name string) (entry, error) {
	e := entry{name: name}
	var seen [3]bool
	count := int64(1)
	err := p.object(func(key string) (err error) {
		field := slices.Index([]string{"dtype", "shape", "data_offsets"}, key)
		switch {
		case field < 0:
			return malformed("the field %s is unknown", quoted(key))
		case seen[field]:
			return malformed("the field %q occurs twice", key)
		}
		seen[field] = true
		switch field {
		case 0:
			e.element, err = p.element()
		case 1:
			e.shapeAt = int32(p.at)
			count, err = p.shape()
		case 2:
			e.begin, e.end, err = p.offsets()
		}
		return err
	})
	if err != nil {
		return e, err
	}
	if seen != [3]bool{true, true, true} {
		return e, malformed("dtype, shape or data_offsets is missing")
	}
	bits := int64(elementTypes[e.element].bits)
	if count > math.MaxInt64/bits || count*bits%8 != 0 || count*bits/8 != e.end-e.begin {
		return e, malformed("%d elements of %s do not take %d bytes", count, elementTypes[e.element].name, e.end-e.begin)
	}
	return e, nil
}

func (p *parser) element() (uint8, error) {
	name, err := p.str()
	if err != nil {
		return 0, err
	}
	for i := range elementTypes {
		if elementTypes[i].name == name {
			return uint8(i), nil
		}
	}
	return 0, malformed("the dtype %s is unknown", quoted(name))
}

// shape parses a shape and returns its number of elements. The product of the nonzero dimensions must fit an
// int too, since strides are products of them.
func (p *parser) shape() (count int64, err error) {
	dims, product, empty := 0, int64(1), false
	err = p.list(func() error {
		n, err := p.number()
		if err != nil {
			return err
		}
		if dims++; dims > maxDims {
			return malformed("more than %d dimensions", maxDims)
		}
		if n == 0 {
			empty = true
			return nil
		}
		if product > math.MaxInt/16/n {
			return malformed("the product of the shape is too large")
		}
		product *= n
		return nil
	})
	if empty {
		return 0, err
	}
	return product, err
}

func (p *parser) offsets() (begin, end int64, err error) {
	var pair [2]int64
	n := 0
	err = p.list(func() (err error) {
		if n == 2 {
			return malformed("more than two offsets")
		}
		pair[n], err = p.number()
		n++
		return err
	})
	if err == nil && (n != 2 || pair[0] > pair[1]) {
		err = malformed("invalid offsets %v", pair[:n])
	}
	return pair[0], pair[1], err
}
