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
	q, target *nn.Sequential
	opt       *optim.Optimizer
	replay    *replay
	losses    []float64 // of each training step
}

func newAgent(o options) (*agent, error) {
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	a := &agent{q: newNetwork(), target: newNetwork(), replay: newReplay(o.capacity)}
	if err := a.sync(); err != nil {
		return nil, err
	}
	var err error
	a.opt, err = optim.NewAdam(nn.Parameters(a.q), o.lr)
	return a, err
}

// newNetwork returns a network that maps states (N, 3) to the values of the actions (N, actions).
func newNetwork() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(3, 32), &nn.ReLU{}, nn.NewLinear(32, 32), &nn.ReLU{}, nn.NewLinear(32, actions))
}

// sync copies the network's weights to the target network.
func (a *agent) sync() error { return nn.LoadStateDict(a.target, nn.StateDict(a.q).Map()) }

// act returns a random action with probability epsilon, and otherwise the best one.
func (a *agent) act(state []float32, epsilon float64) (action int, err error) {
	drawn, err := tensor.Rand(nil).Item()
	if err != nil {
		return 0, err
	}
	choose := func() *tensor.Tensor { return tensor.RandInt(0, actions, nil) }
	if drawn >= epsilon {
		choose = func() *tensor.Tensor { return a.q.Forward(tensor.FromSlice(state, nil)).ArgMax() }
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
	m := a.replay.sample(batch)
	states, chosen, rewards, nexts, alive := m[0], m[1], m[2], m[3], m[4]
	var want *tensor.Tensor
	err := autograd.NoGrad(func() error {
		want = rewards.Add(a.target.Forward(nexts).AMax(tensor.Dim(1)).Mul(alive).Mul(gamma))
		return want.Err()
	})
	if err != nil {
		return err
	}
	loss := nn.SmoothL1Loss(a.q.Forward(states).Gather(1, chosen.Unsqueeze(1)).SqueezeDim(1), want)
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
	for episode := range o.episodes {
		epsilon := max(0.05, 1-float64(episode)/(float64(o.episodes)/2))
		reward, err := a.play(ctx, o, epsilon)
		if err != nil {
			return err
		}
		report(episode, reward)
	}
	return nil
}

// play plays one game and returns its reward.
func (a *agent) play(ctx context.Context, o options, epsilon float64) (reward float64, err error) {
	g, err := newGame()
	for done := false; err == nil && !done; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		err = tensor.WithScope(func() error {
			state := g.state()
			action, err := a.act(state, epsilon)
			if err != nil {
				return err
			}
			var r float32
			r, done = g.step(action)
			reward = float64(r)
			if err := a.replay.add(state, action, r, g.state(), done); err != nil {
				return err
			}
			if a.replay.n < o.batch {
				return nil
			}
			if err := a.learn(o.batch); err != nil {
				return err
			}
			if len(a.losses)%o.sync == 0 {
				return a.sync()
			}
			return nil
		})
	}
	return reward, err
}
