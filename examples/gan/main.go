// Gan trains a convolutional generator and a discriminator against each other (DCGAN, Radford et al. 2015) on the
// handwritten digits of examples/mnist.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/gan
//
// It writes generated digits, pictures.png, the losses, loss.svg, and the checkpoint, model.safetensors, to runs/gan. After
// an interrupt, or SIGTERM, it saves and ends with an error. The same command then continues exactly from that checkpoint;
// -fresh trains anew.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/examples/internal/resume"
	"github.com/linstock-ml/linstock/tensor"
)

type options struct {
	settings
	steps, threads int
	out            string
	fresh          bool
}

// settings holds the options that a run that continues must have, too.
type settings struct {
	Batch int
	LR    float64
	Seed  uint64
}

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 1500, "total number of training steps")
	flag.IntVar(&o.Batch, "batch", 64, "pictures per step")
	flag.IntVar(&o.threads, "threads", 0, "threads per operator; 0 for one per core")
	flag.Float64Var(&o.LR, "lr", 5e-4, "learning rate of Adam")
	flag.Uint64Var(&o.Seed, "seed", 1, "seed of the weights, the batches and the noise")
	flag.StringVar(&o.out, "out", filepath.Join("runs", "gan"), "directory for model.safetensors, pictures.png and loss.svg")
	flag.BoolVar(&o.fresh, "fresh", false, "train anew instead of continuing from the model.safetensors there, and replace it")
	cli.Parse()
	// Kubernetes and Slurm end a job with SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	pictures, err := newLoader(set, o)
	if err != nil {
		return err
	}
	if pictures.Len() == 0 {
		return fmt.Errorf("-batch must be at most %d, the number of pictures; got %d", set.Len(), o.Batch)
	}
	g, err := newGAN(o)
	if err != nil {
		return err
	}
	if err := cli.MakeDir(o.out); err != nil {
		return err
	}
	if err := g.trainAndSave(ctx, pictures, o); err != nil {
		return err
	}
	return g.save(o.out)
}

// trainAndSave trains, from the checkpoint if there is one, and saves, also if an interrupt ends the training.
func (g *gan) trainAndSave(ctx context.Context, pictures *data.Loader, o options) error {
	path := filepath.Join(o.out, "model.safetensors")
	parts := []checkpoint.Part{
		checkpoint.Named("discriminator", checkpoint.Optimizer(g.optD)), checkpoint.Loader(pictures), checkpoint.Value("settings", &o.settings),
		checkpoint.Value("losses of the discriminator", &g.lossD), checkpoint.Value("losses of the generator", &g.lossG),
	}
	there, err := resume.Continues(path, o.fresh, o.settings)
	if err != nil {
		return err
	}
	if there {
		if err := checkpoint.LoadTraining(path, &g.networks, g.optG, parts...); err != nil {
			return err
		}
		if !resume.Left(path, "step", len(g.lossD), o.steps) {
			return nil
		}
	}
	first := len(g.lossD)
	err = g.trainWithReport(ctx, pictures, o.steps)
	return resume.End(ctx, err, "step", first, len(g.lossD), o.steps, func() error {
		return checkpoint.SaveTraining(path, &g.networks, g.optG, parts...)
	})
}

// trainWithReport trains with a bar that shows the losses.
func (g *gan) trainWithReport(ctx context.Context, pictures *data.Loader, steps int) error {
	report := progress.Start(len(g.lossD), steps)
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
