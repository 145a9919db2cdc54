package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// settings holds the options that a run that continues must have, too. The number of processes and -batch may change.
type settings struct {
	Model gpt.Config `json:"model"`
	LR    float64    `json:"lr"`
	Seed  uint64     `json:"seed"`
}

// trainer is one process of the training.
type trainer struct {
	options
	g      *dist.Group
	model  *gpt.GPT
	ddp    *dist.DDP
	opt    *optim.Optimizer
	loader *data.Loader
	parts  []checkpoint.Part

	step     int
	compared int       // the step of the last report on the processes
	losses   []float64 // of each step, the mean of all processes
	report   *progress.Report
	mean     progress.Mean
}

func newTrainer(ctx context.Context, g *dist.Group, o options, text *gpt.Text) (t *trainer, err error) {
	t = &trainer{options: o, g: g}
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	t.Vocab = len(text.Vocab)
	t.model = gpt.New(t.Config)
	if t.opt, err = optim.NewAdamW(nn.Parameters(t.model), o.lr); err != nil {
		return nil, err
	}
	learned, _ := text.Split()
	windows, err := data.NewWindows(learned, o.Context, o.Context)
	if err != nil {
		return nil, err
	}
	sampler, err := data.NewDistributedSampler(windows.Len(), g.Size(), g.Rank(), data.Seed(o.seed))
	if err != nil {
		return nil, err
	}
	if t.loader, err = data.NewLoader(windows, data.BatchSize(o.batch), data.WithSampler(sampler), data.DropLast(true)); err != nil {
		return nil, err
	}
	if t.loader.Len() == 0 {
		return nil, fmt.Errorf("the text has %d windows of %d characters, fewer than one batch of all processes: %d × %d",
			windows.Len(), o.Context, g.Size(), o.batch)
	}
	given, id := settings{t.Config, o.lr, o.seed}, text.ID()
	saved, savedID := given, id
	about := append(gpt.Saved(&t.model.Config, &text.Vocab), checkpoint.Value("settings", &saved), checkpoint.Value("text", &savedID))
	t.parts = append(about, checkpoint.Loader(t.loader), checkpoint.Value("step", &t.step), checkpoint.Value("losses", &t.losses))
	if err := checkpoint.LoadValues(t.path(), about...); err == nil {
		if savedID != id {
			return nil, fmt.Errorf("%s was trained on another text: %s, now %s", t.path(), savedID, id)
		}
		if saved != given {
			return nil, fmt.Errorf("%s was trained with other settings: %+v, now %+v", t.path(), saved, given)
		}
		if err := checkpoint.LoadTraining(t.path(), t.model, t.opt, t.parts...); err != nil {
			return nil, err
		}
		if t.step < t.steps {
			t.printf("continuing after step %d of %s\n", t.step, t.path())
		} else {
			t.printf("%s already has %d steps; the removal of the file trains anew\n", t.path(), t.step)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	steps, err := dist.AllGatherObject(ctx, g, t.step)
	if err != nil {
		return nil, err
	}
	if slices.Min(steps) != slices.Max(steps) {
		return nil, fmt.Errorf("the ranks would continue after different steps, %v: -out must be one directory that all read", steps)
	}
	t.compared = t.step
	t.ddp, err = dist.NewDDP(ctx, g, t.model, dist.GradientAsBucketView(true))
	return t, err
}

func (t *trainer) path() string { return filepath.Join(t.out, "model.safetensors") }

// printf prints on rank 0.
func (t *trainer) printf(format string, args ...any) {
	if t.g.Rank() == 0 {
		fmt.Printf(format, args...)
	}
}

// errInterrupted is the error of all processes, of which one was interrupted. Launchers take success for the end of the job.
var errInterrupted = errors.New("a process was interrupted; the checkpoint was saved")

// run trains, and saves every few steps and at the end.
func (t *trainer) run(ctx context.Context) error {
	t.printf("%d processes, %d windows of %d characters a step\n", t.g.Size(), t.g.Size()*t.batch, t.Context)
	if t.g.Rank() == 0 {
		t.report = progress.Start(t.step, t.steps)
		defer t.report.Close()
	}
	for t.step < t.steps {
		for batch, err := range t.loader.Batches(context.Background()) {
			if err != nil {
				return err
			}
			stop, err := t.learn(ctx, batch)
			if err != nil {
				return err
			}
			if stop || t.step%t.every == 0 {
				if err := errors.Join(t.compare(), t.save()); err != nil {
					return err
				}
			}
			if !stop {
				continue
			}
			t.printf("saved %s after step %d\n", t.path(), t.step)
			if t.step < t.steps {
				return errInterrupted
			}
			return nil
		}
	}
	return nil
}

// learn does a step, and reports whether it was the last one.
func (t *trainer) learn(ctx context.Context, batch data.Batch) (stop bool, err error) {
	loss := t.ddp.Run(func() *tensor.Tensor { return t.model.Loss(batch.Inputs, batch.Targets) })
	t.opt.ZeroGrad()
	if err := errors.Join(loss.Backward(), t.opt.Step()); err != nil {
		return false, err
	}
	t.step++
	// All processes stop after the same step: one that is interrupted tells the others.
	interrupted := 0.0
	if ctx.Err() != nil {
		interrupted = 1
	}
	figures := tensor.Cat([]*tensor.Tensor{loss.Detach().View(1), tensor.Full([]int{1}, interrupted)})
	if err := t.g.AllReduce(context.Background(), figures, dist.Sum); err != nil {
		return false, err
	}
	values, err := tensor.Data[float32](figures)
	if err != nil {
		return false, err
	}
	mean := float64(values[0]) / float64(t.g.Size())
	t.losses = append(t.losses, mean)
	if t.report != nil {
		t.mean.Add(mean)
		t.report.Stepped(t.step, t.figures)
	}
	return values[1] > 0 || t.step >= t.steps, nil
}

func (t *trainer) figures() string {
	s := fmt.Sprintf("loss %.3f", t.mean.Value())
	if times, err := t.ddp.Times(); err == nil {
		round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
		s += fmt.Sprintf("  backward %v, averaging %v, both at once %v", round(times.Backward), round(times.Communication), round(times.Overlap))
	}
	return s
}

// compare prints what the processes have done since the last checkpoint.
func (t *trainer) compare() error {
	report, err := t.g.Report(context.Background(), (t.step-t.compared)*t.batch)
	if report != nil {
		t.printf("%v\n", report)
	}
	t.compared = t.step
	return err
}

// save writes the checkpoint, on rank 0.
func (t *trainer) save() error {
	if t.g.Rank() != 0 {
		return nil
	}
	return checkpoint.SaveTraining(t.path(), t.model, t.opt, t.parts...)
}
