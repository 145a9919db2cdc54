// Textclassifier trains an LSTM to classify synthetic film reviews as positive or negative. "Not" negates the next
// word.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/textclassifier "the film was not bad" "great music not good"
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/linstock-ml/linstock/tensor"
)

type options struct {
	reviews, epochs, batch int
	lr                     float64
	seed                   uint64
}

func main() {
	var o options
	flag.IntVar(&o.reviews, "reviews", 8192, "training reviews")
	flag.IntVar(&o.epochs, "epochs", 4, "passes over the reviews")
	flag.IntVar(&o.batch, "batch", 32, "reviews per step")
	flag.Float64Var(&o.lr, "lr", 1e-2, "learning rate of AdamW")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the reviews and the weights")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: textclassifier [flags] [review...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options, reviews []string) error {
	if o.reviews < 2 {
		return fmt.Errorf("-reviews must be at least 2, because half as many test the model; got %d", o.reviews)
	}
	encoded := make([][]int64, len(reviews))
	for i, text := range reviews {
		var err error
		if encoded[i], err = encode(text); err != nil {
			return err
		}
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
		accuracy, err := r.accuracy(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("epoch %d: loss %.4f, accuracy on unseen reviews %.1f%%\n", epoch+1, r.losses[len(r.losses)-1], 100*accuracy)
	}
	for i, text := range reviews {
		p, err := r.positive(encoded[i])
		if err != nil {
			return err
		}
		fmt.Printf("%5.1f%% positive: %s\n", 100*p, text)
	}
	return nil
}
