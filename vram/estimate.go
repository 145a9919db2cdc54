package vram

import (
	"errors"
	"fmt"
)

// Estimation is the peak that a step is expected to have.
type Estimation struct {
	Batch     int
	Fixed     int64 // bytes that do not depend on the batch: weights, gradients, optimizer state made in the step
	PerSample int64 // bytes for each sample: activations, temporaries
	Peak      int64 // above what is live now: Fixed + Batch × PerSample
	Room      int64 // what the limit leaves above what is live now; 0: no limit
	Fits      bool  // Peak is not more than Room
}

func (e Estimation) String() string {
	room := "no limit is set"
	if e.Room > 0 {
		room = fmt.Sprintf("%s are free below the limit", size(e.Room))
	}
	return fmt.Sprintf("batch %d: about %s (%s, and %s a sample); %s", e.Batch, size(e.Peak), size(e.Fixed), size(e.PerSample), room)
}

// Measure runs step and returns the most bytes that were live on d during it, above those before. What nobody can reach
// is freed first, so the figure is the step's own; other goroutines' memory would be in it.
func Measure(d Device, step func() error) (int64, error) {
	if step == nil {
		return 0, errors.New("vram: Measure: a function is needed, got nil")
	}
	if err := Collect(); err != nil {
		return 0, err
	}
	if err := ResetPeak(d); err != nil {
		return 0, err
	}
	before, err := Stats(d)
	if err != nil {
		return 0, err
	}
	if err := step(); err != nil {
		return 0, err
	}
	after, err := Stats(d)
	return after.Peak - before.Allocated, err
}

// Estimate predicts the peak of step(batch) before it is run, from runs with an eighth and a quarter of the batch: for
// nearly all models memory is a constant and so much a sample. step must do a whole training step, with gradients and
// the optimizer's.
func Estimate(d Device, batch int, step func(batch int) error) (Estimation, error) {
	if step == nil || batch < 8 {
		return Estimation{}, fmt.Errorf("vram: Estimate: a function and a batch of 8 or more are needed, got %d", batch)
	}
	small, large := batch/8, batch/4
	// Once more for what is made at the first step and stays: optimizer state, workspaces.
	if err := step(small); err != nil {
		return Estimation{}, err
	}
	a, err := Measure(d, func() error { return step(small) })
	if err != nil {
		return Estimation{}, err
	}
	b, err := Measure(d, func() error { return step(large) })
	if err != nil {
		return Estimation{}, err
	}
	e := Estimation{Batch: batch, PerSample: max(0, b-a) / int64(large-small)}
	e.Fixed = max(0, a-e.PerSample*int64(small))
	e.Peak = e.Fixed + e.PerSample*int64(batch)
	m, err := Stats(d)
	if err != nil {
		return Estimation{}, err
	}
	e.Fits = true
	if m.Limit > 0 {
		e.Room = max(0, m.Limit-m.Allocated)
		e.Fits = e.Peak <= e.Room
	}
	return e, nil
}
