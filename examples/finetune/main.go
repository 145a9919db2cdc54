// Finetune adapts a character GPT that examples/chargpt trained on Go's source to another text, with low-rank updates of
// its multilayer perceptrons (Hu et al. 2021). The text is Newton's Opticks, which is part of the Go toolchain.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/chargpt      # the base; without it, finetune trains a smaller one itself
//	go run ./examples/finetune
//
// It prints the loss on held-out text before and after, and a generated sample, and writes to runs/finetune: the updates
// alone, as adapters.safetensors and adapters.pt; merged.safetensors, a checkpoint of the whole model like chargpt's, with
// the updates added to the weights, which examples/serve takes with -model; and loss.svg. In Python, load.py generates text
// with the base and adapters.pt.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/tensor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	base, text, adapters, out, prompt                    string
	baseSteps, steps, batch, rank, threads, sample, held int
	alpha, lr                                            float64
	seed                                                 uint64
	device                                               tensor.Device
}

func parse(args []string) (*options, error) {
	o := &options{}
	device := "cpu"
	f := flag.NewFlagSet("finetune", flag.ExitOnError)
	f.StringVar(&o.base, "base", filepath.Join("runs", "chargpt", "model.safetensors"), "checkpoint written by chargpt; if there is none, the base.safetensors in -out, which is trained if it is not there")
	f.IntVar(&o.baseSteps, "base-steps", 300, "training steps of such a base")
	f.StringVar(&o.text, "text", "", "file to learn; Newton's Opticks in GOROOT if empty")
	f.StringVar(&o.adapters, "adapters", "", "adapters.safetensors or adapters.pt to begin with, of the same base; their rank and alpha are used")
	f.IntVar(&o.steps, "steps", 400, "training steps of the adapters")
	f.IntVar(&o.batch, "batch", 16, "windows of text per step")
	f.IntVar(&o.rank, "rank", 8, "rank of the updates")
	f.Float64Var(&o.alpha, "alpha", 16, "scale of the updates, divided by the rank")
	f.Float64Var(&o.lr, "lr", 5e-3, "learning rate of AdamW for the adapters")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the weights, the batches and the sample")
	f.IntVar(&o.threads, "threads", 0, "threads per operator; 0 for one per core")
	f.StringVar(&device, "device", device, "device: cpu, cuda, cuda:1")
	f.StringVar(&o.out, "out", filepath.Join("runs", "finetune"), "directory for the results")
	f.IntVar(&o.held, "held", 40, "batches of held-out text to evaluate on")
	f.IntVar(&o.sample, "sample", 300, "characters to generate at the end")
	f.StringVar(&o.prompt, "prompt", "The Light ", "text that the sample continues")
	cli.ParseArgs(f, args)
	var err error
	o.device, err = tensor.ParseDevice(device)
	return o, err
}

func command(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.threads > 0 {
		if err := tensor.SetNumThreads(o.threads); err != nil {
			return err
		}
	}
	if err := cli.MakeDir(o.out); err != nil {
		return err
	}
	text, err := o.readText()
	if err != nil {
		return err
	}
	if o.adapters != "" {
		of, err := readKind(o.adapters)
		if err != nil {
			return err
		}
		o.rank, o.alpha = of.rank, of.alpha
	}
	model, vocab, err := base(ctx, o)
	if err != nil {
		return err
	}
	if err := o.checkPrompt(vocab); err != nil {
		return err
	}
	r, err := newRun(o, text, model, vocab)
	if err != nil {
		return err
	}
	if o.adapters != "" {
		if err := r.load(o.adapters); err != nil {
			return err
		}
	}
	before, err := r.evaluate(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("text: %d characters; the loss on held-out text is %.4f nats per character\n", len(r.learned)+len(r.held), before)
	trained, total := r.count()
	fmt.Printf("training %d of %d parameters\n", trained, total)
	if err := r.adapt(ctx); err != nil {
		return err
	}
	after, err := r.evaluate(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("the loss on held-out text went from %.4f to %.4f\n", before, after)
	if err := r.save(); err != nil {
		return err
	}
	sample, err := r.model.Generate(ctx, r.vocab, o.prompt, o.sample, gpt.Sampling{Temperature: 0.8, Seed: o.seed}, nil)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s%s\n", o.prompt, sample)
	return nil
}

// checkPrompt returns an error if a model with this vocabulary cannot continue the prompt.
func (o *options) checkPrompt(v gpt.Vocab) error {
	if _, err := v.Prompt(o.prompt); err != nil {
		return fmt.Errorf("-prompt: %w", err)
	}
	return nil
}

// base loads the checkpoint of chargpt, or the base that an earlier run trained, or trains one for a short time.
func base(ctx context.Context, o *options) (*gpt.GPT, gpt.Vocab, error) {
	own := filepath.Join(o.out, "base.safetensors")
	for _, path := range []string{o.base, own} {
		_, err := os.Stat(path)
		if err == nil {
			fmt.Println("base:", path)
			return gpt.Load(path, o.device)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, "", err
		}
	}
	root, err := gpt.GoRoot()
	if err != nil {
		return nil, "", err
	}
	text, err := gpt.ReadGoSource(filepath.Join(root, "src"))
	if err != nil {
		return nil, "", err
	}
	if err := o.checkPrompt(text.Vocab); err != nil {
		return nil, "", err
	}
	fmt.Printf("base: there is no %s; training %s on Go's source\n", o.base, own)
	return trainBase(ctx, o, text, own)
}

// plot draws the losses of the adapters' training.
func plot(path string, losses []float64) error {
	return progress.Plot(path, "finetune: loss of the adapted model", "nats per character", progress.Curve{Values: losses})
}
