package tensor

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/locate"
)

// tasks returns the ids of the process's OS threads.
func tasks(t *testing.T) (ids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

var sleepsLine = regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\t(\d+)$`)

// sleeps returns how often a thread has waited in the kernel.
func sleeps(t *testing.T, task int) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc/self/task", strconv.Itoa(task), "status"))
	if err != nil {
		t.Fatal(err)
	}
	m := sleepsLine.FindSubmatch(data)
	if m == nil {
		t.Fatalf("no line of voluntary switches:\n%s", data)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// openMPSymbols returns OpenMP's functions, with the versions of their symbols, that a library defines or needs.
func openMPSymbols(t *testing.T, path string, defined bool) (names []string) {
	t.Helper()
	lib, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	symbols, err := lib.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if (strings.HasPrefix(s.Name, "GOMP_") || strings.HasPrefix(s.Name, "omp_")) && (s.Section != elf.SHN_UNDEF) == defined {
			names = append(names, s.Name+"@"+s.Version)
		}
	}
	return names
}

// request runs a small model's forward and backward pass, each on two threads.
func request(t *testing.T, w *Tensor) {
	t.Helper()
	err := WithScope(func() error {
		x := Ones([]int{256, 256})
		return x.MatMul(w).ReLU().Sum().Backward()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOpenMP tests that libtorch's operators run on LLVM's OpenMP runtime if it is installed, and that the number of OS
// threads on which goroutines have computed, each of which has a team of threads, neither lets the process start more
// teams nor makes a team sleep between operators (docs/decisions/0023-openmp.md).
func TestOpenMP(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("on one processor a team's threads take turns")
	}
	if !elsewhere.Process(t) {
		return
	}
	begin(t)
	used := cshim.OpenMPInUse()
	installed := locate.OpenMP(cshim.Path())
	if installed == "" {
		t.Skip("LLVM's runtime is not installed; libtorch uses " + used.Path)
	}
	if used.Path != installed || !used.LLVM {
		t.Fatalf("libtorch uses %+v, not %s", used, installed)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	var code []string
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) == 6 && f[1] == "r-xp" && regexp.MustCompile(`/lib[gi]?omp`).MatchString(f[5]) {
			code = append(code, filepath.Base(f[5]))
		}
	}
	slices.Sort(code)
	if once := slices.Compact(slices.Clone(code)); len(once) != len(code) || !slices.Contains(once, locate.OpenMPLib) {
		t.Errorf("the OpenMP runtimes in the process: %q", code)
	}
	cpu := string(regexp.MustCompile(`/.*/libtorch_cpu\.so`).Find(maps))
	needed, defined := openMPSymbols(t, cpu, false), openMPSymbols(t, installed, true)
	if lacks := slices.DeleteFunc(slices.Clone(needed), func(s string) bool { return slices.Contains(defined, s) }); len(needed) == 0 || len(lacks) != 0 {
		t.Errorf("%s needs %q, of which %s lacks %q", cpu, needed, installed, lacks)
	}
	registered, err := filepath.Glob("/dev/shm/__KMP_REGISTERED_LIB_" + strconv.Itoa(os.Getpid()) + "_*")
	if err != nil || len(registered) != 0 {
		t.Errorf("the runtime has left a file: %q, %v", registered, err)
	}

	if err := SetNumThreads(2); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := tasks(t)
	w := Ones([]int{256, 256})
	defer w.Release()
	w = w.RequiresGrad_(true)

	request(t, w)
	team := slices.DeleteFunc(tasks(t), func(id int) bool { return slices.Contains(before, id) })
	if len(team) == 0 {
		t.Fatal("no team has been started")
	}

	// A server's requests, each on a goroutine and an OS thread of its own, after a read that blocks.
	const requests = 64
	var pipe [2]int
	if err := syscall.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	computed := map[int]bool{syscall.Gettid(): true}
	var one sync.Mutex
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if _, err := syscall.Read(pipe[0], make([]byte, 1)); err != nil {
				t.Error(err)
			}
			one.Lock()
			defer one.Unlock()
			request(t, w)
			computed[syscall.Gettid()] = true
		})
	}
	if _, err := syscall.Write(pipe[1], bytes.Repeat([]byte{1}, requests)); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for _, end := range pipe {
		if err := syscall.Close(end); err != nil {
			t.Error(err)
		}
	}
	if len(computed) < requests/2 { // a late goroutine may get the thread of one that has ended
		t.Errorf("the requests ran on %d threads", len(computed)-1)
	}
	// Besides Go's own threads there is one of a team for each that has computed, and a few that libtorch has started.
	const others = 8
	if n, most := len(tasks(t)), pprof.Lookup("threadcreate").Count()+len(computed)+others; n > most {
		t.Errorf("%d threads after requests on %d, want at most %d", n, len(computed), most)
	}

	// The first team still stays awake from one operator to the next.
	slept := make([]int, len(team))
	for i, id := range team {
		slept[i] = -sleeps(t, id)
	}
	const again = 200
	for range again {
		request(t, w)
	}
	for i, id := range team {
		slept[i] += sleeps(t, id)
	}
	t.Logf("%d threads have computed; the team's thread has slept %v times in %d requests", len(computed), slept, again)
	// A team of libgomp would sleep 12 times in a request. Where other processes take the processor for more than the
	// block time, LLVM's may sleep once. One of the threads may be Go's, which seldom sleeps meanwhile.
	if least := slices.Min(slept); least > 4*again {
		t.Errorf("the team's thread has slept %v times in %d requests", slept, again)
	}
}
