// Pipeline classifies records in three concurrent stages: goroutines read and normalize records, one goroutine runs the
// model on as many records as are ready, and one writes the results in the order of the records.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/pipeline -records 20
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func main() {
	o := options{}
	seed := flag.Uint64("seed", 1, "seed of the weights")
	flag.IntVar(&o.records, "records", 1000, "records to classify")
	flag.IntVar(&o.readers, "readers", 4, "goroutines that read and normalize records")
	flag.IntVar(&o.batch, "batch", 32, "maximum number of records per batch")
	cli.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o, *seed); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options, seed uint64) error {
	if o.batch < 1 {
		return fmt.Errorf("-batch must be at least 1, got %d", o.batch)
	}
	if err := tensor.ManualSeed(seed); err != nil {
		return err
	}
	model := newModel()
	nn.Eval(model)
	return run(ctx, model, o, func(r result) error {
		_, err := fmt.Printf("record %d: class %d (%.3f)\n", r.record, r.class, r.score)
		return err
	})
}
