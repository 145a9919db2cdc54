package vram

import (
	"fmt"

	"github.com/linstock-ml/linstock/cshim"
)

// Estimation is the expected peak of a step.
type Estimation struct {
	Batch     int
	Fixed     int64 // bytes that do not depend on the batch: gradients, and other tensors that the step makes
	PerSample int64 // bytes for each sample: activations, temporaries
	Peak      int64 // bytes above those live now: Fixed + Batch × PerSample
	Limit     int64 // hard limit; 0: none
	Room      int64 // the limit less the bytes live now; 0 if it has been passed, or there is none
	Fits      bool  // Peak is not more than Room, or there is no limit
}

// String returns the estimation as one line.
func (e Estimation) String() string {
	room := "no limit is set"
	if e.Limit > 0 {
		room = fmt.Sprintf("%s are free below the limit", size(e.Room))
	}
	return fmt.Sprintf("batch %d: about %s (%s, and %s a sample); %s", e.Batch, size(e.Peak), size(e.Fixed), size(e.PerSample), room)
}

// Measure runs step and returns its peak: the maximum of the bytes live on d while it ran, less those before. It collects
// first, so that garbage is not counted. Memory of other goroutines is. On the CPU, small allocations take longer meanwhile:
// otherwise a thread reserves memory for them in advance, and those that it serves from that do not raise Memory.Peak.
func Measure(d Device, step func() error) (int64, error) {
	if step == nil {
		return 0, refused("Measure: the function is nil")
	}
	if err := Collect(); err != nil {
		return 0, err
	}
	cshim.MemoryExactPeak(true)
	defer cshim.MemoryExactPeak(false) // also if step panics
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

// Estimate predicts the peak of step(batch) without running it. It runs step with an eighth and a quarter of the batch and
// extrapolates: for nearly all models the peak is a linear function of the batch. step must run a whole training step,
// with the backward pass and the optimizer. batch must be 8 or more.
func Estimate(d Device, batch int, step func(batch int) error) (Estimation, error) {
	if step == nil || batch < 8 {
		return Estimation{}, refused("Estimate: want a function and a batch of 8 or more, got batch %d", batch)
	}
	small, large := batch/8, batch/4
	// The first step makes what stays: optimizer state, workspaces.
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
	if err := Collect(); err != nil { // what the last step has left is not live
		return Estimation{}, err
	}
	m, err := Stats(d)
	if err != nil {
		return Estimation{}, err
	}
	e.Limit, e.Fits = m.Limit, true
	if e.Limit > 0 {
		e.Room = max(0, e.Limit-m.Allocated)
		e.Fits = e.Peak <= e.Room
	}
	return e, nil
}
