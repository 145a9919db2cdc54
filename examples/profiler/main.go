// Profiler shows where the time of a training step goes, by operator and by line of this file.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/profiler
//	go tool pprof -list 'network' runs/profiler/time.pb.gz
//
// It prints the table of PyTorch's profiler, and writes time.pb.gz for go tool pprof and trace.json for
// https://ui.perfetto.dev.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/profiler"
	"github.com/linstock-ml/linstock/tensor"
)

func main() {
	out := flag.String("out", "runs/profiler", "folder for time.pb.gz and trace.json")
	steps := flag.Int("steps", 10, "training steps")
	rows := flag.Int("rows", 12, "rows of the table")
	cli.Parse()
	if err := run(os.Stdout, *out, *steps, *rows); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type network struct {
	Hidden *nn.Linear
	Out    *nn.Linear
}

func (n *network) Forward(x *tensor.Tensor) *tensor.Tensor {
	h := n.Hidden.Forward(x)
	h = h.GELU()
	return n.Out.Forward(h)
}

func run(w io.Writer, out string, steps, rows int) error {
	if steps < 3 {
		return fmt.Errorf("-steps must be at least 3, because the profile begins after two; got %d", steps)
	}
	if err := cli.MakeDir(out); err != nil {
		return err
	}
	model := &network{nn.NewLinear(784, 512), nn.NewLinear(512, 10)}
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3)
	if err != nil {
		return err
	}
	x, y := tensor.Randn([]int{256, 784}).Keep(), tensor.RandInt(0, 10, []int{256}).Keep()
	defer func() {
		opt.Release()
		nn.Release(model)
		x.Release()
		y.Release()
	}()
	// The first steps allocate what later ones have already: the profile begins after two.
	p, err := profiler.Start(profiler.RecordShapes(), profiler.Schedule{Wait: 1, Warmup: 1, Active: steps - 2, Repeat: 1})
	if err != nil {
		return err
	}
	for range steps {
		if err := tensor.WithScope(func() error { return step(model, opt, x, y) }); err != nil {
			return err
		}
		if err := p.Step(); err != nil {
			return err
		}
	}
	trace, err := p.Stop()
	if err != nil {
		return err
	}
	fmt.Fprint(w, trace.KeyAverages(profiler.GroupByLine()).Table(profiler.SortBy(profiler.SelfCPUTimeTotal), profiler.RowLimit(rows)))
	return write(trace, out)
}

func step(model *network, opt *optim.Optimizer, x, y *tensor.Tensor) error {
	opt.ZeroGrad()
	var loss *tensor.Tensor
	if err := profiler.RecordFunction("forward", func() error {
		loss = nn.CrossEntropy(model.Forward(x), y)
		return loss.Err()
	}); err != nil {
		return err
	}
	if err := loss.Backward(); err != nil {
		return err
	}
	return opt.Step()
}

func write(trace *profiler.Trace, out string) error {
	if err := trace.ExportChromeTrace(filepath.Join(out, "trace.json")); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(out, "time.pb.gz"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := trace.WriteProfile(f); err != nil {
		return err
	}
	return f.Close()
}
