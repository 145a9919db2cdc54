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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// envRole names the role for which a test runs its binary again, as one rank of several.
const envRole = "LINSTOCK_TEST_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(envRole)
	if role == "zero values" { // before libtorch is loaded
		if err := closeZeroValues(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	launch.Main(role, m.Run, func() error {
		return launch.Play(ctx, role == "besieged", roles[role], dist.Timeout(timeoutOf()))
	})
}

// timeoutOf returns the timeout of the groups of a role: short where it must expire.
func timeoutOf() time.Duration {
	if strings.Contains(os.Getenv(envRole), "stopped") {
		return 3 * time.Second
	}
	return time.Minute
}

var roles = map[string]func(g *dist.Group) error{
	"dead": func(*dist.Group) error { return nil }, // is killed before the group is complete
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
		compared := os.Getenv("TORCH_DISTRIBUTED_DEBUG") == "DETAIL" // without sends and DDP, see ranks.py
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
			switch {
			case compared:
			case r == 0:
				err = g.Send(ctx, vector(5), 1, 3)
			case r == 1:
				err = errors.Join(g.Recv(ctx, y, 0, 3), want("received", y, 5))
			}
			if !compared {
				err = errors.Join(err, g.MonitoredBarrier(ctx, 0))
			}
			if err := errors.Join(err, g.Barrier(ctx)); err != nil {
				return err
			}
		}
		if err := sub.Close(); err != nil || compared {
			return err
		}
		for _, opts := range [][]dist.DDPOption{nil, {dist.FindUnusedParameters()}, {dist.FindUnusedParameters(), dist.BucketCapMB(3)}} {
			if err := equalReplicas(g, 600, opts...); err != nil { // more than 1 MiB
				return err
			}
		}
		return nil
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
			return blames(g.Barrier(ctx), "Barrier", dist.ErrConnection, 1)
		}
		x := vector(1)
		return errors.Join(g.AllReduce(ctx, x, dist.Sum), want("sum", x, 2), g.Barrier(ctx))
	},
	"restarts of agents": func(g *dist.Group) error { // which count them differently
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() == 1 && os.Mkdir(os.Getenv("TMPDIR")+"/killed", 0o700) == nil {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		x := vector(1)
		return errors.Join(g.AllReduce(ctx, x, dist.Sum), want("sum", x, 2), g.Barrier(ctx))
	},
	"join": func(g *dist.Group) error {
		ddp, err := dist.NewDDP(ctx, g, newModel(false))
		if err != nil {
			return err
		}
		return ddp.Join(func() error {
			for i := range 1 + g.Rank() {
				if err := ddp.Forward(wave([]int{8, 12}, i)).Sum().Backward(); err != nil {
					return err
				}
			}
			return nil
		})
	},
	"killed in backward":            killedInBackward(),
	"killed in compressed backward": killedInBackward(dist.PowerSGD(dist.PowerSGDState{StartIter: 2})),
	"two groups":                    twoGroups,
	"besieged":                      besieged,
	"bounded loss":                  boundedLoss,
	"killed":                        dies(2, syscall.SIGKILL, dist.ErrConnection),
	"host killed":                   dies(0, syscall.SIGKILL, dist.ErrConnection),
	"stopped":                       dies(1, syscall.SIGSTOP, nil),
	"host stopped":                  stoppedHost(true),
	"host stopped before Close":     stoppedHost(false),
	"killed sender": func(g *dist.Group) error {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() == 1 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return blames(g.Recv(ctx, vector(0), dist.AnySource, 0), "Recv", dist.ErrConnection, 1)
	},
}

