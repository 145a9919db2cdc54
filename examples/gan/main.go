// Gan trains a convolutional generator and a discriminator against each other (DCGAN, Radford et al. 2015) on the
// handwritten digits of examples/mnist.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/gan
//
// It writes generated digits, pictures.png, and the losses, loss.svg, to runs/gan.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/tensor"
)

type options struct {
	steps, batch, threads int
	lr                    float64
	seed                  uint64
	out                   string
}

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 1500, "training steps")
	flag.IntVar(&o.batch, "batch", 64, "pictures per step")
	flag.IntVar(&o.threads, "threads", 0, "threads per operator; 0 for one per core")
	flag.Float64Var(&o.lr, "lr", 5e-4, "learning rate of Adam")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the weights, the batches and the noise")
	flag.StringVar(&o.out, "out", filepath.Join("runs", "gan"), "directory for pictures.png and loss.svg")
	cli.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options) error {
	if o.threads > 0 {
		if err := tensor.SetNumThreads(o.threads); err != nil {
			return err
		}
	}
	set, err := readDigits()
	if err != nil {
		return err
	}
	pictures, err := data.NewLoader(set, data.BatchSize(o.batch), data.Shuffle(true), data.Seed(o.seed), data.DropLast(true))
	if err != nil {
		return err
	}
	if pictures.Len() == 0 {
		return fmt.Errorf("-batch must be at most %d, the number of pictures; got %d", set.Len(), o.batch)
	}
	g, err := newGAN(o)
	if err != nil {
		return err
	}
	if err := cli.MakeDir(o.out); err != nil {
		return err
	}
	if err := g.trainWithReport(ctx, pictures, o.steps); err != nil {
		return err
	}
	return g.save(o.out)
}

// trainWithReport trains with a bar that shows the losses.
func (g *gan) trainWithReport(ctx context.Context, pictures *data.Loader, steps int) error {
	report := progress.Start(0, steps)
	defer report.Close()
	var d, v progress.Mean
	return g.train(ctx, pictures, steps, func() {
		n := len(g.lossD)
		d.Add(g.lossD[n-1])
		v.Add(g.lossG[n-1])
		report.Stepped(n, func() string {
			return fmt.Sprintf("loss of the discriminator %.3f, of the generator %.3f", d.Value(), v.Value())
		})
	})
}

// save writes generated digits and the plot of the losses.
func (g *gan) save(dir string) error {
	picture, err := g.draw(64, 8)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "pictures.png")
	if err := savePNG(path, picture, 4); err != nil {
		return err
	}
	fmt.Println("generated digits:", path)
	return progress.Plot(filepath.Join(dir, "loss.svg"), "gan: losses on handwritten digits", "loss",
		progress.Curve{Name: "discriminator", Values: g.lossD}, progress.Curve{Name: "generator", Values: g.lossG})
}
