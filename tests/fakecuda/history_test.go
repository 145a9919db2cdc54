package fakecuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestHistory passes the snapshot to PyTorch's own viewer if make bench-setup has installed it.
func TestHistory(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		t.Run(fmt.Sprint("expandable ", expandable), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "snapshot.pickle")
			run(t, "history", 2, 1<<30, "SNAPSHOT="+file, fmt.Sprintf("PYTORCH_ALLOC_CONF=expandable_segments:%v", map[bool]string{true: "True", false: "False"}[expandable]))
		})
	}
}

func TestUnsampled(t *testing.T) { run(t, "unsampled", 1, 1<<30) }

// unsampled: a sampled block that is freed once the rate is 0 leaves the profile.
func unsampled(*Control) error {
	d := tensor.CUDA(0)
	if err := vram.SetProfileRate(1); err != nil {
		return err
	}
	for _, rate := range []int{1, 0} {
		x := tensor.Empty([]int{5 << 20}, tensor.Uint8, d)
		if held, err := vram.Holders(d); err != nil || len(held) != 1 || held[0].Bytes < 5<<20 {
			return fmt.Errorf("holders %v, %v", held, err)
		}
		if err := vram.SetProfileRate(rate); err != nil {
			return err
		}
		x.Release()
		tensor.Flush()
		if held, err := vram.Holders(d); err != nil || len(held) != 0 {
			return fmt.Errorf("freed at a rate of %d: holders %v, %v", rate, held, err)
		}
	}
	return nil
}

// here returns its caller's file and line in the form that frames have.
func here() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

// dict is a Python dict.
type dict struct{ *types.Dict }

func (d dict) get(key string) any {
	if d.Dict == nil {
		return nil
	}
	v, _ := d.Get(key)
	return v
}

func (d dict) dict(key string) dict {
	v, _ := d.get(key).(*types.Dict)
	return dict{v}
}

func (d dict) number(key string) int64 {
	switch v := d.get(key).(type) {
	case int:
		return int64(v)
	case int64:
		return v
	}
	return -1
}

func (d dict) list(key string) []dict { return dicts(d.get(key)) }

func dicts(v any) (all []dict) {
	l, ok := v.(*types.List)
	if !ok {
		return nil
	}
	for _, v := range *l {
		if d, ok := v.(*types.Dict); ok {
			all = append(all, dict{d})
		}
	}
	return all
}

// lines returns the frames of an event or a block.
func (d dict) lines() (all []string) {
	for _, f := range d.list("frames") {
		file, _ := f.get("filename").(string)
		all = append(all, fmt.Sprintf("%s:%d", filepath.Base(file), f.number("line")))
	}
	return all
}

func readSnapshot() (d dict, traces [][]dict, raw []byte, err error) {
	var b bytes.Buffer
	if err := vram.Snapshot(&b); err != nil {
		return d, nil, nil, err
	}
	raw = bytes.Clone(b.Bytes())
	u := pickle.NewUnpickler(&b)
	v, err := u.Load()
	if err != nil {
		return d, nil, nil, err
	}
	root, ok := v.(*types.Dict)
	if !ok {
		return d, nil, nil, fmt.Errorf("the snapshot is a %T", v)
	}
	d = dict{root}
	list, ok := d.get("device_traces").(*types.List)
	if !ok {
		return d, nil, nil, errors.New("the snapshot has no device_traces")
	}
	for _, v := range *list {
		traces = append(traces, dicts(v))
	}
	return d, traces, raw, nil
}

