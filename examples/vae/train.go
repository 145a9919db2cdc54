package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	size   = 8 // height and width in pixels
	hidden = 64
	latent = 4
)

// VAE is a variational autoencoder of pictures (N, size*size).
type VAE struct {
	Encoder      *nn.Sequential
	Mean, LogVar *nn.Linear
	Decoder      *nn.Sequential
}

func newVAE() *VAE {
	return &VAE{
		Encoder: nn.NewSequential(nn.NewLinear(size*size, hidden), &nn.ReLU{}),
		Mean:    nn.NewLinear(hidden, latent),
		LogVar:  nn.NewLinear(hidden, latent),
		Decoder: nn.NewSequential(nn.NewLinear(latent, hidden), &nn.ReLU{}, nn.NewLinear(hidden, size*size)),
	}
}

// Forward returns the logits of the reconstructed pictures (N, size*size), and the mean and log variance (N, latent) of
// the distribution from which their latent codes were sampled.
func (v *VAE) Forward(x *tensor.Tensor) (y, mean, logVar *tensor.Tensor) {
	h := v.Encoder.Forward(x)
	mean, logVar = v.Mean.Forward(h), v.LogVar.Forward(h)
	z := mean.Add(mean.RandnLike().Mul(logVar.Mul(0.5).Exp()))
	return v.Decoder.Forward(z), mean, logVar
}

// loss returns the negative evidence lower bound per picture.
func (v *VAE) loss(x *tensor.Tensor) *tensor.Tensor {
	y, mean, logVar := v.Forward(x)
	rebuilt := nn.BCEWithLogitsLoss(y, x, tensor.ReduceSum)
	divergence := logVar.Add(1).Sub(mean.Square()).Sub(logVar.Exp()).Sum().Mul(-0.5)
	return rebuilt.Add(divergence).Div(x.Size(0))
}

// bars makes n pictures (n, size*size) of a random row and column.
func bars(n int) *tensor.Tensor {
	row := tensor.RandInt(0, size, []int{n, 1})
	column := tensor.RandInt(0, size, []int{n, 1})
	axis := tensor.Arange(0, size).View(1, size)
	return axis.Eq(row).Unsqueeze(2).LogicalOr(axis.Eq(column).Unsqueeze(1)).To(tensor.Float32).Flatten(tensor.StartDim(1))
}

func train(ctx context.Context, v *VAE, opt *optim.Optimizer, o options, report func(step int, loss float64)) error {
	for step := range o.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := tensor.WithScope(func() error {
			loss := v.loss(bars(o.batch))
			opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			value, err := loss.Item()
			if err != nil {
				return err
			}
			report(step, value)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sample generates n pictures: n*size*size pixels in [0, 1].
func sample(v *VAE, n int) (pixels []float32, err error) {
	err = autograd.NoGrad(func() error {
		pixels, err = tensor.Data[float32](v.Decoder.Forward(tensor.Randn([]int{n, latent})).Sigmoid())
		return err
	})
	return pixels, err
}
