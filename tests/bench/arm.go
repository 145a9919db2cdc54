package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/proc"
	"github.com/linstock-ml/linstock/vram"
)

// serve is the Go arm: it runs the tasks named on standard input in this process and answers each with a line.
func serve(threads int) error {
	if err := tensor.SetNumThreads(threads); err != nil {
		return err
	}
	if err := tensor.ManualSeed(0); err != nil {
		return err
	}
	made := map[string]*loop{}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		task, argument, _ := strings.Cut(in.Text(), " ")
		if report := reports[task]; report != nil {
			if err := report(argument); err != nil {
				return err
			}
			continue
		}
		l, ok := made[task]
		if !ok {
			var err error
			if l, err = newLoop(task); err != nil {
				return err
			}
			made[task] = l
		}
		if err := finish(); err != nil {
			return err
		}
		start := time.Now()
		if err := errors.Join(l.f(l.n), finish()); err != nil {
			return err
		}
		fmt.Printf("%.1f\n", float64(time.Since(start).Nanoseconds())/float64(l.n))
	}
	return in.Err()
}

// reports are the tasks that are not timed.
var reports = map[string]func(argument string) error{"memory": memory, "peak": peak, "save": save}

// finish waits until the device has completed its work.
func finish() error {
	if device == tensor.CPU {
		return nil
	}
	return tensor.Synchronize(device)
}

// A loop is a task: f runs it the given number of times; n runs make a turn.
type loop struct {
	n int
	f func(n int) error
}

func newLoop(task string) (*loop, error) {
	if name, ok := strings.CutPrefix(task, "step/"); ok {
		return newOptimizerStep(name)
	}
	if format, ok := strings.CutPrefix(task, "load/"); ok {
		return newLoad(format)
	}
	if model, ok := strings.CutPrefix(task, "ddp/"); ok {
		return newDDP(model)
	}
	switch task {
	case "add/shim":
		return newShimAdd()
	case "mlp":
		return newMLPLoop()
	case "amp":
		t, err := newTrainer()
		return &loop{2, repeat(t.castStep)}, err
	case "gpt":
		t, err := newTrainer()
		return &loop{2, repeat(t.step)}, err
	case "gpteval":
		return newEvaluation()
	case "gpt10m", "gpt350m":
		return newLarge(task)
	case "resnet50":
		return newImages()
	case "lstm":
		return newLSTM()
	case "attention":
		return newAttention()
	}
	return newOperator(task)
}

