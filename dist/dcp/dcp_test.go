package dcp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

var ctx = context.Background()

// The environment of a process that a test starts: what it does, and where.
const envRole, envDir = "LINSTOCK_TEST_ROLE", "LINSTOCK_TEST_DIR"

func TestMain(m *testing.M) {
	role, dir := os.Getenv(envRole), os.Getenv(envDir)
	launch.Main(role, m.Run, func() error {
		return launch.Play(ctx, false, func(g *dist.Group) error {
			switch role {
			case "save":
				return dcp.Save(ctx, g, dir, dcp.State{Shards: divided(g, false)})
			case "load":
				return loads(g, dir)
			case "hold":
				return dcp.Save(ctx, g, dir, dcp.State{Shards: divided(g, false), Parts: []checkpoint.Part{checkpoint.Value("held", &held{})}})
			}
			return savesUntilKilled(g, dir, role)
		})
	})
}

// savesUntilKilled saves generations of a checkpoint until a rank is killed, which the other must name.
func savesUntilKilled(g *dist.Group, dir, victim string) error {
	for step := 1; ; step++ {
		if step == 2 && fmt.Sprint(g.Rank()) == victim { // all ranks have connected
			time.AfterFunc(rand.N(30*time.Millisecond), func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
		}
		err := tensor.WithScope(func() error {
			x := dcp.Shard{Name: "x", Global: []int{2000}, Offsets: []int{1000 * g.Rank()}, Tensor: tensor.Full([]int{1000}, step)}
			return dcp.Save(ctx, g, dir, dcp.State{Shards: []dcp.Shard{x}, Parts: []checkpoint.Part{checkpoint.Value("step", &step)}})
		})
		var peer *dist.PeerError
		if errors.As(err, &peer) && fmt.Sprint(peer.Ranks) == "["+victim+"]" {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// TestKilled tests that kill -9 of a rank at a random moment of a save leaves a whole checkpoint, the old or the new one.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes and takes long; it runs without -short")
	}
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	x, step := tensor.Zeros([]int{2000}), 0
	defer x.Release()
	state := dcp.State{Shards: []dcp.Shard{{Name: "x", Tensor: x}}, Parts: []checkpoint.Part{checkpoint.Value("step", &step)}}
	for i := range 6 {
		if err := dcp.Save(ctx, nil, dir, state); err != nil {
			t.Fatal(err)
		}
		tidy(t, dir)
		processes(t, 2, strconv.Itoa(i%2), dir)
		step = -1
		if err := dcp.Load(ctx, nil, dir, state); err != nil {
			t.Fatal(err)
		}
		alone(t, func() error {
			if same, err := x.Equal(tensor.Full([]int{2000}, step)); err != nil || !same {
				t.Errorf("after kill %d: step %d with other tensors, %v", i, step, err)
			}
			return nil
		})
	}
}

// processes runs a role as n processes. A role that is a number is the rank that is killed.
func processes(t *testing.T, n int, role, dir string) {
	t.Helper()
	port, err := launch.Port()
	if err != nil {
		t.Fatal(err)
	}
	all, outs := make([]*exec.Cmd, n), make([]bytes.Buffer, n)
	for r := range all {
		all[r] = exec.Command(os.Args[0])
		all[r].Env = append(launch.Environ(r, n, port), envRole+"="+role, envDir+"="+dir)
		all[r].Stdout, all[r].Stderr = &outs[r], &outs[r]
		if err := all[r].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for r, cmd := range all {
		if err := cmd.Wait(); err != nil && strconv.Itoa(r) != role {
			t.Errorf("%s by %d, rank %d: %v\n%s", role, n, r, err, outs[r].String())
		}
	}
}

// wholes returns the tensors of the tests, which are those of testdata/dcp.py.
func wholes() map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{
		"rows":    tensor.Arange(0, 70, tensor.Float32).View(7, 10),
		"columns": tensor.Arange(0, 48, tensor.Int64).View(6, 8),
		"whole":   tensor.Arange(0, 5, tensor.BFloat16),
		"few":     tensor.Arange(0, 3, tensor.Float32).View(1, 3),
		"number":  tensor.Full([]int{}, 3, tensor.Int64),
	}
}

// divided returns this rank's shards of wholes: rows, columns and tiles. Empty ones have only shapes.
func divided(g *dist.Group, empty bool) []dcp.Shard {
	n, r := max(1, g.Size()), max(0, g.Rank())
	var all []dcp.Shard
	for name, t := range wholes() {
		s := dcp.Shard{Name: name, Tensor: t}
		dims := map[string][]int{"rows": {0}, "columns": {1}, "few": {0}}[name]
		if n == 4 && name == "columns" {
			dims = []int{0, 1} // tiles
		}
		if dims != nil {
			s.Global, s.Offsets = slices.Clone(t.Shape()), []int{0, 0}
		}
		ranks, at := n, r
		for i, d := range dims {
			parts := ranks
			if len(dims) == 2 {
				parts, at = 2, r>>i&1
			}
			size := (s.Global[d] + parts - 1) / parts // as torch.chunk: the last parts may be smaller, or empty
			s.Offsets[d] = min(at*size, s.Global[d])
			s.Tensor = s.Tensor.Narrow(d, s.Offsets[d], min(size, s.Global[d]-s.Offsets[d]))
		}
		if empty {
			s.Tensor = tensor.Zeros(s.Tensor.Shape(), s.Tensor.DType())
		}
		all = append(all, s)
	}
	return all
}

// loads loads this rank's shards and returns an error unless they have the right values.
func loads(g *dist.Group, dir string) error {
	got, want := divided(g, true), map[string]*tensor.Tensor{}
	for _, s := range divided(g, false) {
		want[s.Name] = s.Tensor
	}
	if err := dcp.Load(ctx, g, dir, dcp.State{Shards: got}); err != nil {
		return err
	}
	for _, s := range got {
		if equal, err := s.Tensor.Equal(want[s.Name]); err != nil || !equal {
			return fmt.Errorf("%s: %v, want %v (%v)", s.Name, s.Tensor, want[s.Name], err)
		}
	}
	return nil
}

func alone(t *testing.T, f func() error) {
	t.Helper()
	if err := tensor.WithScope(f); err != nil {
		t.Error(err)
	}
}

// TestReshard tests that what any number of ranks saves loads in any other, and that only one rank writes each element.
func TestReshard(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{1, 2, 4} {
		dir := filepath.Join(t.TempDir(), "new", "run")
		for range 2 { // the second replaces the first
			if err := launch.Ranks(ctx, n, func(g *dist.Group) error {
				return dcp.Save(ctx, g, dir, dcp.State{Shards: divided(g, false)})
			}); err != nil {
				t.Fatal(err)
			}
		}
		elements := 0
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, path := range files {
			f, err := checkpoint.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			alone(t, func() error {
				for _, name := range f.Names() {
					elements += f.Tensor(name).Numel()
				}
				return f.Close()
			})
		}
		if elements != 70+48+5+3+1 || len(files) != n {
			t.Errorf("%d ranks wrote %d elements into %v", n, elements, files)
		}
		tidy(t, dir)
		for _, m := range []int{1, 3, 4} {
			if err := launch.Ranks(ctx, m, func(g *dist.Group) error { return loads(g, dir) }); err != nil {
				t.Errorf("saved by %d, loaded by %d: %v", n, m, err)
			}
		}
		alone(t, func() error { return loads(nil, dir) })
	}
}

// tidy fails the test if there is anything next to dir.
func tidy(t *testing.T, dir string) {
	t.Helper()
	if around, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(around) != 1 {
		t.Errorf("beside %s: %v, %v", dir, around, err)
	}
}

// TestProcesses tests checkpoints of several processes, and that nothing leaks in them.
func TestProcesses(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{2, 4} {
		dir := filepath.Join(t.TempDir(), "run")
		processes(t, n, "save", dir)
		processes(t, 6-n, "load", dir)
	}
}

// TestPython tests that PyTorch's checkpoints load, and that PyTorch loads ours.
func TestPython(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{1, 3} {
		if err := launch.Ranks(ctx, n, func(g *dist.Group) error { return loads(g, "testdata/python") }); err != nil {
			t.Error(err)
		}
	}
	t.Run("reads", func(t *testing.T) {
		python := golden.Python(t)
		leak.Check(t)
		dir := filepath.Join(t.TempDir(), "run")
		step := 3
		if err := launch.Ranks(ctx, 4, func(g *dist.Group) error {
			return dcp.Save(ctx, g, dir, dcp.State{Shards: divided(g, false), Parts: []checkpoint.Part{checkpoint.Value("step", &step)}})
		}); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(python, "testdata/dcp.py", "read", dir).CombinedOutput(); err != nil || !strings.Contains(string(out), "equal") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// run is a training run.
type run struct {
	model nn.Layer
	opt   dcp.Optimizer
	step  int
}

func (r *run) state() dcp.State {
	return dcp.State{Shards: dcp.Model("model.", r.model), Optimizer: r.opt, Parts: []checkpoint.Part{checkpoint.Value("step", &r.step)}}
}

// newRun returns a run whose linear layers are divided among the ranks, unless g is nil, and whose optimizer's state is
// divided with zero.
func newRun(g *dist.Group, zero bool) (*run, error) {
	first, last := nn.NewLinear(3, 8), nn.NewLinear(8, 4)
	for i, p := range append(nn.Parameters(first), nn.Parameters(last)...) {
		p.Detach().Copy_(tensor.Arange(0, p.Numel(), tensor.Float32).Add(i).Sin().View(p.Shape()...))
	}
	r := &run{model: nn.NewSequential(first, &nn.Tanh{}, last)}
	if g != nil && !zero {
		r.model = nn.NewSequential(dist.NewColwiseParallel(g, first), &nn.Tanh{}, dist.NewRowwiseParallel(g, last))
	}
	build := func(ps []*tensor.Tensor) (*optim.Optimizer, error) { return optim.NewAdamW(ps, 0.01) }
	var err error
	if params := nn.Parameters(r.model); zero {
		r.opt, err = dist.NewZeroRedundancyOptimizer(g, params, build)
	} else {
		r.opt, err = build(params)
	}
	return r, err
}

// train takes steps, which are the same on all ranks, and returns the losses.
func (r *run) train(steps int) (losses []float64, err error) {
	for range steps {
		err := tensor.WithScope(func() error {
			opt := r.opt.(interface {
				Step() error
			})
			if err := tensor.ZeroGrads(nn.Parameters(r.model), true); err != nil {
				return err
			}
			x := tensor.Arange(0, 15, tensor.Float32).Add(r.step).Sin().View(5, 3)
			loss := r.model.Forward(x).Square().Mean()
			v, err := loss.Item()
			if err != nil {
				return err
			}
			losses = append(losses, v)
			r.step++
			return errors.Join(loss.Backward(), opt.Step())
		})
		if err != nil {
			return nil, err
		}
	}
	return losses, nil
}

// TestTraining tests that a run continues in another number of ranks, with tensors and an optimizer that are divided otherwise.
func TestTraining(t *testing.T) {
	leak.Check(t)
	var want []float64
	alone(t, func() error {
		r, err := newRun(nil, false)
		if err != nil {
			return err
		}
		want, err = r.train(8)
		return err
	})
	steps := func(g *dist.Group, zero bool, dir string, from int) error {
		r, err := newRun(g, zero)
		if err != nil {
			return err
		}
		if from > 0 {
			if err := dcp.Load(ctx, g, dir, r.state()); err != nil {
				return err
			}
		}
		if r.step != from {
			return fmt.Errorf("at step %d, want %d", r.step, from)
		}
		got, err := r.train(2)
		for i := range got {
			if d := math.Abs(got[i] - want[from+i]); !(d <= 1e-6) {
				return fmt.Errorf("losses from step %d: %v, want %v", from, got, want[from:from+2])
			}
		}
		if err != nil {
			return err
		}
		return dcp.Save(ctx, g, dir, r.state())
	}
	for _, zero := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "run")
		for i, n := range []int{2, 4, 1, 2} {
			var err error
			if n == 1 {
				err = tensor.WithScope(func() error { return steps(nil, false, dir, 2*i) })
			} else {
				err = launch.Ranks(ctx, n, func(g *dist.Group) error { return steps(g, zero, dir, 2*i) })
			}
			if err != nil {
				t.Fatalf("%d ranks, zero %v: %v", n, zero, err)
			}
		}
	}
}

// TestStages tests that Save refuses the optimizers of a pipeline's stages, which number their own parameters, and that
// each stage can be saved by itself.
func TestStages(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	// stage returns the state of a stage after a step, whose values depend on the rank.
	stage := func(rank int, name string, opts ...nn.Option) (dcp.State, *optim.Optimizer, error) {
		l := nn.NewLinear(2, 2, opts...)
		opt, err := optim.NewAdamW(nn.Parameters(l), 0.1)
		if err != nil {
			return dcp.State{}, nil, err
		}
		err = errors.Join(l.Forward(tensor.Full([]int{1, 2}, float64(rank+1))).Sum().Backward(), opt.Step())
		return dcp.State{Shards: dcp.Model(name, l), Optimizer: opt}, opt, err
	}
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		r := g.Rank()
		for i, c := range []struct {
			opts      [][]nn.Option // of each rank
			optimizer []bool
			want      string
		}{
			{[][]nn.Option{nil, nil}, []bool{true, true}, `parameter 0 of the optimizer is "stage0.weight" on rank 0 and "stage1.weight" on rank 1`},
			{[][]nn.Option{nil, {nn.NoBias()}}, []bool{true, true}, "the optimizer has groups of [2] parameters on rank 0 and of [1] on rank 1"},
			{[][]nn.Option{nil, nil}, []bool{false, true}, "rank 1 has the optimizer and rank 0 has none"},
		} {
			s, opt, err := stage(r, fmt.Sprintf("stage%d.", r), c.opts[r]...)
			if err != nil {
				return err
			}
			defer opt.Release()
			if !c.optimizer[r] {
				s.Optimizer = nil
			}
			if err := dcp.Save(ctx, g, filepath.Join(dir, strconv.Itoa(i)), s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("rank %d: got %v, want %q", r, err, c.want)
			}
		}
		own := filepath.Join(dir, "stage"+strconv.Itoa(r))
		saved, opt, err := stage(r, "")
		if err != nil {
			return err
		}
		defer opt.Release()
		loaded, other, err := stage(r+2, "")
		if err != nil {
			return err
		}
		defer other.Release()
		if err := errors.Join(dcp.Save(ctx, nil, own, saved), dcp.Load(ctx, nil, own, loaded)); err != nil {
			return err
		}
		want, got := opt.StateDict().State[0]["exp_avg"].(*tensor.Tensor), other.StateDict().State[0]["exp_avg"].(*tensor.Tensor)
		if same, err := got.Equal(want); err != nil || !same {
			t.Errorf("rank %d has loaded another state, %v", r, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestAsync tests that a save that goes on has what the tensors were at the call, and that its error comes out of Wait.
func TestAsync(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		own, err := g.NewGroup(ctx, []int{0, 1})
		if err != nil {
			return err
		}
		shards := divided(g, false)
		w, err := dcp.SaveAsync(ctx, own, dir, dcp.State{Shards: shards})
		if err != nil {
			return err
		}
		for _, s := range shards {
			s.Tensor.Zero_()
		}
		ended, end := context.WithCancel(ctx)
		end()
		if err := w.Wait(ended); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		if err := errors.Join(g.Barrier(ctx), w.Wait(ctx), loads(g, dir)); err != nil || !w.Done() {
			return fmt.Errorf("done %v, %w", w.Done(), err)
		}
		// The format has none of this dtype, which only rank 1 finds out.
		if g.Rank() == 1 {
			shards = append(shards, dcp.Shard{Name: "complex", Tensor: tensor.Zeros([]int{1}, tensor.Complex128)})
		}
		w, err = dcp.SaveAsync(ctx, own, dir, dcp.State{Shards: shards})
		if err != nil {
			return err
		}
		if err := w.Wait(ctx); err == nil || g.Rank() == 0 && !strings.Contains(err.Error(), "on rank 1: ") || !strings.Contains(err.Error(), "complex128") {
			return fmt.Errorf("rank 1 could not write: %w", err)
		}
		return errors.Join(loads(g, dir), own.Close())
	}); err != nil {
		t.Error(err)
	}
	tidy(t, dir)
	var none *dcp.Saving
	if none.Wait(ctx) == nil || none.Done() {
		t.Error("a nil Saving is done")
	}
}

// TestAsyncOffsets tests that a program may change the offsets of its shards after SaveAsync.
func TestAsyncOffsets(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	const large = 4_000_000 // in the first file
	alone(t, func() error {
		offsets := []int{large}
		w, err := dcp.SaveAsync(ctx, nil, dir, dcp.State{Shards: []dcp.Shard{
			{Name: "x", Global: []int{large + 1}, Offsets: []int{0}, Tensor: tensor.Zeros([]int{large})},
			{Name: "x", Global: []int{large + 1}, Offsets: offsets, Tensor: tensor.Ones([]int{1})},
		}})
		if err != nil {
			return err
		}
		offsets[0] = 0
		last := tensor.Zeros([]int{1})
		if err := errors.Join(w.Wait(ctx), dcp.Load(ctx, nil, dir, dcp.State{Shards: []dcp.Shard{
			{Name: "x", Global: []int{large + 1}, Offsets: []int{large}, Tensor: last},
		}})); err != nil {
			return err
		}
		if v, err := last.Item(); err != nil || v != 1 {
			return fmt.Errorf("the last element is %v, %v", v, err)
		}
		return nil
	})
}

// ender is an optimizer that ends a context when it is loaded.
type ender struct {
	*optim.Optimizer
	end func()
}

func (e ender) LoadStateDict(s optim.State) error {
	e.end()
	return e.Optimizer.LoadStateDict(s)
}

// TestContextEnds tests that a context that ends during a save or load aborts the group, so that no rank waits for this
// one.
func TestContextEnds(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	state := func(end func()) (dcp.State, error) {
		m := nn.NewLinear(1000, 1000)
		opt, err := optim.NewSGD(nn.Parameters(m), 0.1)
		return dcp.State{Shards: dcp.Model("", m), Optimizer: ender{opt, end}}, err
	}
	alone(t, func() error {
		s, err := state(nil)
		if err != nil {
			return err
		}
		return dcp.Save(ctx, nil, dir, s)
	})
	for _, call := range []string{"SaveAsync", "Load"} {
		if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
			own, end := context.WithCancel(ctx)
			defer end()
			ends := func() {
				if g.Rank() == 0 {
					end()
				}
			}
			s, err := state(ends)
			if err != nil {
				return err
			}
			if call == "Load" {
				err = dcp.Load(own, g, dir, s)
			} else {
				w, failure := dcp.SaveAsync(own, g, dir, s)
				if failure != nil {
					return failure
				}
				ends()
				err = w.Wait(ctx)
			}
			if g.Rank() == 0 && !errors.Is(err, context.Canceled) || g.Rank() == 1 && !errors.Is(err, dist.ErrConnection) {
				return fmt.Errorf("%s: %w", call, err)
			}
			if err := g.Barrier(ctx); g.Rank() == 0 && !errors.Is(err, dist.ErrAborted) {
				return fmt.Errorf("%s: the group was not aborted: %w", call, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// broken is a value whose save calls end.
type broken struct{ end func() }

func (b *broken) MarshalText() ([]byte, error) {
	b.end()
	return nil, nil
}

func (*broken) UnmarshalText([]byte) error { return nil }

// ending is a context whose Err ends the goroutine that saves.
type ending struct{ context.Context }

func (e ending) Err() error {
	if strings.Contains(string(debug.Stack()), "finish") {
		runtime.Goexit()
	}
	return e.Context.Err()
}

// TestSaveAsyncEnds tests that a save whose goroutine ends fails.
func TestSaveAsyncEnds(t *testing.T) {
	leak.Check(t)
	alone(t, func() error {
		m := nn.NewLinear(2, 2)
		w, err := dcp.SaveAsync(ending{ctx}, nil, filepath.Join(t.TempDir(), "run"), dcp.State{Shards: dcp.Model("", m)})
		if err != nil {
			return err
		}
		if err := w.Wait(ctx); err == nil {
			return errors.New("a save that did not end has no error")
		}
		return nil
	})
}

// TestCallbackDoesNotReturn tests that no rank waits for one on which a function of the program panics or ends the
// goroutine, which aborts the group unless it is an error, and that the directory can be saved to again.
func TestCallbackDoesNotReturn(t *testing.T) {
	leak.Check(t)
	for what, end := range map[string]func(){"panic": func() { panic("mine") }, "Goexit": runtime.Goexit} {
		for _, call := range []string{"Save", "SaveAsync", "Load"} {
			t.Run(call+", "+what, func(t *testing.T) {
				leak.Check(t)
				dir := filepath.Join(t.TempDir(), "run")
				state := func(loaded func()) (dcp.State, error) {
					m := nn.NewLinear(2, 2)
					opt, err := optim.NewSGD(nn.Parameters(m), 0.1)
					return dcp.State{Shards: dcp.Model("", m), Optimizer: ender{opt, loaded}}, err
				}
				save := func() error {
					s, err := state(nil)
					return errors.Join(err, dcp.Save(ctx, nil, dir, s))
				}
				alone(t, save)
				other := make(chan struct{})
				if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
					ends := func() {
						if g.Rank() == 0 {
							end()
						}
					}
					s, err := state(ends)
					if err != nil {
						return err
					}
					if call != "Load" {
						s.Parts = []checkpoint.Part{checkpoint.Value("broken", &broken{ends})}
					}
					err = elsewhere.Call(func() error {
						switch call {
						case "Save":
							return dcp.Save(ctx, g, dir, s)
						case "Load":
							return dcp.Load(ctx, g, dir, s)
						}
						w, failure := dcp.SaveAsync(ctx, g, dir, s)
						return errors.Join(failure, w.Wait(ctx))
					})
					if what == "panic" && call != "Load" { // package checkpoint makes it an error, which both ranks return
						if err == nil || !strings.Contains(err.Error(), "panicked: mine") {
							return fmt.Errorf("rank %d: %w", g.Rank(), err)
						}
						return nil
					}
					if g.Rank() == 1 {
						close(other)
						var peer *dist.PeerError
						if !errors.As(err, &peer) || !slices.Equal(peer.Ranks, []int{0}) {
							return fmt.Errorf("rank 1: %w", err)
						}
						return nil
					}
					if err != elsewhere.ErrLeft {
						return fmt.Errorf("rank 0: %w", err)
					}
					select {
					case <-other:
						return nil
					case <-time.After(20 * time.Second):
						return errors.New("rank 1 waits")
					}
				}); err != nil {
					t.Error(err)
				}
				alone(t, save)
				tidy(t, dir)
			})
		}
	}
}

// atCommit is a context that ends when there is a checkpoint at dir.
type atCommit struct {
	context.Context
	dir string
}

func (c atCommit) Err() error {
	if _, err := os.Stat(c.dir); err == nil {
		return context.Canceled
	}
	return nil
}

// TestContextEndsAtCommit tests that Save returns no error of a context that ends when the checkpoint is in place.
func TestContextEndsAtCommit(t *testing.T) {
	leak.Check(t)
	alone(t, func() error {
		dir := filepath.Join(t.TempDir(), "run")
		return dcp.Save(atCommit{ctx, dir}, nil, dir, dcp.State{Shards: dcp.Model("", nn.NewLinear(2, 2))})
	})
	dir := filepath.Join(t.TempDir(), "run")
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		c := ctx
		if g.Rank() == 0 {
			c = atCommit{ctx, dir}
		}
		return errors.Join(dcp.Save(c, g, dir, dcp.State{Shards: divided(g, false)}), loads(g, dir))
	}); err != nil {
		t.Error(err)
	}
}

// TestLoadDuringSave tests that a load reads one checkpoint, also if another replaces it meanwhile.
func TestLoadDuringSave(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	m := nn.NewLinear(4, 4)
	defer nn.Release(m)
	opt, err := optim.NewSGD(nn.Parameters(m), 0.1)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	state := func(x *tensor.Tensor, step *int) dcp.State {
		s := dcp.State{Parts: []checkpoint.Part{checkpoint.Value("step", step)}}
		for i := range 4 { // files
			s.Shards = append(s.Shards, dcp.Shard{Name: "x", Global: []int{4}, Offsets: []int{i}, Tensor: x.Narrow(0, i, 1)})
		}
		return s
	}
	save := func(step int) {
		alone(t, func() error {
			s := state(tensor.Full([]int{4}, step), &step)
			s.Optimizer = opt
			return dcp.Save(ctx, nil, dir, s)
		})
	}
	load := func(o dcp.Optimizer) {
		alone(t, func() error {
			x, step := tensor.Zeros([]int{4}), 0
			s := state(x, &step)
			s.Optimizer = o
			if err := dcp.Load(ctx, nil, dir, s); err != nil {
				return err
			}
			if same, err := x.Equal(tensor.Full([]int{4}, step)); err != nil || !same {
				return fmt.Errorf("step %d with the tensor %v, %v", step, x, err)
			}
			return nil
		})
	}
	save(1)
	load(ender{opt, func() { save(2) }}) // before it reads the parts
	var all sync.WaitGroup
	var done atomic.Bool
	all.Go(func() {
		for step := 3; !done.Load(); step++ {
			save(step)
		}
	})
	for end := time.Now().Add(time.Second); time.Now().Before(end) && !t.Failed(); {
		load(nil)
	}
	done.Store(true)
	all.Wait()
}

// TestInterrupted tests that what a killed save leaves is used or removed.
func TestInterrupted(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	save := func() error { return dcp.Save(ctx, nil, dir, dcp.State{Shards: divided(nil, false)}) }
	alone(t, save)
	old, saving := filepath.Join(filepath.Dir(dir), ".run.dcp-old"), filepath.Join(filepath.Dir(dir), ".run.dcp-saving-1")
	if err := errors.Join(os.Rename(dir, old), os.Mkdir(saving, 0o777)); err != nil { // between the two renames
		t.Fatal(err)
	}
	alone(t, func() error { return loads(nil, dir) })
	if err := dcp.Save(ctx, nil, dir, dcp.State{Shards: []dcp.Shard{{Name: "x"}}}); err == nil {
		t.Error("a nil tensor was saved")
	}
	alone(t, func() error { return loads(nil, dir) })
	alone(t, save)
	tidy(t, dir)
	if err := errors.Join(os.Rename(dir, old), os.Mkdir(dir, 0o777)); err != nil { // and a program makes the directory
		t.Fatal(err)
	}
	alone(t, func() error { return loads(nil, dir) })
	overlap := []dcp.Shard{{Name: "x", Tensor: tensor.Ones([]int{2})}, {Name: "x", Tensor: tensor.Ones([]int{2})}}
	defer overlap[0].Tensor.Release()
	defer overlap[1].Tensor.Release()
	if err := dcp.Save(ctx, nil, dir, dcp.State{Shards: overlap}); err == nil { // which has prepared
		t.Error("a tensor was saved twice")
	}
	tidy(t, dir)
	alone(t, func() error { return loads(nil, dir) })
	alone(t, save)
	tidy(t, dir)
	now, left := filepath.Join(filepath.Dir(dir), ".run.dcp-new"), filepath.Join(dir, "shard-00001-model-00001-of-00001.safetensors")
	for _, again := range []func(){
		func() { alone(t, save) },
		func() {
			if err := dcp.Save(ctx, nil, dir, dcp.State{Shards: overlap}); err == nil {
				t.Error("a tensor was saved twice")
			}
		},
	} {
		err := errors.Join(os.Rename(dir, now), os.Mkdir(dir, 0o777), os.WriteFile(left, nil, 0o666), os.WriteFile(filepath.Join(dir, ".dcp-removing"), nil, 0o666))
		if err != nil { // the old one is being removed
			t.Fatal(err)
		}
		alone(t, func() error { return loads(nil, dir) })
		again()
		tidy(t, dir)
		alone(t, func() error { return loads(nil, dir) })
	}
	// Another checkpoint that was put there since the save was killed is the one that counts.
	if err := errors.Join(os.Mkdir(now, 0o777), os.WriteFile(filepath.Join(now, filepath.Base(left)), nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	alone(t, func() error { return loads(nil, dir) })
	alone(t, save)
	tidy(t, dir)
	// A link in the place of what a killed save leaves is removed, and not what it leads to.
	other := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(other, "kept"), nil, 0o666), os.Symlink(other, filepath.Join(filepath.Dir(dir), ".run.dcp-old"))); err != nil {
		t.Fatal(err)
	}
	alone(t, save)
	tidy(t, dir)
	if _, err := os.Stat(filepath.Join(other, "kept")); err != nil {
		t.Error(err)
	}
	if err := os.Symlink(dir, dir+"-link"); err != nil {
		t.Fatal(err)
	}
	alone(t, func() error { return dcp.Save(ctx, nil, dir+"-link", dcp.State{Shards: divided(nil, false)[:1]}) })
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("saved to a link: %v, %v", files, err)
	}
}

// TestLinkToNothing tests that a checkpoint is where a link points, also before the first save and after one that was
// killed between the two renames.
func TestLinkToNothing(t *testing.T) {
	leak.Check(t)
	base := t.TempDir()
	run, disk := filepath.Join(base, "run"), filepath.Join(base, "disk", "checkpoint")
	last := filepath.Join(run, "last")
	if err := errors.Join(os.Mkdir(run, 0o777), os.Symlink("../hop", last), os.Symlink(disk, filepath.Join(base, "hop")), os.Symlink("loop", filepath.Join(run, "loop")), os.Symlink("through/../through", filepath.Join(run, "through"))); err != nil {
		t.Fatal(err)
	}
	save := func() error { return dcp.Save(ctx, nil, last, dcp.State{Shards: divided(nil, false)}) }
	alone(t, save)
	alone(t, func() error { return errors.Join(loads(nil, disk), loads(nil, last)) })
	if err := os.Rename(disk, filepath.Join(base, "disk", ".checkpoint.dcp-old")); err != nil {
		t.Fatal(err)
	}
	alone(t, func() error { return loads(nil, last) })
	alone(t, func() error { return errors.Join(save(), loads(nil, disk)) })
	tidy(t, disk)
	for _, loop := range []string{"loop", "through"} {
		alone(t, func() error {
			if err := dcp.Save(ctx, nil, filepath.Join(run, loop), dcp.State{Shards: divided(nil, false)}); err == nil {
				return fmt.Errorf("saved to a link to itself, %s", loop)
			}
			return nil
		})
	}
	if around, err := os.ReadDir(run); err != nil || len(around) != 3 {
		t.Errorf("beside the links: %v, %v", around, err)
	}
	// A .. after a link leads out of the directory that the link names.
	if err := errors.Join(os.Mkdir(filepath.Join(base, "disk", "deep"), 0o777), os.Symlink("disk/deep", filepath.Join(base, "far")), os.Symlink("far/../third", filepath.Join(base, "through"))); err != nil {
		t.Fatal(err)
	}
	for path, to := range map[string]string{"/far/../second": "second", "/through/": "third"} {
		alone(t, func() error { return dcp.Save(ctx, nil, base+path, dcp.State{Shards: divided(nil, false)}) })
		alone(t, func() error { return errors.Join(loads(nil, filepath.Join(base, "disk", to)), loads(nil, base+path)) })
	}
}

// TestShardFileRemoved tests that a load of a checkpoint from which a file was removed is an error, also if the file has
// the state of an optimizer alone, and that checkpoints without a list of it load.
func TestShardFileRemoved(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	state := func(g *dist.Group) (dcp.State, error) {
		m := nn.NewLinear(2, 2)
		opt, err := dist.NewZeroRedundancyOptimizer(g, nn.Parameters(m), func(part []*tensor.Tensor) (*optim.Optimizer, error) {
			return optim.NewAdamW(part, 0.1)
		})
		if err == nil {
			err = errors.Join(m.Forward(tensor.Ones([]int{1, 2})).Sum().Backward(), opt.Step())
		}
		return dcp.State{Optimizer: opt}, err
	}
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		s, err := state(g)
		if err != nil {
			return err
		}
		return errors.Join(dcp.Save(ctx, g, dir, s), dcp.Load(ctx, g, dir, s))
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "shard-00002-model-00001-of-00001.safetensors")); err != nil {
		t.Fatal(err)
	}
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		s, err := state(g)
		if err != nil {
			return err
		}
		if err := dcp.Load(ctx, g, dir, s); err == nil || !strings.Contains(err.Error(), "is missing") || g.Rank() == 0 && !errors.Is(err, checkpoint.ErrFormat) {
			return fmt.Errorf("without a file: %v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	var plain map[string]any
	values := filepath.Join(dir, "values.safetensors")
	if err := checkpoint.LoadValues(values, checkpoint.Value("optimizer", &plain)); err != nil {
		t.Fatal(err)
	}
	delete(plain, "tensors")
	if err := checkpoint.SaveValues(values, checkpoint.Value("optimizer", &plain)); err != nil {
		t.Fatal(err)
	}
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		s, err := state(g)
		if err != nil {
			return err
		}
		return dcp.Load(ctx, g, dir, s)
	}); err != nil {
		t.Errorf("a checkpoint without a list: %v", err)
	}
}

// TestCurrentDirectory tests that no checkpoint replaces the current directory or one that contains it.
func TestCurrentDirectory(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := errors.Join(os.MkdirAll(dir, 0o777), os.Symlink(dir, dir+"-link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir + "-link")
	for _, to := range []string{"", ".", "..", dir, dir + "-link", filepath.Dir(dir)} {
		if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
			_, async := dcp.SaveAsync(ctx, g, to, dcp.State{})
			for _, err := range []error{dcp.Save(ctx, g, to, dcp.State{}), async} {
				if err == nil || !strings.Contains(err.Error(), "directory") {
					return fmt.Errorf("a checkpoint at %q: %w", to, err)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if around, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(around) != 2 {
			t.Errorf("after a save to %q: %v, %v", to, around, err)
		}
	}
	alone(t, func() error { return dcp.Save(ctx, nil, "run", dcp.State{Shards: divided(nil, false)}) })
	alone(t, func() error { return loads(nil, filepath.Join(dir, "run")) })
}

// TestDirectoriesDiffer tests that ranks that save to different directories all get an error, and that links do not
// matter.
func TestDirectoriesDiffer(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "disk"), 0o777), os.Symlink("disk", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		name := fmt.Sprint("run", g.Rank())
		if err := dcp.Save(ctx, g, filepath.Join(dir, name), dcp.State{Shards: divided(g, false)}); err == nil || !strings.Contains(err.Error(), "run1\": want one directory") {
			return fmt.Errorf("two directories: %w", err)
		}
		for range 2 { // a new one, and one that exists
			if err := dcp.Save(ctx, g, filepath.Join(dir, []string{"disk", "link"}[g.Rank()], "new", "run"), dcp.State{Shards: divided(g, false)}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if around, err := os.ReadDir(dir); err != nil || len(around) != 2 {
		t.Errorf("in %s: %v, %v", dir, around, err)
	}
}

// TestSaveDuringSave tests that a save to a directory for which another is in progress is an error on all ranks, which
// leaves the other alone.
func TestSaveDuringSave(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		own, err := g.NewGroup(ctx, []int{0, 1})
		if err != nil {
			return err
		}
		shards := divided(g, false)
		state := dcp.State{Shards: shards}
		w, err := dcp.SaveAsync(ctx, own, dir, dcp.State{Shards: append(shards, dcp.Shard{Name: "large", Tensor: tensor.Zeros([]int{4_000_000})})})
		if err != nil {
			return err
		}
		during := dcp.Save(ctx, g, dir, state)
		if !w.Done() && (during == nil || !strings.Contains(during.Error(), "in progress")) {
			return fmt.Errorf("during a save: %w", during)
		}
		if err := errors.Join(w.Wait(ctx), loads(g, dir), g.Barrier(ctx)); err != nil {
			return err
		}
		return errors.Join(dcp.Save(ctx, g, dir, state), loads(g, dir), own.Close())
	}); err != nil {
		t.Error(err)
	}
	tidy(t, dir)
}

// held is a value whose save says so on standard output, and waits for the end of standard input.
type held struct{}

func (*held) MarshalText() ([]byte, error) {
	fmt.Println("saving")
	_, err := io.ReadAll(os.Stdin)
	return []byte("held"), err
}

func (*held) UnmarshalText([]byte) error { return nil }

// TestSaveDuringSaveOfProcess tests that a save during one of another process is an error, which leaves the other alone, and
// that a save after the other was killed removes what that has left.
func TestSaveDuringSaveOfProcess(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	save := func() error { return dcp.Save(ctx, nil, dir, dcp.State{Shards: divided(nil, false)}) }
	for _, kill := range []bool{false, true} {
		port, err := launch.Port()
		if err != nil {
			t.Fatal(err)
		}
		other := exec.Command(os.Args[0])
		other.Env = append(launch.Environ(0, 1, port), envRole+"=hold", envDir+"="+dir)
		in, err1 := other.StdinPipe()
		out, err2 := other.StdoutPipe()
		if err := errors.Join(err1, err2, other.Start()); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "saving\n" {
			t.Fatalf("the other process: %q, %v", line, err)
		}
		alone(t, func() error {
			if err := save(); err == nil || !strings.Contains(err.Error(), "in progress") {
				return fmt.Errorf("during the save of another process: %v", err)
			}
			return nil
		})
		if kill {
			err = other.Process.Kill()
		} else {
			err = in.Close()
		}
		if ended := other.Wait(); err != nil || !kill && ended != nil {
			t.Fatal(err, ended)
		}
		if !kill {
			tidy(t, dir)
			alone(t, func() error {
				return errors.Join(loads(nil, dir), dcp.Load(ctx, nil, dir, dcp.State{Parts: []checkpoint.Part{checkpoint.Value("held", &held{})}}))
			})
		}
	}
	alone(t, save)
	tidy(t, dir)
}

// TestFileRemoved tests that a save of which something has removed a file is an error, and that the old checkpoint stays.
func TestFileRemoved(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	step := 1
	alone(t, func() error {
		state := dcp.State{Shards: divided(nil, false), Parts: []checkpoint.Part{checkpoint.Value("step", &step)}}
		if err := dcp.Save(ctx, nil, dir, state); err != nil {
			return err
		}
		state.Shards = append(state.Shards, dcp.Shard{Name: "large", Tensor: tensor.Zeros([]int{8_000_000})})
		w, err := dcp.SaveAsync(ctx, nil, dir, state) // has written the values when it returns
		if err != nil {
			return err
		}
		made, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".run.dcp-saving-*", "values.safetensors"))
		removed := len(made) == 1 && os.Remove(made[0]) == nil
		if err := w.Wait(ctx); removed && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("a file was removed: %v", err)
		}
		return dcp.Load(ctx, nil, dir, dcp.State{Shards: divided(nil, false), Parts: []checkpoint.Part{checkpoint.Value("step", &step)}})
	})
	tidy(t, dir)
}

// TestModes tests that a checkpoint keeps the permissions of the one that it replaces.
func TestModes(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	step := 1
	save := func() error {
		return dcp.Save(ctx, nil, dir, dcp.State{Shards: divided(nil, false), Parts: []checkpoint.Part{checkpoint.Value("step", &step)}})
	}
	modes := func() (all string) {
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, path := range append(files, dir) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			all += fmt.Sprintf("%v ", info.Mode())
		}
		return all
	}
	alone(t, save)
	for _, m := range [][2]fs.FileMode{{0o700, 0o600}, {0o775 | fs.ModeSetgid, 0o664}} {
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, path := range files {
			if err := os.Chmod(path, m[1]); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, m[0]); err != nil {
			t.Fatal(err)
		}
		before := modes()
		alone(t, save)
		if after := modes(); after != before {
			t.Errorf("the modes were %s and are %s", before, after)
		}
	}
	alone(t, func() error { return loads(nil, dir) })
}

