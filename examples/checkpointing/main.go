// Checkpointing trains a deep network without keeping the activations for the backward pass, which computes each block
// again (Chen et al. 2016). Compare the peak memory with and without:
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/checkpointing
//	go run ./examples/checkpointing -checkpoint=false
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/vram"
)

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 100, "training steps")
	flag.IntVar(&o.batch, "batch", 2048, "samples per step")
	flag.Float64Var(&o.lr, "lr", 1e-3, "learning rate of AdamW")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the samples, the weights and dropout")
	flag.BoolVar(&o.checkpoint, "checkpoint", true, "compute blocks again in the backward pass")
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
	s, err := vram.Stats(vram.CPU)
	if err != nil {
		return err
	}
	fmt.Printf("peak tensor memory: %.1f MiB\n", float64(s.Peak)/(1<<20))
	return nil
}
