package plan_test

import (
	"errors"
	"fmt"
	"log"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
	"github.com/linstock-ml/linstock/vram/plan"
)

// classifier returns a network on the meta device, its optimizer and its training step.
func classifier(t testing.TB, width int, opts ...optim.Option) (nn.Layer, *optim.Optimizer, func(batch int) error) {
	t.Helper()
	meta := nn.Device(tensor.Meta)
	model := nn.NewSequential(nn.NewLinear(width, width, meta), &nn.ReLU{}, nn.NewLinear(width, width, meta), &nn.ReLU{}, nn.NewLinear(width, 8, meta))
	t.Cleanup(func() { nn.Release(model) })
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opt.Release)
	return model, opt, func(batch int) error {
		x := tensor.Empty([]int{batch, width}, tensor.Meta)
		y := tensor.Empty([]int{batch}, tensor.Int64, tensor.Meta)
		opt.ZeroGrad()
		if err := nn.CrossEntropy(model.Forward(x), y).Backward(); err != nil {
			return err
		}
		return opt.Step()
	}
}

func ExampleNew() {
	model := nn.NewLinear(1024, 1024, nn.Device(tensor.Meta), nn.NoBias())
	opt, err := optim.NewAdam(nn.Parameters(model), 1e-3)
	if err != nil {
		log.Fatal(err)
	}
	p, err := plan.New(model, opt, 256, func(batch int) error {
		x := tensor.Empty([]int{batch, 1024}, tensor.Meta)
		opt.ZeroGrad()
		if err := model.Forward(x).Sum().Backward(); err != nil {
			return err
		}
		return opt.Step()
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{vram.Weights, vram.Gradients, vram.OptimizerState} {
		fmt.Println(name, p.Part(name).Bytes>>20, "MiB")
	}
	fmt.Println(plan.ZeRO3, "on 4 ranks saves", (p.Peak-p.PerRank(plan.ZeRO3, 4))>>20, "MiB")
	// Output:
	// weights 4 MiB
	// gradients 4 MiB
	// optimizer state 8 MiB
	// ZeRO-3 on 4 ranks saves 12 MiB
}

// Rajbhandari et al., 2020: 2 bytes a parameter for weights, 2 for gradients, 12 for masters and Adam's state.
func TestZeRO(t *testing.T) {
	leak.Check(t)
	model := nn.NewLinear(1024, 1024, nn.Device(tensor.Meta), nn.DType(tensor.BFloat16), nn.NoBias())
	defer nn.Release(model)
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3, optim.MasterWeights())
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	p, err := plan.New(model, opt, 1, func(batch int) error {
		opt.ZeroGrad()
		if err := model.Forward(tensor.Empty([]int{batch, 1024}, tensor.BFloat16, tensor.Meta)).Sum().Backward(); err != nil {
			return err
		}
		return opt.Step()
	})
	if err != nil {
		t.Fatal(err)
	}
	const n, step = 1 << 20, 64 // the state has a step count, of which the allocator makes 64 bytes
	want := map[string]int64{vram.Weights: 2 * n, vram.Gradients: 2 * n, plan.Masters: 4 * n, vram.OptimizerState: 8*n + step}
	if p.Parameters != n {
		t.Errorf("%d parameters, want %d", p.Parameters, n)
	}
	sum := int64(0)
	for _, part := range p.Parts {
		if w, ok := want[part.Name]; ok && part.Bytes != w {
			t.Errorf("%s: %d bytes, want %d", part.Name, part.Bytes, w)
		}
		sum += part.Bytes
	}
	if sum != p.Peak {
		t.Errorf("the parts have %d bytes, the peak %d", sum, p.Peak)
	}
	rest := p.Peak - 16*n - step
	for _, c := range []struct {
		stage plan.Stage
		ranks int
		want  int64
	}{
		{plan.DataParallel, 4, 16*n + step}, {plan.ZeRO1, 4, 4*n + 3*n + step/4}, {plan.ZeRO2, 4, 2*n + 14*n/4 + step/4},
		{plan.ZeRO3, 4, 4*n + step/4}, {plan.ZeRO3, 0, 16*n + step}, {plan.ZeRO3, 1, 16*n + step},
	} {
		if got := p.PerRank(c.stage, c.ranks) - rest; got != c.want {
			t.Errorf("%v on %d ranks: %d bytes, want %d", c.stage, c.ranks, got, c.want)
		}
	}
}

func TestReport(t *testing.T) {
	leak.Check(t)
	model, opt, step := classifier(t, 256)
	p, err := plan.New(model, opt, 1024, step)
	if err != nil {
		t.Fatal(err)
	}
	if a := p.Part(vram.Activations); a.Bytes < 3<<20 || a.ByDType[tensor.Float32] < 3<<20 {
		t.Errorf("activations %v, want the input and two results of 1 MiB", a)
	}
	if len(p.Largest) == 0 || !strings.HasPrefix(p.Largest[0].Op, "aten::") || p.Largest[0].Bytes < 1<<20 {
		t.Errorf("largest blocks %v", p.Largest)
	}
	names := []string{}
	for _, r := range p.Remedies {
		names = append(names, r.Name)
		if r.Peak <= 0 || r.Peak >= p.Peak {
			t.Errorf("%s: a peak of %d with the remedy, %d without", r.Name, r.Peak, p.Peak)
		}
	}
	if got := strings.Join(names, ", "); got != "half the batch, accumulate 4 batches of 256, bfloat16 with master weights, "+
		"checkpointing, activations on the CPU, optimizer state on the CPU, 8-bit optimizer state, factored optimizer state, LoRA of rank 8" {
		t.Errorf("remedies: %s", got)
	}
	for _, want := range append(names, "batch 1024", "ZeRO-3", "float32", vram.OptimizerState) {
		if !strings.Contains(p.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, p)
		}
	}
	if s := p.Picture(); !strings.Contains(s, "█") || !strings.Contains(s, vram.Activations) {
		t.Errorf("the picture:\n%s", s)
	}
	// The fields are the user's to change.
	p.Parts[0].Bytes, p.Parts[1].Bytes = -5, math.MaxInt64
	for _, peak := range []int64{p.Peak, 1, -1, 0} {
		if p.Peak = peak; (p.Picture() == "") != (peak <= 0) || p.String() == "" {
			t.Errorf("a peak of %d: %q", peak, p.Picture())
		}
	}
	if p = (&plan.Plan{Batch: 64, Parameters: 7850}); !strings.Contains(p.String(), "7,850 parameters |\n") {
		t.Errorf("the title of a narrow table is broken:\n%s", p)
	}
	var none *plan.Plan
	if none.String() == "" || none.Picture() != "" || none.PerRank(plan.ZeRO3, 2) != 0 || none.Part("x").Name != "x" {
		t.Error("a nil plan is not empty")
	}
}

