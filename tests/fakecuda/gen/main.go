// Gen writes the C source of fake libraries in place of NVIDIA's: a function for each symbol that libtorch
// needs from them, which does nothing and returns 0. Functions that must do more are written by hand in ../src
// and replace the stubs, which are weak.
//
//	go run ./tests/fakecuda/gen TORCHLIB OUT [LIBRARY …]
//
// TORCHLIB is libtorch's directory. Symbols that each LIBRARY needs, such as Python's part of PyTorch, are
// generated too. OUT receives NAME.c and NAME.map for each library and libs.txt, a list of the soname and the
// source in ../src, or "-".
package main

import (
	"debug/elf"
	_ "embed"
	"fmt"
	"log"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed outputs.txt
var outputs string

// A library is one of NVIDIA's. Its functions fail with code once the device is lost.
type library struct {
	soname  string
	node    string // the version of its symbols, or ""
	symbols map[string]bool
}

// Owners of symbols that have no version. The first match counts.
var owners = []struct{ prefix, stem string }{
	{"cusparseLt", "libcusparseLt"}, {"cuFile", "libcufile"}, {"nccl", "libnccl"}, {"pnccl", "libnccl"},
	{"nvshmem", "libnvshmem_host"}, {"nvml", "libnvidia-ml"}, {"cuda", "libcudart"}, {"cublas", "libcublas"},
	{"cudnn", "libcudnn"}, {"cupti", "libcupti"}, {"curand", "libcurand"}, {"nvJitLink", "libnvJitLink"},
	{"nvrtc", "libnvrtc"}, {"cu", "libcuda"},
}

// The hand-written source of each library, and what its functions return on a lost device.
var known = map[string]struct {
	source string
	lost   int
}{
	"libcudart": {"cudart", 0}, "libcuda": {"cuda", 0}, "libnvidia-ml": {"nvml", 0}, "libcudnn": {"cudnn", 5000},
	"libcublas": {"-", 13}, "libcublasLt": {"-", 13}, "libcusolver": {"-", 6}, "libcusparse": {"-", 6},
	"libcufft": {"-", 6}, "libcurand": {"-", 201}, "libnccl": {"nccl", 1},
}

func stem(soname string) string {
	s, _, _ := strings.Cut(soname, ".so")
	return s
}

func nvidia(soname string) bool {
	for _, p := range []string{"libcu", "libnccl", "libnvshmem", "libnvrtc", "libnvidia", "libnvJitLink", "libnvToolsExt"} {
		if strings.HasPrefix(soname, p) {
			return true
		}
	}
	return false
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	if len(os.Args) < 3 {
		log.Fatal("usage: gen TORCHLIB OUT [LIBRARY …]")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}

func run(from, to string, more []string) error {
	all, err := filepath.Glob(filepath.Join(from, "*.so*"))
	if err != nil {
		return err
	}
	// The directory also holds the fakes of an earlier run.
	paths := more
	for _, p := range all {
		base := filepath.Base(p)
		if strings.HasPrefix(base, "libtorch") || strings.HasPrefix(base, "libc10") || strings.HasPrefix(base, "libcaffe2") {
			paths = append(paths, p)
		}
	}
	// The driver and NVML are opened by name.
	libs := map[string]*library{}
	add := func(soname string) *library {
		l := libs[soname]
		if l == nil {
			l = &library{soname: soname, symbols: map[string]bool{}}
			libs[soname] = l
		}
		return l
	}
	add("libcuda.so.1")
	add("libnvidia-ml.so.1")
	var loose []string
	own := map[string]bool{}
	for _, p := range paths {
		f, err := elf.Open(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		needed, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, n := range needed {
			if nvidia(n) {
				add(n)
			}
		}
		symbols, err := f.DynamicSymbols()
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, s := range symbols {
			switch {
			case s.Section != elf.SHN_UNDEF:
				own[s.Name] = true
			case nvidia(s.Library):
				l := add(s.Library)
				l.node = s.Version
				l.symbols[s.Name] = true
			case s.Version == "":
				loose = append(loose, s.Name)
			}
		}
		f.Close()
	}
	for _, name := range loose {
		if own[name] {
			continue
		}
		for _, o := range owners {
			if strings.HasPrefix(name, o.prefix) {
				for _, l := range libs {
					if stem(l.soname) == o.stem {
						l.symbols[name] = true
					}
				}
				break
			}
		}
	}
	var list strings.Builder
	for _, soname := range slices.Sorted(maps.Keys(libs)) {
		l := libs[soname]
		source := known[stem(soname)].source
		if source == "" {
			source = "-"
		}
		fmt.Fprintf(&list, "%s %s\n", soname, source)
		c, err := l.source()
		if err != nil {
			return err
		}
		version := "{ global: *; };\n"
		if l.node != "" {
			version = l.node + " " + version
		}
		if err := os.WriteFile(filepath.Join(to, soname+".c"), []byte(c), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, soname+".map"), []byte(version), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(to, "libs.txt"), []byte(list.String()), 0o644)
}

// One more than the number of arguments that outputs.txt can name.
const arguments = 20

func (l *library) source() (string, error) {
	var b strings.Builder
	b.WriteString("#include <string.h>\n#include \"fake.h\"\n#define API __attribute__((weak, visibility(\"default\")))\nstatic char handle[4096] __attribute__((unused));\n")
	params := make([]string, arguments)
	for i := range params {
		params[i] = fmt.Sprintf("long a%d", i)
	}
	k := known[stem(l.soname)]
	for _, name := range slices.Sorted(maps.Keys(l.symbols)) {
		does, value, err := behaviour(name)
		if err != nil {
			return "", err
		}
		enter := ""
		switch {
		case strings.HasPrefix(name, "__"), k.source == "nvml", k.source == "cuda":
		case k.source == "cudart":
			enter = "ENTER(ANY, fakecuda_current_device()); "
		case k.lost != 0 && value == "0" && computes(name):
			enter = fmt.Sprintf("static int64_t id; int e = fakecuda_enter_library(&id, __func__, %d); if (e != 0) return e; ", k.lost)
		}
		args := "void"
		if does != "" {
			args = strings.Join(params, ", ")
		}
		fmt.Fprintf(&b, "API long %s(%s) { %s%sreturn %s; }\n", name, args, does, enter, value)
	}
	return b.String(), nil
}

// computes reports whether the function uses the device. Functions that only use the host work on a lost
// device.
func computes(name string) bool {
	for _, host := range []string{"Create", "create", "Destroy", "destroy", "Set", "Get", "Desc", "Layout", "Init", "_buffer", "Plan", "Check", "Error"} {
		if strings.Contains(name, host) {
			return false
		}
	}
	return true
}

// behaviour returns the statements of a function's body and its return value, as outputs.txt defines them.
func behaviour(name string) (does, value string, err error) {
	for line := range strings.Lines(outputs) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if ok, err := path.Match(fields[0], name); err != nil || !ok {
			if err != nil {
				return "", "", fmt.Errorf("outputs.txt: %s: %w", fields[0], err)
			}
			continue
		}
		value = "0"
		for _, f := range fields[1:] {
			arg, what, found := strings.Cut(f, "=")
			if !found {
				arg, what = "", f
			}
			kind, n, _ := strings.Cut(what, ":")
			switch kind {
			case "string":
				value = `(long)"a fake library's message"`
			case "return":
				value = n
			case "i32":
				does += fmt.Sprintf("*(int32_t *)a%s = %s; ", arg, n)
			case "i64":
				does += fmt.Sprintf("*(int64_t *)a%s = %s; ", arg, n)
			case "zero":
				does += fmt.Sprintf("memset((void *)a%s, 0, %s); ", arg, n)
			case "ptr":
				does += fmt.Sprintf("*(void **)a%s = handle; ", arg)
			default:
				return "", "", fmt.Errorf("outputs.txt: %s: what is %s?", fields[0], f)
			}
		}
		if does != "" {
			unused := ""
			for i := range arguments {
				unused += fmt.Sprintf("(void)a%d; ", i)
			}
			does = unused + does
		}
		return does, value, nil
	}
	return "", "0", nil
}
