package main

import (
	"context"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

type gan struct {
	networks
	optG, optD   *optim.Optimizer
	lossG, lossD []float64 // of each step
}

// networks is the model whose state a checkpoint holds.
type networks struct {
	Generator     *Generator
	Discriminator *Discriminator
}

func newGAN(o options) (g *gan, err error) {
	g = &gan{networks: networks{newGenerator(), newDiscriminator()}}
	if err := tensor.ManualSeed(o.Seed); err != nil {
		return nil, err
	}
	if err := initialize(g.Generator); err != nil {
		return nil, err
	}
	if err := initialize(g.Discriminator); err != nil {
		return nil, err
	}
	if g.optG, err = optim.NewAdam(nn.Parameters(g.Generator), o.LR, optim.Betas(0.5, 0.999)); err != nil {
		return nil, err
	}
	g.optD, err = optim.NewAdam(nn.Parameters(g.Discriminator), o.LR, optim.Betas(0.5, 0.999))
	return g, err
}

// train trains the discriminator to distinguish real from generated pictures, and the generator to deceive it.
func (g *gan) train(ctx context.Context, pictures *data.Loader, steps int, report func()) error {
	for len(g.lossD) < steps {
		for batch, err := range pictures.Batches(ctx) {
			if err != nil {
				return err
			}
			real, fake := tensor.Ones([]int{batch.Size}), tensor.Zeros([]int{batch.Size})
			drawn := g.Generator.Forward(tensor.Randn([]int{batch.Size, noise, 1, 1}))
			lossD := nn.BCEWithLogitsLoss(g.Discriminator.Forward(batch.Inputs), real).
				Add(nn.BCEWithLogitsLoss(g.Discriminator.Forward(drawn.Detach()), fake))
			if err := learn(g.optD, lossD); err != nil {
				return err
			}
			lossG := nn.BCEWithLogitsLoss(g.Discriminator.Forward(drawn), real)
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
			g.lossD, g.lossG = append(g.lossD, d), append(g.lossG, v)
			report()
			if len(g.lossD) >= steps {
				break
			}
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
