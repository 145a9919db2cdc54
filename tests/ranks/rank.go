package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	timeout = 2 * time.Second // of the group

	saved = "run" // the checkpoint, in the job's directory

	// The exit codes of a rank.
	trained, failed, peerFailed = 0, 1, 3
)

// phases are the moments of a step at which a rank can fail.
var phases = []string{"forward", "backward", "in backward", "step", "save", "in save"}

// fault is what happens to a rank.
type fault struct {
	kind, phase string
	step        int
	wait        time.Duration // how long after the begin of a save, if it happens during one
}

func (f fault) String() string { return fmt.Sprintf("%s:%s:%d:%v", f.kind, f.phase, f.step, f.wait) }

// during reports whether the fault happens while the rank saves. A slow rank is late for the save.
func (f fault) during() bool { return f.phase == "in save" && f.kind != "slow" }

// leaves reports whether the checkpoint may be of the given step after the fault: all ranks have saved the steps before
// the fault's, and its own step only if the save goes on without this rank.
func (f fault) leaves(step int) bool { return step == f.step || step == f.step+1 && f.during() }

// at fails if the rank is to fail now.
func (f fault) at(phase string, step int) error {
	if f.phase != phase || f.step != step {
		return nil
	}
	fmt.Println("fault")
	switch f.kind {
	case "kill":
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "stop":
		return syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "slow":
		time.Sleep(10 * timeout)
	case "cut":
		for {
			if i, err := net.InterfaceByName("eth0"); err != nil || i.Flags&net.FlagRunning == 0 {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	case "disk":
		// A file of this process cannot become as long as its part of the checkpoint.
		signal.Ignore(syscall.SIGXFSZ)
		return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 10, Max: 1 << 10})
	}
	return nil
}

// within calls save, during which the rank fails if it is to fail in the phase.
func (f fault) within(phase string, step int, save func() error) error {
	if f.phase != phase || f.step != step || !f.during() {
		return errors.Join(f.at(phase, step), save())
	}
	time.AfterFunc(f.wait, func() { _ = f.at(phase, step) })
	if err := save(); err != nil {
		return err
	}
	select {} // the save was faster
}

// rank is one process of the job. It returns its exit code.
func rank(dir string, steps int, plan string) int {
	var f fault
	if parts := strings.Split(plan, ":"); len(parts) == 4 {
		f.kind, f.phase = parts[0], parts[1]
		var waitErr error
		_, err := fmt.Sscan(parts[2], &f.step)
		if f.wait, waitErr = time.ParseDuration(parts[3]); err != nil || waitErr != nil {
			fmt.Println(errors.Join(err, waitErr))
			return failed
		}
	}
	err := train(dir, steps, f)
	var peer *dist.PeerError
	var other *dcp.RankError
	switch {
	case errors.As(err, &peer):
		fmt.Println("peer", peer.Ranks, peer.Op, err)
		return peerFailed
	case errors.As(err, &other):
		fmt.Println("peer", []int{other.Rank}, other.Op, err)
		return peerFailed
	case err != nil:
		fmt.Println(err)
		return failed
	}
	return trained
}

func newModel() nn.Layer {
	return nn.NewSequential(nn.NewLinear(16, 64), &nn.Tanh{}, nn.NewLinear(64, 4))
}

func train(dir string, steps int, f fault) error {
	ctx := context.Background()
	if err := tensor.SetNumThreads(1); err != nil {
		return err
	}
	g, err := dist.Init(ctx, dist.Timeout(timeout))
	if err != nil {
		return err
	}
	defer g.Close()
	if err := tensor.ManualSeed(1); err != nil {
		return err
	}
	model := newModel()
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-2)
	if err != nil {
		return err
	}
	step := 0
	state := dcp.State{Shards: dcp.Model("model.", model), Optimizer: opt, Parts: []checkpoint.Part{checkpoint.Value("step", &step)}}
	if err := dcp.Load(ctx, g, filepath.Join(dir, saved), state); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ddp, err := dist.NewDDP(ctx, g, model)
	if err != nil {
		return err
	}
	for step < steps {
		err := tensor.WithScope(func() error {
			x := tensor.Arange(0, 8*16, tensor.Float32).Add(100*step+g.Rank()).Sin().View(8, 16)
			if err := f.at("forward", step); err != nil {
				return err
			}
			y := ddp.Forward(x)
			if _, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, f.at("in backward", step) }); err != nil {
				return err
			}
			opt.ZeroGrad()
			if err := f.at("backward", step); err != nil {
				return err
			}
			if err := y.Square().Mean().Backward(); err != nil {
				return err
			}
			if err := f.at("step", step); err != nil {
				return err
			}
			return opt.Step()
		})
		if err != nil {
			return err
		}
		step++
		if err := f.at("save", step-1); err != nil {
			return err
		}
		if err := f.within("in save", step-1, func() error { return dcp.Save(ctx, g, filepath.Join(dir, saved), state) }); err != nil {
			return err
		}
	}
	return errors.Join(g.Barrier(ctx), ddp.Close())
}