// TestErrors tests that wrong shards, directories and files are clear errors, on all ranks.
func TestErrors(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	x := func(shape ...int) *tensor.Tensor { return tensor.Zeros(shape) }
	at := func(global, offset, size int) []dcp.Shard {
		return []dcp.Shard{{Name: "x", Global: []int{global}, Offsets: []int{offset}, Tensor: x(size)}}
	}
	whole := func(name string, t *tensor.Tensor) dcp.Shard { return dcp.Shard{Name: name, Tensor: t} }
	for want, shards := range map[string]func(r int) []dcp.Shard{
		"overlap":                       func(r int) []dcp.Shard { return at(3, r, 2) },
		"1 of 5 elements are missing":   func(r int) []dcp.Shard { return at(5, 3*r, 2) },
		"is not in a tensor of shape":   func(r int) []dcp.Shard { return at(3, 2*r, 2) },
		"[2] on rank 0 and":             func(r int) []dcp.Shard { return []dcp.Shard{whole("x", x(2+r))} },
		"has the same shard of tensor":  func(int) []dcp.Shard { return []dcp.Shard{whole("x", x(2)), whole("x", x(2))} },
		"is needed, got nil":            func(r int) []dcp.Shard { return []dcp.Shard{whole("x", nil), whole("y", x(1))} },
		`contains "mine", which is not`: func(int) []dcp.Shard { return nil },
	} {
		if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
			to := filepath.Join(dir, "run")
			if strings.Contains(want, "mine") {
				to = dir
			}
			if err := dcp.Save(ctx, g, to, dcp.State{Shards: shards(g.Rank())}); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("want %q, got %w", want, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
			t.Fatal(err)
		}
	}
	tidy(t, filepath.Join(dir, "mine"))

	load := func(shards ...dcp.Shard) error { return dcp.Load(ctx, nil, dir, dcp.State{Shards: shards}) }
	file := func(name string, metadata map[string]string) {
		alone(t, func() error {
			return checkpoint.Save(filepath.Join(dir, name), map[string]*tensor.Tensor{"x": tensor.Arange(0, 4, tensor.Float32)}, metadata)
		})
	}
	alone(t, func() error {
		check := func(what, want string, err error) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", what, err, want)
			}
		}
		check("no files", "without safetensors files", load())
		for i, offsets := range []string{`{`, `{}`, `{"x": {"saved_offsets": [-1]}}`, `{"x": {"saved_offsets": [0, 0]}}`,
			fmt.Sprintf(`{"x": {"saved_offsets": [%d]}}`, int(^uint(0)>>1)-2), `{"x": {"saved_offsets": [1e30]}}`} {
			file("a.safetensors", map[string]string{"DCP_SHARDING_INFO": offsets})
			if err := load(whole("x", x(4))); !errors.Is(err, checkpoint.ErrFormat) {
				t.Errorf("offsets %d: %v", i, err)
			}
		}
		file("a.safetensors", nil)
		file("b.safetensors", map[string]string{"DCP_SHARDING_INFO": `{"x": {"saved_offsets": [6]}}`})
		check("a gap", "2 of 10 elements are missing", load(whole("x", x(10))))
		check("another shape", "its shape is [10] in the checkpoint and [9] here", load(whole("x", x(9))))
		check("another name", "it is not in the checkpoint", load(whole("y", x(9))))
		got := x(2)
		if err := load(dcp.Shard{Name: "x", Global: []int{10}, Offsets: []int{7}, Tensor: got}); err != nil {
			t.Error(err)
		}
		if v, err := tensor.Data[float32](got); err != nil || !slices.Equal(v, []float32{1, 2}) {
			t.Errorf("beside the gap: %v, %v", v, err)
		}
		file("b.safetensors", map[string]string{"DCP_SHARDING_INFO": `{"x": {"saved_offsets": [2]}}`})
		check("an overlap", "overlap", load(whole("x", x(6))))
		step := 0
		noValues := dcp.Load(ctx, nil, dir, dcp.State{Shards: []dcp.Shard{whole("x", x(6))}, Parts: []checkpoint.Part{checkpoint.Value("step", &step)}})
		check("no values", "values.safetensors", noValues)
		if errors.Is(noValues, fs.ErrNotExist) || !errors.Is(dcp.Load(ctx, nil, filepath.Join(dir, "none"), dcp.State{}), fs.ErrNotExist) {
			t.Error("a checkpoint without values is like none")
		}
		made := filepath.Join(t.TempDir(), "made")
		if err := os.Mkdir(made, 0o777); err != nil {
			return err
		}
		if err := dcp.Load(ctx, nil, made, dcp.State{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an empty directory: %v", err)
		}
		check("no directory", "no such file", dcp.Load(ctx, nil, filepath.Join(dir, "none"), dcp.State{}))
		check("a root", "not the name", dcp.Save(ctx, nil, "/", dcp.State{}))
		var nothing context.Context
		_, err := dcp.SaveAsync(nothing, nil, dir, dcp.State{})
		check("nil", "a context", errors.Join(err, dcp.Load(nothing, nil, dir, dcp.State{}), dcp.Save(nothing, nil, dir, dcp.State{})))
		late, end := context.WithTimeout(ctx, 0)
		defer end()
		for _, err := range []error{dcp.Load(late, nil, dir, dcp.State{}), dcp.Save(late, nil, dir, dcp.State{})} {
			if !errors.Is(err, dist.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a context whose deadline has expired: %v", err)
			}
		}
		if err := os.Truncate(filepath.Join(dir, "b.safetensors"), 20); err != nil {
			return err
		}
		check("a short file", "b.safetensors", load(whole("x", x(6))))
		return nil
	})
}

