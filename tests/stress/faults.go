package main

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/fakecuda"
)

// fakeFaults makes calls of the fake device fail while goroutines train. Each failure must be an error of the right
// kind, and training must continue once calls no longer fail.
func fakeFaults(r *round) error {
	defer r.fake.ClearRules()
	for i := range 4 {
		rng := r.rand(7000 + i)
		rule := fakecuda.Rule{Function: fakecuda.Alloc, Skip: rng.Int64N(40), Times: 1 + rng.Int64N(20), Error: 2}
		switch rng.IntN(3) {
		case 0:
			rule.Times = fakecuda.Forever
		case 1:
			rule.Function, rule.Error, rule.Times, rule.Micros = fakecuda.Any, 0, 200, 500 // slow
		}
		if err := r.fake.AddRule(rule); err != nil {
			return err
		}
		err := r.each(func(g int, rng *rand.Rand) error {
			_, err := r.train(kinds[rng.IntN(len(kinds))], rng.Uint64N(lessons), 2)
			return unless(err, tensor.ErrOutOfMemory)
		})
		r.fake.ClearRules()
		if err == nil {
			_, err = r.train("mlp", 1, 1)
		}
		if err != nil {
			return fmt.Errorf("with %+v: %w", rule, err)
		}
	}
	return nil
}

// lost loses a device during training: every use of it is ErrDeviceLost from then on, and the other device and the CPU
// continue. The process cannot be used for further rounds.
func lost(r *round) error {
	rng := r.rand(7000)
	if _, err := r.train("mlp", 1, 1); err != nil {
		return err
	}
	calls := r.fake.Calls()
	if _, err := r.train("mlp", 1, 1); err != nil {
		return err
	}
	calls = (r.fake.Calls() - calls) * int64(r.goroutines)
	rule := fakecuda.Rule{Function: fakecuda.Any, Device: r.device.Index, Skip: rng.Int64N(2 * calls), Times: 1,
		Error: []int{46, 700, 719, 999}[rng.IntN(4)], Kind: []fakecuda.Kind{fakecuda.Sticky, fakecuda.Async}[rng.IntN(2)]}
	if err := r.fake.AddRule(rule); err != nil {
		return err
	}
	other := &round{machine: &machine{device: tensor.CUDA(1 - r.device.Index), fake: r.fake, dir: r.dir}, seed: r.seed}
	err := r.each(func(g int, rng *rand.Rand) error {
		on := r
		if g%4 == 0 {
			on = other
		}
		_, err := on.train(kinds[rng.IntN(len(kinds))], rng.Uint64N(lessons), 3)
		if on == r {
			err = unless(err, tensor.ErrDeviceLost)
		}
		return err
	})
	r.fake.ClearRules()
	r.work.Add(other.work.Load())
	if r.fake.Lost(r.device.Index) == 0 {
		r.fake.Lose(r.device.Index, rule.Error) // the call of the rule did not occur
	}
	if err == nil {
		if _, e := r.train("mlp", 1, 1); !errors.Is(e, tensor.ErrDeviceLost) {
			err = fmt.Errorf("a lost device returned %v", e)
		}
	}
	if err == nil {
		_, err = other.train("mlp", 1, 1)
	}
	if err != nil {
		return fmt.Errorf("with %+v: %w", rule, err)
	}
	return r.fake.Misuse()
}
