package main

import "github.com/linstock-ml/linstock/tensor"

// replay holds the most recent moves in native memory, outside all scopes.
type replay struct {
	States, Nexts  *tensor.Tensor `nn:",buffer"` // (capacity, 3)
	Actions        *tensor.Tensor `nn:",buffer"` // (capacity), int64
	Rewards, Alive *tensor.Tensor `nn:",buffer"` // (capacity); Alive is 0 for the last move of a game and 1 otherwise
	n              int            // number of moves ever added
}

func newReplay(capacity int) *replay {
	return &replay{
		States:  tensor.Zeros([]int{capacity, 3}).Keep(),
		Nexts:   tensor.Zeros([]int{capacity, 3}).Keep(),
		Actions: tensor.Zeros([]int{capacity}, tensor.Int64).Keep(),
		Rewards: tensor.Zeros([]int{capacity}).Keep(),
		Alive:   tensor.Zeros([]int{capacity}).Keep(),
	}
}

func (r *replay) tensors() []*tensor.Tensor {
	return []*tensor.Tensor{r.States, r.Actions, r.Rewards, r.Nexts, r.Alive}
}

// add overwrites the oldest move.
func (r *replay) add(state []float32, action int, reward float32, next []float32, done bool) error {
	alive := 1
	if done {
		alive = 0
	}
	i := r.n % r.States.Size(0)
	r.n++
	for j, v := range []any{tensor.FromSlice(state, nil), action, reward, tensor.FromSlice(next, nil), alive} {
		if err := r.tensors()[j].SetIndex(i, v); err != nil {
			return err
		}
	}
	return nil
}

// sample draws n moves at random: states, actions, rewards, next states, alive.
func (r *replay) sample(n int) []*tensor.Tensor {
	i := tensor.RandInt(0, min(r.n, r.States.Size(0)), []int{n})
	rows := r.tensors()
	for j, t := range rows {
		rows[j] = t.IndexSelect(0, i)
	}
	return rows
}