// history checks that the snapshot contains allocations, frees and failed allocations on a CUDA device, with
// their Go lines.
func history(c *Control) error {
	const mib = 1 << 20
	d := tensor.CUDA(1)
	old := tensor.Empty([]int{3 * mib}, tensor.Uint8, d) // before recording starts
	if err := vram.RecordHistory(10000); err != nil {
		return err
	}
	old.Release()
	kept, keptAt := tensor.Empty([]int{5 * mib}, tensor.Uint8, d), here()
	gone, goneAt := tensor.Empty([]int{6 * mib}, tensor.Uint8, d), here()
	gone.Release()
	tensor.Flush()
	small, smallAt := tensor.Empty([]int{100}, tensor.Uint8, d), here()
	var stepAt string
	err := tensor.WithScope(func() error {
		w := tensor.Ones([]int{mib / 4}, d).RequiresGrad_()
		loss := w.Mul(w).Sum()
		stepAt = here()
		return loss.Backward()
	})
	if err != nil {
		return err
	}
	if err := vram.SetLimit(d, vram.Bytes(64*mib)); err != nil {
		return err
	}
	const others = 700 * mib
	c.Occupy(1, others)
	failed, failedAt := tensor.Empty([]int{62 * mib}, tensor.Uint8, d), here()
	if !errors.Is(failed.Err(), tensor.ErrOutOfMemory) {
		return fmt.Errorf("62 MiB beside 5 of 64: %v", failed.Err())
	}
	c.Occupy(1, -others)
	host, hostAt := tensor.Ones([]int{7 * mib / 4}), here()
	s, traces, raw, err := readSnapshot()
	if err != nil {
		return err
	}
	if len(traces) != 3 {
		return fmt.Errorf("%d traces, want those of two devices and the CPU", len(traces))
	}

	// The blocks in the segments.
	found := map[string]int64{}
	expandable := strings.Contains(os.Getenv("PYTORCH_ALLOC_CONF"), "True")
	for _, segment := range s.list("segments") {
		if segment.number("device") == 1 && segment.get("is_expandable") != expandable {
			return fmt.Errorf("is_expandable is %v, want %v", segment.get("is_expandable"), expandable)
		}
		sum := int64(0)
		for _, block := range segment.list("blocks") {
			if at := segment.number("address") + sum; block.number("address") != at {
				return fmt.Errorf("a block at %#x, want %#x", block.number("address"), at)
			}
			sum += block.number("size")
			for _, line := range block.lines() {
				found[line] = block.number("requested_size")
			}
			if live := block.get("state") == "active_allocated"; live != (len(block.lines()) > 0) {
				return fmt.Errorf("the frames of a block that is %v are %v", block.get("state"), block.lines())
			}
		}
		if sum != segment.number("total_size") {
			return fmt.Errorf("a segment of %d bytes has %d in blocks", segment.number("total_size"), sum)
		}
	}
	for line, want := range map[string]int64{keptAt: 5 * mib, smallAt: 100, hostAt: 7 * mib} {
		if found[line] != want {
			return fmt.Errorf("live blocks: %s has %d bytes, want %d, in %v", line, found[line], want, found)
		}
	}

	// The events.
	type event struct {
		action string
		size   int64
	}
	events := map[string][]event{}
	counts := map[string]int{}
	last := int64(0)
	for _, e := range traces[1] {
		action, _ := e.get("action").(string)
		counts[action]++
		for _, line := range e.lines() {
			events[line] = append(events[line], event{action, e.number("size")})
		}
		if now := e.number("time_us"); now < last {
			return fmt.Errorf("%s is %d µs earlier than the event before", action, last-now)
		} else {
			last = now
		}
		if known := len(e.lines()) > 0; action == "alloc" && !known || action == "free_completed" && !known && e.number("size") != 3*mib {
			return fmt.Errorf("%s of %d bytes has no frames", action, e.number("size"))
		}
		if free := e.number("device_free"); action == "oom" && (free <= 0 || free > 1<<30-others) {
			return fmt.Errorf("oom: %d bytes of 1 GiB are free beside %d of others", free, int64(others))
		}
	}
	segment := "segment_alloc"
	if expandable {
		segment = "segment_map"
	}
	if got, want := events[goneAt], []event{{"alloc", 6 * mib}, {"free_requested", 6 * mib}, {"free_completed", 6 * mib}}; !slices.Equal(slices.DeleteFunc(slices.Clone(got), func(e event) bool { return e.action == segment }), want) {
		return fmt.Errorf("the events of %s are %v, want %v", goneAt, got, want)
	}
	if got, want := events[failedAt], []event{{"oom", 62 * mib}}; !slices.Equal(got, want) {
		return fmt.Errorf("the events of %s are %v, want %v", failedAt, got, want)
	}
	if !slices.ContainsFunc(events[smallAt], func(e event) bool { return e.action == segment }) {
		return fmt.Errorf("no segment was taken by %s: %v", smallAt, events[smallAt])
	}
	// Ones, Mul, Sum, and what backward allocates on the engine's thread. All are free when the scope has ended.
	if counts["alloc"] != counts["free_completed"]+1 || counts["free_requested"] != counts["free_completed"] || counts["snapshot"] != 1 || len(traces[0]) > 1 {
		return fmt.Errorf("the events of the device are %v, of the other one %d, near %s", counts, len(traces[0]), stepAt)
	}

	if err := view(os.Getenv("SNAPSHOT"), raw, goneAt, keptAt); err != nil {
		return err
	}
	// Recording has stopped.
	if err := vram.RecordHistory(0); err != nil {
		return err
	}
	small.Release()
	kept.Release()
	host.Release()
	if _, traces, _, err = readSnapshot(); err != nil {
		return err
	}
	for i, t := range traces {
		if len(t) != 0 {
			return fmt.Errorf("device %d has %d events after the history's end", i, len(t))
		}
	}
	return nil
}

// view passes the snapshot to PyTorch's viewer if it is installed.
func view(file string, raw []byte, lines ...string) error {
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return err
	}
	interpreter := golden.FindPython()
	if interpreter == "" {
		return nil
	}
	viewer, err := golden.Viewer(interpreter)
	if err != nil {
		return err
	}
	python := func(args ...string) (string, error) {
		cmd := exec.Command(interpreter, args...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%v: %w\n%s", args, err, out)
		}
		return string(out), err
	}
	html := file + ".html"
	for _, args := range [][]string{{"trace_plot", file, "-d", "1", "-o", html}, {"trace_plot", "-s", file, "-d", "1", "-o", html}, {"segment_plot", file, "-o", html}, {"stats", file}} {
		if _, err := python(append([]string{viewer}, args...)...); err != nil {
			return err
		}
	}
	trace, err := python(viewer, "trace", file)
	if err != nil {
		return err
	}
	flames, err := python("-c", `
import importlib.util, pickle, sys
spec = importlib.util.spec_from_file_location("viz", sys.argv[1])
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)
data = pickle.load(open(sys.argv[2], "rb"))
print(viz.memory(data, format_flamegraph=str))
print(viz.segments(data, format_flamegraph=str))
for e in data["device_traces"][1]:
    if e["action"] == "free_completed" and e["frames"]:
        print("freed", e["frames"][1]["filename"].rpartition("/")[2] + ":" + str(e["frames"][1]["line"]))
`, viewer, file)
	if err != nil {
		return err
	}
	for text, wants := range map[string][]string{
		trace:  {"6.0MiB", "raise OutOfMemoryError # 62.0MiB requested, "},
		flames: {lines[1] + ":github.com/linstock-ml/linstock/tests/fakecuda.history", "freed " + lines[0]},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) {
				return fmt.Errorf("PyTorch's viewer does not say %q:\n%.3000s", want, text)
			}
		}
	}
	return nil
}
