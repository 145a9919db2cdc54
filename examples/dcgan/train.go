package main

import (
	"context"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

type gan struct {
	generator     *Generator
	discriminator *Discriminator
	optG, optD    *optim.Optimizer
}

func newGAN(o options) (g *gan, err error) {
	g = &gan{generator: newGenerator(), discriminator: newDiscriminator()}
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	if err := initialize(g.generator); err != nil {
		return nil, err
	}
	if err := initialize(g.discriminator); err != nil {
		return nil, err
	}
	if g.optG, err = optim.NewAdam(nn.Parameters(g.generator), o.lr, optim.Betas(0.5, 0.999)); err != nil {
		return nil, err
	}
	g.optD, err = optim.NewAdam(nn.Parameters(g.discriminator), o.lr, optim.Betas(0.5, 0.999))
	return g, err
}

// blobs makes n pictures (n, 1, size, size) of a spot at a random position, with values in [-1, 1].
func blobs(n int) *tensor.Tensor {
	center := tensor.Rand([]int{n, 2, 1, 1}).Mul(1.2).Sub(0.6)
	axis := tensor.Linspace(-1, 1, size)
	dx := axis.View(1, 1, size).Sub(center.Select(1, 0))
	dy := axis.View(1, size, 1).Sub(center.Select(1, 1))
	return dx.Square().Add(dy.Square()).Mul(-8).Exp().Mul(2).Sub(1).Unsqueeze(1)
}

// train trains the discriminator to distinguish real from generated pictures, and the generator to deceive it.
func (g *gan) train(ctx context.Context, o options, report func(step int, discriminator, generator float64)) error {
	for step := range o.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := tensor.WithScope(func() error {
			drawn := g.generator.Forward(tensor.Randn([]int{o.batch, noise, 1, 1}))
			real, fake := tensor.Ones([]int{o.batch}), tensor.Zeros([]int{o.batch})
			lossD := nn.BCEWithLogitsLoss(g.discriminator.Forward(blobs(o.batch)), real).
				Add(nn.BCEWithLogitsLoss(g.discriminator.Forward(drawn.Detach()), fake))
			if err := learn(g.optD, lossD); err != nil {
				return err
			}
			lossG := nn.BCEWithLogitsLoss(g.discriminator.Forward(drawn), real)
			if err := learn(g.optG, lossG); err != nil {
				return err
			}
			d, err := lossD.Item()
			if err != nil {
				return err
			}
			v, err := lossG.Item()
			if err != nil {
				return err
			}
			report(step, d, v)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func learn(opt *optim.Optimizer, loss *tensor.Tensor) error {
	opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	return opt.Step()
}
