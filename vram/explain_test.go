package vram_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func explain(t *testing.T) vram.Explanation {
	t.Helper()
	e, err := vram.Explain(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, p := range e.Parts {
		sum += p.Bytes
	}
	if sum != e.Reserved {
		t.Errorf("the parts sum up to %d, %d are reserved:\n%s", sum, e.Reserved, e)
	}
	return e
}

// Row "OOM article: a report that attributes memory during the run": weights, gradients, optimizer state,
// activations, temporaries, loader, cache, fragmentation.
func TestExplainAttributesATrainingStep(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	const width, batch = 256, 128
	const weights = 2 * (width*width + width) * 4
	before := explain(t)
	grown := func(e vram.Explanation, name string) int64 { return e.Part(name).Bytes - before.Part(name).Bytes }
	model := nn.NewSequential(
		nn.NewLinear(width, width),
		nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x.View(batch, width, 1, 1) }),
		nn.NewBatchNorm2d(width),
		nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x.View(batch, width) }),
		nn.NewLinear(width, width))
	defer nn.Release(model)
	opt, err := optim.NewAdam(nn.Parameters(model), 1e-3)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	inputs := tensor.Randn([]int{4 * batch, width})
	defer inputs.Release()
	set, err := data.NewTensorDataset(inputs)
	if err != nil {
		t.Fatal(err)
	}
	loader, err := data.NewLoader(set, data.BatchSize(batch), data.Workers(1), data.Prefetch(2))
	if err != nil {
		t.Fatal(err)
	}
	const own = weights + 2*width*4 // including the norm's
	steps := 0
	for got, err := range loader.Batches(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		scratch := got.Inputs.Detach().Mul(2.0)
		loss := model.Forward(got.Inputs).Pow(2.0).Mean()
		forward := explain(t)
		if n := grown(forward, "activations"); n < 2*batch*width*4 || n > 40*batch*width*4 {
			t.Errorf("activations after the forward pass: %d", n)
		}
		if n := grown(forward, "temporaries"); n < batch*width*4 {
			t.Errorf("temporaries: %d, want %d at least\n%s", n, batch*width*4, forward)
		}
		opt.ZeroGrad()
		if err := loss.Backward(); err != nil {
			t.Fatal(err)
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		e := explain(t)
		for name, want := range map[string]int64{"weights": own, "gradients": own, "optimizer state": 2*own + 6*4, "buffers": 2*width*4 + 8} {
			if n := grown(e, name); n != want {
				t.Errorf("%s: %d bytes, want %d\n%s", name, n, want, e)
			}
		}
		if n := grown(e, "loader"); n < batch*width*4 || n > 4*batch*width*4 {
			t.Errorf("loader: %d bytes", n)
		}
		for _, want := range []string{"weights", "gradients", "optimizer state", "activations", "temporaries", "loader", "cache", "fragmentation", "reserved"} {
			if !strings.Contains(e.String(), want) {
				t.Errorf("the text does not say %q:\n%s", want, e)
			}
		}
		runtime.KeepAlive(scratch)
		steps++
	}
	if steps != 4 {
		t.Errorf("%d steps", steps)
	}
}

func TestTrackedTensorsAreFreed(t *testing.T) {
	leak.Check(t)
	for range 1000 {
		x := tensor.Zeros([]int{1024})
		tensor.Track("a cache of the user's", x)
		x.Release()
	}
	x := tensor.Zeros([]int{1024})
	tensor.Track("a cache of the user's", x, nil, tensor.Zeros([]int{-1}))
	if p := explain(t).Part("a cache of the user's"); p.Bytes != 4096 || p.Storages != 1 {
		t.Errorf("the cache is %+v", p)
	}
	y := x.View(32, 32)
	tensor.Track("views", y)
	if p := explain(t).Part("views"); p.Bytes != 0 {
		t.Errorf("a view counts again: %+v", p)
	}
	y.Release()
	x.Release()
	if p := explain(t).Part("a cache of the user's"); p.Bytes != 0 {
		t.Errorf("the cache is %+v after all was released", p)
	}
}

