package main

import (
	"strings"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	noise = 32 // channels of the generator's input
	size  = 16 // height and width of a picture in pixels
)

// Generator makes pictures (N, 1, 16, 16) from noise (N, noise, 1, 1).
type Generator struct {
	Up1 *nn.ConvTranspose2d
	BN1 *nn.BatchNorm2d
	Up2 *nn.ConvTranspose2d
	BN2 *nn.BatchNorm2d
	Up3 *nn.ConvTranspose2d
}

func newGenerator() *Generator {
	return &Generator{
		Up1: nn.NewConvTranspose2d(noise, 64, 4, nn.NoBias()),
		BN1: nn.NewBatchNorm2d(64),
		Up2: nn.NewConvTranspose2d(64, 32, 4, nn.Stride(2), nn.Padding(1), nn.NoBias()),
		BN2: nn.NewBatchNorm2d(32),
		Up3: nn.NewConvTranspose2d(32, 1, 4, nn.Stride(2), nn.Padding(1), nn.NoBias()),
	}
}

// Forward maps noise to pictures with values in [-1, 1].
func (g *Generator) Forward(z *tensor.Tensor) *tensor.Tensor {
	x := g.BN1.Forward(g.Up1.Forward(z)).ReLU()
	x = g.BN2.Forward(g.Up2.Forward(x)).ReLU()
	return g.Up3.Forward(x).Tanh()
}

// Discriminator computes logits (N) of pictures (N, 1, 16, 16) being real.
type Discriminator struct {
	Conv1, Conv2 *nn.Conv2d
	BN2          *nn.BatchNorm2d
	Conv3        *nn.Conv2d
}

func newDiscriminator() *Discriminator {
	return &Discriminator{
		Conv1: nn.NewConv2d(1, 32, 4, nn.Stride(2), nn.Padding(1), nn.NoBias()),
		Conv2: nn.NewConv2d(32, 64, 4, nn.Stride(2), nn.Padding(1), nn.NoBias()),
		BN2:   nn.NewBatchNorm2d(64),
		Conv3: nn.NewConv2d(64, 1, 4, nn.NoBias()),
	}
}

// Forward maps pictures to logits.
func (d *Discriminator) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = d.Conv1.Forward(x).LeakyReLU(tensor.NegativeSlope(0.2))
	x = d.BN2.Forward(d.Conv2.Forward(x)).LeakyReLU(tensor.NegativeSlope(0.2))
	return d.Conv3.Forward(x).Flatten()
}

// initialize draws the weights as in the paper, from normal distributions with a standard deviation of 0.02.
func initialize(m any) error {
	for _, p := range nn.NamedParameters(m) {
		mean := 0.0
		if strings.Contains(p.Name, "bn") {
			if mean = 1; strings.HasSuffix(p.Name, "bias") {
				continue
			}
		}
		if err := nn.Normal_(p.Tensor, mean, 0.02).Err(); err != nil {
			return err
		}
	}
	return nil
}
