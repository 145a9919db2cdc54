// Resnet trains a small residual network to classify striped images by the direction of their stripes. Training images
// are flipped and shifted at random. The learning rate warms up and then decays along a cosine.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/resnet -epochs 5
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/tensor"
)

type options struct {
	images, epochs, batch int
	lr                    float64
	shuffle               bool
	seed                  uint64
}

func main() {
	o := options{shuffle: true}
	flag.IntVar(&o.images, "images", 640, "training images")
	flag.IntVar(&o.epochs, "epochs", 5, "passes over the images")
	flag.IntVar(&o.batch, "batch", 32, "images per step")
	flag.Float64Var(&o.lr, "lr", 0.1, "highest learning rate")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of images, weights and augmentation")
	cli.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options) error {
	if o.images < 2 {
		return fmt.Errorf("-images must be at least 2, because half as many test the model; got %d", o.images)
	}
	if err := tensor.ManualSeed(o.seed); err != nil {
		return err
	}
	r, err := newRun(o)
	if err != nil {
		return err
	}
	for epoch := range o.epochs {
		if err := r.epoch(ctx); err != nil {
			return err
		}
		fmt.Printf("epoch %d: loss %.4f, learning rate %.4f\n", epoch+1, r.losses[len(r.losses)-1], r.schedule.LR())
	}
	accuracy, err := r.accuracy(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("accuracy on unseen images: %.1f%%\n", 100*accuracy)
	return nil
}
