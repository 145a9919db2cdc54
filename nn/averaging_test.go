package nn_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// averages reads the averages of optim.json: by case and update, the values of each parameter and the running mean.
func averages(t *testing.T) map[string][][][]float64 {
	var file struct{ Averages map[string][][][]float64 }
	golden.Read(t, "optim.json", &file)
	return file.Averages
}

// TestAveragedModel compares averages with PyTorch's.
func TestAveragedModel(t *testing.T) {
	options := map[string][]nn.Option{
		"swa":      nil,
		"swa_lerp": {nn.MultiAvgFn(nn.SWAMultiAvgFn())},
		"ema":      {nn.MultiAvgFn(nn.EMAMultiAvgFn(0.9))},
		"fn": {nn.MultiAvgFn(func(averaged, current []*tensor.Tensor, _ int) error {
			for i, a := range averaged {
				if err := a.Copy_(a.Mul(0.1).Add(current[i].Mul(0.9))).Err(); err != nil {
					return err
				}
			}
			return nil
		})},
		"buffers": {nn.UseBuffers()},
	}
	all := averages(t)
	for name, opts := range options {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			norm := nn.NewBatchNorm1d(2)
			model := nn.NewSequential(nn.NewLinear(3, 2), norm)
			defer nn.Release(model)
			averaged := nn.NewAveragedModel(model, opts...)
			defer nn.Release(averaged)
			params := nn.Parameters(model)
			err := tensor.WithScope(func() error {
				for _, p := range params {
					if err := p.Detach().Copy_(tensor.Linspace(-1, 1, p.Numel()).Reshape(p.Shape()...)).Err(); err != nil {
						return err
					}
				}
				// The first update copies, so that the values at construction do not matter.
				for i, want := range all[name] {
					for _, p := range params {
						by := tensor.Arange(0, p.Numel(), tensor.Float32).Reshape(p.Shape()...).Sub(2).Div(8).Mul(i + 1)
						if err := p.Detach().Add_(by).Err(); err != nil {
							return err
						}
					}
					if err := norm.RunningMean.Fill_(i).Err(); err != nil {
						return err
					}
					if err := averaged.UpdateParameters(model); err != nil {
						return err
					}
					got := append(nn.Parameters(averaged.Module), averaged.Module.Layers[1].(*nn.BatchNorm1d).RunningMean)
					for k, p := range got {
						golden.Exact(t, fmt.Sprintf("update %d, tensor %d", i, k), p.Detach().Flatten(), want[k])
					}
				}
				n, err := averaged.NAveraged.Item()
				if n != 6 || len(all[name]) != 6 {
					t.Errorf("%v updates are counted, want 6", n)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			names := nn.StateDict(averaged)
			if names[0].Name != "n_averaged" || names[1].Name != "module.0.weight" {
				t.Errorf("the state begins with %s and %s", names[0].Name, names[1].Name)
			}
		})
	}
}

func TestAveragedModelRefuses(t *testing.T) {
	leak.Check(t)
	model, other := nn.NewLinear(3, 2), nn.NewLinear(2, 2)
	half, deep := nn.NewLinear(3, 2, nn.NoBias()), nn.NewSequential(nn.NewLinear(3, 2))
	averaged := nn.NewAveragedModel(model)
	broken := nn.NewAveragedModel(model, nn.MultiAvgFn(nn.EMAMultiAvgFn(2)))
	defer nn.Release([]any{model, other, half, deep, averaged, broken})
	if err := errors.Join(averaged.UpdateParameters(model), broken.UpdateParameters(model)); err != nil {
		t.Fatal(err)
	}
	var none *nn.AveragedModel[*nn.Linear]
	for name, err := range map[string]error{
		"other shape":      averaged.UpdateParameters(other),
		"other parameters": averaged.UpdateParameters(half),
		"nil model":        averaged.UpdateParameters(nil),
		"decay":            broken.UpdateParameters(model),
		"nil average":      none.UpdateParameters(model),
		"zero average":     (&nn.AveragedModel[*nn.Linear]{}).UpdateParameters(model),
		"nil function":     nn.NewAveragedModel(model, nn.MultiAvgFn(nil)).Err(),
		"unknown option":   nn.NewAveragedModel(model, nn.Eps(1)).Err(),
		"clone of nil":     nn.NewAveragedModel((*nn.Linear)(nil)).Err(),
		"update of none":   nn.UpdateBN(model, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestUpdateBN compares running statistics with PyTorch's.
func TestUpdateBN(t *testing.T) {
	leak.Check(t)
	norm := nn.NewBatchNorm1d(2)
	still := nn.NewBatchNorm1d(2)
	model := nn.NewSequential(norm, still)
	defer nn.Release(model)
	still.SetTraining(false)
	want := averages(t)["update_bn"][0]
	err := tensor.WithScope(func() error {
		// Statistics of before do not count.
		if err := norm.Forward(tensor.Full([]int{2, 2}, 7.0)).Err(); err != nil {
			return err
		}
		err := nn.UpdateBN(model, func() error {
			for i := range 3 {
				if y := model.Forward(tensor.Linspace(-1, 2, 8).Reshape(4, 2).Mul(i + 1)); y.Err() != nil || y.RequiresGrad() {
					return fmt.Errorf("a recorded output or %w", y.Err())
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		golden.Near(t, "the mean", norm.RunningMean, want[0], 1e-6, 1e-6)
		golden.Near(t, "the variance", norm.RunningVar, want[1], 1e-6, 1e-6)
		if !norm.Training() || still.Training() {
			t.Error("the modes differ from those before")
		}
		// Afterwards the statistics are running averages as before.
		before, err := norm.RunningMean.Sum().Item()
		if err != nil {
			return err
		}
		if err := norm.Forward(tensor.Full([]int{2, 2}, 10.0)).Err(); err != nil {
			return err
		}
		after, err := norm.RunningMean.Sum().Item()
		if want := before*0.9 + 2; !(math.Abs(after-want) <= 1e-4) {
			t.Errorf("the mean goes from %v to %v, want %v", before, after, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("a failure")
	if err := nn.UpdateBN(model, func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("UpdateBN returns %v", err)
	}
	plain := nn.NewLinear(1, 1)
	defer nn.Release(plain)
	if err := nn.UpdateBN(plain, func() error { return failure }); err != nil {
		t.Errorf("a model without BatchNorm: %v", err)
	}
}

// TestUpdateBNOfPruned tests that a pruned BatchNorm gets the same statistics as one that is not, and its mode back.
func TestUpdateBNOfPruned(t *testing.T) {
	leak.Check(t)
	norm, pruned := nn.NewBatchNorm1d(2), nn.NewBatchNorm1d(2)
	p := nn.PruneIdentity(pruned, "weight")
	both := []any{norm, p}
	defer nn.Release(both)
	nn.Eval(p)
	err := tensor.WithScope(func() error {
		err := nn.UpdateBN(both, func() error {
			for i := range 3 {
				x := tensor.Linspace(-1, 2, 8).Reshape(4, 2).Mul(i + 1)
				if err := errors.Join(norm.Forward(x).Err(), p.Forward(x).Err()); err != nil {
					return err
				}
			}
			return nil
		})
		golden.Exact(t, "the mean", pruned.RunningMean, data(t, norm.RunningMean))
		golden.Exact(t, "the variance", pruned.RunningVar, data(t, norm.RunningVar))
		golden.Exact(t, "the batches", pruned.NumBatchesTracked, []float64{3})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !norm.Training() || pruned.Training() {
		t.Error("the modes differ from those before")
	}
}
