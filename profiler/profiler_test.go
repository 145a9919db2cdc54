package profiler_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/internal/unordered"
	"github.com/linstock-ml/linstock/profiler"
	"github.com/linstock-ml/linstock/tensor"
)

// record returns the trace of f, which runs in a scope.
func record(t *testing.T, f func() error, opts ...profiler.Option) *profiler.Trace {
	t.Helper()
	p, err := profiler.Start(opts...)
	if err != nil {
		t.Fatal(err)
	}
	err = tensor.WithScope(f)
	trace, stopErr := p.Stop()
	if err := errors.Join(err, stopErr); err != nil {
		t.Fatal(err)
	}
	return trace
}

// network is a step whose events tests/golden/profiler.py has recorded in PyTorch.
type network struct{ x, w, b, g *tensor.Tensor }

func newNetwork(t *testing.T) network {
	t.Helper()
	n := network{tensor.Ones([]int{8, 4}), tensor.Ones([]int{3, 4}).RequiresGrad_(), tensor.Ones([]int{3}).RequiresGrad_(), tensor.Ones(nil)}
	t.Cleanup(func() {
		for _, x := range []*tensor.Tensor{n.w.Grad(), n.b.Grad(), n.x, n.w, n.b, n.g} {
			x.Release()
		}
	})
	return n
}

// lines are those of the calls of a step.
type lines struct{ linear, relu, cat, square, backward string }

func (n network) step() (at lines, err error) {
	var loss *tensor.Tensor
	if err := profiler.RecordFunction("forward", func() error {
		h := n.x.Linear(n.w, n.b)
		at.linear = back(1)
		h = h.ReLU()
		at.relu = back(1)
		h = tensor.Cat([]*tensor.Tensor{h, h})
		at.cat = back(1)
		loss = h.Square().Mean(tensor.Dim(0, 1))
		at.square = back(1)
		return loss.Err()
	}); err != nil {
		return at, err
	}
	err = loss.Backward(tensor.Gradient(n.g))
	at.backward = back(1)
	return at, err
}

// back returns a line above its caller's in the form of Event.Line, without the function.
func back(lines int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line-lines)
}

func depth(trace *profiler.Trace, e *profiler.Event) int {
	if e.Parent < 0 {
		return 0
	}
	return 1 + depth(trace, &trace.Events[e.Parent])
}

func named(t *testing.T, trace *profiler.Trace, name string) *profiler.Event {
	t.Helper()
	for i := range trace.Events {
		if trace.Events[i].Name == name {
			return &trace.Events[i]
		}
	}
	t.Fatalf("there is no event %s", name)
	return nil
}

// at reports an event whose line is another than want.
func at(t *testing.T, e *profiler.Event, want string) {
	t.Helper()
	if got, _, _ := strings.Cut(e.Line, " "); got != want {
		t.Errorf("%s is at %s, want %s", e.Name, e.Line, want)
	}
}

