package main

import (
	"context"
	"fmt"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// trainBase trains a model on text and saves it as chargpt does.
func trainBase(ctx context.Context, o *options, text *gpt.Text, path string) (*gpt.GPT, gpt.Vocab, error) {
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, "", err
	}
	model := gpt.New(gpt.Config{Vocab: len(text.Vocab), Width: 128, Layers: 4, Heads: 4, Context: 64}, nn.Device(o.device))
	learned, _ := text.Split()
	windows, err := windows(o, learned, model.Config.Context)
	if err != nil {
		return nil, "", err
	}
	if _, err := train(ctx, model, windows, o.baseSteps, 1e-3); err != nil {
		return nil, "", err
	}
	return model, text.Vocab, checkpoint.SaveTraining(path, model, nil, gpt.Saved(&model.Config, &text.Vocab)...)
}

// windows returns a loader of windows at random positions of a text.
func windows(o *options, tokens []uint8, context int) (*data.Loader, error) {
	windows, err := data.NewWindows(tokens, context, 1)
	if err != nil {
		return nil, err
	}
	return data.NewLoader(windows, data.BatchSize(o.batch), data.Shuffle(true), data.Seed(o.seed), data.Device(o.device))
}

// adapt trains the adapters.
func (r *run) adapt(ctx context.Context) error {
	windows, err := windows(r.options, r.learned, r.model.Config.Context)
	if err != nil {
		return err
	}
	nn.Train(r.model)
	defer nn.Eval(r.model)
	r.losses, err = train(ctx, r.model, windows, r.options.steps, r.options.lr)
	return err
}

// train trains those parameters of the model that require gradients, and returns the loss of each step.
func train(ctx context.Context, model *gpt.GPT, windows *data.Loader, steps int, lr float64) (losses []float64, err error) {
	var params []*tensor.Tensor
	for _, p := range nn.Parameters(model) {
		if p.RequiresGrad() {
			params = append(params, p)
		}
	}
	opt, err := optim.NewAdamW(params, lr)
	if err != nil {
		return nil, err
	}
	defer opt.Release()
	report := progress.Start(0, steps)
	defer report.Close()
	var mean progress.Mean
	for len(losses) < steps {
		for batch, err := range windows.Batches(ctx) {
			if err != nil {
				return nil, err
			}
			loss := model.Loss(batch.Inputs, batch.Targets)
			opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return nil, err
			}
			if err := opt.Step(); err != nil {
				return nil, err
			}
			value, err := loss.Item()
			if err != nil {
				return nil, err
			}
			losses = append(losses, value)
			mean.Add(value)
			report.Stepped(len(losses), func() string { return fmt.Sprintf("loss %.3f", mean.Value()) })
			if len(losses) >= steps {
				break
			}
		}
	}
	return losses, nil
}

// evaluate returns the mean loss over windows that are spread evenly over the held-out text.
func (r *run) evaluate(ctx context.Context) (float64, error) {
	o, length := r.options, r.model.Config.Context
	windows, err := data.NewWindows(r.held, length, max(1, (len(r.held)-length-1)/max(1, o.held*o.batch)))
	if err != nil {
		return 0, err
	}
	loader, err := data.NewLoader(windows, data.BatchSize(o.batch), data.Device(o.device))
	if err != nil {
		return 0, err
	}
	total, batches, n := 0.0, 0, 0
	err = autograd.NoGrad(func() error {
		for batch, err := range loader.Batches(ctx) {
			if err != nil {
				return err
			}
			value, err := r.model.Loss(batch.Inputs, batch.Targets).Item()
			if err != nil {
				return err
			}
			total, n = total+value*float64(batch.Size), n+batch.Size
			if batches++; batches >= o.held {
				break
			}
		}
		return nil
	})
	return total / float64(max(1, n)), err
}
