package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// run is a training run.
type run struct {
	settings
	options *options
	vocab   gpt.Vocab
	textID  string
	held    []uint8 // held-out text

	model  *gpt.GPT
	opt    *optim.Optimizer
	loader *data.Loader

	step   int
	losses []float64 // of each step
}

func newRun(o *options, text *gpt.Text) (*run, error) {
	r := &run{settings: o.settings, options: o, vocab: text.Vocab, textID: text.ID()}
	if o.threads > 0 {
		if err := tensor.SetNumThreads(o.threads); err != nil {
			return nil, err
		}
	}
	r.Model.Vocab = len(text.Vocab)
	there, err := r.compare()
	if err != nil {
		return nil, err
	}
	if _, err := r.vocab.Prompt(o.prompt); err != nil {
		return nil, fmt.Errorf("-prompt: %w", err)
	}
	var learned []uint8
	learned, r.held = text.Split()
	if err := r.build(learned); err != nil || !there {
		return r, err
	}
	return r, checkpoint.LoadTraining(r.path(), r.model, r.opt, r.parts()...)
}

// compare reports whether the run continues from a checkpoint. One of another text or with other settings is an error,
// except that -eval takes its settings.
func (r *run) compare() (there bool, err error) {
	if r.options.fresh {
		return false, nil
	}
	saved, textID := settings{}, ""
	err = checkpoint.LoadValues(r.path(), checkpoint.Value("settings", &saved), checkpoint.Value("text", &textID))
	if errors.Is(err, fs.ErrNotExist) && !r.options.evalOnly {
		return false, nil
	}
	instead := "; -fresh, or the removal of the file, trains anew, and -out trains elsewhere"
	if r.options.evalOnly {
		instead = ""
	}
	if err != nil {
		return false, fmt.Errorf("%w%s", err, instead)
	}
	if r.options.evalOnly {
		r.settings = saved
	}
	if textID != r.textID {
		return false, fmt.Errorf("%s was trained on another text, such as the source of another Go version: %s, now %s%s", r.path(), textID, r.textID, instead)
	}
	if saved != r.settings {
		return false, fmt.Errorf("%s was trained with other settings: %+v, now %+v%s", r.path(), saved, r.settings, instead)
	}
	return true, nil
}

func (r *run) build(learned []uint8) (err error) {
	if err := tensor.ManualSeed(r.Seed); err != nil {
		return err
	}
	r.model = gpt.New(r.Model, nn.Device(r.options.device))
	if r.opt, err = optim.NewAdamW(nn.Parameters(r.model), r.LR); err != nil {
		return err
	}
	// A window may start at any character, so an epoch has as many windows as the text has characters.
	windows, err := data.NewWindows(learned, r.Model.Context, 1)
	if err != nil {
		return err
	}
	r.loader, err = data.NewLoader(windows, data.BatchSize(r.Batch), data.Shuffle(true), data.Seed(r.Seed), data.Device(r.options.device))
	return err
}

// train trains until the total number of steps is done.
func (r *run) train(ctx context.Context, report *report) error {
	defer report.Close()
	nn.Train(r.model)
	for r.step < r.options.steps {
		for batch, err := range r.loader.Batches(ctx) {
			if err != nil {
				return err
			}
			loss := r.model.Loss(batch.Inputs, batch.Targets)
			r.opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := r.opt.Step(); err != nil {
				return err
			}
			value, err := loss.Item()
			if err != nil {
				return err
			}
			r.losses = append(r.losses, value)
			r.step++
			report.stepped(value)
			if r.step >= r.options.steps {
				break
			}
		}
	}
	return nil
}

// evaluate returns the mean loss over the given number of batches, spread evenly over the held-out text.
func (r *run) evaluate(ctx context.Context, batches int) (mean float64, err error) {
	stride := max(1, (len(r.held)-r.Model.Context-1)/(batches*r.Batch))
	windows, err := data.NewWindows(r.held, r.Model.Context, stride)
	if err != nil {
		return 0, err
	}
	loader, err := data.NewLoader(windows, data.BatchSize(r.Batch), data.DropLast(true), data.Device(r.options.device))
	if err != nil {
		return 0, err
	}
	nn.Eval(r.model)
	n := 0
	err = autograd.NoGrad(func() error {
		for batch, err := range loader.Batches(ctx) {
			if err != nil {
				return err
			}
			value, err := r.model.Loss(batch.Inputs, batch.Targets).Item()
			if err != nil {
				return err
			}
			mean += value
			if n++; n == batches {
				break
			}
		}
		return nil
	})
	return mean / float64(n), err
}

func (r *run) path() string { return filepath.Join(r.options.out, "model.safetensors") }

func (r *run) parts() []checkpoint.Part {
	return append(gpt.Saved(&r.model.Config, &r.vocab), checkpoint.Value("settings", &r.settings), checkpoint.Value("text", &r.textID),
		checkpoint.Loader(r.loader), checkpoint.Value("step", &r.step), checkpoint.Value("losses", &r.losses))
}

// save writes the checkpoint and the plot of the losses.
func (r *run) save() error {
	if err := checkpoint.SaveTraining(r.path(), r.model, r.opt, r.parts()...); err != nil {
		return err
	}
	return progress.Plot(filepath.Join(r.options.out, "loss.svg"), "chargpt: loss on Go's source", "nats per character",
		progress.Curve{Values: r.losses})
}

// String describes the run.
func (r *run) String() string {
	n := 0
	for _, p := range nn.Parameters(r.model) {
		n += p.Numel()
	}
	return fmt.Sprintf("model: %d parameters (%d layers, width %d, %d heads, context %d), batch %d, %d threads",
		n, r.Model.Layers, r.Model.Width, r.Model.Heads, r.Model.Context, r.Batch, tensor.NumThreads())
}
