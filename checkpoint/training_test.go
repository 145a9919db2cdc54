package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// run is a small training run with every kind of state: dropout, batch norm, AdamW, a schedule, a shuffling
// loader.
type run struct {
	model    *nn.Sequential
	opt      *optim.Optimizer
	schedule *optim.Scheduler
	loader   *data.Loader
	step     int
	losses   []float64
}

func newRun(t *testing.T, seed uint64, workers int) *run {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tensor.ManualSeed(seed))
	r := &run{model: nn.NewSequential(nn.NewConv2d(1, 4, 3), nn.NewBatchNorm2d(4), &nn.ReLU{}, nn.NewDropout(0.3),
		nn.NewFlatten(1, -1), nn.NewLinear(4*4*4, 3))}
	var err error
	r.opt, err = optim.NewAdamW(nn.Parameters(r.model), 1e-2)
	must(err)
	r.schedule, err = optim.NewScheduler(r.opt, optim.WarmupCosine(5, 40, 1e-4))
	must(err)
	set, err := data.NewSamples(50, []int{1, 6, 6}, nil, func(i int, x []float32, y []int64) error {
		for k := range x {
			x[k] = float32(math.Sin(float64((i + 1) * (k + 3))))
		}
		y[0] = int64(i % 3)
		return nil
	})
	must(err)
	r.loader, err = data.NewLoader(set, data.BatchSize(8), data.Shuffle(true), data.Seed(seed), data.Workers(workers))
	must(err)
	t.Cleanup(func() {
		nn.Release(r.model)
		r.opt.Release()
	})
	return r
}

func (r *run) parts() []checkpoint.Part {
	return []checkpoint.Part{checkpoint.Loader(r.loader), checkpoint.Schedule(r.schedule), checkpoint.Value("step", &r.step), checkpoint.Value("losses", &r.losses)}
}

// train continues until the given number of steps is done.
func (r *run) train(steps int) error {
	for r.step < steps {
		for batch, err := range r.loader.Batches(context.Background()) {
			if err != nil {
				return err
			}
			loss := nn.CrossEntropy(r.model.Forward(batch.Inputs), batch.Targets)
			r.opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := r.opt.Step(); err != nil {
				return err
			}
			r.schedule.Step()
			v, err := loss.Item()
			if err != nil {
				return err
			}
			r.losses = append(r.losses, v)
			if r.step++; r.step >= steps {
				break
			}
		}
	}
	return nil
}

