package dist_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// envRole names the role for which a test runs its binary again, as one rank of several.
const envRole = "LINSTOCK_TEST_ROLE"

func TestMain(m *testing.M) {
	// libtorch keeps a pipe from the first TCP store on.
	if cshim.Load() == nil {
		if s, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true); err == nil {
			_ = s.Close()
		}
	}
	role := os.Getenv(envRole)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(roles[role]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// play plays a role in the group that the environment describes, and returns an error if it leaves something behind.
func play(role func(g *dist.Group) error) error {
	before, err := balance.Settle(tensor.Flush, nil)
	if err != nil {
		return err
	}
	g, err := dist.Init(ctx, dist.Timeout(timeoutOf()))
	if err != nil {
		return err
	}
	if err := errors.Join(tensor.WithScope(func() error { return role(g) }), g.Close()); err != nil {
		return err
	}
	after, err := balance.Settle(tensor.Flush, &before)
	if err == nil && after != before {
		err = fmt.Errorf("began with %v and ended with %v", before, after)
	}
	return err
}

// timeoutOf returns the timeout of the groups of a role: short where it must expire.
func timeoutOf() time.Duration {
	if os.Getenv(envRole) == "stopped" {
		return 3 * time.Second
	}
	return time.Minute
}

var roles = map[string]func(g *dist.Group) error{
	"collectives": func(g *dist.Group) error {
		n, r := g.Size(), g.Rank()
		x := vector(float32(r), 1)
		if err := errors.Join(g.AllReduce(ctx, x, dist.Sum), want("sum", x, float32(n*(n-1)/2), float32(n))); err != nil {
			return err
		}
		all, err := dist.AllGatherObject(ctx, g, strconv.Itoa(r))
		if err != nil {
			return err
		}
		for i, s := range all {
			if s != strconv.Itoa(i) || len(all) != n {
				return fmt.Errorf("AllGatherObject: %q", all)
			}
		}
		sub, err := g.NewGroup(ctx, []int{n - 1, 0})
		if err != nil || sub == nil {
			return errors.Join(err, g.Barrier(ctx))
		}
		y := vector(float32(sub.Rank() + 1))
		return errors.Join(sub.AllReduce(ctx, y, dist.Product), want("product", y, 2), sub.Close(), g.Barrier(ctx))
	},
	"python": func(g *dist.Group) error {
		n, r := g.Size(), g.Rank()
		var members []int
		for i := range n {
			members = append(members, i)
		}
		sub, err := g.NewGroup(ctx, members)
		if err != nil {
			return err
		}
		for _, g := range []*dist.Group{g, sub} {
			x, out, part, y := vector(float32(r), 1), tensor.Zeros([]int{2 * n}), vector(0), vector(float32(r))
			var gathered []float32
			for i := range n {
				gathered = append(gathered, float32(i), 7)
			}
			if err := errors.Join(
				g.AllReduce(ctx, x, dist.Sum), want("sum", x, float32(n*(n-1)/2), float32(n)),
				g.AllGatherIntoTensor(ctx, out, vector(float32(r), 7)), want("gathered", out, gathered...),
				g.ReduceScatterTensor(ctx, part, tensor.Arange(0, n, tensor.Float32), dist.Sum), want("part", part, float32(n*r)),
				g.Broadcast(ctx, y, n-1), want("broadcast", y, float32(n-1)),
			); err != nil {
				return err
			}
			switch r {
			case 0:
				err = g.Send(ctx, vector(5), 1, 3)
			case 1:
				err = errors.Join(g.Recv(ctx, y, 0, 3), want("received", y, 5))
			}
			if err := errors.Join(err, g.MonitoredBarrier(ctx, 0), g.Barrier(ctx)); err != nil {
				return err
			}
		}
		return errors.Join(sub.Close(), equalReplicas(g))
	},
	"restarts": func(g *dist.Group) error {
		e, err := dist.ReadEnvironment()
		if err != nil {
			return err
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if e.Restarts == 0 {
			if g.Rank() == 1 {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return errors.Join(blames(g.Barrier(ctx), "Barrier", dist.ErrConnection, 1), errors.New("the launcher starts it again"))
		}
		x := vector(1)
		return errors.Join(g.AllReduce(ctx, x, dist.Sum), want("sum", x, 2), g.Barrier(ctx))
	},
	"killed in backward": func(g *dist.Group) error {
		m := newModel(false)
		ddp, err := dist.NewDDP(ctx, g, m)
		if err != nil {
			return err
		}
		for i := range 3 {
			loss := ddp.Forward(wave([]int{8, 12}, i)).Sum()
			if i == 2 && g.Rank() == 1 {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			err = loss.Backward()
			if i == 2 {
				return errors.Join(blames(err, "Backward", dist.ErrConnection, 1), blames(ddp.Forward(wave([]int{8, 12}, i)).Err(), "Forward", dist.ErrConnection, 1))
			}
			if err != nil {
				return err
			}
		}
		return nil
	},
	"killed":      dies(2, syscall.SIGKILL, dist.ErrConnection),
	"host killed": dies(0, syscall.SIGKILL, dist.ErrConnection),
	"stopped":     dies(1, syscall.SIGSTOP, nil),
}

// equalReplicas trains a model that begins with other weights on each rank, and returns an error unless it is the same on all
// ranks at the end.
func equalReplicas(g *dist.Group) error {
	m := nn.NewSequential(nn.NewLinear(3, 4), &nn.Tanh{}, nn.NewLinear(4, 1))
	ddp, err := dist.NewDDP(ctx, g, m)
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(nn.Parameters(m), 0.1)
	if err != nil {
		return err
	}
	for range 3 {
		opt.ZeroGrad()
		if err := errors.Join(ddp.Forward(tensor.Full([]int{2, 3}, float64(g.Rank()+1))).Sum().Backward(), opt.Step()); err != nil {
			return err
		}
	}
	var flat []*tensor.Tensor
	for _, p := range nn.Parameters(m) {
		flat = append(flat, p.Detach().Flatten())
	}
	mine := tensor.Cat(flat)
	all := tensor.Zeros([]int{g.Size() * mine.Numel()})
	if err := g.AllGatherIntoTensor(ctx, all, mine); err != nil {
		return err
	}
	return want("differences", all.View(g.Size(), -1).Sub(mine).Abs().Max().View(1), 0)
}

// dies returns a role in which one rank sends itself a signal between two collectives, and the others name it.
func dies(rank int, signal syscall.Signal, kind error) func(g *dist.Group) error {
	return func(g *dist.Group) error {
		x := tensor.Ones([]int{1000})
		for range 3 {
			if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
				return err
			}
		}
		if g.Rank() == rank {
			return syscall.Kill(os.Getpid(), signal)
		}
		// A rank that computes when the others notice meets the failure later, and must give the same verdict.
		if g.Rank() == 3 {
			time.Sleep(100 * time.Millisecond)
		}
		return blames(g.AllReduce(ctx, x, dist.Sum), "AllReduce", kind, rank)
	}
}

// processes runs n ranks, each in a process: those below pythons in Python, the others in a role of this binary. It returns
// their outputs, and kills those that did not end by themselves when all except the rank dead did.
func processes(t *testing.T, n int, role string, dead int, python string, pythons ...int) {
	t.Helper()
	port := freePort(t)
	limit, end := context.WithTimeout(ctx, 2*time.Minute)
	defer end()
	var all []*exec.Cmd
	outs := make([]bytes.Buffer, n)
	for r := range n {
		cmd := exec.CommandContext(limit, os.Args[0])
		if slices.Contains(pythons, r) {
			cmd = exec.CommandContext(limit, python, "testdata/ranks.py")
		}
		cmd.Env = append(os.Environ(), envRole+"="+role, "RANK="+strconv.Itoa(r), "WORLD_SIZE="+strconv.Itoa(n),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "OMP_NUM_THREADS=1")
		cmd.Stdout, cmd.Stderr = &outs[r], &outs[r]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	for r, cmd := range all {
		if r == dead {
			continue
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
	}
	if dead >= 0 {
		_ = all[dead].Process.Kill()
		_ = all[dead].Wait()
	}
}

// TestProcesses tests groups of several processes.
func TestProcesses(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{2, 4} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			leak.Check(t)
			processes(t, n, "collectives", -1, "")
		})
	}
}

// TestDeadRank tests that all ranks name one that was killed or stopped, also if it hosts the store.
func TestDeadRank(t *testing.T) {
	leak.Check(t)
	for role, dead := range map[string]int{"killed": 2, "host killed": 0, "stopped": 1, "killed in backward": 1} {
		t.Run(role, func(t *testing.T) {
			leak.Check(t)
			processes(t, 4, role, dead, "")
		})
	}
}

// TestRestarts tests that torchrun starts the ranks again after one was killed, with each of its ways to meet.
func TestRestarts(t *testing.T) {
	leak.Check(t)
	python := pythonWithTorch()
	if python == "" {
		t.Skip("no Python with torch (make bench-setup, or LINSTOCK_PYTHON)")
	}
	for _, meet := range []string{"static", "c10d"} {
		t.Run(meet, func(t *testing.T) {
			leak.Check(t)
			port := freePort(t)
			limit, end := context.WithTimeout(ctx, 2*time.Minute)
			defer end()
			cmd := exec.CommandContext(limit, python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
				"--rdzv-backend", meet, "--rdzv-endpoint", "127.0.0.1:"+port, "--master-port", port, "--no-python", os.Args[0])
			if meet == "static" {
				cmd.Args = slices.Insert(cmd.Args, 3, "--node-rank", "0")
			}
			cmd.Env = append(os.Environ(), envRole+"=restarts", "OMP_NUM_THREADS=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// pythonWithTorch returns a Python that has torch, or "".
func pythonWithTorch() string {
	if python := os.Getenv("LINSTOCK_PYTHON"); python != "" {
		return python
	}
	const python = "../build/pytorch/bin/python"
	if _, err := os.Stat(python); err != nil {
		return ""
	}
	return python
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// TestPython tests groups with ranks in Go and in Python, of which either hosts the store.
func TestPython(t *testing.T) {
	leak.Check(t)
	python := pythonWithTorch()
	if python == "" {
		t.Log("no Python with torch (make bench-setup, or LINSTOCK_PYTHON): ranks in Go only")
		processes(t, 3, "python", -1, "")
		return
	}
	processes(t, 3, "python", -1, python, 1)
	processes(t, 3, "python", -1, python, 0, 2)
}
