package distributions_test

import (
	"fmt"
	"math"

	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// This program fits a normal distribution to draws of another.
func Example() {
	err := tensor.WithScope(func() error {
		if err := tensor.ManualSeed(1); err != nil {
			return err
		}
		data := distributions.NewNormal(3, 2).Sample(1000)
		loc, logScale := tensor.Zeros([]int{}).RequiresGrad_(), tensor.Zeros([]int{}).RequiresGrad_()
		opt, err := optim.NewAdam([]*tensor.Tensor{loc, logScale}, 0.1)
		if err != nil {
			return err
		}
		for range 300 {
			err := tensor.WithScope(func() error {
				d := distributions.NewNormal(loc, logScale.Exp())
				opt.ZeroGrad()
				if err := d.LogProb(data).Mean().Neg().Backward(); err != nil {
					return err
				}
				return opt.Step()
			})
			if err != nil {
				return err
			}
		}
		mean, err := loc.Item()
		if err != nil {
			return err
		}
		scale, err := logScale.Exp().Item()
		if err != nil {
			return err
		}
		fmt.Println(math.Abs(mean-3) < 0.2, math.Abs(scale-2) < 0.2)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: true true
}

// The policy of a reinforcement-learning agent: an action, its log probability, and the entropy of the policy.
func ExampleNewCategorical() {
	err := tensor.WithScope(func() error {
		logits := tensor.FromSlice([]float32{0, 100, 0}, nil)
		policy := distributions.NewCategorical(distributions.Logits(logits))
		action := policy.Sample()
		fmt.Println(action, policy.LogProb(action), policy.Entropy().Lt(1e-6))
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: tensor(1) tensor(0.) tensor(True)
}

// The loss of a variational autoencoder has the divergence of the code's distribution from the standard normal one.
func ExampleKLDivergence() {
	err := tensor.WithScope(func() error {
		loc, scale := tensor.FromSlice([]float32{0, 1}, nil), tensor.FromSlice([]float32{1, 1}, nil)
		posterior := distributions.NewIndependent(distributions.NewNormal(loc, scale), 1)
		prior := distributions.NewIndependent(distributions.NewNormal(tensor.Zeros([]int{2}), 1), 1)
		fmt.Println(distributions.KLDivergence(posterior, prior))
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: tensor(0.5000)
}

func ExampleTransformTo() {
	err := tensor.WithScope(func() error {
		unconstrained := tensor.FromSlice([]float32{-1, 0, 1}, nil)
		fmt.Println(distributions.TransformTo(constraints.Positive).Forward(unconstrained))
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: tensor([0.3679, 1.0000, 2.7183])
}

// A flow of one coupling layer, which a linear layer controls: it scales and shifts the second number of each event by what
// the first one gives. Training it is that of any distribution.
func ExampleNewTransform() {
	err := tensor.WithScope(func() error {
		net := nn.NewLinear(1, 2) // gives the logarithm of the scale, and the shift
		control := func(v *tensor.Tensor) (first, second, scale, shift *tensor.Tensor) {
			out := net.Forward(v.Narrow(-1, 0, 1))
			return v.Narrow(-1, 0, 1), v.Narrow(-1, 1, 1), out.Narrow(-1, 0, 1), out.Narrow(-1, 1, 1)
		}
		coupling := distributions.NewTransform("Coupling", constraints.RealVector, constraints.RealVector,
			func(x *tensor.Tensor) *tensor.Tensor {
				first, second, scale, shift := control(x)
				return tensor.Cat([]*tensor.Tensor{first, second.Mul(scale.Exp()).Add(shift)}, tensor.Dim(-1))
			},
			func(y *tensor.Tensor) *tensor.Tensor {
				first, second, scale, shift := control(y)
				return tensor.Cat([]*tensor.Tensor{first, second.Sub(shift).Div(scale.Exp())}, tensor.Dim(-1))
			},
			func(x, _ *tensor.Tensor) *tensor.Tensor {
				_, _, scale, _ := control(x)
				return scale.Sum(tensor.Dim(-1))
			})
		base := distributions.NewIndependent(distributions.NewNormal(tensor.Zeros([]int{2}), 1), 1)
		flow := distributions.NewTransformedDistribution(base, []distributions.Transform{coupling})
		draws := flow.Sample(5)
		if err := flow.LogProb(draws).Mean().Neg().Backward(); err != nil {
			return err
		}
		fmt.Println(flow.LogProb(draws).Shape(), net.Weight.Grad().Shape())
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [5] [2 1]
}