func TestErrors(t *testing.T) {
	leak.Check(t)
	model, opt, step := classifier(t, 8)
	onCPU := nn.NewLinear(2, 2)
	defer nn.Release(onCPU)
	mine := errors.New("mine")
	x := func() *tensor.Tensor { return tensor.Ones([]int{4}, tensor.Meta) }
	for _, c := range []struct {
		want string
		plan func() (*plan.Plan, error)
	}{
		{"plan.New: a step is needed, got nil", func() (*plan.Plan, error) { return plan.New(model, opt, 1, nil) }},
		{"a batch of 0", func() (*plan.Plan, error) { return plan.New(model, opt, 0, step) }},
		{"weight is on cpu", func() (*plan.Plan, error) { return plan.New(onCPU, nil, 1, step) }},
		{"linstock: plan.New: ", func() (*plan.Plan, error) { return plan.New(nil, nil, 1, step) }},
		{"batch 2: mine", func() (*plan.Plan, error) { return plan.New(model, opt, 2, func(int) error { return mine }) }},
		{"nonzero", func() (*plan.Plan, error) {
			return plan.New(model, opt, 1, func(int) error { return x().NonZero().Err() })
		}},
		{"already|being recorded", func() (*plan.Plan, error) {
			return plan.New(model, opt, 1, func(int) error {
				_, err := plan.New(model, opt, 1, step)
				return err
			})
		}},
	} {
		_, err := c.plan()
		ok := false
		for _, want := range strings.Split(c.want, "|") {
			ok = ok || err != nil && strings.Contains(err.Error(), want)
		}
		if !ok {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
	for _, c := range []struct {
		model any
		batch int
		step  func(int) error
		kind  error
	}{{model, 1, nil, tensor.ErrNil}, {model, 0, step, tensor.ErrArgument}, {onCPU, 1, step, tensor.ErrArgument}, {nil, 1, step, tensor.ErrNil}} {
		if _, err := plan.New(c.model, nil, c.batch, c.step); !refused(err, c.kind) {
			t.Errorf("got %v, want %v at a line of this file", err, c.kind)
		}
	}
	if _, err := plan.New(model, opt, 1, step); err != nil {
		t.Error("after the errors:", err)
	}
}

// refused reports whether err is a *tensor.Error of kind with a line of this file.
func refused(err, kind error) bool {
	var e *tensor.Error
	return errors.As(err, &e) && e.Kind == kind && strings.Contains(e.Caller, "plan_test.go:")
}

// A step that refuses a smaller batch still has a plan, without the remedies that need that batch.
func TestSmallerBatchesMayFail(t *testing.T) {
	leak.Check(t)
	model, opt, step := classifier(t, 64)
	p, err := plan.New(model, opt, 12, func(batch int) error {
		if batch == 6 {
			return errors.New("not 6")
		}
		return step(batch)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Remedies {
		if strings.Contains(r.Name, "half the batch") {
			t.Errorf("%v, which the step refuses", r)
		}
	}
}

// layered returns a network of equal layers without biases on the meta device, whose first layers are frozen.
func layered(t *testing.T, layers, frozen, width int, dtype tensor.DType) *nn.Sequential {
	t.Helper()
	list := make([]nn.Layer, layers)
	for i := range list {
		l := nn.NewLinear(width, width, nn.Device(tensor.Meta), nn.DType(dtype), nn.NoBias())
		l.Weight.RequiresGrad_(i >= frozen)
		list[i] = l
	}
	model := nn.NewSequential(list...)
	t.Cleanup(func() { nn.Release(model) })
	return model
}

// remedy returns the remedy with a name.
func remedy(t *testing.T, p *plan.Plan, name string) plan.Remedy {
	t.Helper()
	for _, r := range p.Remedies {
		if r.Name == name {
			return r
		}
	}
	t.Errorf("no remedy %q:\n%s", name, p)
	return plan.Remedy{}
}

// The peak of an accumulated batch is that of a step which accumulates it.
func TestAccumulation(t *testing.T) {
	leak.Check(t)
	const layers, width = 8, 256
	for _, c := range []struct {
		dtype  tensor.DType
		rows   int // of a sample
		batch  int
		pieces []int
	}{
		{tensor.BFloat16, 32, 8, []int{2, 2, 2, 2}}, // of a piece the gradients need more than the activations
		{tensor.Float64, 512, 8, []int{2, 2, 2, 2}},
		{tensor.Float32, 512, 7, []int{2, 2, 2, 1}},
		{tensor.Float32, 512, 5, []int{2, 2, 1}},
	} {
		model := layered(t, layers, 0, width, c.dtype)
		opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(opt.Release)
		step := func(batches ...int) error {
			opt.ZeroGrad()
			for _, n := range batches {
				if err := tensor.WithScope(func() error {
					return model.Forward(tensor.Empty([]int{n * c.rows, width}, c.dtype, tensor.Meta)).Mean().Backward()
				}); err != nil {
					return err
				}
			}
			return opt.Step()
		}
		p, err := plan.New(model, opt, c.batch, func(batch int) error { return step(batch) })
		if err != nil {
			t.Fatal(err)
		}
		accumulated, err := plan.New(model, opt, 1, func(int) error { return step(c.pieces...) })
		if err != nil {
			t.Fatal(err)
		}
		r := remedy(t, p, fmt.Sprintf("accumulate %d batches of %d", len(c.pieces), c.pieces[0]))
		gradients := int64(layers * width * width * c.dtype.Size())
		if off := r.Peak - accumulated.Peak; max(off, -off) > gradients/2 {
			t.Errorf("%v, batch %d: a peak of %d, want about %d\n%s", c.dtype, c.batch, r.Peak, accumulated.Peak, p)
		}
	}
}

// The peak in bfloat16 with master weights is that of a model in bfloat16. Optimizers without state keep masters too,
// and frozen parameters have none.
func TestMasters(t *testing.T) {
	leak.Check(t)
	const layers, width, rows = 8, 256, 2048
	for _, frozen := range []int{0, layers - 1} {
		sgd := func(dtype tensor.DType, opts ...optim.Option) *plan.Plan {
			model := layered(t, layers, frozen, width, dtype)
			opt, err := optim.NewSGD(nn.Parameters(model), 1e-3, opts...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(opt.Release)
			p, err := plan.New(model, opt, 1, func(batch int) error {
				opt.ZeroGrad()
				if err := model.Forward(tensor.Empty([]int{batch * rows, width}, dtype, tensor.Meta)).Mean().Backward(); err != nil {
					return err
				}
				return opt.Step()
			})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p, want := sgd(tensor.Float32), sgd(tensor.BFloat16, optim.MasterWeights())
		r := remedy(t, p, "bfloat16 with master weights")
		const layer = width * width * 4
		if off := r.Peak - want.Peak; max(off, -off) > layer/2 {
			t.Errorf("%d frozen layers: a peak of %d, want about %d\n%s\n%s", frozen, r.Peak, want.Peak, p, want)
		}
	}
}

// Adapters and factored state have the parameters' dtype.
func TestRemediesHaveTheModelsDType(t *testing.T) {
	leak.Check(t)
	const layers, width, rank, batch = 4, 256, 8, 1
	for dtype, size := range map[tensor.DType]int64{tensor.Float32: 4, tensor.Float64: 8} {
		model := layered(t, layers, 0, width, dtype)
		opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(opt.Release)
		p, err := plan.New(model, opt, batch, func(batch int) error {
			opt.ZeroGrad()
			if err := model.Forward(tensor.Empty([]int{batch, width}, dtype, tensor.Meta)).Mean().Backward(); err != nil {
				return err
			}
			return opt.Step()
		})
		if err != nil {
			t.Fatal(err)
		}
		const vectors = layers * 2 * width
		state := p.Part(vram.OptimizerState).Bytes
		if r, want := remedy(t, p, "factored optimizer state"), p.Peak-state+vectors*size; r.Peak != want {
			t.Errorf("%v: %d bytes with factored state, want %d", dtype, r.Peak, want)
		}
		trains := p.Part(vram.Gradients).Bytes + state
		r, want := remedy(t, p, "LoRA of rank 8"), p.Peak-trains+trains*2*rank/width+rank*vectors*size
		if off := r.Peak - want; off < -1 || off > 1 {
			t.Errorf("%v: %d bytes with LoRA, want %d", dtype, r.Peak, want)
		}
	}
}

// Goroutines may plan at once, and the policy that a program sets meanwhile stays.
func TestPlansAtOnce(t *testing.T) {
	leak.Check(t)
	defer vram.SetPolicy(vram.SetPolicy(nil))
	const planners = 4
	var peaks [planners]int64
	var wg sync.WaitGroup
	for i := range planners {
		model, opt, step := classifier(t, 32)
		wg.Go(func() {
			p, err := plan.New(model, opt, 8, step)
			if err != nil {
				t.Error(err)
				return
			}
			peaks[i] = p.Peak
		})
	}
	wg.Wait()
	for _, p := range peaks {
		if p != peaks[0] || p == 0 {
			t.Errorf("the peaks of one program are %d", peaks)
		}
	}
	if p := vram.CurrentPolicy(); p != (vram.Paced{}) {
		t.Errorf("the policy is %T", p)
	}
	model, opt, step := classifier(t, 32)
	var kept vram.Policy
	if _, err := plan.New(model, opt, 1, func(batch int) error {
		if p := vram.SetPolicy(vram.Off{}); kept == nil {
			kept = p
		}
		return step(batch)
	}); err != nil {
		t.Error(err)
	}
	if p := vram.CurrentPolicy(); p != (vram.Off{}) {
		t.Errorf("the policy that the step has set is %T", p)
	}
	vram.SetPolicy(kept) // the one of the recording, which has ended
	tensor.Ones([]int{4}).Release()
}

// Goroutines that plan with one model and one optimizer have the plan of one alone.
func TestPlansOfOneModelAtOnce(t *testing.T) {
	leak.Check(t)
	model, opt, step := classifier(t, 32)
	alone, err := plan.New(model, opt, 8, step)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		model, opt, step := classifier(t, 32)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				p, err := plan.New(model, opt, 8, step)
				if err != nil {
					t.Error(err)
				} else if p.String() != alone.String() {
					t.Errorf("at once:\n%s\nalone:\n%s", p, alone)
				}
			})
		}
		wg.Wait()
	}
}

// many is a model of two lists of parameters.
type many struct{ Lists [2][]*tensor.Tensor }

// The goroutines that a step starts may call Backward at once.
func TestBackwardOnGoroutines(t *testing.T) {
	leak.Check(t)
	const parameters = 2000
	model := &many{}
	defer func() { nn.Release(model) }()
	for i := range model.Lists {
		for range parameters {
			model.Lists[i] = append(model.Lists[i], tensor.Zeros([]int{1}, tensor.Meta).RequiresGrad_(true).Keep())
		}
	}
	for range 6 {
		if err := tensor.ZeroGrads(nn.Parameters(model), true); err != nil {
			t.Fatal(err)
		}
		if _, err := plan.New(model, nil, 1, func(int) error {
			var errs [len(model.Lists)]error
			var wg sync.WaitGroup
			for i, list := range model.Lists {
				wg.Go(func() {
					errs[i] = tensor.WithScope(func() error { return tensor.Cat(list).Sum().Backward() })
				})
			}
			wg.Wait()
			return errors.Join(errs[:]...)
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFindBatchSize(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct{ first, most, fits, want int }{
		{1, 1000, 1000, 1000}, {1, 1000, 137, 137}, {1, 1000, 1, 1}, {3, 3, 9, 3}, {2, 1024, 64, 64}, {5, 700, 699, 699},
		{1, math.MaxInt, 100, 100}, {1, math.MaxInt - 1, math.MaxInt, math.MaxInt - 1}, {7, math.MaxInt, math.MaxInt, math.MaxInt},
	} {
		tried := map[int]int{}
		got, err := plan.FindBatchSize(c.first, c.most, func(batch int) error {
			tried[batch]++
			if batch > c.fits {
				return fmt.Errorf("too large: %w", vram.ErrOutOfMemory)
			}
			return nil
		})
		if err != nil || got != c.want || len(tried) > 70 {
			t.Errorf("from %d to %d, %d fit: %d, %v, in %d trials", c.first, c.most, c.fits, got, err, len(tried))
		}
	}
	mine := errors.New("mine")
	if _, err := plan.FindBatchSize(1, 8, func(int) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("got %v, want the step's error", err)
	}
	if _, err := plan.FindBatchSize(4, 8, func(int) error { return vram.ErrOutOfMemory }); !errors.Is(err, vram.ErrOutOfMemory) {
		t.Errorf("got %v, want ErrOutOfMemory", err)
	}
	for _, bad := range [][2]int{{0, 1}, {2, 1}, {-1, -1}} {
		_, err := plan.FindBatchSize(bad[0], bad[1], func(int) error { return nil })
		if !refused(err, tensor.ErrArgument) {
			t.Errorf("from %d to %d: %v", bad[0], bad[1], err)
		}
	}
	if _, err := plan.FindBatchSize(1, 2, nil); !refused(err, tensor.ErrNil) {
		t.Errorf("a nil step: %v", err)
	}
}

// The batch that a plan finds is the largest whose plan fits.
func TestWithin(t *testing.T) {
	leak.Check(t)
	const room = 8 << 20
	model, opt, step := classifier(t, 256)
	batch, err := plan.FindBatchSize(1, 1<<20, plan.Within(room, model, opt, step))
	if err != nil {
		t.Fatal(err)
	}
	for n, fits := range map[int]bool{batch: true, batch + 1: false} {
		if p, err := plan.New(model, opt, n, step); err != nil || p.Peak <= room != fits {
			t.Errorf("batch %d: %v, %v", n, p, err)
		}
	}
}

// The gradients that parameters have before a plan count in it, unless the step replaces them.
func TestPlanWithGradients(t *testing.T) {
	leak.Check(t)
	const width, batch = 256, 1 // without remedies, New runs the step twice
	for name, zero := range map[string]func(*optim.Optimizer, []*tensor.Tensor) error{
		"accumulated":     func(*optim.Optimizer, []*tensor.Tensor) error { return nil },
		"zeroed in place": func(_ *optim.Optimizer, params []*tensor.Tensor) error { return tensor.ZeroGrads(params, false) },
		"replaced":        func(opt *optim.Optimizer, _ []*tensor.Tensor) error { opt.ZeroGrad(); return nil },
	} {
		model, opt, _ := classifier(t, width)
		step := func(batch int) error {
			x, y := tensor.Empty([]int{batch, width}, tensor.Meta), tensor.Empty([]int{batch}, tensor.Int64, tensor.Meta)
			if err := zero(opt, nn.Parameters(model)); err != nil {
				return err
			}
			if err := nn.CrossEntropy(model.Forward(x), y).Backward(); err != nil {
				return err
			}
			return opt.Step()
		}
		first, err := plan.New(model, opt, batch, step)
		if err != nil {
			t.Fatal(err)
		}
		second, err := plan.New(model, opt, batch, step)
		if err != nil {
			t.Fatal(err)
		}
		is, want := second.Part(vram.Gradients).Bytes, first.Part(vram.Gradients).Bytes
		if second.Peak != first.Peak || is != want || want < 4*first.Parameters {
			t.Errorf("%s: peaks of %d and %d bytes, gradients of %d and %d", name, first.Peak, second.Peak, want, is)
		}
	}
}

// replaced is a model whose step replaces a buffer and a frozen parameter.
type replaced struct {
	L      *nn.Linear
	Buffer *tensor.Tensor `nn:",buffer"`
	Frozen *tensor.Tensor
}

// What a step replaces counts once, as what it was.
func TestReplacedTensors(t *testing.T) {
	leak.Check(t)
	const width, bytes, large = 64, 1 << 20, 16 << 20
	zeros := func() *tensor.Tensor { return tensor.Zeros([]int{bytes / 4}, tensor.Meta).RequiresGrad_(false).Keep() }
	model := &replaced{nn.NewLinear(width, width, nn.Device(tensor.Meta), nn.NoBias()), zeros(), zeros()}
	defer func() { nn.Release(model) }()
	opt, err := optim.NewAdam([]*tensor.Tensor{model.L.Weight}, 1e-3)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	for i := range 2 { // without state, and with state
		p, err := plan.New(model, opt, 1, func(batch int) error {
			opt.Release()
			for _, x := range []**tensor.Tensor{&model.Buffer, &model.Frozen} {
				(*x).Release()
				*x = zeros()
			}
			opt.ZeroGrad()
			if err := model.L.Forward(tensor.Empty([]int{batch, width}, tensor.Meta)).Sum().Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			return tensor.Empty([]int{large}, tensor.Uint8, tensor.Meta).Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		const weight, count = width * width * 4, 64
		for name, want := range map[string]int64{vram.Buffers: bytes, vram.Weights: bytes + weight, vram.Gradients: weight,
			vram.OptimizerState: 2*weight + count} {
			if got := p.Part(name).Bytes; got != want {
				t.Errorf("plan %d: %s of %d bytes, want %d\n%s", i, name, got, want, p)
			}
		}
		if most := int64(large + 2*bytes + 5*weight); p.Peak > most {
			t.Errorf("plan %d: a peak of %d bytes, want %d at most\n%s", i, p.Peak, most, p)
		}
	}
}

// Other goroutines may free what the step has made.
func TestFreesElsewhere(t *testing.T) {
	leak.Check(t)
	model, opt, _ := classifier(t, 8)
	const tensors, bytes = 1000, 1 << 10
	made := make(chan *tensor.Tensor, 4)
	done := make(chan struct{})
	for range 2 {
		go func() {
			for x := range made {
				x.Release()
			}
			done <- struct{}{}
		}()
	}
	p, err := plan.New(model, opt, 1, func(int) error {
		for range tensors {
			made <- tensor.Empty([]int{bytes / 4}, tensor.Meta)
		}
		return nil
	})
	close(made)
	<-done
	<-done
	if err != nil {
		t.Fatal(err)
	}
	// Those of the channel, of the goroutines, and of the step.
	if got := p.Part(vram.Temporaries).Bytes; got < bytes || got > 64*bytes {
		t.Errorf("%d bytes live at the peak, of %d tensors of %d that others free", got, tensors, bytes)
	}
}