func TestNilError(t *testing.T) {
	leak.Check(t)
	if e := (*dcp.RankError)(nil); e.Error() != "<nil>" {
		t.Errorf("a nil error is %q", e.Error())
	}
}

// TestLoadOntoMeta tests that a load into tensors on the meta device, which have no memory, is an error that names them
// and changes nothing.
func TestLoadOntoMeta(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	alone(t, func() error {
		state := func(m *nn.Linear) (dcp.State, *optim.Optimizer, error) {
			opt, err := optim.NewAdamW(nn.Parameters(m), 0.1)
			return dcp.State{Shards: dcp.Model("model.", m), Optimizer: opt}, opt, err
		}
		m := nn.NewLinear(2, 2)
		saved, opt, err := state(m)
		if err != nil {
			return err
		}
		defer opt.Release()
		if err := errors.Join(m.Forward(tensor.Ones([]int{1, 2})).Sum().Backward(), opt.Step(), dcp.Save(ctx, nil, dir, saved)); err != nil {
			return err
		}
		meta := nn.NewLinear(2, 2, nn.Device(tensor.Meta))
		loaded, other, err := state(meta)
		if err != nil {
			return err
		}
		defer other.Release()
		weight := tensor.Zeros([]int{2, 2})
		for want, s := range map[string]dcp.State{
			`"model.bias" is on the meta device`: {Shards: []dcp.Shard{{Name: "model.weight", Tensor: weight}, loaded.Shards[1]}},
			`"the parameter of optimizer.state.`: {Optimizer: other},
		} {
			err := dcp.Load(ctx, nil, dir, s)
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "nn.ToEmpty") {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		if sum, err := weight.Abs().Sum().Item(); err != nil || sum != 0 {
			t.Errorf("a load that failed has changed a tensor: %v, %v", weight, err)
		}
		if err := errors.Join(nn.ToEmpty(meta, tensor.CPU), dcp.Load(ctx, nil, dir, dcp.State{Shards: dcp.Model("model.", meta)})); err != nil {
			return err
		}
		if same, err := meta.Weight.Equal(m.Weight); err != nil || !same {
			t.Errorf("after ToEmpty: %v, want %v, %v", meta.Weight, m.Weight, err)
		}
		return nil
	})
}

// TestOptimizerWithoutShards tests that the state of parameters that are divided is not taken for that of whole ones.
func TestOptimizerWithoutShards(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		rows, err := dist.Shard(ctx, g, nn.NewLinear(3, 4))
		if err != nil {
			return err
		}
		for i, m := range []nn.Layer{rows, dist.NewColwiseParallel(g, nn.NewLinear(3, 4))} {
			opt, err := optim.NewAdamW(nn.Parameters(m), 0.1)
			if err != nil {
				return err
			}
			defer opt.Release()
			if err := errors.Join(m.Forward(tensor.Ones([]int{2, 3})).Sum().Backward(), opt.Step()); err != nil {
				return err
			}
			to := filepath.Join(dir, strconv.Itoa(i))
			with, without := dcp.State{Shards: dcp.Model("", m), Optimizer: opt}, dcp.State{Optimizer: opt}
			const want = "is the state of a part of a tensor"
			if err := dcp.Save(ctx, g, to, without); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Save of %T's optimizer: %v", m, err)
			}
			if err := dcp.Save(ctx, g, to, with); err != nil {
				return err
			}
			if err := dcp.Load(ctx, g, to, without); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Load of %T's optimizer: %v", m, err)
			}
			if err := dcp.Load(ctx, g, to, with); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestGroupOfOne tests that a layer of tensor parallelism whose group has one rank does not change where the rows of a
// Shard are, nor a Shard over one rank where the parts of such a layer are.
func TestGroupOfOne(t *testing.T) {
	leak.Check(t)
	linear, embedding := func() nn.Layer { return nn.NewLinear(4, 6) }, func() nn.Layer { return nn.NewEmbedding(6, 4) }
	for i, c := range []struct {
		name   string
		divide func(tp *dist.Group) nn.Layer
		shape  []int // of the weight
	}{
		{"columns", func(tp *dist.Group) nn.Layer { return dist.NewColwiseParallel(tp, linear()) }, []int{6, 4}},
		{"fused columns", func(tp *dist.Group) nn.Layer { return dist.NewColwiseParallel(tp, linear(), dist.Fused(2)) }, []int{2, 3, 4}},
		{"rows", func(tp *dist.Group) nn.Layer { return dist.NewRowwiseParallel(tp, linear()) }, []int{6, 4}},
		{"columns of an embedding", func(tp *dist.Group) nn.Layer { return dist.NewColwiseParallel(tp, embedding()) }, []int{6, 4}},
		{"rows of an embedding", func(tp *dist.Group) nn.Layer { return dist.NewRowwiseParallel(tp, embedding()) }, []int{6, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			leak.Check(t)
			for _, shape := range [][]int{{2, 1}, {1, 2}} {
				dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
				if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
					mesh, err := dist.NewDeviceMesh(ctx, g, shape, "dp", "tp")
					if err != nil {
						return err
					}
					defer mesh.Close()
					root, err := dist.Shard(ctx, mesh.Group("dp"), c.divide(mesh.Group("tp")))
					if err != nil {
						return err
					}
					state, weight := dcp.State{Shards: dcp.Model("", root)}, nn.Parameters(root)[0].Detach()
					mine := tensor.Arange(0, weight.Numel(), tensor.Float32).Add(100 * g.Rank()).View(weight.Shape()...)
					weight.Copy_(mine)
					if err := dcp.Save(ctx, g, dir, state); err != nil {
						return err
					}
					weight.Fill_(-1)
					if err := dcp.Load(ctx, g, dir, state); err != nil {
						return err
					}
					if same, err := weight.Equal(mine); err != nil || !same {
						t.Errorf("mesh %v, rank %d: loaded %v, want %v, %v", shape, g.Rank(), weight, mine, err)
					}
					return nil
				}); err != nil {
					t.Errorf("mesh %v: %v", shape, err)
				}
				alone(t, func() error { // the checkpoint has the weight of an undivided layer
					return dcp.Load(ctx, nil, dir, dcp.State{Shards: []dcp.Shard{{Name: "weight", Tensor: tensor.Zeros(c.shape)}}})
				})
			}
		})
	}
}

