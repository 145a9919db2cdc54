// Dqn learns to catch a falling ball by deep Q-learning (Mnih et al. 2015), with a replay buffer, a target network, and
// actions that become less random over time.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/dqn
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/linstock-ml/linstock/examples/internal/cli"
)

type options struct {
	episodes, capacity, batch, sync int
	lr                              float64
	seed                            uint64
}

func main() {
	var o options
	flag.IntVar(&o.episodes, "episodes", 400, "games to learn from")
	flag.IntVar(&o.capacity, "capacity", 500, "moves that the replay buffer holds")
	flag.IntVar(&o.batch, "batch", 32, "moves per training step")
	flag.IntVar(&o.sync, "sync", 20, "training steps between copies to the target network")
	flag.Float64Var(&o.lr, "lr", 2e-3, "learning rate of Adam")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the games and the weights")
	cli.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options) error {
	if o.capacity < 1 || o.batch < 1 || o.sync < 1 {
		return fmt.Errorf("-capacity, -batch and -sync must be at least 1, got %d, %d and %d", o.capacity, o.batch, o.sync)
	}
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	const window = 50
	caught, n := 0, 0
	return a.train(ctx, o, func(episode int, reward float64) {
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
