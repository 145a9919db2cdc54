package optim_test

import (
	"fmt"
	"log"

	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// Minimize (x-3)².
func Example() {
	x := tensor.Zeros([]int{}).RequiresGrad_()
	opt, err := optim.NewSGD([]*tensor.Tensor{x}, 0.1, optim.Momentum(0.5))
	if err != nil {
		log.Fatal(err)
	}
	schedule, err := optim.NewScheduler(opt, optim.StepLR(20, 0.5))
	if err != nil {
		log.Fatal(err)
	}
	for range 60 {
		err := tensor.WithScope(func() error {
			opt.ZeroGrad()
			if err := x.Sub(3).Pow(2).Backward(); err != nil {
				return err
			}
			return opt.Step()
		})
		if err != nil {
			log.Fatal(err)
		}
		schedule.Step()
	}
	v, err := x.Item()
	fmt.Printf("x = %.3f, learning rate %.4f, %v\n", v, opt.LR(), err)
	// Output: x = 3.000, learning rate 0.0125, <nil>
}

// Apply weight decay to matrices only, as is usual for transformers.
func ExampleOptimizer_AddGroup() {
	weight := tensor.Ones([]int{2, 2}).RequiresGrad_()
	bias := tensor.Ones([]int{2}).RequiresGrad_()
	opt, err := optim.NewAdamW([]*tensor.Tensor{weight}, 1e-3, optim.WeightDecay(0.1))
	if err != nil {
		log.Fatal(err)
	}
	if err := opt.AddGroup([]*tensor.Tensor{bias}, optim.WeightDecay(0)); err != nil {
		log.Fatal(err)
	}
	for _, g := range opt.Groups() {
		fmt.Println(len(g.Params), g.LR, g.WeightDecay)
	}
	// Output:
	// 1 0.001 0.1
	// 1 0.001 0
}