// placed is a layer whose weight is four rows of a matrix.
type placed struct {
	Layer nn.Layer `nn:"."`
	first int
}

func (p *placed) Forward(x *tensor.Tensor) *tensor.Tensor { return p.Layer.Forward(x) }

func (p *placed) Sharding(*tensor.Tensor) (global, offsets []int) {
	return []int{8, 2}, []int{p.first, 0}
}

// TestPlacedTwice tests that a tensor that two modules take for different parts is an error, and not one of the two.
func TestPlacedTwice(t *testing.T) {
	leak.Check(t)
	alone(t, func() error {
		layer := nn.NewLinear(2, 4, nn.NoBias())
		shard := func(outer, inner int) dcp.Shard {
			return dcp.Model("", &placed{&placed{layer, inner}, outer})[0]
		}
		if s := shard(4, 4); s.Tensor.Err() != nil || !slices.Equal(s.Global, []int{8, 2}) || !slices.Equal(s.Offsets, []int{4, 0}) {
			t.Errorf("the same place: %v at %v, %v", s.Global, s.Offsets, s.Tensor.Err())
		}
		if s := shard(0, 4); !errors.Is(s.Tensor.Err(), tensor.ErrArgument) {
			t.Errorf("two places: at %v", s.Offsets)
		}
		return nil
	})
}

