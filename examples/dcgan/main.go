// Dcgan trains a convolutional generator and a discriminator against each other (Radford et al. 2015) on pictures of a
// bright spot, and prints a generated picture.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/dcgan
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

type options struct {
	steps, batch int
	lr           float64
	seed         uint64
}

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 300, "training steps")
	flag.IntVar(&o.batch, "batch", 32, "pictures per step")
	flag.Float64Var(&o.lr, "lr", 2e-3, "learning rate of Adam")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the pictures and the weights")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options) error {
	g, err := newGAN(o)
	if err != nil {
		return err
	}
	err = g.train(ctx, o, func(step int, d, g float64) {
		if step%20 == 0 {
			fmt.Printf("step %d: discriminator's loss %.4f, generator's %.4f\n", step, d, g)
		}
	})
	if err != nil {
		return err
	}
	nn.Eval(g.generator)
	return autograd.NoGrad(func() error {
		pixels, err := tensor.Data[float32](g.generator.Forward(tensor.Randn([]int{1, noise, 1, 1})))
		for i, p := range pixels {
			if i%size == 0 {
				fmt.Println()
			}
			fmt.Print(string(" .:*#"[max(0, min(4, int((p+1)*2.5)))]), " ")
		}
		fmt.Println()
		return err
	})
}
