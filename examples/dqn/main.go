// Dqn learns to catch a falling ball by deep Q-learning (Mnih et al. 2015), with a replay buffer, a target network, and
// actions that become less random over time.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/dqn
//
// It writes the checkpoint, model.safetensors, to runs/dqn. After an interrupt, or SIGTERM, it saves and ends with an error.
// The same command then continues exactly from that checkpoint; -fresh trains anew.
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
	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/examples/internal/resume"
)

type options struct {
	settings
	out   string
	fresh bool
}

// settings holds the options that a run that continues must have, too. How random the actions are depends on Episodes.
type settings struct {
	Episodes, Capacity, Batch, Sync int
	LR                              float64
	Seed                            uint64
}

func main() {
	var o options
	flag.IntVar(&o.Episodes, "episodes", 400, "games to learn from")
	flag.IntVar(&o.Capacity, "capacity", 500, "moves that the replay buffer holds")
	flag.IntVar(&o.Batch, "batch", 32, "moves per training step")
	flag.IntVar(&o.Sync, "sync", 20, "training steps between copies to the target network")
	flag.Float64Var(&o.LR, "lr", 2e-3, "learning rate of Adam")
	flag.Uint64Var(&o.Seed, "seed", 1, "seed of the games and the weights")
	flag.StringVar(&o.out, "out", filepath.Join("runs", "dqn"), "directory for model.safetensors")
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
	if o.Capacity < 1 || o.Batch < 1 || o.Sync < 1 {
		return fmt.Errorf("-capacity, -batch and -sync must be at least 1, got %d, %d and %d", o.Capacity, o.Batch, o.Sync)
	}
	if err := cli.MakeDir(o.out); err != nil {
		return err
	}
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	const window = 50
	caught, n := 0, 0
	return a.trainAndSave(ctx, o, func(episode int, reward float64) {
		n++
		if reward > 0 {
			caught++
		}
		if n == window {
			fmt.Printf("episodes %d to %d: caught %d of %d\n", episode+2-window, episode+1, caught, n)
			caught, n = 0, 0
		}
	})
}

// trainAndSave trains, from the checkpoint if there is one, and saves, also if an interrupt ends the training.
func (a *agent) trainAndSave(ctx context.Context, o options, report func(episode int, reward float64)) error {
	path := filepath.Join(o.out, "model.safetensors")
	parts := []checkpoint.Part{
		checkpoint.Value("settings", &o.settings), checkpoint.Value("episode", &a.episode), checkpoint.Value("moves", &a.Replay.n),
		checkpoint.Value("losses", &a.losses),
	}
	there, err := resume.Continues(path, o.fresh, o.settings)
	if err != nil {
		return err
	}
	if there {
		if err := checkpoint.LoadTraining(path, &a.memory, a.opt, parts...); err != nil {
			return err
		}
		if !resume.Left(path, "episode", a.episode, o.Episodes) {
			return nil
		}
	}
	first := a.episode
	err = a.train(ctx, o, report)
	return resume.End(ctx, err, "episode", first, a.episode, o.Episodes, func() error {
		return checkpoint.SaveTraining(path, &a.memory, a.opt, parts...)
	})
}
