// Lora trains a small network on one task, freezes it, and adapts it to another task with low-rank updates (Hu et al.
// 2021). It saves the updates alone, merges them into the weights, and prints by how much this changes the results.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/lora -out adapter.safetensors
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/linstock-ml/linstock/examples/internal/cli"
)

func main() {
	o := options{rank: 4, alpha: 8, batch: 64, lr: 1e-2}
	out := flag.String("out", "", "file for the adapters; not written if empty")
	flag.IntVar(&o.rank, "rank", o.rank, "rank of the updates")
	flag.Float64Var(&o.alpha, "alpha", o.alpha, "scale of the updates, divided by the rank")
	flag.IntVar(&o.batch, "batch", o.batch, "samples per step")
	flag.IntVar(&o.steps, "steps", 200, "training steps for each task")
	flag.Float64Var(&o.lr, "lr", o.lr, "learning rate of AdamW")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the tasks and the weights")
	cli.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options, out string) error {
	if o.batch < 1 || o.steps < 1 {
		return fmt.Errorf("-batch and -steps must be at least 1, got %d and %d", o.batch, o.steps)
	}
	if out != "" {
		if err := cli.MakeDir(filepath.Dir(out)); err != nil {
			return err
		}
	}
	r, err := newRun(ctx, o)
	if err != nil {
		return err
	}
	fmt.Printf("first task:  loss %.4f\n", r.pretraining[len(r.pretraining)-1])
	if err := r.adapt(ctx, o); err != nil {
		return err
	}
	fmt.Printf("second task: loss %.4f, with %d of %d parameters trained\n", r.finetuning[len(r.finetuning)-1], r.trained, r.total)
	if out != "" {
		if err := r.save(out); err != nil {
			return err
		}
		fmt.Println("adapters saved to", out)
	}
	difference, err := r.check(o)
	if err != nil {
		return err
	}
	fmt.Printf("adapters merged into the weights; this changes logits by at most %.1g\n", difference)
	return nil
}