// newOperator runs an operator as a training step does, in a scope that frees 64 results at once, or with an
// explicit Release after each, as a serving loop might.
func newOperator(task string) (*loop, error) {
	name, release := strings.CutSuffix(task, "/release")
	name, grad := strings.CutSuffix(name, "+grad")
	a, b := tensor.Randn([]int{16}, device).RequiresGrad_(grad), tensor.Randn([]int{16}, device)
	m, w := tensor.Randn([]int{16, 16}, device).RequiresGrad_(grad), tensor.Randn([]int{16, 16}, device)
	op, ok := map[string]func() *tensor.Tensor{
		"add":    func() *tensor.Tensor { return a.Add(b) },
		"view":   func() *tensor.Tensor { return a.View(4, 4) },
		"matmul": func() *tensor.Tensor { return m.MatMul(w) },
	}[name]
	if !ok {
		return nil, fmt.Errorf("no task %q", task)
	}
	const n = 20480
	if release {
		return &loop{n, func(n int) error {
			return tensor.WithScope(func() error {
				for range n {
					op().Release()
				}
				return nil
			})
		}}, nil
	}
	return &loop{n, func(n int) error {
		for i := 0; i < n; i += 64 {
			if err := tensor.WithScope(func() error {
				for range 64 {
					op()
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

// newShimAdd is add through the shim alone, without package tensor. Beside the C++ arm's add/shim, which calls the same
// functions, it costs what Go's crossings to C cost.
func newShimAdd() (*loop, error) {
	var h [2]cshim.Handle
	values := make([]float32, 16)
	for i := range h {
		r := cshim.TensorFromData(int32(tensor.Float32), []int{len(values)}, unsafe.Pointer(&values[0]), 4*len(values))
		if r.Err != nil {
			return nil, cshim.Take(r.Err)
		}
		h[i] = r.Handle
	}
	sums := make([]cshim.Handle, 0, 64)
	return &loop{20480, func(n int) error {
		for range n / 64 {
			for range 64 {
				r := cshim.OpAdd(h[0], h[1])
				if r.Err != nil {
					return cshim.Take(r.Err)
				}
				sums = append(sums, r.Handle)
			}
			cshim.TensorsFree(sums)
			sums = sums[:0]
		}
		return nil
	}}, nil
}

func newMLPLoop() (*loop, error) {
	model := newMLP()
	opt, err := optim.NewAdam(nn.Parameters(model), 1e-3)
	if err != nil {
		return nil, err
	}
	x, y := tensor.Randn([]int{32, 32}, device), tensor.RandInt(0, 10, []int{32}, device)
	return &loop{400, mlpLoop(model, opt, x, y)}, nil
}

func mlpLoop(model nn.Layer, opt optimizer, x, y *tensor.Tensor) func(n int) error {
	return func(n int) error {
		for range n {
			if err := tensor.WithScope(func() error { return step(model, opt, x, y) }); err != nil {
				return err
			}
		}
		return nil
	}
}

type optimizer interface {
	ZeroGrad()
	Step() error
}

func step(model nn.Layer, opt optimizer, x, y *tensor.Tensor) error {
	loss := nn.CrossEntropy(model.Forward(x), y)
	opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	return opt.Step()
}

type trainer struct {
	model *gpt.GPT
	opt   optimizer
	x, y  *tensor.Tensor
}

func newTrainer() (*trainer, error) { return trainerOf(newGPT(), 16) }

func trainerOf(model *gpt.GPT, rows int) (*trainer, error) {
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3, optim.WeightDecay(0.01))
	if err != nil {
		return nil, err
	}
	ids := func() *tensor.Tensor {
		return tensor.RandInt(0, model.Config.Vocab, []int{rows, model.Config.Context}, device)
	}
	return &trainer{model, opt, ids(), ids()}, nil
}

// newLarge trains a GPT with its weights in bfloat16.
func newLarge(task string) (*loop, error) {
	model := gpt.New(large[task].Config, nn.Device(device))
	if err := nn.To(model, tensor.BFloat16); err != nil {
		return nil, err
	}
	t, err := trainerOf(model, large[task].rows)
	return &loop{5, repeat(t.step)}, err
}

func repeat(f func() error) func(int) error {
	return func(n int) error {
		for range n {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}
}

// newImages trains ResNet-50 with SGD.
func newImages() (*loop, error) {
	model := newResNet50()
	opt, err := optim.NewSGD(nn.Parameters(model), 0.1, optim.Momentum(0.9))
	if err != nil {
		return nil, err
	}
	x, y := tensor.Randn([]int{64, 3, 224, 224}, device), tensor.RandInt(0, 1000, []int{64}, device)
	return &loop{5, mlpLoop(model, opt, x, y)}, nil
}

// newLSTM runs two layers of 1,024 over 64 steps, forward and backward.
func newLSTM() (*loop, error) {
	const width, steps, rows = 1024, 64, 64
	var params []*tensor.Tensor
	for range 2 {
		for _, shape := range [][]int{{4 * width, width}, {4 * width, width}, {4 * width}, {4 * width}} {
			w := tensor.Randn(shape, device)
			w.Mul_(0.02)
			params = append(params, w.RequiresGrad_())
		}
	}
	x := tensor.Randn([]int{steps, rows, width}, device)
	return &loop{5, repeat(func() error {
		return tensor.WithScope(func() error {
			state := []*tensor.Tensor{tensor.Zeros([]int{2, rows, width}, device), tensor.Zeros([]int{2, rows, width}, device)}
			y, _, _ := x.LSTM(state, params, tensor.NumLayers(2), tensor.Train(true))
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			for _, p := range params {
				if err := p.SetGrad(nil); err != nil {
					return err
				}
			}
			return nil
		})
	})}, nil
}

// newAttention runs causal attention over 2,048 positions in bfloat16, forward and backward.
func newAttention() (*loop, error) {
	var qkv []*tensor.Tensor
	for range 3 {
		qkv = append(qkv, tensor.Randn([]int{8, 16, 2048, 64}, tensor.BFloat16, device).RequiresGrad_())
	}
	return &loop{5, repeat(func() error {
		return tensor.WithScope(func() error {
			y := tensor.ScaledDotProductAttention(qkv[0], qkv[1], qkv[2], tensor.IsCausal(true))
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			for _, p := range qkv {
				if err := p.SetGrad(nil); err != nil {
					return err
				}
			}
			return nil
		})
	})}, nil
}

func (t *trainer) step() error {
	return t.stepOf(func() *tensor.Tensor { return t.model.Loss(t.x, t.y) })
}

func (t *trainer) stepOf(forward func() *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		loss := forward()
		t.opt.ZeroGrad()
		if err := loss.Backward(); err != nil {
			return err
		}
		return t.opt.Step()
	})
}

// castStep is a step in mixed precision.
func (t *trainer) castStep() error {
	return t.stepOf(func() *tensor.Tensor {
		return autograd.Autocast(device.Type, tensor.BFloat16, func() *tensor.Tensor { return t.model.Loss(t.x, t.y) })
	})
}

// newOptimizerStep runs the step of an optimizer with 10 million parameters, whose gradients are there.
func newOptimizerStep(name string) (*loop, error) {
	construct := optimizers[name]
	if construct == nil {
		return nil, fmt.Errorf("no optimizer %q", name)
	}
	var params []*tensor.Tensor
	for range 40 {
		p := tensor.Randn([]int{512, 512}, device).RequiresGrad_()
		g := tensor.Randn([]int{512, 512}, device)
		if name == "sparseadam" {
			out, err := tensor.Call("aten::to_sparse", g)
			if err != nil {
				return nil, err
			}
			g = out[0].(*tensor.Tensor)
		}
		if err := p.SetGrad(g); err != nil {
			return nil, err
		}
		params = append(params, p)
	}
	opt, err := construct(params, 1e-3)
	if err != nil {
		return nil, err
	}
	return &loop{1, repeat(func() error { return tensor.WithScope(opt.Step) })}, nil
}

var optimizers = map[string]func([]*tensor.Tensor, float64, ...optim.Option) (*optim.Optimizer, error){
	"adadelta": optim.NewAdadelta, "adafactor": optim.NewAdafactor, "adagrad": optim.NewAdagrad, "adam": optim.NewAdam,
	"adamax": optim.NewAdamax, "adamw": optim.NewAdamW, "asgd": optim.NewASGD, "muon": optim.NewMuon,
	"nadam": optim.NewNAdam, "radam": optim.NewRAdam, "rmsprop": optim.NewRMSprop, "rprop": optim.NewRprop,
	"sgd": optim.NewSGD, "sparseadam": optim.NewSparseAdam,
}

// newLoad loads the weights of a model of 1 GiB from a file that the runner has written. libtorch's C++ reads neither
// format: its unpickler does not know OrderedDict.
func newLoad(format string) (*loop, error) {
	model, err := newLayers()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(os.Getenv(filesVar), "model."+format)
	return &loop{1, repeat(func() error { return checkpoint.LoadModel(path, model) })}, nil
}

// save writes the files of the load tasks to a directory.
func save(dir string) error {
	err := tensor.WithScope(func() error {
		model, err := newLayers()
		if err != nil {
			return err
		}
		return errors.Join(checkpoint.SaveModel(filepath.Join(dir, "model.safetensors"), model),
			checkpoint.SavePyTorch(filepath.Join(dir, "model.pt"), nn.StateDict(model)))
	})
	if err == nil {
		fmt.Println("saved")
	}
	return err
}

// peak prints the peak of the resident memory, in KiB above that of the library, of a process that runs a turn of a task.
func peak(task string) error {
	if err := tensor.Ones([]int{4}).Add(1).Err(); err != nil {
		return err
	}
	base, err := proc.Status("self", "VmRSS")
	if err != nil {
		return err
	}
	l, err := newLoop(task)
	if err == nil {
		err = l.f(l.n)
	}
	if err != nil {
		return err
	}
	most, err := peakKB()
	if err != nil {
		return err
	}
	fmt.Println(most - base>>10)
	return nil
}

func peakKB() (int64, error) {
	var usage unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return int64(usage.Maxrss), err
}

func newEvaluation() (*loop, error) {
	model := newGPT()
	if err := nn.Check(model); err != nil {
		return nil, err
	}
	x := tensor.RandInt(0, vocab, []int{64, positions}, device)
	return &loop{1, func(n int) error {
		return autograd.NoGrad(func() error {
			for range n {
				if err := tensor.WithScope(func() error { return model.Forward(x).Err() }); err != nil {
					return err
				}
			}
			return nil
		})
	}}, nil
}

func memory(argument string) error {
	steps, err := strconv.Atoi(argument)
	if err != nil {
		return err
	}
	if err := tensor.Ones([]int{4}).Add(1).Err(); err != nil {
		return err
	}
	base, err := proc.Status("self", "VmRSS")
	if err != nil {
		return err
	}
	t, err := newTrainer()
	if err != nil {
		return err
	}
	var at [4]int64 // RSS at the end of each quarter
	for i := range steps {
		if err := t.step(); err != nil {
			return err
		}
		if (i+1)%(steps/4) == 0 {
			now, err := proc.Status("self", "VmRSS")
			if err != nil {
				return err
			}
			at[(i+1)/(steps/4)-1] = (now - base) >> 10
		}
	}
	most, err := peakKB()
	if err != nil {
		return err
	}
	stats, err := vram.Stats(tensor.CPU)
	if err != nil {
		return err
	}
	fmt.Println(most-base>>10, at[0], at[1], at[2], at[3], stats.Peak/1024)
	return nil
}
