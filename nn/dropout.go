package nn

import (
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// dropout is the common form of the dropouts.
type dropout struct {
	Mode
	P       float64 // the probability, in [0, 1]
	InPlace bool    // overwrite x and return it
	err     error
}

func newDropout(op string, p float64) *dropout {
	b := build(op, nil)
	b.probability("p", p)
	if err := b.done(); err != nil {
		return &dropout{err: err}
	}
	return &dropout{P: p}
}

func (d *dropout) failure(op string) error {
	if d == nil {
		return nilModule(op)
	}
	return d.err
}

// forward applies f in training, or the operator name if f is nil; name+"_" is its in-place form. An x of unbatched
// dimensions is a sample without a batch. If unbatched is not 0, x needs that number of dimensions or one more.
func (d *dropout) forward(op string, f func(*tensor.Tensor, float64, ...tensor.Option) *tensor.Tensor, name string, unbatched int, x *tensor.Tensor) *tensor.Tensor {
	if err := d.failure(op); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	dims := x.Dim()
	if unbatched != 0 && dims != unbatched && dims != unbatched+1 {
		return refuse.Tensor(op, tensor.ErrArgument, "x must have %d or %d dimensions, got shape %v", unbatched, unbatched+1, x.Shape())
	}
	if !(d.P >= 0 && d.P <= 1) {
		return refuse.Tensor(op, tensor.ErrArgument, "P must be in [0, 1], got %v", d.P)
	}
	if !d.Training() {
		return x
	}
	apply := func(x *tensor.Tensor) *tensor.Tensor {
		switch {
		case d.InPlace:
			return one(op, name+"_", x, d.P, true)
		case f == nil:
			return one(op, name, x, d.P, true)
		}
		return f(x, d.P, tensor.Train(true))
	}
	y := x
	if unbatched == 0 || dims != unbatched {
		y = apply(x)
	} else {
		y = tidy(func(*tensor.Scope) *tensor.Tensor { return apply(x.Unsqueeze(0)).SqueezeDim(0) })
	}
	if !d.InPlace || !handle.Usable(y) || y == x {
		return y
	}
	y.Release()
	return x
}

// Dropout sets elements to zero with probability P in training and scales the others by 1/(1-P). In evaluation it returns x itself. Its fields are P and InPlace. PyTorch: torch.nn.Dropout.
type Dropout dropout

// NewDropout returns a Dropout with the probability p, which must be in [0, 1]; PyTorch's default is 0.5.
func NewDropout(p float64) *Dropout { return (*Dropout)(newDropout("NewDropout", p)) }

// Err returns the error of the constructor that made d, or nil.
func (d *Dropout) Err() error { return (*dropout)(d).failure("Dropout") }

// Forward returns x with elements dropped in training, and x itself in evaluation.
func (d *Dropout) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*dropout)(d).forward("Dropout", (*tensor.Tensor).Dropout, "aten::dropout", 0, x)
}

// Dropout1d sets whole channels of x (N, C, L) or (C, L) to zero with probability P in training and scales the others by
// 1/(1-P). In evaluation it returns x itself. Its fields are P and InPlace. PyTorch: torch.nn.Dropout1d.
type Dropout1d dropout

// NewDropout1d returns a Dropout1d with the probability p, which must be in [0, 1]; PyTorch's default is 0.5.
func NewDropout1d(p float64) *Dropout1d { return (*Dropout1d)(newDropout("NewDropout1d", p)) }

// Err returns the error of the constructor that made d, or nil.
func (d *Dropout1d) Err() error { return (*dropout)(d).failure("Dropout1d") }

// Forward returns x with channels dropped in training, and x itself in evaluation.
func (d *Dropout1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*dropout)(d).forward("Dropout1d", (*tensor.Tensor).FeatureDropout, "aten::feature_dropout", 2, x)
}

// Dropout2d sets whole channels of x (N, C, H, W) to zero with probability P in training and scales the others by 1/(1-P). A
// 3-dimensional x is (N, C, L), as in PyTorch. In evaluation it returns x itself. Its fields are P and InPlace. PyTorch: torch.nn.Dropout2d.
type Dropout2d dropout

// NewDropout2d returns a Dropout2d with the probability p, which must be in [0, 1]; PyTorch's default is 0.5.
func NewDropout2d(p float64) *Dropout2d { return (*Dropout2d)(newDropout("NewDropout2d", p)) }

// Err returns the error of the constructor that made d, or nil.
func (d *Dropout2d) Err() error { return (*dropout)(d).failure("Dropout2d") }

// Forward returns x with channels dropped in training, and x itself in evaluation.
func (d *Dropout2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*dropout)(d).forward("Dropout2d", (*tensor.Tensor).FeatureDropout, "aten::feature_dropout", 0, x)
}

// Dropout3d sets whole channels of x (N, C, D, H, W) or (C, D, H, W) to zero with probability P in training and scales the
// others by 1/(1-P). In evaluation it returns x itself. Its fields are P and InPlace. Other numbers of dimensions, for which
// PyTorch warns, are an error. PyTorch: torch.nn.Dropout3d.
type Dropout3d dropout

// NewDropout3d returns a Dropout3d with the probability p, which must be in [0, 1]; PyTorch's default is 0.5.
func NewDropout3d(p float64) *Dropout3d { return (*Dropout3d)(newDropout("NewDropout3d", p)) }

// Err returns the error of the constructor that made d, or nil.
func (d *Dropout3d) Err() error { return (*dropout)(d).failure("Dropout3d") }

// Forward returns x with channels dropped in training, and x itself in evaluation.
func (d *Dropout3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*dropout)(d).forward("Dropout3d", (*tensor.Tensor).FeatureDropout, "aten::feature_dropout", 4, x)
}

// AlphaDropout sets elements to the negative saturation value of SELU with probability P in training, and shifts and scales
// so that mean and variance stay. In evaluation it returns x itself. Its fields are P and InPlace. PyTorch: torch.nn.AlphaDropout.
type AlphaDropout dropout

// NewAlphaDropout returns an AlphaDropout with the probability p, which must be in [0, 1]; PyTorch's default is 0.5.
func NewAlphaDropout(p float64) *AlphaDropout {
	return (*AlphaDropout)(newDropout("NewAlphaDropout", p))
}

// Err returns the error of the constructor that made d, or nil.
func (d *AlphaDropout) Err() error { return (*dropout)(d).failure("AlphaDropout") }

// Forward returns x with elements dropped in training, and x itself in evaluation.
func (d *AlphaDropout) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*dropout)(d).forward("AlphaDropout", (*tensor.Tensor).AlphaDropout, "aten::alpha_dropout", 0, x)
}

// FeatureAlphaDropout is AlphaDropout of whole channels of x (N, C, *). In evaluation it returns x itself. Its fields are P and InPlace. PyTorch: torch.nn.FeatureAlphaDropout.
type FeatureAlphaDropout dropout

// NewFeatureAlphaDropout returns a FeatureAlphaDropout with the probability p, which must be in [0, 1]; PyTorch's default is 0.5.
func NewFeatureAlphaDropout(p float64) *FeatureAlphaDropout {
	return (*FeatureAlphaDropout)(newDropout("NewFeatureAlphaDropout", p))
}

// Err returns the error of the constructor that made d, or nil.
func (d *FeatureAlphaDropout) Err() error { return (*dropout)(d).failure("FeatureAlphaDropout") }

// Forward returns x with channels dropped in training, and x itself in evaluation.
func (d *FeatureAlphaDropout) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*dropout)(d).forward("FeatureAlphaDropout", nil, "aten::feature_alpha_dropout", 0, x)
}