// TestMergedLoRA tests that a model with a merged LoRALinear can be neither saved nor loaded: the load of what was saved
// would apply the update twice.
func TestMergedLoRA(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	// The failed tensors of Model are the scope's error, too.
	_ = tensor.WithScope(func() error {
		lora := nn.NewLoRALinear(nn.NewLinear(3, 2), 1)
		model := nn.NewSequential(lora, nn.NewLinear(2, 2))
		check := func(what string, err error) {
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), `LoRALinear "0" is merged`) {
				t.Errorf("%s of a merged layer: %v", what, err)
			}
		}
		save := func() error { return dcp.Save(ctx, nil, dir, dcp.State{Shards: dcp.Model("model.", model)}) }
		load := func() error { return dcp.Load(ctx, nil, dir, dcp.State{Shards: dcp.Model("model.", model)}) }
		if err := lora.Merge(); err != nil {
			t.Error(err)
		}
		check("Save", save())
		if err := errors.Join(lora.Unmerge(), save(), load(), lora.Merge()); err != nil {
			t.Error(err)
		}
		check("Load", load())
		return nil
	})
}

// wrapped is an optimizer of a program, and unknown one that does not tell its parameters.
type (
	wrapped struct{ *optim.Optimizer }
	unknown struct{ dcp.Optimizer }
)

