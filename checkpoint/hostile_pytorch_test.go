package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// archiveFile returns a zip archive of these names and contents.
func archiveFile(t *testing.T, members ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		w, err := z.CreateHeader(&zip.FileHeader{Name: members[i], Method: zip.Store})
		if err == nil {
			_, err = w.Write([]byte(members[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pytorchFile returns a file of torch.save with this pickle and a storage "0" of 64 bytes.
func pytorchFile(t *testing.T, pickle string) []byte {
	t.Helper()
	return archiveFile(t, "archive/data.pkl", pickle, "archive/byteorder", "little", "archive/data/0", strings.Repeat("\x01", 64), "archive/version", "3\n")
}

func num(n int64) string {
	return "\x8a\x08" + string(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

func str(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

// tensorOf returns the operations for a tensor of a storage of that class and number of elements.
func tensorOf(class, key string, count, offset int64, shape, stride []int64) string {
	ints := func(v []int64) string {
		s := "("
		for _, n := range v {
			s += num(n)
		}
		return s + "t"
	}
	return "ctorch._utils\n_rebuild_tensor_v2\n((" + str("storage") + "ctorch\n" + class + "\n" + str(key) + str("cpu") + num(count) + "tQ" + num(offset) + ints(shape) + ints(stride) + "\x89ccollections\nOrderedDict\n)RtR"
}

func TestHostilePyTorchFiles(t *testing.T) {
	leak.Check(t)
	if err := touch(write1(t, pytorchFile(t, tensorOf("FloatStorage", "0", 16, 3, []int64{2, 3}, []int64{1, 4})+"."))); err != nil {
		t.Fatalf("the good file: %v", err)
	}
	cases := map[string][]byte{
		"no pickle":            archiveFile(t, "archive/data.pkl", "", "archive/version", "3\n"),
		"big-endian":           archiveFile(t, "a/data.pkl", "N.", "a/byteorder", "big"),
		"a member twice":       archiveFile(t, "a/data.pkl", "N.", "a/data.pkl", "N."),
		"a cut archive":        pytorchFile(t, "N.")[:200],
		"only the beginning":   []byte("PK\x03\x04"),
		"after the pickle":     pytorchFile(t, "N.N."),
		"checksum":             bytes.Replace(pytorchFile(t, "}("+str("checked")+"K\x01u."), []byte("checked"), []byte("changed"), 1),
		"legacy, cut":          []byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."),
		"legacy, no storages":  []byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\x00\x00\x00little_endian\x88s.N.](X\x01\x00\x00\x000e."),
		"legacy, other number": []byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02K\x01."),
	}
	inner := strings.Repeat("K\x00", 100)
	for name, text := range map[string]string{
		"a system call":         "cos\nsystem\n(" + str("true") + "tR.",
		"eval":                  "cbuiltins\neval\n.",
		"getattr":               "c__builtin__\ngetattr\n.",
		"a module":              "(" + str("module") + "NNNtQ.",
		"another reference":     "(" + str("x") + "NNNNtQ.",
		"a call of a tensor":    tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1}) + ")R.",
		"beyond the storage":    tensorOf("FloatStorage", "0", 16, 14, []int64{3}, []int64{1}) + ".",
		"offset beyond":         tensorOf("FloatStorage", "0", 16, 1<<62, []int64{1}, []int64{1}) + ".",
		"stride beyond":         tensorOf("FloatStorage", "0", 16, 0, []int64{2}, []int64{1 << 62}) + ".",
		"strides overflow":      tensorOf("FloatStorage", "0", 16, 0, []int64{3, 3}, []int64{1 << 62, 1 << 62}) + ".",
		"negative stride":       tensorOf("FloatStorage", "0", 16, 15, []int64{2}, []int64{-1}) + ".",
		"negative offset":       tensorOf("FloatStorage", "0", 16, -1, []int64{1}, []int64{1}) + ".",
		"negative shape":        tensorOf("FloatStorage", "0", 16, 0, []int64{-1}, []int64{1}) + ".",
		"shape overflows":       tensorOf("FloatStorage", "0", 16, 0, []int64{1 << 62, 1 << 62}, []int64{0, 0}) + ".",
		"more strides":          tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1, 1}) + ".",
		"65 dimensions":         tensorOf("FloatStorage", "0", 16, 0, make([]int64, 65), make([]int64, 65)) + ".",
		"a larger storage":      tensorOf("FloatStorage", "0", 17, 0, []int64{1}, []int64{1}) + ".",
		"a huge storage":        tensorOf("DoubleStorage", "0", 1<<62, 0, []int64{1}, []int64{1}) + ".",
		"a negative storage":    tensorOf("FloatStorage", "0", -1, 0, []int64{1}, []int64{1}) + ".",
		"a storage not there":   tensorOf("FloatStorage", "1", 16, 0, []int64{1}, []int64{1}) + ".",
		"a storage elsewhere":   tensorOf("FloatStorage", "../version", 1, 0, []int64{1}, []int64{1}) + ".",
		"an unknown class":      tensorOf("XStorage", "0", 16, 0, []int64{1}, []int64{1}) + ".",
		"too deep":              strings.Repeat("]", 2000) + tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1}) + strings.Repeat("a", 2000) + ".",
		"shared 2^30 times":     "](" + inner + "e" + double(30) + ".",
		"wide and shared":       "](" + strings.Repeat("N", 50_000) + "eq\x00]q\x01(" + strings.Repeat("h\x00", 50_000) + "e.",
		"a dict as key":         "}}Ns.",
		"a list as the one key": "}]Ns.",
		"an infinity of text":   "X\xff\xff\xff\x7f",
		"long names, nested":    longNames(),
	} {
		cases[name] = pytorchFile(t, text)
	}
	for name, b := range cases {
		path := write1(t, b)
		var err error
		if got := heapTotal(func() { err = touch(path) }); got > 100*uint64(len(b))+16<<20 {
			t.Errorf("%s: %d bytes allocated for a file of %d", name, got, len(b))
		}
		if !errors.Is(err, ErrFormat) || len(err.Error()) > 600 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Objects that Load skips take no more memory than the pickle allows.
func TestHostileObjects(t *testing.T) {
	leak.Check(t)
	class := "c" + strings.Repeat("m", 4000) + "\n" + strings.Repeat("n", 4000) + "\n"
	for name, text := range map[string]string{
		"tensors of a class":    "\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nq\x00(N" + class + "Ntq\x010" + strings.Repeat("h\x00h\x01R0", 200_000) + "0}.",
		"classes by their name": "\x80\x04X\xa0\x0f\x00\x00" + strings.Repeat("m", 4000) + "q\x00X\xa0\x0f\x00\x00" + strings.Repeat("n", 4000) + "q\x0100" + strings.Repeat("h\x00h\x01\x930", 200_000) + "}.",
	} {
		b := pytorchFile(t, text)
		path := write1(t, b)
		if got := heapTotal(func() { _ = touch(path, SkipObjects()) }); got > 100*uint64(len(b))+16<<20 {
			t.Errorf("%s: %d bytes allocated for a file of %d", name, got, len(b))
		}
	}
}

// Tensors whose keys have no name, or the name of another, do not make the rest unreachable.
func TestUnusualKeysOfPyTorch(t *testing.T) {
	leak.Check(t)
	one := tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1})
	load := func(pickle string) *File {
		f, err := Load(write1(t, pytorchFile(t, pickle)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	if err := tensor.WithScope(func() error {
		f := load("}(" + str("a") + one + "N" + one + "(K\x01K\x02t" + one + "\x8a\x09" + strings.Repeat("\x00", 8) + "\x01" + one + str("b") + "}" + "N" + one + "su.")
		all, err := f.Tensors()
		if names := f.Names(); err != nil || len(all) != 1 || !slices.Equal(names, []string{"a"}) {
			t.Errorf("keys without a name: %q, %v", names, err)
		}
		for _, name := range []string{"", "b"} {
			if _, err := f.Value(name); err == nil || !strings.Contains(err.Error(), "neither a string nor a number") {
				t.Errorf("the value %q: %v", name, err)
			}
		}
		for text, name := range map[string]string{
			"}(" + str("ok") + one + str("a.b") + one + str("a") + "}" + str("b") + one + "su.": "a.b",
			"}(K\x01" + one + str("1") + one + str("ok") + one + "u.":                           "1",
		} {
			f := load(text)
			if names := f.Names(); !slices.Equal(names, []string{name, "ok"}) || f.Tensor("ok").Err() != nil {
				t.Errorf("%q: %v", names, f.Tensor("ok").Err())
			}
			_, ofValue := f.Value(name)
			_, ofAll := f.Tensors()
			for _, err := range []error{f.Tensor(name).Err(), ofValue, ofAll} {
				if err == nil || !strings.Contains(err.Error(), "two tensors have this name") || !strings.Contains(err.Error(), `"`+name+`"`) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		// The same tensor twice is not a contradiction.
		return load("}(" + str("a.b") + one + "q\x00" + str("a") + "}" + str("b") + "h\x00su.").Tensor("a.b").Err()
	}); err != nil {
		t.Error(err)
	}
}

// A tensor has a name however deep it is, and in a dict that contains itself, of which there is no value.
func TestDeepObjectsOfPyTorch(t *testing.T) {
	leak.Check(t)
	one := tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1})
	for name, pickle := range map[string]string{
		strings.Repeat("0.", 299) + "0": strings.Repeat("]", 300) + one + strings.Repeat("a", 300) + ".",
		"t":                             "}q\x00(" + str("self") + "h\x00" + str("list") + "](h\x00h\x00e" + str("t") + one + "u.",
	} {
		f, err := Load(write1(t, pytorchFile(t, pickle)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := tensor.WithScope(func() error {
			if names := f.Names(); !slices.Equal(names, []string{name}) {
				t.Errorf("%q, want %q", names, name)
			}
			if _, err := f.Value(""); (err == nil) != (name != "t") || err != nil && !strings.Contains(err.Error(), "contains itself") {
				t.Errorf("the value of %q: %v", name, err)
			}
			if _, err := f.Value(name); err != nil {
				t.Error(err)
			}
			return f.Tensor(name).Err()
		}); err != nil {
			t.Error(err)
		}
	}
}

// The whole object has the name "" beside a tensor whose key is "".
func TestEmptyKeysOfPyTorch(t *testing.T) {
	leak.Check(t)
	f, err := Load(write1(t, pytorchFile(t, "}("+str("")+tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1})+str("k")+"K\x01u.")))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := tensor.WithScope(func() error {
		v, err := f.Value("")
		if object, ok := v.(map[string]any); err != nil || !ok || len(object) != 2 || object["k"] != 1 {
			t.Errorf("%v, %v", v, err)
		}
		return f.Tensor("").Err()
	}); err != nil {
		t.Error(err)
	}
}

// Protocol 2 has a call of bytes for empty bytes.
func TestEmptyBytesOfPyTorch(t *testing.T) {
	leak.Check(t)
	f, err := Load(write1(t, pytorchFile(t, "c__builtin__\nbytes\n)R.")))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if v, err := f.Value(""); err != nil || !reflect.DeepEqual(v, []byte{}) {
		t.Errorf("%#v, %v", v, err)
	}
}

// double returns operations that put the list on the stack twice into a list, n times.
func double(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "q%c0](h%ch%ce", rune(i), rune(i), rune(i))
	}
	return b.String()
}

// longNames returns a dict of dicts whose keys have a megabyte each.
func longNames() string {
	key := str(strings.Repeat("k", 1<<20)) + "q\x00"
	text := "}" + key
	for range 60 {
		text += "}h\x00"
	}
	return text + tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1}) + strings.Repeat("s", 61) + "."
}

// Values that are shared many times are not multiplied.
func TestHostileValuesOfPyTorch(t *testing.T) {
	leak.Check(t)
	b := pytorchFile(t, "}("+str("a")+str("b")+str("a")+str("c")+"u.")
	f, err := Load(write1(t, b))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Value(""); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
	for name, bits := range map[string]string{"bool": "\x02", "good": "\x01"} {
		data := strings.Repeat(bits, 4)
		path := write1(t, archiveFile(t, "a/data.pkl", tensorOf("BoolStorage", "0", 4, 0, []int64{4}, []int64{1})+".", "a/data/0", data))
		if err := tensor.WithScope(func() error { return touch(path) }); (err == nil) != (name == "good") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An object that occurs many times is one value.
func TestSharedValuesOfPyTorch(t *testing.T) {
	leak.Check(t)
	one := tensorOf("FloatStorage", "0", 16, 0, []int64{1}, []int64{1})
	inner := "](" + strings.Repeat("K\x05", 1000) + one + "eq\x00"
	f, err := Load(write1(t, pytorchFile(t, "]("+inner+strings.Repeat("h\x00", 999)+"(NNtq\x01"+strings.Repeat("h\x01", 999)+"e.")))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := tensor.WithScope(func() error {
		v, err := f.Value("")
		if err != nil {
			return err
		}
		all := v.([]any)
		first, last := all[0].([]any), all[999].([]any)
		if len(all) != 2000 || len(first) != 1001 || &first[0] != &last[0] || !reflect.DeepEqual(all[1999], []any{nil, nil}) {
			t.Errorf("%d values, the first of %d", len(all), len(first))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// torch.serialization.set_crc32_options(False) writes archives without checksums.
func TestArchivesWithoutChecksums(t *testing.T) {
	leak.Check(t)
	object := tensorOf("FloatStorage", "0", 16, 0, []int64{4}, []int64{1}) + "."
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range []struct{ name, text string }{{"a/data.pkl", object}, {"a/byteorder", "little"}, {"a/data/0", strings.Repeat("\x01", 64)}, {"a/version", "3\n"}} {
		// With a descriptor after the data, as PyTorch writes.
		h := &zip.FileHeader{Name: m.name, Method: zip.Store, Flags: 8, CompressedSize64: uint64(len(m.text)), UncompressedSize64: uint64(len(m.text))}
		w, err := z.CreateRaw(h)
		if err == nil {
			_, err = w.Write([]byte(m.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	path := write1(t, b.Bytes())
	for _, mapped := range []bool{true, false} {
		f, err := Load(path, Mapped(mapped))
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.WithScope(func() error { return f.Tensor("").Err() }); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Views of one storage that are copies share one copy if they are loaded together, and are copies of their part if not.
// For a view of bools, only the bytes from its first to its last element count, not those of the whole storage.
func TestCopiedViewsOfPyTorch(t *testing.T) {
	leak.Check(t)
	view := func(offset, n int64) string { return tensorOf("BoolStorage", "0", 64, offset, []int64{n}, []int64{1}) }
	bits := strings.Repeat("\x01\x00", 31) + "\x02\x01"
	path := write1(t, archiveFile(t, "a/data.pkl", "}("+str("a")+view(1, 10)+str("b")+view(4, 58)+str("c")+view(63, 1)+str("d")+view(60, 3)+"u.", "a/data/0", bits))
	for _, mapped := range []bool{true, false} {
		f, err := Load(path, Mapped(mapped))
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.WithScope(func() error {
			together := map[string]*tensor.Tensor{}
			if err := f.collected("", func(name string, x *tensor.Tensor, err error) error {
				if (err == nil) != (name != "d") {
					t.Errorf("%s: %v", name, err)
				}
				together[name] = x
				return nil
			}); err != nil {
				return err
			}
			a, c := together["a"], together["c"]
			if !a.SharesStorage(c) || a.StorageBytes() != 64 {
				t.Errorf("views that are loaded together have storages of %d and %d bytes", a.StorageBytes(), c.StorageBytes())
			}
			for name, n := range map[string]int{"a": 10, "b": 58, "c": 1} {
				x := f.Tensor(name)
				if same, err := x.Equal(together[name]); err != nil || !same || x.StorageBytes() != n {
					t.Errorf("%s: equal %t, a storage of %d bytes, %v", name, same, x.StorageBytes(), err)
				}
			}
			for _, err := range []error{f.Tensor("d").Err(), func() error { _, err := f.Tensors(); return err }()} {
				if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), `"d"`) || !strings.Contains(err.Error(), "a bool is 2") {
					t.Error(err)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A tensor that cannot be used is an error of LoadModel only if the model needs it.
func TestLoadModelBesideUnusableTensors(t *testing.T) {
	leak.Check(t)
	one := tensorOf("FloatStorage", "0", 16, 0, []int64{1, 1}, []int64{1, 1})
	sparse := "ctorch._utils\n_rebuild_sparse_tensor\n)R"
	m := nn.NewLinear(1, 1, nn.NoBias())
	defer nn.Release(m)
	path := write1(t, pytorchFile(t, "}("+str("weight")+one+str("other")+sparse+str("x.y")+one+str("x")+"}"+str("y")+one+"su."))
	if err := LoadModel(path, m, nn.Strict(false)); err != nil {
		t.Error(err)
	}
	path = write1(t, pytorchFile(t, "}("+str("weight")+sparse+"u."))
	err := LoadModel(path, m)
	if err == nil || !strings.Contains(err.Error(), "weight: sparse tensors cannot be loaded") || strings.Count(err.Error(), path) != 1 {
		t.Error(err)
	}
}

// A compressed member is read when it is asked for; it cannot claim more than compression can save.
func TestCompressedMembers(t *testing.T) {
	leak.Check(t)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	if w, err := z.CreateRaw(&zip.FileHeader{Name: "x.npy", Method: zip.Deflate, CRC32: crc32.ChecksumIEEE(nil), CompressedSize64: 2, UncompressedSize64: 1 << 40}); err != nil {
		t.Fatal(err)
	} else if _, err := w.Write([]byte{3, 0}); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(write1(t, b.Bytes())); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "1099511627776 bytes") {
		t.Error(err)
	}
}