func TestResumedRunIsBitIdentical(t *testing.T) {
	leak.Check(t)
	const steps = 30
	whole := newRun(t, 1, 0)
	if err := whole.train(steps); err != nil {
		t.Fatal(err)
	}
	if first, last := whole.losses[0], whole.losses[steps-1]; !(last < first) {
		t.Errorf("the loss went from %v to %v", first, last)
	}
	dir := t.TempDir()
	save := func(name string, r *run) []byte {
		path := filepath.Join(dir, name)
		if err := checkpoint.SaveTraining(path, r.model, r.opt, r.parts()...); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	want := save("whole", whole)
	for _, stop := range []int{0, 1, 6, 7, 8, 17, 29, 30} {
		r := newRun(t, 1, stop%3)
		if err := r.train(stop); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("stopped", stop)
		save(name, r)
		// Another seed: everything that matters must come from the file.
		resumed := newRun(t, 99, (stop+1)%3)
		if err := checkpoint.LoadTraining(filepath.Join(dir, name), resumed.model, resumed.opt, resumed.parts()...); err != nil {
			t.Fatal(err)
		}
		if err := resumed.train(steps); err != nil {
			t.Fatal(err)
		}
		for i, v := range resumed.losses {
			if v != whole.losses[i] {
				t.Errorf("stopped at %d: loss %d is %v, want %v", stop, i, v, whole.losses[i])
				break
			}
		}
		// The file holds weights, moments, running statistics, generator, position, schedule and losses.
		if !bytes.Equal(save(name, resumed), want) {
			t.Errorf("stopped at %d: the last checkpoint differs from that of the run that never stopped", stop)
		}
	}
}

func TestLoadModelAndValues(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	r := newRun(t, 1, 0)
	if err := r.train(3); err != nil {
		t.Fatal(err)
	}
	training := filepath.Join(dir, "training")
	if err := checkpoint.SaveTraining(training, r.model, r.opt, r.parts()...); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain")
	if err := checkpoint.Save(plain, nn.StateDict(r.model).Map(), nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{training, plain} {
		other := newRun(t, 2, 0)
		if err := checkpoint.LoadModel(path, other.model); err != nil {
			t.Fatal(err)
		}
		want := nn.StateDict(r.model).Map()
		for _, n := range nn.StateDict(other.model) {
			if same, err := n.Tensor.Equal(want[n.Name]); err != nil || !same {
				t.Errorf("%s: equal %t, %v", n.Name, same, err)
			}
		}
	}
	step, none := 0, 0
	if err := checkpoint.LoadValues(training, checkpoint.Value("step", &step)); err != nil || step != 3 {
		t.Errorf("step %d, %v", step, err)
	}
	if err := checkpoint.LoadValues(training, checkpoint.Value("none", &none)); err == nil {
		t.Error("a value that is not there was found")
	}
	if err := checkpoint.LoadTraining(plain, r.model, r.opt); err == nil {
		t.Error("a file without training state was taken for a training checkpoint")
	}
	if err := checkpoint.LoadModel(training, nn.NewLinear(2, 2)); err == nil {
		t.Error("another model took the weights")
	}
	twice := checkpoint.Value("step", &step)
	if err := checkpoint.SaveTraining(filepath.Join(dir, "twice"), r.model, nil, twice, twice); err == nil {
		t.Error("two parts of one name were saved")
	}
	if err := checkpoint.SaveTraining(filepath.Join(dir, "x"), r.model, nil, checkpoint.Part{}); err == nil {
		t.Error("an empty part was saved")
	}
	if _, err := os.Stat(filepath.Join(dir, "twice")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a save that failed left %v", err)
	}
}

// TestSaveValues tests a file of values alone.
func TestSaveValues(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "values.safetensors")
	step, name := 3, "run"
	if err := checkpoint.SaveValues(path, checkpoint.Value("step", &step), checkpoint.Value("name", &name)); err != nil {
		t.Fatal(err)
	}
	var gotStep int
	var gotName string
	if err := checkpoint.LoadValues(path, checkpoint.Value("name", &gotName), checkpoint.Value("step", &gotStep)); err != nil || gotStep != 3 || gotName != "run" {
		t.Errorf("got %d, %q, %v", gotStep, gotName, err)
	}
	for _, err := range []error{checkpoint.SaveValues(path, checkpoint.Part{}), checkpoint.SaveValues(path, checkpoint.Value("x", &step), checkpoint.Value("x", &step)),
		checkpoint.SaveValues(filepath.Join(path, "below"), checkpoint.Value("x", &step))} {
		if err == nil {
			t.Error("no error")
		}
	}
}

// TestLoaderWithAnotherSampler tests that a run continues with another sampler after an epoch, and in the middle of one as
// the documentation of SetState says.
func TestLoaderWithAnotherSampler(t *testing.T) {
	leak.Check(t)
	set, err := data.NewSamples(4, []int{1}, nil, func(int, []float32, []int64) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	sampler, err := data.NewDistributedSampler(4, 1, 0, data.Seed(5))
	if err != nil {
		t.Fatal(err)
	}
	former, err := data.NewLoader(set, data.Shuffle())
	if err != nil {
		t.Fatal(err)
	}
	loader, err := data.NewLoader(set, data.WithSampler(sampler))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "loader.safetensors")
	for _, at := range []data.State{{Epoch: 1}, {Epoch: 1, Batch: 2}} {
		if err := errors.Join(former.SetState(at), checkpoint.SaveValues(path, checkpoint.Loader(former)), former.SetState(data.State{})); err != nil {
			t.Fatal(err)
		}
		err := checkpoint.LoadValues(path, checkpoint.Loader(loader))
		if at.Batch > 0 {
			if !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("%+v: %v", at, err)
			}
			err = checkpoint.LoadValues(path, checkpoint.Loader(former))
			s, own := former.State(), loader.State()
			s.Sampler, s.SamplerSeed, s.Generator = own.Sampler, own.SamplerSeed, own.Generator
			err = errors.Join(err, loader.SetState(s))
		}
		want := at
		want.Sampler, want.SamplerSeed = "DistributedSampler", 5
		if err != nil || loader.State() != want {
			t.Errorf("the position is %+v, want %+v; %v", loader.State(), want, err)
		}
	}
}

