// Chargpt trains a small GPT, character by character, on the source of the Go toolchain that runs it.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/chargpt
//
// It prints the loss, the speed and the memory use during training, and at the end the loss on held-out text and a
// generated sample. It writes loss.svg and model.safetensors to runs/chargpt, from which examples/serve answers requests.
// After an interrupt, or SIGTERM, it saves and ends with an error. The same command then continues exactly from that
// checkpoint, and only evaluates one that has all steps; -fresh trains anew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/examples/internal/resume"
	"github.com/linstock-ml/linstock/tensor"
)

var started = time.Now()

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// options holds the command's options.
type options struct {
	settings
	steps, threads, sample int
	device                 tensor.Device
	out, prompt            string
	fresh, evalOnly        bool
}

// settings holds the options that a run that continues must have, too.
type settings struct {
	Model gpt.Config `json:"model"`
	Batch int        `json:"batch"`
	LR    float64    `json:"lr"`
	Seed  uint64     `json:"seed"`
}

func parse(args []string) (*options, error) {
	o := &options{}
	device := "cpu"
	f := flag.NewFlagSet("chargpt", flag.ExitOnError)
	f.IntVar(&o.steps, "steps", 1000, "total number of training steps")
	f.IntVar(&o.Batch, "batch", 16, "windows of text per step")
	f.IntVar(&o.Model.Context, "context", 64, "characters in the model's context")
	f.IntVar(&o.Model.Layers, "layers", 4, "blocks")
	f.IntVar(&o.Model.Width, "width", 128, "width of the model")
	f.IntVar(&o.Model.Heads, "heads", 4, "attention heads")
	f.Float64Var(&o.Model.Dropout, "dropout", 0, "dropout probability in training")
	f.Float64Var(&o.LR, "lr", 1e-3, "learning rate of AdamW")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the weights, the batches and the sample")
	f.IntVar(&o.threads, "threads", 0, "threads per operator; 0 for one per core")
	f.StringVar(&device, "device", device, "device: cpu, cuda, cuda:1")
	f.StringVar(&o.out, "out", filepath.Join("runs", "chargpt"), "directory for model.safetensors and loss.svg")
	f.BoolVar(&o.fresh, "fresh", false, "train anew instead of continuing from the model.safetensors there, and replace it")
	f.IntVar(&o.sample, "sample", 300, "characters to generate at the end")
	f.StringVar(&o.prompt, "prompt", "func ", "text that the sample continues")
	f.BoolVar(&o.evalOnly, "eval", false, "only evaluate and sample the model.safetensors there, with its settings")
	cli.ParseArgs(f, args)
	if o.fresh && o.evalOnly {
		return nil, errors.New("-fresh trains, but -eval does not")
	}
	var err error
	o.device, err = tensor.ParseDevice(device)
	return o, err
}

func command(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	// Kubernetes and Slurm end a job with SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := gpt.GoRoot()
	if err != nil {
		return err
	}
	text, err := gpt.ReadGoSource(filepath.Join(root, "src"))
	if err != nil {
		return err
	}
	fmt.Printf("text: %d characters, %d distinct, unigram entropy %.3f nats\n", len(text.Tokens), len(text.Vocab), text.Entropy())
	r, err := newRun(o, text)
	if err != nil {
		return err
	}
	fmt.Println(r)
	if !o.evalOnly {
		if err := trainAndSave(ctx, r); err != nil {
			return err
		}
	}
	return finish(ctx, r)
}

// trainAndSave trains and saves, also if an interrupt ends the training.
func trainAndSave(ctx context.Context, r *run) error {
	if r.step > 0 && !resume.Left(r.path(), "step", r.step, r.options.steps) {
		return nil
	}
	if err := cli.MakeDir(r.options.out); err != nil {
		return err
	}
	first := r.step
	err := r.train(ctx, newReport(r))
	return resume.End(ctx, err, "step", first, r.step, r.options.steps, r.save)
}

// finish prints the validation loss and a sample.
func finish(ctx context.Context, r *run) error {
	begun := time.Now()
	loss, err := r.evaluate(ctx, 200)
	if err != nil {
		return err
	}
	fmt.Printf("step %d: validation loss %.4f nats per character (%.1f s)\n", r.step, loss, time.Since(begun).Seconds())
	text, err := r.model.Generate(ctx, r.vocab, r.options.prompt, r.options.sample, gpt.Sampling{Temperature: 0.8, Seed: r.Seed}, nil)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s%s\n", r.options.prompt, text)
	return nil
}