// stepped returns a layer, divided among the ranks of g unless it is nil, and its optimizer after a step.
func stepped(g *dist.Group, outputs int) (nn.Layer, *optim.Optimizer, error) {
	var model nn.Layer = nn.NewLinear(3, outputs)
	if g != nil {
		root, err := dist.Shard(ctx, g, model)
		if err != nil {
			return nil, nil, err
		}
		model = root
	}
	opt, err := optim.NewAdam(nn.Parameters(model), 0.1)
	if err != nil {
		return nil, nil, err
	}
	// Each row has another gradient, and so another state.
	y := model.Forward(tensor.Ones([]int{2, 3})).Mul(tensor.Arange(1, outputs+1, tensor.Float32))
	return model, opt, errors.Join(y.Sum().Backward(), opt.Step())
}

// TestFurtherOptimizers tests that several optimizers, whose parameters are divided among the ranks, are saved and loaded
// as State.Optimizers, also without a group, and further ones as parts.
func TestFurtherOptimizers(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	// run calls f with the state of three runs, and with the tensors of their optimizers, by names.
	run := func(g *dist.Group, f func(s dcp.State, state func() map[string]*tensor.Tensor) error) error {
		var opts [3]*optim.Optimizer
		var shards []dcp.Shard
		for i := range opts {
			of := g
			if i == 2 { // a part of the checkpoint, which is the same on all ranks
				of = nil
			}
			model, opt, err := stepped(of, 4+2*i)
			if err != nil {
				return err
			}
			defer opt.Release()
			if opts[i] = opt; i < 2 {
				shards = append(shards, dcp.Model(fmt.Sprint("model", i, "."), model)...)
			}
		}
		return f(dcp.State{
			Shards: shards, Optimizer: opts[0], Optimizers: map[string]dcp.Optimizer{"d": opts[1]},
			Parts: []checkpoint.Part{checkpoint.Named("e", checkpoint.Optimizer(opts[2]))},
		}, func() map[string]*tensor.Tensor {
			all := map[string]*tensor.Tensor{}
			for i, opt := range opts {
				for n, values := range opt.StateDict().State {
					all[fmt.Sprint(i, " ", n)] = values["exp_avg"].(*tensor.Tensor)
				}
			}
			return all
		})
	}
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		return run(g, func(s dcp.State, state func() map[string]*tensor.Tensor) error {
			if err := dcp.Save(ctx, g, dir, s); err != nil {
				return err
			}
			want := map[string]*tensor.Tensor{}
			for name, x := range state() {
				want[name] = x.Clone()
				x.Zero_()
			}
			if err := dcp.Load(ctx, g, dir, s); err != nil {
				return err
			}
			got := state()
			if len(got) != 6 {
				t.Errorf("rank %d has the state of %d parameters", g.Rank(), len(got))
			}
			for name, x := range got {
				if same, err := x.Equal(want[name]); err != nil || !same {
					t.Errorf("rank %d, %s: loaded %v, want %v, %v", g.Rank(), name, x, want[name], err)
				}
			}
			return nil
		})
	}); err != nil {
		t.Error(err)
	}
	alone(t, func() error {
		return run(nil, func(s dcp.State, state func() map[string]*tensor.Tensor) error {
			want := map[string]*tensor.Tensor{} // an undivided run has the same gradients
			for name, x := range state() {
				want[name] = x.Clone()
				x.Zero_()
			}
			if err := dcp.Load(ctx, nil, dir, s); err != nil {
				return err
			}
			for name, x := range state() {
				if same, err := x.Equal(want[name]); err != nil || !same {
					t.Errorf("%s: loaded %v, want %v, %v", name, x, want[name], err)
				}
			}
			return nil
		})
	})
}

