// Vae trains a variational autoencoder (Kingma and Welling 2013) on small pictures of a horizontal and a vertical bar,
// and generates new pictures.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/vae
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

type options struct {
	steps, batch int
	lr           float64
	seed         uint64
}

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 1500, "training steps")
	flag.IntVar(&o.batch, "batch", 64, "pictures per step")
	flag.Float64Var(&o.lr, "lr", 3e-3, "learning rate of Adam")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the pictures and the weights")
	cli.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options) error {
	if o.batch < 1 {
		return fmt.Errorf("-batch must be at least 1, got %d", o.batch)
	}
	if err := tensor.ManualSeed(o.seed); err != nil {
		return err
	}
	model := newVAE()
	opt, err := optim.NewAdam(nn.Parameters(model), o.lr)
	if err != nil {
		return err
	}
	err = train(ctx, model, opt, o, func(step int, loss float64) {
		if step%100 == 0 {
			fmt.Printf("step %d: loss %.4f\n", step, loss)
		}
	})
	if err != nil {
		return err
	}
	pixels, err := sample(model, 3)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(pixels, func(p float32) bool { return math.IsNaN(float64(p)) }) {
		return fmt.Errorf("the training diverged with -lr %g: the new pictures are NaN", o.lr)
	}
	for i, p := range pixels {
		if i%size == 0 {
			fmt.Println()
		}
		if i%(size*size) == 0 {
			fmt.Println()
		}
		fmt.Print(string(" .:*#"[min(4, int(p*5))]), " ")
	}
	fmt.Println()
	return nil
}