// killedInBackward returns a role in which one rank sends itself a signal before its third backward pass, and the others name it.
func killedInBackward(opts ...dist.DDPOption) func(g *dist.Group) error {
	return func(g *dist.Group) error {
		m := newModel(false)
		ddp, err := dist.NewDDP(ctx, g, m, opts...)
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
				kind := ofDead(dist.ErrConnection)
				return errors.Join(blames(err, "Backward", kind, 1), blames(ddp.Forward(wave([]int{8, 12}, i)).Err(), "Forward", kind, 1))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// twoGroups fails the group of one DDP, and returns an error unless that of another, whose forward pass was later,
// continues. The second time there is a DDP of another group before the forward passes.
func twoGroups(g *dist.Group) error {
	for range 2 {
		var groups [2]*dist.Group
		var losses [2]*tensor.Tensor
		for i := range groups {
			var err error
			if groups[i], err = g.NewGroup(ctx, []int{0, 1}); err != nil {
				return err
			}
			defer groups[i].Close()
			ddp, err := dist.NewDDP(ctx, groups[i], newModel(false))
			if err != nil {
				return err
			}
			losses[i] = ddp.Forward(wave([]int{8, 12}, i)).Sum()
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		var err error
		if g.Rank() == 1 {
			err = groups[0].Abort()
		} else {
			err = blames(losses[0].Backward(), "Backward", dist.ErrConnection, 1)
		}
		if err := errors.Join(err, losses[1].Backward(), groups[1].Barrier(ctx)); err != nil {
			return err
		}
	}
	return g.Barrier(ctx)
}

// equalReplicas trains a model of the given width that begins with other weights on each rank, and returns an error
// unless it is the same on all ranks at the end.
func equalReplicas(g *dist.Group, width int, opts ...dist.DDPOption) error {
	m := nn.NewSequential(nn.NewLinear(3, width), &nn.Tanh{}, nn.NewLinear(width, width), nn.NewLinear(width, 1))
	ddp, err := dist.NewDDP(ctx, g, m, opts...)
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

// ofDead returns kind, or nil for any if the ranks compare their collectives: the preceding barrier does not say why a
// rank failed to pass it.
func ofDead(kind error) error {
	if os.Getenv("TORCH_DISTRIBUTED_DEBUG") == "DETAIL" {
		return nil
	}
	return kind
}

// dies returns a role in which one rank sends itself a signal between two collectives, and the others name it.
func dies(rank int, signal syscall.Signal, kind error) func(g *dist.Group) error {
	return func(g *dist.Group) error {
		kind := ofDead(kind)
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

// stoppedHost returns a role in which rank 1 closes the group while the store's host is stopped, if fails after a
// collective has failed for that. Rank 1 then kills the host, after which nothing may be left.
func stoppedHost(fails bool) func(g *dist.Group) error {
	return func(g *dist.Group) error {
		pids, err := dist.AllGatherObject(ctx, g, os.Getpid())
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			return g.Barrier(ctx) // until it is killed
		}
		err = syscall.Kill(pids[0], syscall.SIGSTOP)
		time.Sleep(100 * time.Millisecond) // it still runs for a moment
		if fails {
			err = errors.Join(err, blames(g.AllReduce(ctx, vector(1), dist.Sum), "AllReduce", dist.ErrTimeout, 0))
		}
		return errors.Join(err, g.Close(), syscall.Kill(pids[0], syscall.SIGKILL))
	}
}

// job is a job of several processes.
type job struct {
	n       int
	role    string // of the ranks in Go, which run this binary again
	dead    []int  // ranks that do not end by themselves
	pythons []int  // ranks in Python
	port    string // of the store; by default one that is free
	env     []string
	during  func(pids []int) // is called while the ranks run
}

// run runs a job and fails the test unless all ranks but the dead ones succeed, and those in Go print no stack traces
// of C++.
func (j job) run(t *testing.T) {
	t.Helper()
	if j.port == "" {
		j.port = freePort(t)
	}
	limit, end := context.WithTimeout(ctx, 2*time.Minute)
	defer end()
	all := make([]*exec.Cmd, j.n)
	outs := make([]bytes.Buffer, j.n)
	for r := range all {
		cmd := exec.CommandContext(limit, os.Args[0])
		if slices.Contains(j.pythons, r) {
			cmd = exec.CommandContext(limit, golden.FindPython(), "testdata/ranks.py")
		}
		cmd.Env = append(launch.Environ(r, j.n, j.port), append(j.env, envRole+"="+j.role)...)
		cmd.Stdout, cmd.Stderr = &outs[r], &outs[r]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all[r] = cmd
	}
	if j.during != nil {
		var pids []int
		for _, cmd := range all {
			pids = append(pids, cmd.Process.Pid)
		}
		j.during(pids)
	}
	for r, cmd := range all {
		if slices.Contains(j.dead, r) {
			continue
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
		if !slices.Contains(j.pythons, r) && strings.Contains(outs[r].String(), "\nframe #") {
			t.Errorf("rank %d prints C++ stack traces:\n%s", r, outs[r].String())
		}
	}
	for _, r := range j.dead {
		_ = all[r].Process.Kill()
		_ = all[r].Wait()
	}
}

// TestProcesses tests groups of several processes.
func TestProcesses(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{2, 4} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			leak.Check(t)
			job{n: n, role: "collectives"}.run(t)
		})
	}
}

// TestDeadRank tests that all ranks name one that was killed or stopped, also if it hosts the store, and if they compare
// their collectives.
func TestDeadRank(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes and takes long; it runs without -short")
	}
	leak.Check(t)
	for role, dead := range map[string]int{"killed": 2, "host killed": 0, "stopped": 1, "killed in backward": 1, "killed in compressed backward": 1,
		"killed sender": 1} {
		for _, debug := range []string{"OFF", "DETAIL"} {
			t.Run(role+" "+debug, func(t *testing.T) {
				leak.Check(t)
				job{n: 4, role: role, dead: []int{dead}, env: []string{"TORCH_DISTRIBUTED_DEBUG=" + debug}}.run(t)
			})
		}
	}
}

// TestCloseWithAStoppedHost tests that Close ends while the store's host is stopped, and that it leaves nothing once
// the host has ended.
func TestCloseWithAStoppedHost(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes and takes long; it runs without -short")
	}
	leak.Check(t)
	for _, role := range []string{"host stopped", "host stopped before Close"} {
		t.Run(role, func(t *testing.T) {
			leak.Check(t)
			job{n: 2, role: role, dead: []int{0}}.run(t)
		})
	}
}

// TestTwoGroups tests that the failure of the group of a DDP leaves the group of another one alone.
func TestTwoGroups(t *testing.T) {
	leak.Check(t)
	job{n: 2, role: "two groups"}.run(t)
}

// TestRestarts tests ranks that a launcher starts again after one was killed, while its store goes on; and torchrun itself,
// with each of its ways to meet, and with two agents as on two machines, where there is a Python that has it.
func TestRestarts(t *testing.T) {
	leak.Check(t)
	server, err := dist.NewTCPStore(ctx, "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Addr())
	for restarts, dead := range [][]int{{1}, nil} {
		job{n: 2, role: "restarts", dead: dead, port: port, env: []string{"TORCHELASTIC_USE_AGENT_STORE=True", "GROUP_WORLD_SIZE=1",
			"TORCHELASTIC_RESTART_COUNT=" + strconv.Itoa(restarts)}}.run(t)
	}
	for _, meet := range []string{"static", "c10d"} {
		t.Run(meet, func(t *testing.T) {
			python := golden.Python(t)
			leak.Check(t)
			port := freePort(t)
			limit, end := context.WithTimeout(ctx, 2*time.Minute)
			defer end()
			cmd := exec.CommandContext(limit, python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
				"--rdzv-backend", meet, "--rdzv-endpoint", "127.0.0.1:"+port, "--master-port", port, "--no-python", os.Args[0])
			if meet == "static" {
				cmd.Args = slices.Insert(cmd.Args, 3, "--node-rank", "0")
			}
			cmd.Env = append(os.Environ(), envRole+"=restarts", "OMP_NUM_THREADS=1", "TMPDIR="+t.TempDir()) // torchrun leaves files
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("agents", func(t *testing.T) {
		python := golden.Python(t)
		leak.Check(t)
		endpoint, dir := "127.0.0.1:"+freePort(t), t.TempDir()
		limit, end := context.WithTimeout(ctx, 2*time.Minute)
		defer end()
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				cmd := exec.CommandContext(limit, python, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2",
					"--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--no-python", os.Args[0])
				cmd.Env = append(os.Environ(), envRole+"=restarts of agents", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "OMP_NUM_THREADS=1", "TMPDIR="+dir)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
		all.Wait()
		if _, err := os.Stat(dir + "/killed"); err != nil {
			t.Errorf("no rank was killed: %v", err)
		}
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := launch.Port()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestPython tests groups with ranks in Go and in Python, of which either hosts the store.
func TestPython(t *testing.T) {
	leak.Check(t)
	job{n: 3, role: "python"}.run(t)
	for _, pythons := range [][]int{{1}, {0, 2}} {
		for _, debug := range []string{"OFF", "DETAIL"} {
			t.Run(fmt.Sprint(pythons, debug), func(t *testing.T) {
				golden.Python(t)
				leak.Check(t)
				job{n: 3, role: "python", pythons: pythons, env: []string{"TORCH_DISTRIBUTED_DEBUG=" + debug}}.run(t)
			})
		}
	}
}
