package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// bytesOf returns a file with this header and this much data.
func bytesOf(head string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	return append(append(b, head...), make([]byte, data)...)
}

func write1(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// touch loads a file and reads everything that it can.
func touch(path string, opts ...Option) error {
	f, err := Load(path, opts...)
	if err != nil {
		return err
	}
	defer f.Close()
	return tensor.WithScope(func() error {
		var first error
		for i, name := range f.Names() {
			if i == 100 {
				break
			}
			x := f.Tensor(name)
			if err := x.Err(); err != nil {
				first = errors.Join(first, err)
				continue
			}
			if x.Numel() > 0 && x.DType() != tensor.Bool {
				if err := x.AsStrided([]int{1}, []int{1}, tensor.StorageOffset(x.StorageOffset())).Mul_(1).Err(); err != nil && !errors.Is(err, tensor.ErrNotImplemented) {
					first = errors.Join(first, err)
				}
			}
		}
		return first
	})
}

func TestHostileFiles(t *testing.T) {
	leak.Check(t)
	one := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	if err := touch(write1(t, bytesOf(one, 8))); err != nil {
		t.Fatalf("the good file: %v", err)
	}
	cases := map[string][]byte{
		"empty":                  {},
		"seven bytes":            make([]byte, 7),
		"no header":              make([]byte, 8),
		"header beyond the file": binary.LittleEndian.AppendUint64(nil, 1<<20),
		"header of 2⁶⁴-1":        append(bytes.Repeat([]byte{0xff}, 8), one...),
		"header of 2⁶³":          append(binary.LittleEndian.AppendUint64(nil, 1<<63), one...),
		"header of 101 MB":       append(binary.LittleEndian.AppendUint64(nil, 101_000_000), one...),
		"data missing":           bytesOf(one, 7),
		"data left over":         bytesOf(one, 9),
		"cut":                    bytesOf(one[:30], 8),
		"not an object":          bytesOf(`[1,2]`, 0),
		"space first":            bytesOf(" "+one, 8),
		"something after":        bytesOf(one+"{}", 8),
		"zero bytes after":       bytesOf(one+"\x00", 8),
		"not UTF-8":              bytesOf("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8),
	}
	for name, head := range map[string]string{
		"deep":                strings.Repeat("[", 1<<20),
		"deep in an entry":    `{"a":` + strings.Repeat(`{"a":`, 1<<20),
		"doubled tensor":      `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`,
		"doubled by escape":   `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`,
		"doubled field":       `{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"doubled metadata":    `{"__metadata__":{},"__metadata__":{},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"doubled remark":      `{"__metadata__":{"k":"1","k":"2"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"metadata not text":   `{"__metadata__":{"k":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"unknown field":       `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}`,
		"missing field":       `{"a":{"dtype":"F32","data_offsets":[0,8]}}`,
		"unknown dtype":       `{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}}`,
		"lower-case dtype":    `{"a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}}`,
		"overlap":             `{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}}`,
		"gap":                 `{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}}`,
		"gap at the start":    `{"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}}`,
		"same place":          `{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}`,
		"backwards":           `{"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}}`,
		"negative offset":     `{"a":{"dtype":"U8","shape":[8],"data_offsets":[-8,0]}}`,
		"one offset":          `{"a":{"dtype":"U8","shape":[8],"data_offsets":[8]}}`,
		"three offsets":       `{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}}`,
		"offset of 2⁶⁴":       `{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551624]}}`,
		"shape too large":     `{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`,
		"shape wraps":         `{"a":{"dtype":"U8","shape":[4294967296,4294967296,8],"data_offsets":[0,8]}}`,
		"bytes wrap":          `{"a":{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}}`,
		"large beside zero":   `{"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}`,
		"negative dimension":  `{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`,
		"fraction":            `{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`,
		"exponent":            `{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}`,
		"leading zero":        `{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}`,
		"dimension as text":   `{"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}`,
		"many dimensions":     `{"a":{"dtype":"F32","shape":[` + strings.Repeat("1,", 1000) + `2],"data_offsets":[0,8]}}`,
		"half a byte":         `{"a":{"dtype":"F4","shape":[15],"data_offsets":[0,8]}}`,
		"trailing comma":      `{"a":{"dtype":"F32","shape":[2,],"data_offsets":[0,8]}}`,
		"no comma":            `{"a":{"dtype":"F32" "shape":[2],"data_offsets":[0,8]}}`,
		"bare word":           `{"a":{"dtype":"F32","shape":null,"data_offsets":[0,8]}}`,
		"control character":   "{\"a\x01\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
		"bad escape":          `{"\q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"half a surrogate":    `{"\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"surrogate, no pair":  `{"\ud800\u0041":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"low surrogate":       `{"\udc00":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"cut escape":          `{"\u00`,
		"lone backslash":      `{"\`,
		"name without an end": `{"aaaa`,
	} {
		cases[name] = bytesOf(head, 8)
	}
	for name, b := range cases {
		if err := touch(write1(t, b)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		} else if len(err.Error()) > 600 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a directory was loaded")
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestUnusualValidFiles(t *testing.T) {
	leak.Check(t)
	for name, b := range map[string][]byte{
		"nothing":          bytesOf(`{}`, 0),
		"metadata alone":   bytesOf(`{"__metadata__":{"k":"v"}}`, 0),
		"padding":          bytesOf(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   `, 8),
		"spaces":           bytesOf("{ \"a\" :\n{\"shape\": [ 2 ] , \"dtype\":\t\"F32\",\"data_offsets\":[0, 8]} }", 8),
		"empty name":       bytesOf(`{"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8),
		"scalar":           bytesOf(`{"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}`, 8),
		"empty tensors":    bytesOf(`{"a":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"c":{"dtype":"U8","shape":[7,0],"data_offsets":[8,8]}}`, 8),
		"beyond the plane": bytesOf(`{"\ud83d\ude00\n":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8),
		"not aligned":      bytesOf(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F64","shape":[1],"data_offsets":[3,11]}}`, 11),
	} {
		if err := touch(write1(t, b)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Many tensors, if they are not small.
	var many strings.Builder
	n := maxTensors(0) + 1
	for i := range n {
		fmt.Fprintf(&many, `,"%d":{"dtype":"U8","shape":[64],"data_offsets":[%d,%d]}`, i, 64*i, 64*(i+1))
	}
	if err := touch(write1(t, bytesOf("{"+many.String()[1:]+"}", 64*n))); err != nil {
		t.Errorf("%d tensors: %v", n, err)
	}
	// Formats of elements that Linstock has no tensors of.
	path := write1(t, bytesOf(`{"a":{"dtype":"F4","shape":[16],"data_offsets":[0,8]}}`, 8))
	if err := touch(path); err == nil || errors.Is(err, ErrFormat) {
		t.Errorf("F4: %v", err)
	}
	bools := bytesOf(`{"a":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}}`, 8)
	if err := touch(write1(t, bools)); err != nil {
		t.Errorf("bools: %v", err)
	}
	bools[len(bools)-2] = 2
	if err := touch(write1(t, bools)); !errors.Is(err, ErrFormat) {
		t.Errorf("a bool of 2: %v", err)
	}
}

// heapTotal returns the bytes that f allocates in total, which is at least its peak.
func heapTotal(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAllocationIsBoundedByTheFile(t *testing.T) {
	leak.Check(t)
	const spare = 16 << 20
	tensors := func(n int, name func(i int) string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"%s":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, name(i))
		}
		b.WriteByte('}')
		return b.String()
	}
	short := func(i int) string { return fmt.Sprintf("%x", i) }
	remarks := func(n int, key string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"%s%x":""`, key, i)
		}
		return `{"__metadata__":{` + b.String() + `}}`
	}
	for name, head := range map[string]string{
		"as many tensors as allowed":   tensors(maxTensors(0), short),
		"more tensors than allowed":    tensors(maxTensors(0)+50_000, short),
		"fields with escapes":          strings.ReplaceAll(tensors(maxTensors(0), short), "data_", `data\u005f`),
		"names with escapes":           tensors(maxTensors(0), func(i int) string { return fmt.Sprintf(`\n%x`, i) }),
		"long names":                   tensors(2000, func(i int) string { return fmt.Sprintf("%x%s", i, strings.Repeat("x", 20_000)) }),
		"long names with escapes":      tensors(2000, func(i int) string { return fmt.Sprintf(`%x\n%s`, i, strings.Repeat("x", 20_000)) }),
		"long name, twice":             `{"` + strings.Repeat("x", 1<<24) + `":{},"` + strings.Repeat("x", 1<<24) + `":{}}`,
		"one long escaped name":        `{"` + strings.Repeat(`\u0041`, 1<<22) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`,
		"as many remarks as allowed":   remarks(maxMetadata, ""),
		"more remarks than allowed":    remarks(1_000_000, ""),
		"remarks with escapes":         remarks(maxMetadata, `\t`),
		"offsets in a string":          `{"` + strings.Repeat(`\"data_offsets\"`, 1<<20) + `":{}}`,
		"offsets in a name":            `{"__metadata__":{"x":"` + strings.Repeat(`data_offsets`, 1<<20) + `"}}`,
		"a large number of dimensions": `{"a":{"dtype":"U8","shape":[` + strings.Repeat("0,", 1<<22) + `0],"data_offsets":[0,0]}}`,
		"a million empty objects":      "{" + strings.Repeat(`"a":{},`, 1_000_000) + `"a":{}}`,
		"spaces":                       "{" + strings.Repeat(" ", 1<<24) + "}",
	} {
		path := write1(t, bytesOf(head, 0))
		size := uint64(len(head) + 8)
		var err error
		if got := heapTotal(func() { err = touch(path) }); got > size+spare {
			t.Errorf("%s: %d bytes allocated for a file of %d (%v)", name, got, size, err)
		}
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// valueFile returns a training checkpoint with one value of this dtype and with these bytes.
func valueFile(dtype string, n int, value []byte) []byte {
	head := fmt.Sprintf(`{"__metadata__":{"linstock":"%s"},"value.v":{"dtype":"%s","shape":[%d],"data_offsets":[0,%d]}}`, format, dtype, n, len(value))
	return append(bytesOf(head, 0), value...)
}

// Hostile values: a claimed size allocates no memory before the data is read.
func TestHostileValues(t *testing.T) {
	leak.Check(t)
	count := func(major byte, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{major<<5 | 26}, n) }
	type record struct {
		A, B string
		C    []*record
	}
	for name, c := range map[string]struct {
		value []byte
		ok    bool // for a variable of type any
	}{
		"good":                   {[]byte{3}, true},
		"nothing":                {nil, false},
		"something after":        {[]byte{3, 3}, false},
		"cut":                    {[]byte{0x82, 1}, false},
		"2 GiB of text":          {count(3, 1<<31-1), false},
		"2³¹ elements":           {count(4, 1<<31-1), false},
		"2³² elements":           {count(4, 1<<32-1), false},
		"2³¹ keys":               {count(5, 1<<31-1), false},
		"2⁶⁴ elements":           {[]byte{0x9b, 255, 255, 255, 255, 255, 255, 255, 255}, false},
		"counts within counts":   {bytes.Repeat(count(4, 1<<31-1), 1000), false},
		"no end":                 {[]byte{0x9f, 1, 1}, false},
		"indefinite":             {[]byte{0x9f, 1, 0xff}, false},
		"as deep as allowed":     {append(bytes.Repeat([]byte{0x81}, maxNesting), 1), true},
		"deeper":                 {append(bytes.Repeat([]byte{0x81}, maxNesting+1), 1), false},
		"a million levels":       {append(bytes.Repeat([]byte{0x81}, 1_000_000), 1), false},
		"tags of tags":           {append(bytes.Repeat([]byte{0xc2}, 1_000_000), 0x41, 1), false},
		"200,000 lists":          {append(count(4, 200_000), bytes.Repeat([]byte{0x80}, 200_000)...), true},
		"200,000 maps":           {append(count(4, 200_000), bytes.Repeat([]byte{0xa0}, 200_000)...), true},
		"one key many times":     {append(count(5, 500_000), bytes.Repeat([]byte{0x61, 'a', 0}, 500_000)...), true},
		"keys of another type":   {[]byte{0xa1, 1, 2}, false},
		"a list as key":          {[]byte{0xa1, 0x80, 2}, false},
		"a large number":         {append([]byte{0xc2}, append(count(2, 1<<20), bytes.Repeat([]byte{255}, 1<<20)...)...), false},
		"a time that is none":    {[]byte{0xc0, 0x62, 'n', 'o'}, false},
		"tags within tags":       {append(bytes.Repeat([]byte{0xd0}, maxNesting-1), 1), true},
		"more tags":              {append(bytes.Repeat([]byte{0xd0}, maxNesting+2), 1), false},
		"a simple value":         {[]byte{0xe3}, false},
		"reserved":               {[]byte{0xfc}, false},
		"text that is not UTF-8": {[]byte{0x61, 0xff}, true},
	} {
		b := valueFile("U8", len(c.value), c.value)
		path := write1(t, b)
		var v any
		var err error
		if got := heapTotal(func() { err = LoadValues(path, Value("v", &v)) }); got > 100*uint64(len(b))+16<<20 {
			t.Errorf("%s: %d bytes allocated for a file of %d", name, got, len(b))
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		// Other types may return an error; they must not crash.
		for _, part := range []Part{Value("v", &[]record{}), Value("v", &map[string]record{}), Value("v", &[]*record{}), Value("v", new(string)), Value("v", new([2]float32)),
			Value("v", &[]byte{}), Value("v", &[][]int{}), Value("v", &struct{ T map[[2]int]float64 }{})} {
			if err := LoadValues(path, part); err != nil && len(err.Error()) > 600 {
				t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
			}
		}
	}
	bools := []bool{true}
	if err := LoadValues(write1(t, valueFile("BOOL", 2, []byte{1, 2})), Value("v", &bools)); !errors.Is(err, ErrFormat) || len(bools) != 1 {
		t.Errorf("a bool of 2: %v, %v", bools, err)
	}
	floats := []float32{1}
	for _, b := range [][]byte{valueFile("F64", 1, make([]byte, 8)), valueFile("F32", 1, make([]byte, 8)), valueFile("I32", 2, make([]byte, 8))} {
		if err := LoadValues(write1(t, b), Value("v", &floats)); err == nil || len(floats) != 1 {
			t.Errorf("%v, %v", floats, err)
		}
	}
}

// FuzzValue checks that reading any value either fails or gives a value that can be saved and read again.
func FuzzValue(f *testing.F) {
	for _, v := range []any{3, -1.5, "text", nil, []any{true, 2}, map[string]any{"a": []byte{1}, "b": map[string]any{}}, time.Unix(1, 0)} {
		b, err := encoding.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	type record struct {
		A string
		B []float32
		C map[string]*record
		D any
		T time.Time
		N *big.Int
	}
	path := filepath.Join(f.TempDir(), "x.safetensors")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, valueFile("U8", len(b), b), 0o666); err != nil {
			t.Fatal(err)
		}
		fuzzOne[any](t, path)
		fuzzOne[record](t, path)
		fuzzOne[[]string](t, path)
		fuzzOne[map[int]float64](t, path)
	})
}

func fuzzOne[T any](t *testing.T, path string) {
	var v, again T
	if err := LoadValues(path, Value("v", &v)); err != nil {
		return
	}
	c, err := encode(&v)
	if err != nil {
		t.Logf("%T: %v", v, err) // Save returns an error
		return
	}
	var b bytes.Buffer
	if err := c.write(&b); err != nil {
		t.Fatal(err)
	}
	if err := decoding.Unmarshal(b.Bytes(), &again); err != nil {
		t.Errorf("%T: it was saved and cannot be read: %v", v, err)
	}
}

// A file that cannot be read to its end is an error, not a crash.
func TestShortReads(t *testing.T) {
	leak.Check(t)
	good := bytesOf(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8)
	for n := range len(good) {
		if err := touch(write1(t, good[:n])); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v", n, len(good), err)
		}
	}
}

// An error leaves no tensor behind, and a closed file gives none, not even an empty one.
func TestFailedReadsLeaveNothing(t *testing.T) {
	leak.Check(t)
	header := `{"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},"none":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}}`
	for _, mapped := range []bool{false, true} {
		f, err := Load(write1(t, append(bytesOf(header, 0), 1, 7)), Mapped(mapped))
		if err != nil {
			t.Fatal(err)
		}
		before := allocated(t)
		if err := f.Tensor("x").Err(); err == nil {
			t.Error("a bool that is 7 gives no error")
		}
		if after := allocated(t); after != before {
			t.Errorf("mapped %v: a failed read holds %d bytes", mapped, after-before)
		}
		none := f.Tensor("none")
		if err := none.Err(); err != nil || none.Numel() != 0 {
			t.Errorf("an empty tensor: %v, %v", none, err)
		}
		none.Release()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"x", "none"} {
			if err := f.Tensor(name).Err(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("mapped %v: %q of a closed file: %v", mapped, name, err)
			}
		}
	}
}

func allocated(t *testing.T) int64 {
	t.Helper()
	s, err := vram.Stats(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return s.Allocated
}
