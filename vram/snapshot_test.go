package vram_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// native converts the content of a pickle to Go maps, slices, numbers and strings, for comparison.
func native(t *testing.T, v any) any {
	t.Helper()
	switch v := v.(type) {
	case *types.Dict:
		m := map[string]any{}
		for _, e := range *v {
			m[e.Key.(string)] = native(t, e.Value)
		}
		return m
	case *types.List:
		l := []any{}
		for _, e := range *v {
			l = append(l, native(t, e))
		}
		return l
	case *types.Tuple:
		l := []any{}
		for _, e := range *v {
			l = append(l, native(t, e))
		}
		return l
	case int:
		return int64(v)
	case nil, int64, string, bool, float64:
		return v
	}
	t.Fatalf("a %T in the pickle", v)
	return nil
}

func snapshot(t *testing.T) (parsed map[string]any, raw []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := vram.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	raw = b.Bytes()
	u := pickle.NewUnpickler(bytes.NewReader(raw))
	v, err := u.Load()
	if err != nil {
		t.Fatal(err)
	}
	return native(t, v).(map[string]any), raw
}

// program makes the memory that a snapshot shows: a tensor that stays live, one that is freed, and many small
// ones.
func program(t *testing.T) (kept *tensor.Tensor, line string) {
	t.Helper()
	// The thread is locked, as in a scope, so that temporary blocks of operators are attributed to it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	kept, line = tensor.Zeros([]int{1 << 20}), here()
	gone := kept.Add(1.0)
	for range 1200 {
		kept.Narrow(0, 0, 4).Mul(2.0).Release()
	}
	gone.Release()
	return kept, line
}

func TestSnapshotHoldsLiveBlocksAndHistory(t *testing.T) {
	leak.Check(t)
	old := tensor.Ones([]int{1 << 18}) // before recording starts
	defer old.Release()
	if err := vram.RecordHistory(100000); err != nil {
		t.Fatal(err)
	}
	defer func() { ok(t, vram.RecordHistory(0)) }()
	kept, line := program(t)
	defer kept.Release()
	s, _ := snapshot(t)
	stats, err := vram.Stats(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}

	var allocated, total, requested int64
	var found bool
	for _, v := range s["segments"].([]any) {
		seg := v.(map[string]any)
		total += seg["total_size"].(int64)
		allocated += seg["allocated_size"].(int64)
		requested += seg["requested_size"].(int64)
		var in int64
		for _, v := range seg["blocks"].([]any) {
			b := v.(map[string]any)
			in += b["size"].(int64)
			for _, f := range b["frames"].([]any) {
				frame := f.(map[string]any)
				if at(frame) == line && strings.HasSuffix(frame["name"].(string), ".program") {
					found = true
					if b["state"] != "active_allocated" || b["requested_size"].(int64) != 4<<20 {
						t.Errorf("the block of the line is %v", b)
					}
				}
			}
		}
		if in != seg["total_size"].(int64) {
			t.Errorf("a segment of %d bytes has %d in blocks", seg["total_size"], in)
		}
	}
	if !found {
		t.Errorf("no live block has a frame at %s", line)
	}
	if allocated != stats.Allocated || requested != stats.Requested || total < stats.Allocated {
		t.Errorf("the segments hold %d bytes, %d asked for, %d in all; the allocator says %d, %d, %d", allocated, requested, total,
			stats.Allocated, stats.Requested, stats.Reserved)
	}

	traces := s["device_traces"].([]any)
	trace := traces[len(traces)-1].([]any)
	live := map[int64]int64{}
	counts := map[string]int{}
	var last int64
	for i, v := range trace {
		e := v.(map[string]any)
		counts[e["action"].(string)]++
		addr := e["addr"].(int64)
		if now := e["time_us"].(int64); now < last {
			t.Errorf("event %d is %d µs earlier than the one before", i, last-now)
		} else {
			last = now
		}
		switch e["action"] {
		case "alloc":
			live[addr] = e["size"].(int64)
			if len(e["frames"].([]any)) < 2 {
				t.Fatalf("an allocation without a stack: %v", e)
			}
		case "free_completed":
			delete(live, addr)
		}
	}
	if counts["alloc"] < 1202 || counts["free_requested"] != counts["free_completed"] || counts["segment_alloc"] != counts["alloc"] {
		t.Errorf("the events are %v", counts)
	}
	if len(live) != 1 {
		t.Errorf("by the events %d blocks are live, want one", len(live))
	}
}

func at(frame map[string]any) string {
	return filepath.Base(frame["filename"].(string)) + ":" + strconv.FormatInt(frame["line"].(int64), 10)
}

func TestHistoryIsBoundedAndEnds(t *testing.T) {
	leak.Check(t)
	if err := vram.RecordHistory(-1); err == nil {
		t.Error("a negative number of events gives no error")
	}
	if err := vram.RecordHistory(100); err != nil {
		t.Fatal(err)
	}
	defer func() { ok(t, vram.RecordHistory(0)) }()
	kept, _ := program(t)
	defer kept.Release()
	count := func() int {
		s, _ := snapshot(t)
		traces := s["device_traces"].([]any)
		n := 0
		for _, v := range traces[len(traces)-1].([]any) {
			if a := v.(map[string]any)["action"]; a == "alloc" || a == "free_completed" {
				n++
			}
		}
		return n
	}
	if n := count(); n != 100 {
		t.Errorf("the history has %d events, want 100", n)
	}
	if err := vram.RecordHistory(0); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("the history has %d events after its end", n)
	}
}