// converter converts a model when it is saved as a value, in the place of another goroutine.
type converter struct{ model any }

func (c converter) MarshalJSON() ([]byte, error) { return []byte("1"), nn.To(c.model, tensor.BFloat16) }
func (c *converter) UnmarshalJSON([]byte) error  { return nil }

// A model that is converted while it is saved is an error, and the file from before stays.
func TestSaveOfChangingModel(t *testing.T) {
	leak.Check(t)
	m := nn.NewLinear(4, 4, nn.DType(tensor.Float16))
	defer nn.Release(m)
	path := filepath.Join(t.TempDir(), "file")
	if err := checkpoint.SaveTraining(path, m, nil); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	err = checkpoint.SaveTraining(path, m, nil, checkpoint.Value("v", &converter{m}))
	if err == nil || !strings.Contains(err.Error(), "it has changed from float16") {
		t.Errorf("got %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file has changed, %v", err)
	}
}

// pair is a run of two models with an optimizer and a schedule each, of different kinds.
type pair struct {
	models     struct{ G, D *nn.Sequential }
	optG, optD *optim.Optimizer
	scheduleG  *optim.Scheduler
	scheduleD  *optim.Scheduler
	step       int
	losses     []float64
}

func newPair(t *testing.T, seed uint64) *pair {
	t.Helper()
	p := &pair{}
	var errs [5]error
	errs[0] = tensor.ManualSeed(seed)
	p.models.G = nn.NewSequential(nn.NewLinear(3, 8), nn.NewBatchNorm1d(8), &nn.ReLU{}, nn.NewLinear(8, 4))
	p.models.D = nn.NewSequential(nn.NewLinear(4, 8), &nn.ReLU{}, nn.NewDropout(0.3), nn.NewLinear(8, 1))
	p.optG, errs[1] = optim.NewAdam(nn.Parameters(p.models.G), 1e-2)
	p.optD, errs[2] = optim.NewSGD(nn.Parameters(p.models.D), 1e-1, optim.Momentum(0.9))
	p.scheduleG, errs[3] = optim.NewScheduler(p.optG, optim.WarmupCosine(5, 40, 1e-4))
	p.scheduleD, errs[4] = optim.NewScheduler(p.optD, optim.StepLR(3, 0.5))
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(&p.models)
		p.optG.Release()
		p.optD.Release()
	})
	return p
}

func (p *pair) parts() []checkpoint.Part {
	return []checkpoint.Part{checkpoint.Schedule(p.scheduleG), checkpoint.Named("d", checkpoint.Optimizer(p.optD)), checkpoint.Named("d", checkpoint.Schedule(p.scheduleD)),
		checkpoint.Value("step", &p.step), checkpoint.Value("losses", &p.losses)}
}