// Memory that is not the allocator's is in no part, and takes nothing from the others.
func TestExplainLeavesMappedMemoryOut(t *testing.T) {
	leak.Check(t)
	before := explain(t)
	mapped := func() *tensor.Tensor {
		return tensor.FromMapped(tensor.Uint8, []int{64 << 20}, make([]byte, 64<<20), nil)
	}
	weight := mapped()
	defer weight.Release()
	tensor.Track(vram.Weights, weight)
	activations := tensor.Zeros([]int{1 << 20})
	defer activations.Release()
	if err := tensor.WithScope(func() error {
		x := mapped()
		e := explain(t)
		for name, want := range map[string]int64{vram.Weights: 0, vram.Temporaries: 0, vram.Activations: 4 << 20} {
			if n := e.Part(name).Bytes - before.Part(name).Bytes; n != want {
				t.Errorf("%s: %d bytes, want %d\n%s", name, n, want, e)
			}
		}
		runtime.KeepAlive(x)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Row "R torch: cuda_memory_summary".
func TestSummaryHasPyTorchsContents(t *testing.T) {
	leak.Check(t)
	x := tensor.Zeros([]int{1 << 20})
	defer x.Release()
	s, err := vram.Summary(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"memory summary, device cpu", "Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed",
		"Allocated memory", "Active memory", "Requested memory", "Reserved memory", "Allocations", "all devices: ", "sweeps: ", "waits for memory: ", "reclaimed: "} {
		if !strings.Contains(s, want) {
			t.Errorf("the summary does not say %q:\n%s", want, s)
		}
	}
	if _, err := vram.Summary(vram.Name("abacus")); err == nil {
		t.Error("a device that does not exist has a summary")
	}
	if _, err := vram.Summary(nil); err == nil {
		t.Error("no device has a summary")
	}
}

func TestMetricsFollowTheCounts(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	calls := 0
	unregister := vram.Register(vram.Reclaimer{Name: "the test's own", Reclaim: func(int64) { calls++ }})
	defer unregister()
	samples := []vram.MetricSample{{Name: "/sweeps/full:sweeps"}, {Name: "/sweeps/collector:seconds"}, {Name: "/devices/cpu/allocated:bytes"},
		{Name: "/reclaimers/the-test's-own/calls:calls"}, {Name: "/no/such:metric"}, {Name: "/sweeps/share:ratio"}}
	read := func() []float64 {
		vram.ReadMetrics(samples)
		var v []float64
		for _, s := range samples {
			v = append(v, s.Value)
		}
		return v
	}
	before := read()
	x := tensor.Zeros([]int{1 << 20})
	defer x.Release()
	if err := vram.Collect(); err != nil {
		t.Fatal(err)
	}
	reclaim.Relieve(1<<8, 1) // a missing device is out of memory
	after := read()
	if after[0] != before[0]+1 || after[1] <= before[1] || after[2] < before[2]+4<<20 || after[3] != 1 || calls != 1 {
		t.Errorf("%v became %v, %d calls", before, after, calls)
	}
	if !math.IsNaN(after[4]) {
		t.Errorf("a metric that does not exist is %v", after[4])
	}
	if after[5] <= 0 || after[5] > 1 {
		t.Errorf("the share of time is %v", after[5])
	}
	names := map[string]bool{}
	for _, m := range vram.Metrics() {
		if m.Description == "" || names[m.Name] || !strings.Contains(m.Name, ":") {
			t.Errorf("metric %+v", m)
		}
		names[m.Name] = true
	}
	for _, s := range samples {
		if !names[s.Name] && !math.IsNaN(s.Value) {
			t.Errorf("%s is not among the metrics", s.Name)
		}
	}
	found := false
	for _, y := range vram.Yields() {
		found = found || y.Name == "the test's own" && y.Calls == 1
	}
	if !found {
		t.Errorf("the yields are %+v", vram.Yields())
	}
}

// Reclaimers with the same name are in the same metrics, which do not fall when one is removed.
func TestMetricsOfReclaimersWithOneName(t *testing.T) {
	leak.Check(t)
	const calls = "/reclaimers/a-name--of-two/calls:calls"
	read := func() float64 {
		s := []vram.MetricSample{{Name: calls}}
		vram.ReadMetrics(s)
		return s[0].Value
	}
	var unregister []func()
	for _, name := range []string{"a name: of two", "a-name:/of two", "caches"} {
		unregister = append(unregister, vram.Register(vram.Reclaimer{Name: name, Reclaim: func(int64) {}}))
	}
	before := read()
	reclaim.Relieve(1<<8, 1) // a missing device is out of memory
	if got := read() - before; got != 2 {
		t.Errorf("%v calls of two reclaimers", got)
	}
	names := map[string]int{}
	for _, m := range vram.Metrics() {
		if names[m.Name]++; names[m.Name] == 2 {
			t.Errorf("%s is listed again", m.Name)
		}
	}
	if names[calls] != 1 {
		t.Errorf("no metric %s", calls)
	}
	for _, u := range unregister {
		u()
		if got := read() - before; got != 2 {
			t.Errorf("%v calls after one of the reclaimers was removed, want 2", got)
		}
	}
}

func Example_summary() {
	x := tensor.Zeros([]int{1024, 1024})
	defer x.Release()
	e, err := vram.Explain(tensor.CPU)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Part("activations").Bytes >= 4<<20)
	// Output: true
}

// Explain reads the gradients of weights that other goroutines train.
func TestExplainWhileOthersTrain(t *testing.T) {
	leak.Check(t)
	var train, explain sync.WaitGroup
	var done atomic.Bool
	for range 2 {
		explain.Go(func() {
			for !done.Load() {
				if _, err := vram.Explain(tensor.CPU); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		train.Go(func() {
			model := nn.NewLinear(4, 4)
			defer nn.Release(model)
			opt, err := optim.NewSGD(nn.Parameters(model), 0.1)
			if err != nil {
				t.Error(err)
				return
			}
			for range 3000 {
				if err := tensor.WithScope(func() error {
					opt.ZeroGrad()
					if err := model.Forward(tensor.Ones([]int{2, 4})).Sum().Backward(); err != nil {
						return err
					}
					return opt.Step()
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	train.Wait()
	done.Store(true)
	explain.Wait()
}
