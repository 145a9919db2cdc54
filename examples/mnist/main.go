// Mnist trains a small convolutional network on Fashion-MNIST if Debian's package dataset-fashion-mnist is installed,
// and otherwise on a small set of handwritten digits in this directory.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/mnist -epochs 3
//
// It prints the loss of each epoch, the accuracy on test images, and the native memory on the device.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	epochs, batch, workers, threads int
	lr                              float64
	seed                            uint64
	device                          tensor.Device
	dir                             string
}

func parse(args []string) (*options, error) {
	o := &options{}
	device := "cpu"
	f := flag.NewFlagSet("mnist", flag.ExitOnError)
	f.IntVar(&o.epochs, "epochs", 3, "passes over the images")
	f.IntVar(&o.batch, "batch", 64, "images per step")
	f.IntVar(&o.workers, "workers", 1, "goroutines that prepare batches")
	f.IntVar(&o.threads, "threads", 0, "threads per operator; 0 for one per core")
	f.Float64Var(&o.lr, "lr", 2e-3, "learning rate of AdamW")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the weights and the batches")
	f.StringVar(&device, "device", device, "device: cpu, cuda, cuda:1")
	f.StringVar(&o.dir, "data", fashionDir, "directory of Fashion-MNIST's four .gz files; empty for the digits")
	cli.ParseArgs(f, args)
	var err error
	o.device, err = tensor.ParseDevice(device)
	return o, err
}

func command(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if o.threads > 0 {
		if err := tensor.SetNumThreads(o.threads); err != nil {
			return err
		}
	}
	train, test, name, err := readData(o.dir)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d training images, %d test images, %d by %d\n", name, train.Len(), test.Len(), train.Height, train.Width)
	r, err := newRun(o, train, test)
	if err != nil {
		return err
	}
	for epoch := range o.epochs {
		begun := time.Now()
		loss, err := r.epoch(ctx)
		if err != nil {
			return err
		}
		accuracy, err := r.accuracy(ctx)
		if err != nil {
			return err
		}
		stats, err := vram.Stats(o.device)
		if err != nil {
			return err
		}
		fmt.Printf("epoch %d: loss %.4f, accuracy %.2f%%, %.1f s, native %.1f MB (peak %.1f)\n", epoch+1, loss, 100*accuracy,
			time.Since(begun).Seconds(), float64(stats.Allocated)/1e6, float64(stats.Peak)/1e6)
	}
	return nil
}