// Events, their nesting, shapes and memory are those of PyTorch's profiler.
func TestEventsArePyTorchs(t *testing.T) {
	leak.Check(t)
	var want struct {
		Torch  string
		Counts map[string]int
		Events []struct {
			Name, Shapes string
			Depth        int
			Memory       int64
		}
	}
	golden.Read(t, "profiler.json", &want)
	n := newNetwork(t)
	step := func() error {
		_, err := n.step()
		return err
	}
	if err := tensor.WithScope(step); err != nil { // later steps accumulate into the same gradients
		t.Fatal(err)
	}
	trace := record(t, step, profiler.RecordShapes())
	if v := cshim.VersionLoaded(); fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) != want.Torch {
		// Other versions call other operators within operators.
		for _, name := range []string{"forward", "aten::linear", "aten::relu", "aten::cat", "ReluBackward0", "AddmmBackward0"} {
			named(t, trace, name)
		}
		return
	}
	for i, e := range trace.Events {
		if i == len(want.Events) {
			t.Fatalf("there are %d events, want %d", len(trace.Events), i)
		}
		w := want.Events[i]
		if e.Name != w.Name || depth(trace, &e) != w.Depth {
			t.Fatalf("event %d is %s at depth %d, want %s at %d", i, e.Name, depth(trace, &e), w.Name, w.Depth)
		}
		// PyTorch leaves out the sizes of the tensors in a list.
		if shapes := strings.ReplaceAll(e.Shapes, "[[8, 3], [8, 3]], []", "[], []"); shapes != w.Shapes && w.Name != "aten::cat" {
			t.Errorf("%s has shapes %s, want %s", e.Name, e.Shapes, w.Shapes)
		}
		// Tensors that the step holds are freed later than in PyTorch.
		if !e.Backward && !e.Range && e.CPUMemory != w.Memory {
			t.Errorf("%s requested %d bytes, want %d", e.Name, e.CPUMemory, w.Memory)
		}
	}
	if len(trace.Events) != len(want.Events) {
		t.Errorf("there are %d events, want %d", len(trace.Events), len(want.Events))
	}
	got := map[string]int{}
	for _, a := range trace.KeyAverages() {
		got[a.Name] = a.Count
	}
	for name, count := range want.Counts {
		if got[name] != count {
			t.Errorf("%s is called %d times, want %d", name, got[name], count)
		}
	}
	if e := named(t, trace, "aten::cat"); e.Shapes != "[[[8, 3], [8, 3]], []]" {
		t.Errorf("aten::cat has shapes %s", e.Shapes)
	}
}

func TestLines(t *testing.T) {
	leak.Check(t)
	n := newNetwork(t)
	var want lines
	trace := record(t, func() (err error) {
		want, err = n.step()
		return err
	})
	for name, line := range map[string]string{
		"aten::linear": want.linear, "aten::addmm": want.linear, "aten::clamp_min": want.relu, "aten::cat": want.cat, "aten::square": want.square,
		"AddmmBackward0": want.linear, "ReluBackward0": want.relu, "CatBackward0": want.cat, "PowBackward0": want.square,
		"autograd::engine::evaluate_function: AddmmBackward0": want.linear, "aten::threshold_backward": want.relu,
	} {
		at(t, named(t, trace, name), line)
	}
	if !testdevice.On { // where the pass runs on this thread
		at(t, named(t, trace, "torch::autograd::AccumulateGrad"), want.backward)
	}
	e := named(t, trace, "ReluBackward0")
	if !e.Backward || e.Forward < 0 || trace.Events[e.Forward].Name != "aten::relu" || trace.Events[e.Forward].Sequence != e.Sequence {
		t.Errorf("the forward operator of ReluBackward0 is %d", e.Forward)
	}
	if e := named(t, trace, "aten::relu"); e.Operator != "ReLU" || e.Backward || e.Range {
		t.Errorf("aten::relu: %+v", e)
	}
	if e := named(t, trace, "forward"); !e.Range || e.Backward || !strings.HasSuffix(e.Line, "(profiler_test.network.step)") {
		t.Errorf("the range: %+v", e)
	}
}

// TestOperatorsOfGenericFunctions tests that a generic function of the library has its name, as others do.
func TestOperatorsOfGenericFunctions(t *testing.T) {
	leak.Check(t)
	trace := record(t, func() error {
		_, err := tensor.Data[float32](tensor.FromSlice([]float32{1, 2, 3}, nil))
		return err
	})
	for name, operator := range map[string]string{"aten::empty": "FromSlice", "aten::contiguous": "Data"} {
		if e := named(t, trace, name); e.Operator != operator {
			t.Errorf("%s has the operator %q, want %s", name, e.Operator, operator)
		}
	}
}