// TestFurtherOptimizersDiffer tests that Save refuses a further optimizer that is not the same on all ranks.
func TestFurtherOptimizersDiffer(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		model, opt, err := stepped(nil, 2)
		if err != nil {
			return err
		}
		defer opt.Release()
		s := dcp.State{Optimizers: map[string]dcp.Optimizer{"d": opt}, Shards: dcp.Model(fmt.Sprint("model", g.Rank(), "."), model)}
		const number = `parameter 0 of the optimizer:d is "model0.weight" on rank 0 and "model1.weight" on rank 1`
		if err := dcp.Save(ctx, g, dir, s); err == nil || !strings.Contains(err.Error(), number) {
			t.Errorf("of a stage: %v", err)
		}
		if g.Rank() == 0 {
			s.Optimizers = nil
		}
		if err := dcp.Save(ctx, g, dir, s); err == nil || !strings.Contains(err.Error(), "rank 1 has the optimizer:d and rank 0 has none") {
			t.Errorf("of one rank: %v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestNamesOfParts tests that parts and shards cannot have a name in common, of which a program that reads all files, as
// PyTorch does, finds one, and that the optimizers' names are checked.
func TestNamesOfParts(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	alone(t, func() error {
		model, opt, err := stepped(nil, 2)
		if err != nil {
			return err
		}
		defer opt.Release()
		fresh, err := optim.NewAdam(nn.Parameters(model), 0.1) // without tensors
		if err != nil {
			return err
		}
		defer fresh.Release()
		step := 1
		further := func(name string, o dcp.Optimizer) map[string]dcp.Optimizer { return map[string]dcp.Optimizer{name: o} }
		parts := func(p ...checkpoint.Part) []checkpoint.Part { return p }
		for i, c := range []struct {
			state dcp.State
			want  string
		}{
			{dcp.State{Optimizer: opt, Parts: parts(checkpoint.Optimizer(opt))}, `the name "optimizer"`},
			{dcp.State{Optimizer: fresh, Parts: parts(checkpoint.Optimizer(fresh))}, `the name "optimizer"`},
			{dcp.State{Optimizers: further("d", opt), Parts: parts(checkpoint.Named("d", checkpoint.Optimizer(opt)))}, `the name "optimizer:d"`},
			{dcp.State{Shards: []dcp.Shard{{Name: "value.step", Tensor: tensor.Ones([]int{1})}}, Parts: parts(checkpoint.Value("step", &step))}, `the name "value.step"`},
			{dcp.State{Optimizer: opt, Parts: parts(checkpoint.Value("optimizer", &step))}, "given twice"},
			{dcp.State{Optimizers: further("d.state", opt)}, "cannot have a dot"},
			{dcp.State{Optimizers: further("d", nil)}, `State.Optimizers["d"]`},
		} {
			if err := dcp.Save(ctx, nil, dir, c.state); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%d: got %v, want %q", i, err, c.want)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%d: the save that failed left %s, %v", i, dir, err)
			}
		}
		for want, o := range map[string]map[string]dcp.Optimizer{"cannot have a dot": further("d.state", opt), `State.Optimizers["d"]`: further("d", nil)} {
			if err := dcp.Load(ctx, nil, dir, dcp.State{Optimizers: o}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Load: got %v, want %q", err, want)
			}
		}
		return dcp.Save(ctx, nil, dir, dcp.State{Optimizer: opt, Parts: parts(checkpoint.Named("d", checkpoint.Optimizer(opt)), checkpoint.Value("step", &step))})
	})
}

// TestWrappedOptimizer tests that the state of an optimizer that a type of the program embeds is divided as its parameters
// are, and that the state of an optimizer whose parameters are not known is an error.
func TestWrappedOptimizer(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	if err := launch.Ranks(ctx, 2, func(g *dist.Group) error {
		rows, err := dist.Shard(ctx, g, nn.NewLinear(3, 4))
		if err != nil {
			return err
		}
		opt, err := optim.NewAdamW(nn.Parameters(rows), 0.1)
		if err != nil {
			return err
		}
		defer opt.Release()
		// Each row has another gradient, and so another state.
		y := rows.Forward(tensor.Ones([]int{2, 3})).Mul(tensor.Arange(0, 4, tensor.Float32))
		if err := errors.Join(y.Sum().Backward(), opt.Step()); err != nil {
			return err
		}
		state := func(o dcp.Optimizer) dcp.State { return dcp.State{Shards: dcp.Model("", rows), Optimizer: o} }
		if err := dcp.Save(ctx, g, dir, state(wrapped{opt})); err != nil {
			return err
		}
		average := func() *tensor.Tensor { return opt.StateDict().State[0]["exp_avg"].(*tensor.Tensor) }
		want := average().Clone()
		average().Zero_()
		if err := dcp.Load(ctx, g, dir, state(wrapped{opt})); err != nil {
			return err
		}
		if same, err := average().Equal(want); err != nil || !same {
			t.Errorf("rank %d: loaded %v, want %v, %v", g.Rank(), average(), want, err)
		}
		if err := dcp.Save(ctx, g, dir+"-wrong", dcp.State{Optimizer: wrapped{opt}}); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("Save without shards: %v", err)
		}
		part := checkpoint.Named("d", checkpoint.Optimizer(opt)) // SaveTraining does not save it either
		if err := dcp.Save(ctx, g, dir+"-wrong", dcp.State{Parts: []checkpoint.Part{part}}); err == nil || !strings.Contains(err.Error(), "State.Optimizers") {
			t.Errorf("Save of a part that is divided: %v", err)
		}
		for call, err := range map[string]error{
			"Save": dcp.Save(ctx, g, dir+"-wrong", state(unknown{opt})),
			"Load": dcp.Load(ctx, g, dir, state(unknown{opt})),
		} {
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "a dcp_test.unknown, the optimizer, are not known") {
				t.Errorf("%s: %v", call, err)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