// Row "R torch: the snapshot opens in PyTorch's own viewer": PyTorch's script reads the snapshot with each of
// its commands. Where there is no Python, only the tests above, which parse the pickle themselves, cover the row.
func TestSnapshotOpensInPyTorchsViewer(t *testing.T) {
	interpreter := golden.Python(t)
	leak.Check(t)
	viewer, err := golden.Viewer(interpreter)
	if err != nil {
		t.Fatal(err)
	}
	if err := vram.RecordHistory(100000); err != nil {
		t.Fatal(err)
	}
	defer func() { ok(t, vram.RecordHistory(0)) }()
	kept, line := program(t)
	defer kept.Release()
	_, raw := snapshot(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "snapshot.pickle")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	python := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(interpreter, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	html := filepath.Join(dir, "out.html")
	for _, args := range [][]string{{"trace_plot", file, "-o", html}, {"trace_plot", "-s", file, "-o", html},
		{"trace_plot", "-f", file, "-o", html}, {"segment_plot", file, "-o", html}} {
		python(append([]string{viewer}, args...)...)
		page, err := os.ReadFile(html)
		if err != nil || !bytes.Contains(page, []byte("MemoryViz.js")) {
			t.Errorf("%v gave no page: %v", args, err)
		}
	}
	stats := python(viewer, "stats", file)
	trace := python(viewer, "trace", file)
	// Another project's script draws the flame graphs; only its input is compared.
	flames := python("-c", `
import importlib.util, pickle, sys
spec = importlib.util.spec_from_file_location("viz", sys.argv[1])
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)
data = pickle.load(open(sys.argv[2], "rb"))
print(viz.memory(data, format_flamegraph=str))
print(viz.segments(data, format_flamegraph=str))
print(viz.compare(data["segments"], data["segments"], format_flamegraph=str))
`, viewer, file)
	for text, wants := range map[string][]string{
		stats:  {"total_allocated: ", "total_reserved: "},
		trace:  {"4.0MiB", "del "},
		flames: {line + ":github.com/linstock-ml/linstock/vram_test.program", "active_allocated", "Zeros"},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("the viewer does not say %q:\n%.2000s", want, text)
			}
		}
	}
}

// A CUDA device's history is in the same file, and its memory is in the other reports. To run it over the fake
// devices:
//
//	eval "$(tests/fakecuda/setup.sh)" && FAKECUDA_DEVICES=2 go test ./vram -run CUDA
func TestReportsOfACUDADevice(t *testing.T) {
	if devices, err := tensor.Devices(); err != nil || len(devices) < 2 {
		t.Skip("no CUDA device, and no fake one")
	}
	leak.Check(t)
	if err := vram.RecordHistory(1000); err != nil {
		t.Fatal(err)
	}
	defer func() { ok(t, vram.RecordHistory(0)) }()
	d := tensor.CUDA(0)
	kept := tensor.Empty([]int{1 << 20}, d)
	defer kept.Release()
	tensor.Track("the test's own", kept)
	tensor.Empty([]int{1 << 18}, d).Release()
	onHost := tensor.Zeros([]int{1000})
	defer onHost.Release()
	s, raw := snapshot(t)
	traces := s["device_traces"].([]any)
	for device, want := range map[int]int64{0: 4 << 20, len(traces) - 1: 4096} {
		allocs := 0
		for _, v := range traces[device].([]any) {
			e := v.(map[string]any)
			if e["action"] == "alloc" && e["size"] == want {
				allocs++
			}
		}
		if allocs != 1 {
			t.Errorf("device %d: %d allocations of %d bytes", device, allocs, want)
		}
	}
	if file := os.Getenv("SNAPSHOT"); file != "" {
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, err := vram.Explain(d)
	if err != nil {
		t.Fatal(err)
	}
	if p := e.Part("the test's own"); p.Bytes != 4<<20 {
		t.Errorf("%+v in\n%s", p, e)
	}
	text, err := vram.Summary(d)
	if err != nil || !strings.Contains(text, "device cuda:0") || !strings.Contains(text, "4.0 MiB") {
		t.Errorf("%v, %s", err, text)
	}
}

// An operator that fails for lack of memory is an event with the line that called it.
func TestHistoryHoldsOutOfMemoryErrors(t *testing.T) {
	leak.Check(t)
	ok(t, vram.RecordHistory(100))
	defer func() { ok(t, vram.RecordHistory(0)) }()
	x, line := tensor.Empty([]int{1 << 50}, tensor.Uint8), here()
	if !errors.Is(x.Err(), tensor.ErrOutOfMemory) {
		t.Fatalf("a petabyte: %v", x.Err())
	}
	s, _ := snapshot(t)
	traces := s["device_traces"].([]any)
	var lines []string
	for _, v := range traces[len(traces)-1].([]any) {
		e := v.(map[string]any)
		if e["action"] != "oom" {
			continue
		}
		if e["size"].(int64) != 1<<50 || e["device_free"].(int64) <= 0 {
			t.Errorf("the event is %v", e)
		}
		for _, f := range e["frames"].([]any) {
			lines = append(lines, at(f.(map[string]any)))
		}
	}
	if !slices.Contains(lines, line) {
		t.Errorf("the frames of out-of-memory events are %v; one is to be %s", lines, line)
	}
}
