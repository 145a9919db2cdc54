package refuse_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/profiler"
	"github.com/linstock-ml/linstock/serve"
	"github.com/linstock-ml/linstock/tensor"
)

// TestErrorsNameTheUsersCall tests that errors name the user's call and line, here in this file, and not an operator or
// line of the library.
func TestErrorsNameTheUsersCall(t *testing.T) {
	leak.Check(t)
	released := tensor.Ones([]int{2, 2})
	released.Release()
	_, here, _, _ := runtime.Caller(0)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 2}).RequiresGrad_()
		identity := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0] }
		for op, err := range map[string]error{
			"GradCheck":        autograd.GradCheck(identity, []*tensor.Tensor{released}),
			"Dropout":          (&nn.Dropout{P: 0.5}).Forward(released).Err(),
			"SGD":              second(optim.NewSGD([]*tensor.Tensor{released}, 0.1)),
			"NewTensorDataset": second(data.NewTensorDataset(released)),
			"Save":             checkpoint.Save(filepath.Join(t.TempDir(), "x"), map[string]*tensor.Tensor{"x": released}, nil),
			"Normalize":        nn.Normalize(x, 2, 5, 1e-12).Err(),
			"GumbelSoftmax":    nn.GumbelSoftmax(x, 1, false, 5).Err(),
			"MaxUnpool3d":      nn.NewMaxUnpool3d(2).Forward(tensor.Ones([]int{1, 1, 1, 1}), tensor.Ones([]int{1, 1, 1, 1})).Err(),
			"GroupedMM":        nn.GroupedMM(x.To(tensor.Int32), x.To(tensor.Int32), nil).Err(),
			"Index":            x.Index("[0]", []bool{true}).Err(),
			"SetIndex":         x.Detach().SetIndex(0, tensor.Ones([]int{7})),
			"RegisterHook": func() error {
				y := x.Mul(2)
				if _, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return released, nil }); err != nil {
					return err
				}
				return y.Sum().Backward()
			}(),
		} {
			var e *tensor.Error
			if !errors.As(err, &e) {
				t.Errorf("%s: got %v", op, err)
				continue
			}
			// The innermost error is the first that occurred.
			for inner := e; errors.As(inner.Kind, &inner); {
				e = inner
			}
			if e.Op != op || !strings.HasPrefix(e.Caller, here+":") {
				t.Errorf("%s: the error names %q at %s: %v", op, e.Op, e.Caller, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNilOptions tests that a nil option is the same error of every function that returns one.
func TestNilOptions(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 2}).RequiresGrad_()
		xs := []*tensor.Tensor{x}
		if err := checkpoint.Save(path, map[string]*tensor.Tensor{"x": x}, nil); err != nil {
			return err
		}
		sum := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Sum() }
		run := func(in []int) ([]int, error) { return in, nil }
		event := cuda.NewEvent(nil)
		defer event.Close()
		saved := func(p autograd.SavedPolicy) error {
			return autograd.SavedTensors(p, func() *tensor.Tensor { return x.Sum() }).Err()
		}
		for what, err := range map[string]error{
			"NewBatcher: an option":    second(serve.NewBatcher(run, nil)),
			"Start: an option":         second(profiler.Start(nil)),
			"Start: a nil *Schedule":   second(profiler.Start((*profiler.Schedule)(nil))),
			"Backward":                 x.Sum().Backward(nil),
			"Backward: autograd's":     autograd.Backward([]*tensor.Tensor{x.Sum()}, nil),
			"Grad":                     second(autograd.Grad([]*tensor.Tensor{x.Sum()}, xs, nil)),
			"GradCheck":                autograd.GradCheck(sum, xs, nil),
			"DetectAnomaly":            autograd.DetectAnomaly(func() error { return nil }, nil),
			"Jacobian":                 second(autograd.Jacobian(sum, xs, nil)),
			"SavedTensors: SaveOnCPU":  saved(autograd.SaveOnCPU(nil)),
			"SavedTensors: SaveOnDisk": saved(autograd.SaveOnDisk("", autograd.MinBytes(1), nil)),
			"SavedTensors: SaveAs":     saved(autograd.SaveAs(tensor.BFloat16, nil)),
			"LoadStateDict":            nn.LoadStateDict(nn.NewLinear(2, 2), nil, nil),
			"KaimingUniform_":          nn.KaimingUniform_(tensor.Ones([]int{2, 2}), nil).Err(),
			"NewCTCLoss":               nn.NewCTCLoss(nil).Err(),
			"Load":                     second(checkpoint.Load(path, nil)),
			"NewEvent: Synchronize":    event.Synchronize(),
			"NewEvent: Query":          second(event.Query()),
			"NewEvent: Record":         event.Record(nil),
			"NewGradScaler":            second(optim.NewGradScaler(nil)),
			"Zeros":                    tensor.Zeros([]int{2}, nil).Err(),
			"Init":                     second(dist.Init(t.Context(), nil)),
		} {
			op, _, _ := strings.Cut(what, ":")
			var e *tensor.Error
			if !errors.As(err, &e) || e.Kind != tensor.ErrArgument || e.Op != op || e.Message != "an option is nil" {
				t.Errorf("%s: got %v, want ErrArgument: an option is nil", what, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOptionsAreRefused tests that an empty option and one that a constructor does not have are errors with its name.
func TestOptionsAreRefused(t *testing.T) {
	leak.Check(t)
	params := []*tensor.Tensor{tensor.Ones([]int{2}).RequiresGrad_()}
	defer params[0].Release()
	set, err := data.NewTensorDataset(params[0].Detach())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Release()
	sgd, err := optim.NewSGD(params, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	defer sgd.Release()
	for op, errs := range map[string][2]error{
		"NewLinear": {nn.NewLinear(2, 2, nn.Option{}).Err(), nn.NewLinear(2, 2, nn.Groups(2)).Err()},
		"SGD":       {second(optim.NewSGD(params, 0.1, optim.Option{})), second(optim.NewSGD(params, 0.1, optim.Rho(0.5)))},
		"CyclicLR":  {cyclic(sgd, optim.ScheduleOption{}), cyclic(sgd, optim.Patience(1))},
		"NewLoader": {second(data.NewLoader(set, data.Option{})), second(data.NewLoader(set, data.NumSamples(3)))},
		"NewNormal": {distributions.NewNormal(0, 1, distributions.Option{}).Err(), distributions.NewNormal(0, 1, distributions.Loc(0)).Err()},
	} {
		for i, want := range []string{"an option is empty", "unknown option "} {
			var e *tensor.Error
			if !errors.As(errs[i], &e) || e.Kind != tensor.ErrArgument || e.Op != op || !strings.HasPrefix(e.Message, want) {
				t.Errorf("%s: got %v, want ErrArgument: %s", op, errs[i], want)
			}
		}
	}
}

func cyclic(o *optim.Optimizer, opt optim.ScheduleOption) error {
	lr := []float64{0.1}
	return second(optim.NewScheduler(o, optim.CyclicLR(lr, lr, 5, opt)))
}

func second[T any](_ T, err error) error { return err }
