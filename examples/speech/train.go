package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

type run struct {
	model  *Recognizer
	opt    *optim.Optimizer
	losses []float64 // of each step
	errors []float64 // share of wrong digits after each step that was tested, repeated until the next
}

func newRun(o options) (r *run, err error) {
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	r = &run{model: newRecognizer(o.hidden)}
	r.opt, err = optim.NewAdam(nn.Parameters(r.model), o.lr)
	return r, err
}

// train trains on new utterances in each step, and tests the model on others every o.test steps.
func (r *run) train(ctx context.Context, o options, report func(loss, wrong float64)) error {
	wrong := 1.0
	for step := range o.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := tensor.WithScope(func() error {
			s, err := speak(o.batch)
			if err != nil {
				return err
			}
			loss := r.model.Loss(s)
			r.opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := nn.ClipGradNorm_(nn.Parameters(r.model), 1).Err(); err != nil {
				return err
			}
			if err := r.opt.Step(); err != nil {
				return err
			}
			value, err := loss.Item()
			r.losses = append(r.losses, value)
			return err
		})
		if err != nil {
			return err
		}
		if (step+1)%o.test == 0 {
			if wrong, err = r.wrong(o.batch); err != nil {
				return err
			}
		}
		r.errors = append(r.errors, wrong)
		report(r.losses[step], wrong)
	}
	return nil
}

// hear calls f with n new utterances, what is recognized in each, and what each says.
func (r *run) hear(n int, f func(s speech, found, said [][]int) error) error {
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			s, err := speak(n)
			if err != nil {
				return err
			}
			found, err := r.model.Recognize(s)
			if err != nil {
				return err
			}
			said, err := s.said()
			if err != nil {
				return err
			}
			return f(s, found, said)
		})
	})
}

// wrong returns the edit distances between what n new utterances say and what is recognized, divided by their digits.
func (r *run) wrong(n int) (share float64, err error) {
	err = r.hear(n, func(_ speech, found, said [][]int) error {
		errors, total := 0, 0
		for i := range said {
			errors += distance(found[i], said[i])
			total += len(said[i])
		}
		share = float64(errors) / float64(total)
		return nil
	})
	return share, err
}
