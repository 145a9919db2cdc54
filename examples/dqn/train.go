package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const gamma = 0.9 // discount factor per move

type agent struct {
	memory
	opt     *optim.Optimizer
	losses  []float64 // of each training step
	episode int       // number of games played
}

// memory is the model whose state a checkpoint holds.
type memory struct {
	Q, Target *nn.Sequential
	Replay    *replay
}

func newAgent(o options) (*agent, error) {
	if err := tensor.ManualSeed(o.Seed); err != nil {
		return nil, err
	}
	a := &agent{memory: memory{newNetwork(), newNetwork(), newReplay(o.Capacity)}}
	if err := a.sync(); err != nil {
		return nil, err
	}
	var err error
	a.opt, err = optim.NewAdam(nn.Parameters(a.Q), o.LR)
	return a, err
}

// newNetwork returns a network that maps states (N, 3) to the values of the actions (N, actions).
func newNetwork() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(3, 32), &nn.ReLU{}, nn.NewLinear(32, 32), &nn.ReLU{}, nn.NewLinear(32, actions))
}

// sync copies the network's weights to the target network.
func (a *agent) sync() error { return nn.LoadStateDict(a.Target, nn.StateDict(a.Q).Map()) }

// act returns a random action with probability epsilon, and otherwise the best one.
func (a *agent) act(state []float32, epsilon float64) (action int, err error) {
	drawn, err := tensor.Rand(nil).Item()
	if err != nil {
		return 0, err
	}
	choose := func() *tensor.Tensor { return tensor.RandInt(0, actions, nil) }
	if drawn >= epsilon {
		choose = func() *tensor.Tensor { return a.Q.Forward(tensor.FromSlice(state, nil)).ArgMax() }
	}
	err = autograd.NoGrad(func() error {
		chosen, err := tensor.Item[int64](choose())
		action = int(chosen)
		return err
	})
	return action, err
}

// learn takes one training step on moves sampled from the replay buffer.
func (a *agent) learn(batch int) error {
	m := a.Replay.sample(batch)
	states, chosen, rewards, nexts, alive := m[0], m[1], m[2], m[3], m[4]
	var want *tensor.Tensor
	err := autograd.NoGrad(func() error {
		want = rewards.Add(a.Target.Forward(nexts).AMax(tensor.Dim(1)).Mul(alive).Mul(gamma))
		return want.Err()
	})
	if err != nil {
		return err
	}
	loss := nn.SmoothL1Loss(a.Q.Forward(states).Gather(1, chosen.Unsqueeze(1)).SqueezeDim(1), want)
	a.opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	if err := a.opt.Step(); err != nil {
		return err
	}
	value, err := loss.Item()
	a.losses = append(a.losses, value)
	return err
}

// train plays games and learns after every move.
func (a *agent) train(ctx context.Context, o options, report func(episode int, reward float64)) error {
	for range o.Episodes - a.episode {
		if err := ctx.Err(); err != nil {
			return err
		}
		epsilon := max(0.05, 1-float64(a.episode)/(float64(o.Episodes)/2))
		reward, err := a.play(o, epsilon)
		if err != nil {
			return err
		}
		a.episode++
		report(a.episode-1, reward)
	}
	return nil
}

// play plays one game and returns its reward.
func (a *agent) play(o options, epsilon float64) (reward float64, err error) {
	g, err := newGame()
	for done := false; err == nil && !done; {
		err = tensor.WithScope(func() error {
			state := g.state()
			action, err := a.act(state, epsilon)
			if err != nil {
				return err
			}
			var r float32
			r, done = g.step(action)
			reward = float64(r)
			if err := a.Replay.add(state, action, r, g.state(), done); err != nil {
				return err
			}
			if a.Replay.n < o.Batch {
				return nil
			}
			if err := a.learn(o.Batch); err != nil {
				return err
			}
			if len(a.losses)%o.Sync == 0 {
				return a.sync()
			}
			return nil
		})
	}
	return reward, err
}
