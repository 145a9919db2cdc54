// Lastuse evaluates a network on one large batch and prints the peak memory and the number of sweeps. The network's
// Forward is written by hand: it gives each intermediate result a name, as one writes it in PyTorch, and frees nothing.
// Compiled by go build, the results stay until the scope closes, unless sweeps find them before. Compiled by linstock go,
// each is released after its last use, which is when Python frees it, and no sweep is needed:
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/lastuse
//	LINSTOCK_POLICY=off go run ./examples/lastuse    # without sweeps
//	go run ./cmd/linstock go run ./examples/lastuse
//	go run ./cmd/linstock lastuse -explain ./examples/lastuse    # where each tensor is released
//
// A training loop whose steps fit in memory many times needs only the scope that its loader opens around each step.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/vram"
)

func main() {
	rows := flag.Int("rows", 65536, "rows of the batch")
	seed := flag.Uint64("seed", 1, "seed of the weights and the batch")
	cli.Parse()
	if err := command(*rows, *seed); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(rows int, seed uint64) error {
	means, err := evaluate(rows, seed)
	if err != nil {
		return err
	}
	fmt.Printf("means of the outputs: %.4f\n", means)
	s, err := vram.Stats(vram.CPU)
	if err != nil {
		return err
	}
	c := vram.ReadCounts()
	fmt.Printf("peak tensor memory: %.1f MiB, where a batch has %.1f MiB; %d sweeps\n", float64(s.Peak)/(1<<20), float64(4*rows*width)/(1<<20), c.Full+c.Deep)
	return nil
}
