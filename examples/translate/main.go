// Translate trains an encoder and a decoder, both GRUs, to reverse strings of digits. It decodes greedily: each digit
// that the decoder writes is its next input.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/translate 12345 90210
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

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
	flag.IntVar(&o.steps, "steps", 400, "training steps")
	flag.IntVar(&o.batch, "batch", 64, "sequences per step")
	flag.Float64Var(&o.lr, "lr", 1e-2, "learning rate of Adam")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the sequences and the weights")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: translate [flags] [digits...]")
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

func command(ctx context.Context, o options, inputs []string) error {
	if o.batch < 1 {
		return fmt.Errorf("-batch must be at least 1, got %d", o.batch)
	}
	if len(inputs) == 0 {
		inputs = []string{"12345", "90210"}
	}
	sources := make([][]int64, len(inputs))
	for i, digits := range inputs {
		var err error
		if sources[i], err = tokens(digits); err != nil {
			return err
		}
	}
	if err := tensor.ManualSeed(o.seed); err != nil {
		return err
	}
	model := newEncoderDecoder()
	opt, err := optim.NewAdam(nn.Parameters(model), o.lr)
	if err != nil {
		return err
	}
	err = train(ctx, model, opt, o, func(step int, loss float64) {
		if step%50 == 0 {
			fmt.Printf("step %d: loss %.4f\n", step, loss)
		}
	})
	if err != nil {
		return err
	}
	for i, digits := range inputs {
		written, err := translate(model, sources[i])
		if err != nil {
			return err
		}
		fmt.Printf("%s -> %s\n", digits, written)
	}
	return nil
}