// What a hook and a recomputed function call within a backward pass has its own line.
func TestLinesOfCallbacks(t *testing.T) {
	leak.Check(t)
	var hook, again, backward, cube string
	trace := record(t, func() error {
		x := tensor.Ones([]int{3}).RequiresGrad_()
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
			y := in[0].Sin()
			again = back(1)
			return y
		}, x)
		z := y.Pow(3)
		cube = back(1)
		h, err := y.RegisterHook(func(g *tensor.Tensor) (*tensor.Tensor, error) {
			g = g.Tanh()
			hook = back(1)
			return g, g.Err()
		})
		if err != nil {
			return err
		}
		defer h()
		err = z.Sum().Backward()
		backward = back(1)
		x.Grad().Release()
		return err
	})
	at(t, named(t, trace, "aten::tanh"), hook)
	at(t, named(t, trace, "PowBackward0"), cube)
	at(t, named(t, trace, "SinBackward0"), again)
	if !testdevice.On {
		at(t, named(t, trace, "torch::autograd::AccumulateGrad"), backward)
	}
	n := 0
	for i := range trace.Events {
		if e := &trace.Events[i]; e.Name == "aten::sin" {
			at(t, e, again)
			n++
		}
	}
	if n != 2 {
		t.Errorf("aten::sin is called %d times, want 2", n)
	}
}

// A second derivative's nodes have the line of the first forward operator.
func TestLinesOfSecondDerivatives(t *testing.T) {
	leak.Check(t)
	var exp string
	trace := record(t, func() error {
		x := tensor.Ones([]int{3}).RequiresGrad_()
		y := x.Exp()
		exp = back(1)
		g, err := autograd.Grad([]*tensor.Tensor{y.Sum()}, []*tensor.Tensor{x}, tensor.CreateGraph(true))
		if err != nil {
			return err
		}
		_, err = autograd.Grad([]*tensor.Tensor{g[0].Sum()}, []*tensor.Tensor{x})
		return err
	})
	n := 0
	for i := range trace.Events {
		if e := &trace.Events[i]; e.Name == "MulBackward0" || e.Name == "ExpBackward0" {
			at(t, e, exp)
			n++
		}
	}
	if n < 3 {
		t.Errorf("there are %d nodes, want 3 at least", n)
	}
}

// Goroutines that are not locked to threads have their own lines.
func TestLinesOfGoroutines(t *testing.T) {
	leak.Check(t)
	var sin, cos string
	trace := record(t, func() error {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 50 {
					x := tensor.Ones([]int{20000})
					var y *tensor.Tensor
					if i%2 == 0 {
						y = x.Sin()
						if i == 0 {
							sin = back(2)
						}
					} else {
						y = x.Cos()
						if i == 1 {
							cos = back(2)
						}
					}
					x.Release()
					y.Release()
				}
			})
		}
		wg.Wait()
		return nil
	})
	counts := map[string]int{}
	for i := range trace.Events {
		switch e := &trace.Events[i]; e.Name {
		case "aten::sin":
			at(t, e, sin)
			counts[e.Name]++
		case "aten::cos":
			at(t, e, cos)
			counts[e.Name]++
		}
	}
	if counts["aten::sin"] != 200 || counts["aten::cos"] != 200 {
		t.Errorf("the counts are %v, want 200 of each", counts)
	}
}