// train continues until the given number of steps is done.
func (p *pair) train(steps int) error {
	learn := func(opt *optim.Optimizer, schedule *optim.Scheduler, loss *tensor.Tensor) error {
		opt.ZeroGrad()
		if err := errors.Join(loss.Backward(), opt.Step()); err != nil {
			return err
		}
		schedule.Step()
		v, err := loss.Item()
		p.losses = append(p.losses, v)
		return err
	}
	for ; p.step < steps; p.step++ {
		if err := tensor.WithScope(func() error {
			real, fake := tensor.Ones([]int{6, 1}), tensor.Zeros([]int{6, 1})
			drawn := p.models.G.Forward(tensor.Randn([]int{6, 3}))
			lossD := nn.BCEWithLogitsLoss(p.models.D.Forward(tensor.Rand([]int{6, 4})), real).Add(nn.BCEWithLogitsLoss(p.models.D.Forward(drawn.Detach()), fake))
			if err := learn(p.optD, p.scheduleD, lossD); err != nil {
				return err
			}
			return learn(p.optG, p.scheduleG, nn.BCEWithLogitsLoss(p.models.D.Forward(drawn), real))
		}); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) save(t *testing.T, path string) []byte {
	t.Helper()
	if err := checkpoint.SaveTraining(path, &p.models, p.optG, p.parts()...); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A run with two models, optimizers and schedules continues bit for bit.
func TestSeveralOptimizers(t *testing.T) {
	leak.Check(t)
	const steps = 10
	path := filepath.Join(t.TempDir(), "x")
	whole := newPair(t, 1)
	if err := whole.train(steps); err != nil {
		t.Fatal(err)
	}
	want := whole.save(t, path)
	for _, stop := range []int{0, 1, 4, steps} {
		p := newPair(t, 1)
		if err := p.train(stop); err != nil {
			t.Fatal(err)
		}
		p.save(t, path)
		resumed := newPair(t, 99)
		if err := resumed.train(2); err != nil {
			t.Fatal(err)
		}
		if err := checkpoint.LoadTraining(path, &resumed.models, resumed.optG, resumed.parts()...); err != nil {
			t.Fatal(err)
		}
		if err := resumed.train(steps); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(resumed.save(t, path), want) {
			t.Errorf("stopped at %d: the last checkpoint differs from that of the run that never stopped", stop)
		}
	}
	// One optimizer alone.
	other := newPair(t, 2)
	if err := checkpoint.LoadValues(path, checkpoint.Named("d", checkpoint.Optimizer(other.optD))); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	if err := f.LoadValues(checkpoint.Optimizer(other.optG)); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(t.TempDir(), "again")
	if err := checkpoint.SaveValues(again, checkpoint.Named("d", checkpoint.Optimizer(other.optD)), checkpoint.Optimizer(other.optG)); err != nil {
		t.Fatal(err)
	}
	scoped(t, func() {
		states := map[string]*tensor.Tensor{}
		for _, name := range f.Names() {
			if strings.HasPrefix(name, "optimizer") {
				states[name] = f.Tensor(name)
			}
		}
		if states["optimizer"] == nil || states["optimizer.state.5.exp_avg"] == nil || states["optimizer:d"] == nil || states["optimizer:d.state.3.momentum_buffer"] == nil ||
			len(states) != 2+3*6+4 {
			t.Errorf("the tensors of the optimizers are %q", slices.Sorted(maps.Keys(states)))
		}
		equal(t, open(t, again), states)
	})
}

// TestNamedParts tests the errors of parts with names.
func TestNamedParts(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	p := newPair(t, 1)
	if err := p.train(3); err != nil {
		t.Fatal(err)
	}
	opt, named := checkpoint.Optimizer, checkpoint.Named
	for want, parts := range map[string][]checkpoint.Part{
		`"optimizer": given twice: Named gives`: {opt(p.optD)},
		`"schedule": given twice: Named gives`:  {checkpoint.Schedule(p.scheduleG), checkpoint.Schedule(p.scheduleD)},
		`"optimizer:d": given twice`:            {named("d", opt(p.optG)), named("d", opt(p.optD))},
		`"optimizer:d.state": a part's name`:    {named("d", opt(p.optG)), named("d.state", opt(p.optD))},
		`"optimizer:d": nothing to save`:        {named("d", opt(nil))},
		`":d": nothing to save`:                 {named("d", checkpoint.Part{})},
		`"schedule:d": nothing to save`:         {named("d", checkpoint.Schedule(nil))},
		"a tensor cannot have that name":        {named("\xff", opt(p.optD))},
	} {
		for _, err := range []error{checkpoint.SaveTraining(path, &p.models, p.optG, parts...), checkpoint.SaveValues(path, append(parts, opt(p.optG))...)} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("want %s, got %v", want, err)
			}
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a save that failed left %v", err)
	}
	before := p.save(t, path)
	kind, err := optim.NewAdam(nn.Parameters(p.models.D), 1e-2)
	if err != nil {
		t.Fatal(err)
	}
	for want, part := range map[string]checkpoint.Part{
		`"optimizer:g" is not in it`:              named("g", opt(p.optG)),
		`"schedule:d.x" is not in it`:             named("d.x", checkpoint.Schedule(p.scheduleD)),
		`"optimizer:d": nothing to load into`:     named("d", opt(nil)),
		`"optimizer:d": group 0, parameter 0`:     named("d", opt(kind)),
		`"optimizer:d": group 0 has 6 parameters`: named("d", opt(p.optG)),
	} {
		err := checkpoint.LoadTraining(path, &p.models, nil, part)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	if !bytes.Equal(p.save(t, path), before) {
		t.Error("a load that failed changed the run")
	}
	// A file without one.
	if err := checkpoint.SaveTraining(path, &p.models, nil); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.LoadTraining(path, &p.models, p.optG); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), `"optimizer" is not in it`) {
		t.Errorf("got %v", err)
	}
}
