// Bfloat16 trains a network whose weights, activations and gradients are bfloat16 while the optimizer updates float32
// copies of the weights, the masters (optim.MasterWeights), so that small updates are not rounded away (Micikevicius et
// al. 2017).
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/bfloat16
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/linstock-ml/linstock/examples/internal/cli"
)

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 300, "training steps")
	flag.IntVar(&o.batch, "batch", 64, "samples per step")
	flag.Float64Var(&o.lr, "lr", 3e-3, "learning rate of AdamW")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the samples and the weights")
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
	r, err := newRun(o)
	if err != nil {
		return err
	}
	if err := r.train(ctx, o); err != nil {
		return err
	}
	for i := 0; i < len(r.losses); i += max(1, len(r.losses)/10) {
		fmt.Printf("step %d: loss %.4f\n", i, r.losses[i])
	}
	return nil
}