// What reads and makes tensors, and clears gradients, has its own lines, too.
func TestLinesOfGoroutinesThatRead(t *testing.T) {
	leak.Check(t)
	var made, item, data, zeroed string
	trace := record(t, func() error {
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				w := tensor.Zeros([]int{20000}).RequiresGrad_()
				defer w.Release()
				for range 50 {
					x := tensor.FromSlice(make([]float32, 20000), nil)
					if i == 0 {
						made = back(2)
					}
					sum := x.Sum()
					_, err := sum.Item()
					if i == 0 {
						item = back(2)
					}
					turned := x.View(100, 200).Transpose(0, 1)
					_, err2 := tensor.Data[float32](turned)
					if i == 0 {
						data = back(2)
					}
					err3 := w.SetGrad(x)
					err4 := tensor.ZeroGrads([]*tensor.Tensor{w}, false)
					if i == 0 {
						zeroed = back(2)
					}
					errs[i] = errors.Join(errs[i], err, err2, err3, err4, w.SetGrad(nil))
					for _, x := range []*tensor.Tensor{turned, sum, x} {
						x.Release()
					}
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	want := map[string]string{"aten::item": item, "aten::contiguous": data, "aten::zero_": zeroed}
	counts := map[string]int{}
	for i := range trace.Events {
		e := &trace.Events[i]
		line, ok := want[e.Name]
		if e.Name == "aten::empty" && e.Parent < 0 && strings.HasPrefix(e.Line, made) {
			counts[e.Name]++
		}
		if ok && e.Parent < 0 { // within Zeros there is an aten::zero_, too
			at(t, e, line)
			counts[e.Name]++
		}
	}
	for _, name := range []string{"aten::empty", "aten::item", "aten::contiguous", "aten::zero_"} {
		if counts[name] != 400 {
			t.Errorf("%s has its line %d times, want 400", name, counts[name])
		}
	}
}

func TestTimes(t *testing.T) {
	leak.Check(t)
	n := newNetwork(t)
	trace := record(t, func() error {
		_, err := n.step()
		return err
	})
	children := make([]time.Duration, len(trace.Events))
	memory := make([]int64, len(trace.Events))
	for i, e := range trace.Events {
		if e.Time < 0 || e.SelfTime < 0 || e.Began.Before(trace.Began.Add(-time.Second)) || e.Began.Add(e.Time).After(trace.Ended.Add(time.Second)) {
			t.Errorf("%s began at %v and took %v, %v itself", e.Name, e.Began, e.Time, e.SelfTime)
		}
		if e.Parent < 0 {
			continue
		}
		p := trace.Events[e.Parent]
		children[e.Parent] += e.Time
		memory[e.Parent] += e.CPUMemory
		if e.Parent >= i || p.Thread != e.Thread || e.Began.Before(p.Began) || e.Began.Add(e.Time).After(p.Began.Add(p.Time)) {
			t.Errorf("%s is not within %s", e.Name, p.Name)
		}
	}
	for i, e := range trace.Events {
		if e.Time-children[i] != e.SelfTime || e.CPUMemory-memory[i] != e.SelfCPUMemory {
			t.Errorf("%s: the time and memory of its own are not what its children leave", e.Name)
		}
	}
}

// The rows of a table have the sums of the events, and the table prints them.
func TestTable(t *testing.T) {
	leak.Check(t)
	n := newNetwork(t)
	trace := record(t, func() error {
		_, err := n.step()
		return err
	}, profiler.RecordShapes())
	for _, opts := range [][]profiler.GroupOption{
		nil, {profiler.GroupByLine()}, {profiler.GroupByInputShape(), nil}, {profiler.GroupByInputShape(), profiler.GroupByLine()},
	} {
		var count int
		var total, self time.Duration
		var memory int64
		rows := trace.KeyAverages(opts...)
		for _, a := range rows {
			count += a.Count
			total += a.CPUTime
			self += a.SelfCPUTime
			memory += a.SelfCPUMemory
		}
		for _, e := range trace.Events {
			count--
			total -= e.Time
			self -= e.SelfTime
			memory -= e.SelfCPUMemory
		}
		if count != 0 || total != 0 || self != 0 || memory != 0 {
			t.Errorf("%d options: the rows differ from the events by %d, %v, %v, %d bytes", len(opts), count, total, self, memory)
		}
		text := rows.Table(profiler.SortBy(profiler.SelfCPUTimeTotal), profiler.RowLimit(-1))
		if got := strings.Count(text, "\n"); got != len(rows)+5 {
			t.Errorf("the table has %d lines for %d rows:\n%s", got, len(rows), text)
		}
	}
	sorted := trace.KeyAverages()
	for key, of := range map[profiler.SortKey]func(a profiler.Average) int64{
		profiler.CPUTimeTotal:       func(a profiler.Average) int64 { return int64(a.CPUTime) },
		profiler.SelfCPUTimeTotal:   func(a profiler.Average) int64 { return int64(a.SelfCPUTime) },
		profiler.CPUMemoryUsage:     func(a profiler.Average) int64 { return a.CPUMemory },
		profiler.SelfCPUMemoryUsage: func(a profiler.Average) int64 { return a.SelfCPUMemory },
		profiler.Calls:              func(a profiler.Average) int64 { return int64(a.Count) },
	} {
		most := slices.MaxFunc(sorted, func(a, b profiler.Average) int { return int(of(a) - of(b)) })
		text := sorted.Table(profiler.SortBy(key), profiler.RowLimit(1), nil)
		first := strings.TrimSpace(strings.Split(text, "\n")[3])
		name := regexp.MustCompile(`  +`).Split(first, 2)[0]
		i := slices.IndexFunc(sorted, func(a profiler.Average) bool { return a.Name == name })
		if i < 0 || of(sorted[i]) != of(most) {
			t.Errorf("sorted by %d, %q is first, not %q", key, name, most.Name)
		}
	}
	text := trace.KeyAverages(profiler.GroupByLine()).String()
	for _, want := range []string{"Name", "Self CPU %", "CPU time avg", "# of Calls", "Line", "aten::addmm", "profiler_test.go:", "Self CPU time total: "} {
		if !strings.Contains(text, want) {
			t.Errorf("the table has no %q:\n%s", want, text)
		}
	}
	if got := sorted.Table(profiler.SortBy(-1), profiler.RowLimit(0)); strings.Count(got, "\n") != 5 {
		t.Errorf("a table without rows:\n%s", got)
	}
}

func TestTableText(t *testing.T) {
	leak.Check(t)
	rows := profiler.Averages{
		{Name: strings.Repeat("x", 60), Count: 2, CPUTime: 3 * time.Second, SelfCPUTime: 2 * time.Second, CPUMemory: 3 << 29, SelfCPUMemory: 3 << 19},
		{Name: "aten::mm", Count: 1, CPUTime: 1500 * time.Microsecond, SelfCPUTime: 999 * time.Nanosecond, CPUMemory: 2048, SelfCPUMemory: -5},
	}
	const want = `
-------------------------------------------------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------
                                                   Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg       CPU Mem  Self CPU Mem    # of Calls
-------------------------------------------------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------
xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...       100.00%        2.000s       150.00%        3.000s        1.500s       1.50 GB       1.50 MB             2
                                               aten::mm         0.00%       0.999us         0.07%       1.500ms       1.500ms       2.00 KB          -5 B             1
-------------------------------------------------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 2.000s
`
	if got := "\n" + rows.String(); got != want {
		t.Errorf("the table is%s\nwant%s", got, want)
	}
	if got := (profiler.Averages{}).String(); !strings.HasSuffix(got, "Self CPU time total: 0.000us\n") {
		t.Errorf("an empty table: %s", got)
	}
	if got := (profiler.Averages{{Name: "x"}}).String(); !strings.Contains(got, "NaN") {
		t.Errorf("a table without time: %s", got)
	}
}

func TestSchedule(t *testing.T) {
	leak.Check(t)
	var traces []*profiler.Trace
	p, err := profiler.Start(profiler.Schedule{SkipFirst: 1, Wait: 1, Warmup: 1, Active: 2, Repeat: 2},
		profiler.OnTraceReady(func(tr *profiler.Trace) error {
			traces = append(traces, tr)
			return nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	for step := range 12 {
		if err := tensor.WithScope(func() error {
			x := tensor.Ones([]int{2 + step}).Sin()
			return errors.Join(x.Err(), profiler.RecordFunction(fmt.Sprint("step ", step), func() error { return x.Cos().Err() }))
		}); err != nil {
			t.Fatal(err)
		}
		if err := p.Step(); err != nil {
			t.Fatal(err)
		}
	}
	final, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if len(traces) != 2 || final != traces[1] {
		t.Fatalf("there are %d traces, want 2", len(traces))
	}
	for i, first := range []int{3, 7} {
		var names []string
		for _, e := range traces[i].Events {
			if e.Range {
				names = append(names, e.Name)
			}
		}
		if want := []string{fmt.Sprint("step ", first), fmt.Sprint("step ", first+1)}; !slices.Equal(names, want) {
			t.Errorf("trace %d has %q, want %q", i, names, want)
		}
	}
}

// What the function of OnTraceReady does is in no trace, also if it fails or panics, and it may stop the profiler.
func TestTraceReadyIsNotRecorded(t *testing.T) {
	leak.Check(t)
	var traces []*profiler.Trace
	var ended []time.Time
	failed := errors.New("failed")
	var p *profiler.Profiler
	p, err := profiler.Start(profiler.Schedule{Active: 1}, profiler.OnTraceReady(func(tr *profiler.Trace) error {
		defer func() { ended = append(ended, time.Now()) }()
		traces = append(traces, tr)
		x := tensor.Ones([]int{2})
		x.Sinh().Release()
		x.Release()
		switch len(traces) {
		case 2:
			return failed
		case 3:
			panic(failed)
		case 4:
			_, err := p.Stop()
			return err
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	step := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = r.(error)
			}
		}()
		x := tensor.Ones([]int{2})
		x.Cosh().Release()
		x.Release()
		return p.Step()
	}
	for i, want := range []error{nil, failed, failed, nil, profiler.ErrStopped} {
		if err := step(); !errors.Is(err, want) {
			t.Errorf("step %d returns %v, want %v", i, err, want)
		}
	}
	if len(traces) != 4 {
		t.Errorf("there are %d traces, want 4", len(traces))
	}
	for i, trace := range traces {
		named(t, trace, "aten::cosh")
		for _, e := range trace.Events {
			if e.Name == "aten::sinh" {
				t.Errorf("trace %d has an operator of the function of OnTraceReady", i)
			}
		}
		if i > 0 && trace.Began.Before(ended[i-1]) {
			t.Errorf("trace %d began %v before the end of the function of OnTraceReady", i, ended[i-1].Sub(trace.Began))
		}
	}
}

// TestStepsAtOnce tests that steps of several goroutines pass through all phases of a Schedule.
func TestStepsAtOnce(t *testing.T) {
	leak.Check(t)
	for range 200 {
		p, err := profiler.Start(profiler.Schedule{Wait: 1, Active: 2, Repeat: 1})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := p.Step(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		trace, err := p.Stop()
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := trace.WriteChromeTrace(&text); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text.String(), "ProfilerStep#"); n != 2 {
			t.Fatalf("the trace has %d steps, want 2: %s", n, text.String())
		}
	}
}

// An event beyond MaxEvents leaves neither its name nor its shapes in the recorder.
func TestDroppedEventsHaveNoTexts(t *testing.T) {
	leak.Check(t)
	trace := record(t, func() error {
		for n := range 500 {
			x := tensor.Ones([]int{n + 1})
			x.Cosh().Release()
			x.Release()
		}
		return nil
	}, profiler.RecordShapes(), profiler.MaxEvents(8))
	if len(trace.Events) != 8 || trace.Dropped < 992 {
		t.Errorf("there are %d events and %d more, want 8 and 992 at least", len(trace.Events), trace.Dropped)
	}
	// Each event has two texts at most, and a few events may be open when the last one takes the room.
	if text, err := cshim.TraceText(64); err == nil {
		t.Errorf("the recorder has the text %q, of an event that was dropped", text)
	}
}

// A trace that Stop cuts short is complete, too.
func TestStopWithinACycle(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct {
		steps, traces int
		events        bool
	}{{0, 0, false}, {1, 0, false}, {2, 1, true}, {3, 1, true}} {
		ready := 0
		p, err := profiler.Start(profiler.Schedule{Wait: 1, Warmup: 1, Active: 5}, profiler.OnTraceReady(func(*profiler.Trace) error {
			ready++
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		for range c.steps {
			if err := p.Step(); err != nil {
				t.Fatal(err)
			}
		}
		tensor.Ones([]int{2}).Release()
		trace, err := p.Stop()
		if err != nil || ready != c.traces || len(trace.Events) > 0 != c.events {
			t.Errorf("after %d steps: %d traces, %d events, %v", c.steps, ready, len(trace.Events), err)
		}
		again, err := p.Stop()
		if again != trace || err != nil || ready != c.traces {
			t.Errorf("a second Stop returns %p, %v, not %p", again, err, trace)
		}
		if err := p.Step(); !errors.Is(err, profiler.ErrStopped) {
			t.Errorf("Step after Stop: %v", err)
		}
	}
}

// A cycle in which nothing happened has no trace: Stop returns the one before, which OnTraceReady has seen.
func TestStopAtTheStartOfACycle(t *testing.T) {
	leak.Check(t)
	for _, after := range []int{0, 1} {
		var traces []*profiler.Trace
		p, err := profiler.Start(profiler.Schedule{Active: 2}, profiler.OnTraceReady(func(trace *profiler.Trace) error {
			traces = append(traces, trace)
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			tensor.Ones([]int{2}).Release()
			if err := p.Step(); err != nil {
				t.Fatal(err)
			}
		}
		for range after {
			tensor.Ones([]int{2}).Release()
		}
		last, err := p.Stop()
		if err != nil || len(traces) != 2+after || last != traces[1+after] || len(last.Events) == 0 {
			t.Errorf("%d operators after the last step: %d traces, the last with %d events, %v", after, len(traces), len(last.Events), err)
		}
	}
}

// Nothing is recorded before Start and after Stop.
func TestOff(t *testing.T) {
	leak.Check(t)
	work := func() {
		if err := tensor.WithScope(func() error {
			return profiler.RecordFunction("off", func() error { return tensor.Ones([]int{2}).Sin().Err() })
		}); err != nil {
			t.Error(err)
		}
	}
	work()
	first := record(t, func() error { return tensor.Ones([]int{2}).Cos().Err() })
	work()
	events, dropped := cshim.TraceTake()
	if len(events) != 0 || dropped != 0 {
		t.Errorf("%d events while off", len(events))
	}
	second := record(t, func() error { return nil })
	named(t, first, "aten::cos")
	if len(second.Events) != 0 {
		t.Errorf("%d events of an empty profile: %+v", len(second.Events), second.Events)
	}
	for _, e := range first.Events {
		if e.Name == "aten::sin" || e.Name == "off" {
			t.Errorf("%s is recorded", e.Name)
		}
	}
}

func TestMaxEvents(t *testing.T) {
	leak.Check(t)
	trace := record(t, func() error {
		x := tensor.Ones([]int{2})
		for range 10 {
			x = x.Sin()
		}
		return x.Err()
	}, profiler.MaxEvents(4))
	if len(trace.Events) != 4 || trace.Dropped < 6 {
		t.Errorf("%d events, %d dropped; want 4, and at least 6", len(trace.Events), trace.Dropped)
	}
	p, err := profiler.Start(profiler.MaxEvents(4))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := p.Step(); err != nil {
			t.Error(err)
		}
	}
	if trace, err = p.Stop(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := trace.WriteChromeTrace(&text); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), "ProfilerStep#"); n != 4 {
		t.Errorf("the trace has %d steps, want 4", n)
	}
}

func TestRefusals(t *testing.T) {
	leak.Check(t)
	for name, o := range map[string]profiler.Option{
		"MaxEvents": profiler.MaxEvents(0), "negative": profiler.Schedule{Active: 1, Wait: -1}, "no active": profiler.Schedule{Wait: 1},
		"too many": profiler.Schedule{Active: 1 << 62, Wait: 1 << 62},
	} {
		if p, err := profiler.Start(nil, o); p != nil || !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := profiler.Start()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := profiler.Start(); !errors.Is(err, profiler.ErrRunning) {
		t.Errorf("a second Start: %v", err)
	}
	if _, err := p.Stop(); err != nil {
		t.Error(err)
	}
	var none *profiler.Profiler
	var trace *profiler.Trace
	var zero profiler.Profiler
	_, stopped := none.Stop()
	_, profiled := trace.Profile()
	for name, err := range map[string]error{
		"Step": none.Step(), "Stop": stopped, "WriteChromeTrace": trace.WriteChromeTrace(nil), "Export": trace.ExportChromeTrace(""),
		"Profile": profiled, "WriteProfile": trace.WriteProfile(nil), "RecordFunction": profiler.RecordFunction("x", nil), "EmitNVTX": profiler.EmitNVTX(nil),
	} {
		if !errors.Is(err, tensor.ErrNil) {
			t.Errorf("%s of nothing: %v", name, err)
		}
	}
	if err := zero.Step(); !errors.Is(err, profiler.ErrStopped) {
		t.Errorf("Step of a Profiler that Start has not made: %v", err)
	}
	if tr, err := zero.Stop(); err != nil || len(tr.Events) != 0 {
		t.Errorf("Stop of it: %v", err)
	}
	if trace.KeyAverages() != nil {
		t.Error("rows of no trace")
	}
	failed := errors.New("failed")
	p, err = profiler.Start(profiler.OnTraceReady(func(*profiler.Trace) error { return failed }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stop(); !errors.Is(err, failed) {
		t.Errorf("Stop returns %v, not the function's error", err)
	}
}

// A range's function may fail and panic; ranges nest, and their names are texts of any kind.
func TestRecordFunction(t *testing.T) {
	leak.Check(t)
	failed := errors.New("failed")
	trace := record(t, func() error {
		if err := profiler.RecordFunction("outer\nline \"x\"\x00", func() error {
			return profiler.RecordFunction("inner", func() error { return failed })
		}); err != failed {
			t.Errorf("the error is %v", err)
		}
		func() {
			defer func() {
				if recover() != "panic" {
					t.Error("the panic is lost")
				}
			}()
			_ = profiler.RecordFunction("panics", func() error { panic("panic") })
		}()
		return profiler.RecordFunction("", func() error { return nil })
	})
	var got []string
	for i := range trace.Events {
		got = append(got, fmt.Sprint(trace.Events[i].Name, " ", depth(trace, &trace.Events[i])))
	}
	if want := []string{"outer\nline \"x\"\uFFFD 0", "inner 1", "panics 0", " 0"}; !slices.Equal(got, want) {
		t.Errorf("the ranges are %q, want %q", got, want)
	}
}

// Goroutines start, step and stop profiles, and call operators meanwhile.
func TestGoroutines(t *testing.T) {
	leak.Check(t)
	var wg sync.WaitGroup
	var started, refused sync.Map
	for i := range 4 {
		wg.Go(func() {
			for k := range 20 {
				p, err := profiler.Start(profiler.Schedule{Active: 1})
				if errors.Is(err, profiler.ErrRunning) {
					refused.Store([2]int{i, k}, true)
				} else if err != nil {
					t.Error(err)
				} else {
					started.Store([2]int{i, k}, true)
				}
				if werr := tensor.WithScope(func() error {
					return profiler.RecordFunction("range", func() error { return tensor.Ones([]int{4}).Sin().Err() })
				}); werr != nil {
					t.Error(werr)
				}
				if err != nil {
					continue
				}
				unordered.AtOnce(1, func(int, int) {
					if err := p.Step(); err != nil && !errors.Is(err, profiler.ErrStopped) {
						t.Error(err)
					}
				})
				var traces [2]*profiler.Trace
				unordered.AtOnce(1, func(_, who int) {
					var err error
					if traces[who], err = p.Stop(); err != nil {
						t.Error(err)
					}
				})
				if traces[0] != traces[1] {
					t.Error("two calls of Stop return different traces")
				}
			}
		})
	}
	wg.Wait()
	n := 0
	started.Range(func(any, any) bool { n++; return true })
	if n == 0 {
		t.Error("no profile was started")
	}
}

func TestEmitNVTX(t *testing.T) {
	leak.Check(t)
	ran := false
	err := profiler.EmitNVTX(func() error {
		ran = true
		return tensor.WithScope(func() error { return tensor.Ones([]int{2}).Sin().Err() })
	})
	if n, _ := cshim.CUDA(); n == 0 {
		if ran || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("without a device: %v, %v", ran, err)
		}
	} else if !ran || err != nil {
		t.Errorf("with a device: %v, %v", ran, err)
	}
}
