package main

import (
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	if err := tensor.ManualSeed(1); err != nil {
		t.Fatal(err)
	}
	model := newEncoderDecoder()
	defer nn.Release(model)
	opt, err := optim.NewAdam(nn.Parameters(model), 1e-2)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	var losses []float64
	err = train(t.Context(), model, opt, options{steps: 150, batch: 64}, func(_ int, loss float64) { losses = append(losses, loss) })
	if err != nil {
		t.Fatal(err)
	}
	var decoded []float64
	var correct float64
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			source := tensor.RandInt(0, digits, []int{20, length})
			out := model.Greedy(source)
			if correct, err = out.Eq(source.Flip(1)).To(tensor.Float32).Mean().Item(); err != nil {
				return err
			}
			decoded, err = tensor.Data[float64](out.Flatten().To(tensor.Float64))
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, twin.Figures{"losses": losses[:20], "decoded": decoded, "correct": {correct}}, 1e-4)
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o, nil) }, map[string]options{
		"-batch must be at least 1, got 0": {steps: 1, lr: 1e-3},
	})
	// The learning rate would fail later.
	clitest.Refused(t, func(digits string) error { return command(t.Context(), options{batch: 1, lr: -1}, []string{digits}) }, map[string]string{
		`"12a" is not a string of digits`: "12a",
		"a string has no digits":          "",
	})
}
