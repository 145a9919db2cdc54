// Ddp trains the GPT of examples/chargpt with several processes, each on a part of the text:
//
//	go build -o ddp ./examples/ddp
//	./ddp                                                # one process
//	torchrun --nproc-per-node 4 --no-python ./ddp        # four on this machine, started by PyTorch's launcher
//	make demo-dist                                       # four, started by a shell
//
// The gradients are averaged over the processes, so that a step of four learns from four batches. Rank 0 prints and
// writes the checkpoint. If a process is lost, the others exit with an error that names it, and the processes that
// torchrun --max-restarts restarts continue from the last checkpoint. When one process gets an interrupt or SIGTERM,
// all save and exit with an error, so that their launcher restarts them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/cli"
)

type options struct {
	gpt.Config
	steps, batch, every int
	lr                  float64
	seed                uint64
	text, out           string
	timeout             time.Duration
}

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(args []string) error {
	var o options
	f := flag.NewFlagSet("ddp", flag.ExitOnError)
	f.IntVar(&o.steps, "steps", 300, "total number of training steps")
	f.IntVar(&o.batch, "batch", 4, "windows of text per step and process")
	f.IntVar(&o.Context, "context", 64, "characters in the model's context")
	f.IntVar(&o.Layers, "layers", 4, "blocks")
	f.IntVar(&o.Width, "width", 128, "width of the model")
	f.IntVar(&o.Heads, "heads", 4, "attention heads")
	f.Float64Var(&o.lr, "lr", 1e-3, "learning rate of AdamW")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the weights and of the order of the text")
	f.IntVar(&o.every, "save-every", 100, "steps between checkpoints")
	f.StringVar(&o.text, "text", "", "directory with Go source files to learn; empty for that of the Go toolchain")
	f.StringVar(&o.out, "out", filepath.Join("runs", "ddp"), "directory for model.safetensors")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "how long a process waits for the others")
	cli.ParseArgs(f, args)
	if o.every < 1 {
		return fmt.Errorf("-save-every must be at least 1, got %d", o.every)
	}
	// Kubernetes and Slurm end a job with SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	g, err := join(ctx, o.timeout)
	if err != nil {
		return err
	}
	defer g.Close()
	if g.Rank() == 0 {
		if err := cli.MakeDir(o.out); err != nil {
			return err
		}
	}
	if o.text == "" {
		root, err := gpt.GoRoot()
		if err != nil {
			return err
		}
		o.text = filepath.Join(root, "src")
	}
	text, err := gpt.ReadGoSource(o.text)
	if err != nil {
		return err
	}
	t, err := newTrainer(ctx, g, o, text)
	if err != nil {
		return err
	}
	defer t.ddp.Close()
	return t.run(ctx)
}

// join returns the group of all processes, or one of this process alone if no launcher has set its variables.
func join(ctx context.Context, timeout time.Duration) (*dist.Group, error) {
	_, err := dist.ReadEnvironment()
	if err == nil {
		return dist.Init(ctx, dist.Timeout(timeout))
	}
	for _, name := range []string{"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"} {
		if os.Getenv(name) != "" {
			return nil, err
		}
	}
	store, err := dist.NewHashStore()
	if err != nil {
		return nil, err
	}
	defer store.Close()
	return dist.Init(ctx, dist.WithStore(store), dist.Rank(0), dist.WorldSize(1))
}
