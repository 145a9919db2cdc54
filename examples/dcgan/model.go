package main

import (
	"strings"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	noise = 16 // channels of the generator's input
	size  = 16 // height and width in pixels
)

// Up is a transposed convolution with a kernel of 4. With a stride of 2 it maps x (N, in, H, W) to (N, out, 2H, 2W);
// with a stride of 1 it maps one pixel to 4 by 4.
type Up struct {
	Weight *tensor.Tensor // (in, out, 4, 4)
	stride int
}

func newUp(in, out, stride int) *Up {
	return &Up{Weight: nn.NewParameter(tensor.Empty([]int{in, out, 4, 4})), stride: stride}
}

// Forward returns the transposed convolution of x.
func (u *Up) Forward(x *tensor.Tensor) *tensor.Tensor {
	return x.ConvTranspose2d(u.Weight, nil, tensor.Stride(u.stride), tensor.Padding(u.stride-1))
}

// Generator makes pictures (N, 1, 16, 16) from noise (N, noise, 1, 1).
type Generator struct {
	Up1 *Up
	BN1 *nn.BatchNorm2d
	Up2 *Up
	BN2 *nn.BatchNorm2d
	Up3 *Up
}

func newGenerator() *Generator {
	return &Generator{
		Up1: newUp(noise, 32, 1), BN1: nn.NewBatchNorm2d(32),
		Up2: newUp(32, 16, 2), BN2: nn.NewBatchNorm2d(16),
		Up3: newUp(16, 1, 2),
	}
}

// Forward maps noise to pictures.
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
		Conv1: nn.NewConv2d(1, 16, 4, nn.Stride(2), nn.Padding(1), nn.NoBias()),
		Conv2: nn.NewConv2d(16, 32, 4, nn.Stride(2), nn.Padding(1), nn.NoBias()),
		BN2:   nn.NewBatchNorm2d(32),
		Conv3: nn.NewConv2d(32, 1, 4, nn.NoBias()),
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
