// Speech trains a bidirectional LSTM to recognize spoken digits with the connectionist temporal classification loss,
// which does not need the times of the digits. The speech is synthetic: tones at the first two formants of each sound,
// and noise, for speakers of different pitch, size and speed.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/speech
//
// It prints what it recognizes in a new utterance, which it writes as utterance.wav, and writes loss.svg to runs/speech.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/tensor"
)

type options struct {
	steps, batch, hidden, test, threads int
	lr                                  float64
	seed                                uint64
	out                                 string
}

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 400, "training steps")
	flag.IntVar(&o.batch, "batch", 32, "utterances per step")
	flag.IntVar(&o.hidden, "hidden", 48, "width of the LSTM in each direction")
	flag.IntVar(&o.test, "test", 20, "steps between two tests on new utterances")
	flag.IntVar(&o.threads, "threads", 0, "threads per operator; 0 for one per core")
	flag.Float64Var(&o.lr, "lr", 5e-3, "learning rate of Adam")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the speech and the weights")
	flag.StringVar(&o.out, "out", filepath.Join("runs", "speech"), "directory for utterance.wav and loss.svg")
	cli.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, o options) error {
	if o.test < 1 {
		return fmt.Errorf("-test must be at least 1, got %d", o.test)
	}
	if o.threads > 0 {
		if err := tensor.SetNumThreads(o.threads); err != nil {
			return err
		}
	}
	if err := cli.MakeDir(o.out); err != nil {
		return err
	}
	r, err := newRun(o)
	if err != nil {
		return err
	}
	if err := r.trainWithReport(ctx, o); err != nil {
		return err
	}
	return r.finish(o.out)
}

// trainWithReport trains with a bar that shows the loss and the share of wrong digits.
func (r *run) trainWithReport(ctx context.Context, o options) error {
	report := progress.Start(0, o.steps)
	defer report.Close()
	var mean progress.Mean
	return r.train(ctx, o, func(loss, wrong float64) {
		mean.Add(loss)
		report.Stepped(len(r.losses), func() string {
			return fmt.Sprintf("loss %.3f  wrong digits %.1f%%", mean.Value(), 100*wrong)
		})
	})
}

// finish recognizes an utterance, and writes it and the plot.
func (r *run) finish(dir string) error {
	wrong, err := r.wrong(100)
	if err != nil {
		return err
	}
	fmt.Printf("wrong digits in 100 new utterances: %.1f%%\n", 100*wrong)
	err = r.hear(1, func(s speech, found, said [][]int) error {
		path := filepath.Join(dir, "utterance.wav")
		fmt.Printf("%s says %v; recognized: %v\n", path, said[0], found[0])
		return saveWAV(path, s.sound.Select(0, 0), s.frames[0])
	})
	if err != nil {
		return err
	}
	return progress.Plot(filepath.Join(dir, "loss.svg"), "speech: recognizing digits", "loss, and share of wrong digits",
		progress.Curve{Name: "CTC loss", Values: r.losses}, progress.Curve{Name: "wrong digits", Values: r.errors})
}
