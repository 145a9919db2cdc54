package cshim_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/locate"
)

// The first calls of a program may come from many goroutines. Their counts can only be read afterwards.
func TestLoadOnManyGoroutines(t *testing.T) {
	loadOnManyGoroutines(t)
	leak.Check(t)
	loadOnManyGoroutines(t)
}

func loadOnManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := cshim.Load(); err != nil {
				t.Error(err)
			}
			if cshim.Path() == "" {
				t.Error("loaded, but from nowhere")
			}
		})
	}
	wg.Wait()
}

// When many goroutines load at the same time, one does. Runs in a process that has loaded nothing yet.
func TestOneLoads(t *testing.T) {
	if elsewhere.Process(t) {
		if n := cshim.LoadAtOnce(); n != 1 {
			t.Errorf("%d have loaded", n)
		}
	}
	leak.Check(t)
}

// libtorch frees tensors into the shim's cache of small objects and makes them from it: the last one that was freed first.
func TestObjectsAreCached(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const n = 60 // glibc keeps 7
	tensors := func() []cshim.Handle {
		var data float32
		list := make([]cshim.Handle, n)
		for i := range list {
			r := cshim.TensorFromData(6, nil, unsafe.Pointer(&data), 4) // float32
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			list[i] = r.Handle
		}
		return list
	}
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	leak.Check(t)
	if err := cshim.MemoryEmptyCache(0); err != nil { // also this thread's
		t.Fatal(err)
	}
	first := tensors()
	cshim.TensorsFree(first)
	second := tensors()
	inOrder := 0
	for i, h := range second[1:] {
		if at := slices.Index(first, h); at >= 0 && at+1 < n && first[at+1] == second[i] {
			inOrder++
		}
	}
	if inOrder < n/2 {
		t.Errorf("%d of %d tensors are where the one was that was freed before the last; freed %x, made %x", inOrder, n, first, second)
	}
	cshim.TensorsFree(second)
}

// A goroutine that waited while another one loaded does not load again.
func TestLoadOnce(t *testing.T) {
	leak.Check(t)
	if ran, err := cshim.LoadAgain(); err != nil || ran {
		t.Errorf("loaded again: %v, %v", ran, err)
	}
}

// A shim built with other headers, such as another program's older one, is not loaded: its structs differ. A
// matching shim can be loaded later.
func TestShimOfOtherHeadersIsRejected(t *testing.T) {
	if elsewhere.Process(t) {
		stub := t.TempDir() + "/" + locate.LibName()
		var code strings.Builder
		headers, err := fs.Glob(cshim.Sources, "include/linstock/*.h")
		if err != nil {
			t.Fatal(err)
		}
		for _, header := range headers {
			text, err := fs.ReadFile(cshim.Sources, header)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^LS_API [^;]*?\b(ls_\w+)\(`).FindAllSubmatch(text, -1) {
				fmt.Fprintf(&code, "void *%s(void) { return 0; }\n", m[1])
			}
		}
		cc := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-", "-o", stub)
		cc.Stdin = strings.NewReader(code.String())
		if out, err := cc.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		before := os.Getenv(locate.EnvLib)
		_ = os.Setenv(locate.EnvLib, stub)
		if err := cshim.Load(); err == nil || !strings.Contains(err.Error(), "it was built from other sources: their headers are 0x0") {
			t.Errorf("got %v", err)
		}
		_ = os.Setenv(locate.EnvLib, before)
	}
	leak.Check(t)
}

// LLVM's OpenMP runtime never reads a setting with which it crashes, hangs or takes all memory: the process reports it
// once, and computes. The memory limits are for a runtime that does read it.
func TestRefusedOpenMPSettings(t *testing.T) {
	leak.Check(t)
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	if !cshim.OpenMPInUse().LLVM {
		t.Skip("libtorch does not use LLVM's OpenMP runtime")
	}
	program := filepath.Join(t.TempDir(), "hello")
	if out, err := exec.Command("go", "build", "-o", program, "../tests/hello").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range []struct {
		setting string
		refused bool
	}{
		{"OMP_NUM_THREADS=", true},
		{"OMP_NUM_THREADS=auto", true},
		{"OMP_NUM_THREADS=-1", true},
		{"OMP_NUM_THREADS=0", true},
		{"OMP_NUM_THREADS=99999999999", true},
		{"OMP_NUM_THREADS=100000000", true},
		{"OMP_NUM_THREADS=4,a", true},
		{"OMP_NUM_THREADS= 4 ", false},
		{"OMP_NUM_THREADS=4 ,2", false},
		{"KMP_ALL_THREADS=1", true},
		{"KMP_DEVICE_THREAD_LIMIT=0", true},
		{"KMP_DEVICE_THREAD_LIMIT=64", false},
		{"OMP_STACKSIZE=8T", true},
		{"KMP_STACKSIZE=64 gb", true},
		{"OMP_STACKSIZE=1G", false},
		{"KMP_STACKSIZE=4194304", false},
	} {
		cmd := exec.Command("sh", "-c", `ulimit -v 6000000 && exec "$0" 2>&1`, program)
		cmd.Env = append(os.Environ(), c.setting)
		out, err := cmd.CombinedOutput()
		name, value, _ := strings.Cut(c.setting, "=")
		want := 0
		if c.refused {
			want = 1
		}
		said := fmt.Sprintf("linstock: %s is ignored: invalid value %q: want ", name, value)
		if err != nil || strings.Count(string(out), said) != want || !strings.HasSuffix(string(out), "sum: 24\n") {
			t.Errorf("%s: %v\n%.500s\nwant %q %d times, and the sum", c.setting, err, out, said, want)
		}
	}
}
