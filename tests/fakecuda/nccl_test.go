package fakecuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	roleEnv    = "FAKECUDA_TEST_ROLE"
	backendEnv = "FAKECUDA_TEST_BACKEND"
	timeoutEnv = "FAKECUDA_TEST_TIMEOUT"
	realEnv    = "FAKECUDA_TEST_REAL"
	warmEnv    = "FAKECUDA_TEST_WARM_PORT"
)

// onHardware reports whether the ranks run over NCCL itself, on one device that they share (tests/gpu). NCCL takes that
// device for two if the ranks have different host IDs; they are then connected by sockets.
func onHardware() bool { return os.Getenv(realEnv) == "1" }

// device returns the device of a rank.
func device(rank int) tensor.Device {
	if onHardware() {
		return tensor.CUDA(0)
	}
	return tensor.CUDA(rank)
}

// kernels compiles the kernels that compute, and returns the environment of a process that uses them.
var kernels = sync.OnceValues(func() ([]string, error) {
	if onHardware() {
		return nil, nil
	}
	env, err := environment()
	if env == nil || err != nil {
		return nil, err
	}
	libs := os.Getenv("LD_LIBRARY_PATH")
	for _, e := range env {
		if s, ok := strings.CutPrefix(e, "LD_LIBRARY_PATH="); ok {
			libs = s
		}
	}
	root := filepath.Join(libs, "../..")
	library := filepath.Join(root, "../libfakekernels.so")
	if out, err := exec.Command("kernels/build.sh", root, library).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("kernels: %w\n%s", err, out)
	}
	return []string{"LD_PRELOAD=" + library}, nil
})

// ranks runs a role in two processes, each with two fake devices of its own, of which it uses the one of its rank, or both with
// the real one. All but the dead ones must succeed.
func ranks(t *testing.T, role string, dead []int, extra ...string) {
	t.Helper()
	env := built(t)
	port, err := launch.Port()
	warm, e := launch.Port()
	if err := errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	var all [2]*exec.Cmd
	var outs [2]bytes.Buffer
	for r := range all {
		control := filepath.Join(dir, "control"+strconv.Itoa(r))
		devices := 2
		if onHardware() {
			devices = 1
		}
		c, err := Open(control, devices, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = slices.Concat(launch.Environ(r, 2, port), env,
			[]string{childEnv + "=rank", roleEnv + "=" + role, "GOTRACEBACK=none", "FAKECUDA_CONTROL=" + control, "FAKENCCL_DIR=" + dir,
				"NCCL_HOSTID=rank" + strconv.Itoa(r), "NCCL_SOCKET_IFNAME=lo", warmEnv + "=" + warm}, extra)
		cmd.Stdout, cmd.Stderr = &outs[r], &outs[r]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all[r] = cmd
	}
	for r, cmd := range all {
		if slices.Contains(dead, r) {
			continue
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
	}
	for _, r := range dead {
		_ = all[r].Process.Kill()
		_ = all[r].Wait()
	}
	left, err := filepath.Glob(filepath.Join(dir, "fakenccl-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// rank plays the role of one of the processes and returns an error if it leaves something behind.
func rank(c *Control) error {
	if s, err := dist.NewTCPStore(context.Background(), "127.0.0.1:0", true); err == nil {
		_ = s.Close() // libtorch keeps a pipe from the first one on
	}
	if err := callFromEngine(); err != nil {
		return err
	}
	if onHardware() {
		if err := communicate(); err != nil {
			return fmt.Errorf("a first group: %w", err)
		}
	}
	timeout := time.Minute
	if s := os.Getenv(timeoutEnv); s != "" {
		var err error
		if timeout, err = time.ParseDuration(s); err != nil {
			return err
		}
	}
	backend := os.Getenv(backendEnv)
	if backend == "" {
		backend = "cpu:gloo,cuda:nccl"
	}
	p := part{control: c}
	err := launch.Play(context.Background(), false, func(g *dist.Group) error {
		p.g, p.d = g, device(g.Rank())
		return roles[os.Getenv(roleEnv)](&p)
	}, dist.Backend(backend), dist.Timeout(timeout))
	if err != nil || os.Getenv(roleEnv) == "killed in backward" { // cuBLAS keeps a workspace
		return err
	}
	return settledTo(func() (int64, error) {
		m, err := stats(p.d)
		return m.Allocated % testdevice.Workspace, err
	}, 0)
}

// communicate uses a group over NCCL and closes it: NCCL keeps descriptors from its first communicator on.
func communicate() error {
	r, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	g, err := dist.Init(ctx, dist.InitMethod("tcp://127.0.0.1:"+os.Getenv(warmEnv)), dist.Rank(r), dist.WorldSize(2), dist.Backend("nccl"))
	if err != nil {
		return err
	}
	return errors.Join(tensor.WithScope(func() error { return g.AllReduce(ctx, tensor.Ones([]int{1}, device(r)), dist.Sum) }), g.Close())
}

// callFromEngine makes the thread of libtorch's engine for the rank's device call Go, which keeps a goroutine for the thread
// from its first call on.
func callFromEngine() error {
	r, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		x := tensor.Ones([]int{1}, device(r)).RequiresGrad_()
		if _, err := x.RegisterHook(func(g *tensor.Tensor) (*tensor.Tensor, error) { return nil, nil }); err != nil {
			return err
		}
		return x.Sum().Backward()
	})
}

// part is one rank's part in a test.
type part struct {
	control *Control
	g       *dist.Group
	d       tensor.Device
}

// on returns a tensor on the rank's device: kernels do nothing, so values come and go by copies.
func on[T tensor.Element](p *part, values ...T) *tensor.Tensor {
	return tensor.FromSlice(values, []int{len(values)}).To(p.d)
}

// has returns an error unless the tensor has the values.
func has[T tensor.Element](what string, t *tensor.Tensor, values ...T) error {
	got, err := tensor.Data[T](t.To(tensor.CPU))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !slices.Equal(got, values) {
		return fmt.Errorf("%s: got %v, want %v", what, got, values)
	}
	return nil
}

var roles = map[string]func(p *part) error{
	"collectives": collectives, "alone": alone, "asynchronous": asynchronous, "data parallel": dataParallel, "sharded": sharded,
	"tensor parallel": tensorParallel, "pipeline": pipeline, "mixed stages": mixedStages,
	"divided optimizer": dividedOptimizer,
	"killed":            killed, "killed in backward": killedInBackward, "killed sender": killedSender, "stopped": stopped, "aborted": leaves((*dist.Group).Abort, dist.ErrAborted), "closed": leaves((*dist.Group).Close, dist.ErrClosed), "cancelled": cancelled, "cancelled at first": cancelledAtFirst,
	"kernel fails": kernelFails, "call fails": callFails, "captured": captured, "join": join,
}

func TestCollectives(t *testing.T) { ranks(t, "collectives", nil) }
func TestCheckedCollectives(t *testing.T) {
	ranks(t, "collectives", nil, "TORCH_DISTRIBUTED_DEBUG=DETAIL")
}
func TestNCCLAlone(t *testing.T)          { ranks(t, "alone", nil, backendEnv+"=nccl") }
func TestAsynchronous(t *testing.T)       { ranks(t, "asynchronous", nil) }
func TestDataParallel(t *testing.T)       { computing(t, "data parallel") }
func TestSharded(t *testing.T)            { computing(t, "sharded") }
func TestCapturedCollective(t *testing.T) { ranks(t, "captured", nil) }
func TestJoin(t *testing.T) {
	for _, backend := range []string{"", "nccl"} {
		t.Run(backend, func(t *testing.T) { computing(t, "join", backendEnv+"="+backend) })
	}
}
func TestTensorParallel(t *testing.T) { computing(t, "tensor parallel") }
func TestPipeline(t *testing.T)       { computing(t, "pipeline") }
func TestMixedStages(t *testing.T)    { ranks(t, "mixed stages", nil) }

// TestDividedOptimizer tests an optimizer whose state is divided, and normalization over the ranks' batches.
func TestDividedOptimizer(t *testing.T) { computing(t, "divided optimizer") }

// computing runs a role with kernels that compute.
func computing(t *testing.T, role string, extra ...string) {
	t.Helper()
	env, err := kernels()
	if err != nil {
		t.Fatal(err)
	}
	ranks(t, role, nil, slices.Concat(env, extra)...)
}

// TestKilledRank tests that a rank whose process has ended is named, where NCCL notices it and where it does not.
func TestKilledRank(t *testing.T) {
	for _, notice := range []string{"0", "1"} {
		for _, role := range []string{"killed", "killed in backward", "killed sender"} {
			t.Run(role+" "+notice, func(t *testing.T) { ranks(t, role, []int{1}, "FAKENCCL_NOTICE="+notice) })
		}
	}
}
func TestStoppedRank(t *testing.T) { ranks(t, "stopped", []int{1}, timeoutEnv+"=4s") }
func TestAbort(t *testing.T)       { ranks(t, "aborted", nil) }
func TestCancel(t *testing.T) {
	for _, role := range []string{"cancelled", "cancelled at first"} {
		t.Run(role, func(t *testing.T) { ranks(t, role, nil) })
	}
}
func TestClose(t *testing.T)       { ranks(t, "closed", nil) }
func TestKernelFails(t *testing.T) { ranks(t, "kernel fails", nil) }
func TestCallFails(t *testing.T)   { ranks(t, "call fails", nil) }

// collectives tests the values of each collective.
func collectives(p *part) error {
	g, r := p.g, float32(p.g.Rank())
	ctx := context.Background()
	x := on(p, r, 1)
	err := errors.Join(g.AllReduce(ctx, x, dist.Sum), has[float32]("sum", x, 1, 2))
	for _, reduction := range []struct {
		op   dist.ReduceOp
		want float32
	}{{dist.Avg, 2.5}, {dist.Product, 6}, {dist.Min, 2}, {dist.Max, 3}} {
		x := on(p, 2+r)
		err = errors.Join(err, g.AllReduce(ctx, x, reduction.op), has(fmt.Sprintf("reduction %d", reduction.op), x, reduction.want))
	}
	n := on(p, int64(1)<<40, int64(r))
	half := on(p, 1.5+r, 3).To(tensor.CPU).To(tensor.BFloat16).To(p.d)
	sent, whole := on(p, r, r), on(p, r+1)
	a, b := on[float32](p, 0, 0), on[float32](p, 0, 0)
	all, scattered, exchanged := on[float32](p, 0, 0, 0, 0), on[float32](p, 0), on[float32](p, 0, 0, 0)
	var gathered, given []*tensor.Tensor
	if p.g.Rank() == 1 {
		gathered, given = []*tensor.Tensor{a, b}, []*tensor.Tensor{on[float32](p, 5), on[float32](p, 6)}
	}
	// What each rank sends to rank 0 and 1 and receives from them.
	mine, sizes := on(p, r, r+10, r+20), [][]int{{1, 2}, {2, 1}}[p.g.Rank()]
	reduced := on(p, r+1)
	if err = errors.Join(err,
		g.AllReduce(ctx, n, dist.Sum), has[int64]("int64", n, 1<<41, 1),
		g.AllReduce(ctx, half, dist.Sum), has[float32]("bfloat16", half.To(tensor.CPU).To(tensor.Float32), 4, 6),
		g.Broadcast(ctx, sent, 1), has[float32]("broadcast", sent, 1, 1),
		g.AllReduceCoalesced(ctx, []*tensor.Tensor{x, whole}, dist.Sum), has[float32]("coalesced", x, 2, 4), has[float32]("coalesced", whole, 3),
		g.AllGather(ctx, []*tensor.Tensor{a, b}, on(p, r, 7)), has[float32]("gathered", a, 0, 7), has[float32]("gathered", b, 1, 7),
		g.AllGatherIntoTensor(ctx, all, on(p, r, 8)), has[float32]("gathered into one", all, 0, 8, 1, 8),
		g.ReduceScatter(ctx, scattered, []*tensor.Tensor{on(p, r), on(p, r+2)}, dist.Sum), has("scattered", scattered, 1+4*r),
		g.ReduceScatterTensor(ctx, scattered, on(p, r+1, r+3), dist.Max), has("scattered from one", scattered, 2+2*r),
		g.AllToAllSingle(ctx, exchanged, mine, sizes, sizes), has("exchanged", exchanged, [][]float32{{0, 1, 11}, {10, 20, 21}}[p.g.Rank()]...),
		g.Reduce(ctx, reduced, 1, dist.Sum),
		g.Gather(ctx, gathered, on(p, r, 9), 1),
		g.Scatter(ctx, whole, given, 1), has("scattered from a list", whole, 5+r),
	); err != nil {
		return err
	}
	if p.g.Rank() == 1 {
		err = errors.Join(has[float32]("gathered", a, 0, 9), has[float32]("gathered", b, 1, 9), has[float32]("reduced", reduced, 3))
	}
	y, complexes := on(p, r), on[complex64](p, 0)
	if p.g.Rank() == 0 {
		err = errors.Join(err, g.Send(ctx, on[complex64](p, 1+2i), 1, 0))
	} else {
		err = errors.Join(err, g.Recv(ctx, complexes, 0, 0), has[complex64]("received", complexes, 1+2i))
	}
	if p.g.Rank() == 0 {
		err = errors.Join(err, g.Send(ctx, on[float32](p, 3), 1, 0), g.Recv(ctx, y, 1, 0), has[float32]("received", y, 4))
	} else {
		w, e := g.RecvAsync(y, 0, 0)
		if e != nil {
			return errors.Join(err, e)
		}
		err = errors.Join(err, w.Wait(ctx), has[float32]("received", y, 3), g.Send(ctx, on[float32](p, 4), 0, 0))
		if w.Source() != 0 {
			err = errors.Join(err, fmt.Errorf("received from %d, want 0", w.Source()))
		}
	}
	// Larger than the pieces that the fake sends.
	long := make([]float32, 100_000)
	for i := range long {
		long[i] = float32(i) + r
	}
	large := on(p, long...)
	err = errors.Join(err, g.AllReduce(ctx, large, dist.Sum))
	for i := range long {
		long[i] = 2*float32(i) + 1
	}
	cpu := tensor.FromSlice([]float32{r}, []int{1})
	objects, failed := dist.AllGatherObject(ctx, g, p.g.Rank())
	if !slices.Equal(objects, []int{0, 1}) {
		failed = errors.Join(failed, fmt.Errorf("objects %v", objects))
	}
	err = errors.Join(err, has("large", large, long...), failed, g.AllReduce(ctx, cpu, dist.Sum), has[float32]("on the CPU", cpu, 1), g.Barrier(ctx))
	mixtures := [][]*tensor.Tensor{{x, cpu}}
	if !onHardware() {
		mixtures = append(mixtures, []*tensor.Tensor{x, on[float32](p, 1).To(tensor.CUDA(1 - p.g.Rank()))})
	}
	for _, mixed := range mixtures {
		if e := g.AllReduceCoalesced(ctx, mixed, dist.Sum); !errors.Is(e, tensor.ErrArgument) {
			err = errors.Join(err, fmt.Errorf("tensors on two devices: %v", e))
		}
	}
	if e := g.AllReduce(ctx, x, dist.BXor); e == nil || errors.Is(e, dist.ErrConnection) {
		err = errors.Join(err, fmt.Errorf("a reduction that NCCL lacks: %v", e))
	}
	sub, e := g.NewGroup(ctx, []int{1, 0})
	if e != nil {
		return errors.Join(err, e)
	}
	z := on(p, float32(sub.Rank()))
	return errors.Join(err, sub.Broadcast(ctx, z, 0), has[float32]("in a group", z, 0), sub.Close(), g.Barrier(ctx))
}

// alone tests a group without gloo.
func alone(p *part) error {
	ctx := context.Background()
	x := on(p, float32(p.g.Rank()))
	err := errors.Join(p.g.Barrier(ctx), p.g.AllReduce(ctx, x, dist.Sum), has[float32]("sum", x, 1), p.g.Barrier(ctx))
	if e := p.g.AllReduce(ctx, tensor.Ones([]int{1}), dist.Sum); !errors.Is(e, tensor.ErrArgument) || !strings.Contains(e.Error(), "NCCL") {
		err = errors.Join(err, fmt.Errorf("a tensor on the CPU: %v", e))
	}
	if e := p.g.MonitoredBarrier(ctx, time.Second); !errors.Is(e, tensor.ErrArgument) {
		err = errors.Join(err, fmt.Errorf("a monitored barrier: %v", e))
	}
	return err
}

// asynchronous tests that a collective in flight keeps its tensor, and that a wait for it can end before.
func asynchronous(p *part) error {
	ctx := context.Background()
	warm := on[float32](p, 1)
	if err := errors.Join(p.g.AllReduce(ctx, warm, dist.Sum), p.g.Barrier(ctx)); err != nil {
		return err
	}
	warm.Release()
	if p.g.Rank() == 1 {
		y := on[float32](p, 2)
		// Rank 0 has begun.
		return errors.Join(p.g.MonitoredBarrier(ctx, 0), p.g.AllReduce(ctx, y, dist.Sum), has[float32]("sum", y, 3))
	}
	x := on[float32](p, 1)
	w, err := p.g.AllReduceAsync(x, dist.Sum)
	if err != nil {
		return err
	}
	over, end := context.WithCancel(ctx)
	end()
	if e := w.Wait(over); w.Done() || !errors.Is(e, context.Canceled) {
		err = fmt.Errorf("before the other rank has begun: done %v, %v", w.Done(), e)
	}
	x.Release()
	m, e := stats(p.d)
	if e != nil || m.Allocated == 0 {
		err = errors.Join(err, e, errors.New("the memory of a collective in flight was freed"))
	}
	return errors.Join(err, p.g.MonitoredBarrier(ctx, 0), w.Wait(ctx), w.Err())
}

// dataParallel tests that training on devices, by NCCL, has the losses of training on the CPU, by gloo.
func dataParallel(p *part) error {
	ctx := context.Background()
	var losses [2][]float64
	for i, d := range []tensor.Device{tensor.CPU, p.d} {
		for _, opts := range [][]dist.DDPOption{nil, {dist.BucketCapMB(0.001)}, {dist.FindUnusedParameters(true)}, {dist.GradientAsBucketView(true)},
			{dist.CompressGradients(tensor.BFloat16)}, {dist.PowerSGD(dist.PowerSGDState{StartIter: 2, MinCompressionRate: 0.5})}} {
			l, err := trainParallel(ctx, p, d, opts...)
			if err != nil {
				return fmt.Errorf("on %v: %w", d, err)
			}
			losses[i] = append(losses[i], l...)
		}
	}
	if !near(losses[0], losses[1], 0.01) { // one of the options sends bfloat16
		return fmt.Errorf("losses on the CPU and on the device:\n%v\n%v", losses[0], losses[1])
	}
	return nil
}

// captured tests that collectives in a capture are refused before they start, and that the group can be used afterwards.
func captured(p *part) error {
	ctx := context.Background()
	x := on[float32](p, 1)
	// A layer without products: libtorch 2.11 keeps the workspaces that cuBLAS has used in a capture (9,568,256 bytes).
	ddp, err := dist.NewDDP(ctx, p.g, nn.NewLayerNorm(4, nn.Device(p.d)))
	if err != nil {
		return err
	}
	in := tensor.Ones([]int{2, 4}, p.d)
	pass := func() error { return ddp.Forward(in).Sum().Backward() }
	begun, err := p.g.AllReduceAsync(x, dist.Sum)
	if err != nil {
		return err
	}
	for _, e := range []struct {
		name string
		f    func() error
	}{
		{"AllReduce", func() error { return p.g.AllReduce(ctx, x, dist.Sum) }},
		{"Wait", func() error { return begun.Wait(ctx) }},
		{"a pass of a DDP", pass},
	} {
		_, err := cuda.Capture(p.d, e.f)
		if err := expect(e.name, err, tensor.ErrCapture); err != nil {
			return err
		}
	}
	err = errors.Join(begun.Wait(ctx), has[float32]("sum", x, 2), p.g.AllReduce(ctx, x, dist.Sum), has[float32]("sum afterwards", x, 4), pass(), p.g.Barrier(ctx))
	if n := p.control.Invalidated(); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d captures made invalid", n))
	}
	return errors.Join(err, ddp.Close())
}

// join tests ranks with different numbers of steps.
func join(p *part) error {
	for _, opts := range [][]dist.DDPOption{nil, {dist.StaticGraph()}, {dist.FindUnusedParameters()}, {dist.CompressGradients(tensor.BFloat16)}} {
		if err := joinWith(p, opts...); err != nil {
			return err
		}
	}
	return nil
}

func joinWith(p *part, opts ...dist.DDPOption) error {
	ctx := context.Background()
	m := nn.NewLinear(4, 4, nn.Device(p.d))
	defer nn.Release(m)
	ddp, err := dist.NewDDP(ctx, p.g, m, opts...)
	if err != nil {
		return err
	}
	for _, initial := range []bool{true, false} {
		steps := 0
		err = errors.Join(err, ddp.Join(func() error {
			for range 1 + p.g.Rank() {
				if err := ddp.Forward(wave(p.d, 0, 2, 4)).Sum().Backward(); err != nil {
					return err
				}
				steps++
			}
			return nil
		}, dist.DivideByInitialWorldSize(initial)))
		if steps != 1+p.g.Rank() {
			err = errors.Join(err, fmt.Errorf("%d steps", steps))
		}
	}
	return errors.Join(err, ddp.Close())
}

// wave returns different numbers from -1 to 1 on a device.
func wave(d tensor.Device, phase int, shape ...int) *tensor.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return tensor.Arange(0, n, tensor.Float32).Mul(0.7).Add(phase).Sin().Reshape(shape...).To(d)
}

// filled sets the parameters of m, which it returns.
func filled[M any](d tensor.Device, m M) M {
	for i, t := range nn.Parameters(m) {
		t.Detach().Copy_(wave(d, i, t.Shape()...))
	}
	return m
}

// dividedOptimizer compares training with a divided optimizer on the CPU and on the device.
func dividedOptimizer(p *part) error {
	return onBoth(p, func(d tensor.Device) ([]float64, error) { return trainDivided(p.g, d) })
}

// onBoth returns an error unless f has the same results on the CPU and on the device.
func onBoth(p *part, f func(d tensor.Device) ([]float64, error)) error {
	var results [2][]float64
	for k, d := range []tensor.Device{tensor.CPU, p.d} {
		err := tensor.WithScope(func() (err error) {
			results[k], err = f(d)
			return err
		})
		if err != nil {
			return fmt.Errorf("on %v: %w", d, err)
		}
	}
	if !near(results[0], results[1], 1e-4) {
		return fmt.Errorf("on the CPU and on the device:\n%v\n%v", results[0], results[1])
	}
	return nil
}

// trainDivided returns losses and, on rank 0, the state of the optimizer at the end.
func trainDivided(g *dist.Group, d tensor.Device) (results []float64, err error) {
	ctx, on := context.Background(), nn.Device(d)
	m := filled(d, nn.NewSequential(nn.NewLinear(6, 8, on), nn.NewBatchNorm1d(8, on), nn.NewLinear(8, 3, on)))
	if n, err := dist.ConvertSyncBatchNorm(g, m); n != 1 || err != nil {
		return nil, fmt.Errorf("%d normalizations, %w", n, err)
	}
	ddp, err := dist.NewDDP(ctx, g, m)
	if err != nil {
		return nil, err
	}
	opt, err := dist.NewZeroRedundancyOptimizer(g, nn.Parameters(m), func(part []*tensor.Tensor) (*optim.Optimizer, error) { return optim.NewAdamW(part, 0.1) })
	if err != nil {
		return nil, err
	}
	defer opt.Release()
	for i := range 3 {
		opt.ZeroGrad()
		loss := ddp.Forward(wave(d, 2*i+g.Rank(), 5, 6)).Square().Mean()
		if err := errors.Join(loss.Backward(), opt.Step()); err != nil {
			return nil, err
		}
		l, err := loss.Item()
		if err != nil {
			return nil, err
		}
		results = append(results, l)
	}
	state, err := opt.ConsolidateState(ctx, 0)
	if err != nil {
		return nil, err
	}
	for i := range len(state.State) {
		for _, name := range slices.Sorted(maps.Keys(state.State[i])) {
			if t, ok := state.State[i][name].(*tensor.Tensor); ok {
				values, err := float64s(t)
				if err != nil {
					return nil, err
				}
				results = append(results, values...)
			}
		}
	}
	return results, ddp.Close()
}

// near reports whether the results are equal, or, where they are from different kernels, whether they differ by at most the
// tolerance, relative to 1 for small numbers.
func near(a, b []float64, tolerance float64) bool {
	if !onHardware() {
		tolerance = 0
	}
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) <= tolerance*max(1, math.Abs(x)) })
}

// float64s returns the values of a tensor on any device.
func float64s(t *tensor.Tensor) ([]float64, error) {
	return tensor.Data[float64](t.To(tensor.CPU).To(tensor.Float64))
}

// sharded compares training with divided parameters on the CPU and on the device.
func sharded(p *part) error {
	ctx := context.Background()
	for i, opts := range [][]dist.ShardOption{nil, {dist.ReshardAfterForward(false)}, {dist.ParamDType(tensor.BFloat16), dist.ReduceDType(tensor.Float32)}} {
		var results [3][]float64
		var err error
		for k, d := range []tensor.Device{tensor.CPU, p.d, p.d} {
			home := d // of the module
			if k == 2 {
				home, opts = tensor.CPU, append(opts, dist.CPUOffload(d))
			}
			if results[k], err = trainSharded(ctx, p, d, home, opts...); err != nil {
				return fmt.Errorf("options %d on %v, parameters on %v: %w", i, d, home, err)
			}
		}
		tolerance := 1e-3
		if i == 2 {
			tolerance = 0.1 // computes in bfloat16, and the optimizer's first step is 0.1 for a gradient of any size
		}
		if !near(results[0], results[1], tolerance) || !near(results[0], results[2], tolerance) {
			return fmt.Errorf("options %d, on the CPU, on the device, and there with parameters on the CPU:\n%v\n%v\n%v", i, results[0], results[1], results[2])
		}
	}
	return nil
}

// trainSharded returns losses, norms and, on rank 0, parameters at the end.
func trainSharded(ctx context.Context, p *part, d, home tensor.Device, opts ...dist.ShardOption) (results []float64, err error) {
	err = tensor.WithScope(func() (err error) {
		// 5 rows are divided as 3 and 2, and the bias of 1 as 1 and 0. The unused layer has no gradient.
		on := nn.Device(home)
		var m nn.Layer = filled(home, nn.NewSequential(nn.NewLinear(6, 5, on), &nn.Tanh{}, nn.NewLinear(5, 1, on)))
		unused := filled(home, nn.NewLinear(3, 3, on))
		model := &struct {
			Block  nn.Layer
			Head   *nn.Linear
			Unused *nn.Linear
			Shift  *tensor.Tensor `nn:",buffer"`
		}{m, filled(home, nn.NewLinear(1, 4, on)), unused, wave(home, 9, 4)}
		block, err := dist.Shard(ctx, p.g, m, opts...)
		if err != nil {
			return err
		}
		model.Block = block
		root, err := dist.Shard(ctx, p.g, model, opts...)
		if err != nil {
			return err
		}
		if err := errors.Join(root.SetModulesToForwardPrefetch(block), root.SetModulesToBackwardPrefetch(block)); err != nil {
			return err
		}
		opt, err := optim.NewAdamW(nn.Parameters(model), 0.1)
		if err != nil {
			return err
		}
		for i := range 4 {
			opt.ZeroGrad()
			for half := range 2 {
				pass := func() error {
					y := root.Run(func() *tensor.Tensor {
						return model.Head.Forward(model.Block.Forward(wave(d, 6*i+3*half+p.g.Rank(), 5, 6))).Add(model.Shift)
					})
					loss := y.To(tensor.Float32).Square().Mean()
					l, err := loss.Item()
					results = append(results, l)
					return errors.Join(err, loss.Backward())
				}
				if half == 0 {
					err = root.NoSync(pass)
				} else {
					err = pass()
				}
				if err != nil {
					return err
				}
			}
			norm, err := nn.ClipGradNorm_(nn.Parameters(model), 0.5).Item()
			if err := errors.Join(err, opt.Step()); err != nil {
				return err
			}
			results = append(results, norm)
		}
		if w := nn.Parameters(m)[0]; w.Device() != home || w.Grad().Device() != home || model.Shift.Device() != d {
			return fmt.Errorf("rows on %v, their gradient on %v and a buffer on %v", w.Device(), w.Grad().Device(), model.Shift.Device())
		}
		if unused.Weight.Grad() != nil {
			return errors.New("the unused layer has a gradient")
		}
		state, err := dist.FullStateDict(ctx, p.g, model, 0)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(state)) {
			values, err := float64s(state[name])
			if err != nil {
				return err
			}
			results = append(results, values...)
		}
		// What a checkpoint of the ranks has is loaded into other values.
		dir := filepath.Join(os.Getenv("FAKENCCL_DIR"), "checkpoint"+fmt.Sprint(d.Type))
		if err := dcp.Save(ctx, p.g, dir, dcp.State{Shards: dcp.Model("", root)}); err != nil {
			return err
		}
		for _, t := range nn.Parameters(model) {
			before := t.Detach().Clone()
			t.Detach().Zero_()
			defer func() {
				if same, e := before.Equal(t.Detach()); err == nil && (e != nil || !same) {
					err = fmt.Errorf("loaded %v, want %v, %w", t, before, e)
				}
			}()
		}
		err = dcp.Load(ctx, p.g, dir, dcp.State{Shards: dcp.Model("", root)})
		opt.Release()
		return errors.Join(err, root.Close(), block.Close())
	})
	return results, err
}

// tensorParallel compares divided layers on the CPU and on the device.
func tensorParallel(p *part) error {
	return onBoth(p, func(d tensor.Device) ([]float64, error) { return computeParallel(p.g, d) })
}

// computeParallel returns the loss of a model whose layers are divided, and this rank's gradients.
func computeParallel(g *dist.Group, d tensor.Device) (results []float64, err error) {
	on := nn.Device(d)
	sequence, out := dist.InputLayouts(dist.ShardDim(1)), dist.OutputLayouts(dist.ShardDim(1))
	embedding := dist.NewRowwiseParallel(g, filled(d, nn.NewEmbedding(10, 8, on)), out)
	norm := dist.NewSequenceParallel(g, filled(d, nn.NewLayerNorm(8, on)))
	first := dist.NewColwiseParallel(g, filled(d, nn.NewLinear(8, 6, on)), sequence)
	second := dist.NewRowwiseParallel(g, filled(d, nn.NewLinear(6, 8, on)), out)
	head := dist.NewColwiseParallel(g, filled(d, nn.NewLinear(8, 10, nn.NoBias(), on)))
	model := nn.NewSequential(embedding, norm, first, &nn.GELU{}, second)
	ids := tensor.Arange(0, 12, tensor.Int64).Mul(7).Remainder(10).View(3, 4).To(d)
	x := dist.Redistribute(g, model.Forward(ids), dist.ShardDim(1), dist.Replicate())
	weight := wave(d, 3, 10).Abs()
	loss := dist.LossParallel(g, head.Forward(x).Flatten(tensor.EndDim(1)), ids.Flatten(), 10, tensor.Weight(weight), tensor.LabelSmoothing(0.1))
	if err := loss.Backward(); err != nil {
		return nil, err
	}
	l, err := loss.Item()
	if err != nil {
		return nil, err
	}
	results = append(results, l)
	for _, m := range []any{model, head} {
		for _, n := range nn.NamedParameters(m) {
			values, err := float64s(n.Tensor.Grad())
			if err != nil {
				return nil, fmt.Errorf("the gradient of %s: %w", n.Name, err)
			}
			results = append(results, values...)
		}
	}
	return results, nil
}

// pipeline compares training in stages, also in ones that are DDPs, on the CPU and on the devices. What the stages send is
// larger than the buffer of NCCL, so that two ranks that both send first would wait for each other.
func pipeline(p *part) error {
	replicas, err := p.g.NewGroup(context.Background(), []int{p.g.Rank()})
	if err != nil {
		return err
	}
	defer replicas.Close()
	for _, gpipe := range []bool{false, true} {
		for _, of := range []*dist.Group{nil, replicas} {
			if err := onBoth(p, func(d tensor.Device) ([]float64, error) { return trainStages(p.g, of, d, gpipe) }); err != nil {
				return fmt.Errorf("gpipe %v, DDP %v: %w", gpipe, of != nil, err)
			}
		}
	}
	return nil
}

// mixedStages tests that a pipeline with a stage on the CPU and one on a device is an error on both ranks.
func mixedStages(p *part) error {
	d := []tensor.Device{tensor.CPU, p.d}[p.g.Rank()]
	loss := func(y, target *tensor.Tensor) *tensor.Tensor { return y.Sum() }
	pipe, err := dist.NewPipeline(p.g, &nn.ReLU{}, loss, 1, dist.StageDevice(d))
	if err != nil {
		return err
	}
	x := tensor.Ones([]int{1, 1}, d)
	if _, err := pipe.Step(context.Background(), x, x); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "StageDevice") {
		return fmt.Errorf("got %v, want an error that names StageDevice", err)
	}
	return nil
}

// trainStages returns losses and the parameters of this rank's stage at the end. With replicas the stage is a DDP.
func trainStages(g, replicas *dist.Group, d tensor.Device, gpipe bool) (results []float64, err error) {
	const width = 1 << 15
	ctx, on := context.Background(), nn.Device(d)
	stages := [2]nn.Layer{nn.NewLinear(2, width, nn.NoBias(), on), nn.NewLinear(width, 1, on)}
	stage := filled(d, stages[g.Rank()])
	loss := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y.Div(width), target) }
	run := stage
	if replicas != nil {
		ddp, err := dist.NewDDP(ctx, replicas, stage)
		if err != nil {
			return nil, err
		}
		defer ddp.Close()
		run = ddp
	}
	p, err := dist.NewPipeline(g, run, loss, 4, dist.GPipe(gpipe))
	if err != nil {
		return nil, err
	}
	opt, err := optim.NewSGD(nn.Parameters(stage), 0.1)
	if err != nil {
		return nil, err
	}
	defer opt.Release()
	for i := range 3 {
		opt.ZeroGrad()
		l, err := p.Step(ctx, wave(d, i, 8, 2), wave(d, i+1, 8, 1))
		if err := errors.Join(err, opt.Step()); err != nil {
			return nil, err
		}
		results = append(results, l)
	}
	for _, t := range nn.Parameters(stage) {
		sum, err := t.Detach().To(tensor.CPU).To(tensor.Float64).Sum().Item()
		if err != nil {
			return nil, err
		}
		results = append(results, sum)
	}
	return results, nil
}

func trainParallel(ctx context.Context, p *part, d tensor.Device, opts ...dist.DDPOption) (losses []float64, err error) {
	err = tensor.WithScope(func() error {
		m := filled(d, nn.NewSequential(nn.NewLinear(6, 16, nn.Device(d)), &nn.Tanh{}, nn.NewLinear(16, 4, nn.Device(d))))
		ddp, err := dist.NewDDP(ctx, p.g, m, opts...)
		if err != nil {
			return err
		}
		opt, err := optim.NewSGD(nn.Parameters(m), 0.1)
		if err != nil {
			return err
		}
		for i := range 4 {
			opt.ZeroGrad()
			loss := ddp.Forward(wave(d, 3*i+p.g.Rank(), 5, 6)).Square().Mean()
			if err := errors.Join(loss.Backward(), opt.Step()); err != nil {
				return err
			}
			l, err := loss.Item()
			if err != nil {
				return err
			}
			losses = append(losses, l)
		}
		return ddp.Close()
	})
	return losses, err
}

// blames returns an error unless err names the other rank.
func blames(p *part, err error, op string, kind error) error {
	var e *dist.PeerError
	if !errors.As(err, &e) || e.Op != op || kind != nil && !errors.Is(err, kind) || !slices.Equal(e.Ranks, []int{1 - p.g.Rank()}) {
		return fmt.Errorf("got %v, want an error of %s that wraps %v and names the other rank", err, op, kind)
	}
	return nil
}

// begin does a few collectives.
func (p *part) begin() error {
	x := on[float32](p, 1)
	for range 3 {
		if err := p.g.AllReduce(context.Background(), x, dist.Sum); err != nil {
			return err
		}
	}
	return p.g.Barrier(context.Background())
}

func killed(p *part) error {
	if err := p.begin(); err != nil {
		return err
	}
	if p.g.Rank() == 1 {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	x := on[float32](p, 1)
	err := blames(p, p.g.AllReduce(context.Background(), x, dist.Sum), "AllReduce", dist.ErrConnection)
	return errors.Join(err, blames(p, p.g.Barrier(context.Background()), "Barrier", dist.ErrConnection))
}

func killedSender(p *part) error {
	x := on[float32](p, 1)
	if p.g.Rank() == 1 {
		return errors.Join(p.g.Send(context.Background(), x, 0, 0), syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	if err := p.g.Recv(context.Background(), x, 1, 0); err != nil {
		return err
	}
	return blames(p, p.g.Recv(context.Background(), x, 1, 0), "Recv", dist.ErrConnection)
}

func killedInBackward(p *part) error {
	m := nn.NewSequential(nn.NewLinear(6, 16, nn.Device(p.d)), &nn.Tanh{}, nn.NewLinear(16, 4, nn.Device(p.d)))
	ddp, err := dist.NewDDP(context.Background(), p.g, m, dist.BucketCapMB(0.0001))
	if err != nil {
		return err
	}
	for i := range 3 {
		loss := ddp.Forward(tensor.Ones([]int{5, 6}, p.d)).Mean()
		if i == 2 && p.g.Rank() == 1 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if err = loss.Backward(); i == 2 {
			return blames(p, err, "Backward", dist.ErrConnection)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func stopped(p *part) error {
	if err := p.begin(); err != nil {
		return err
	}
	if p.g.Rank() == 1 {
		err := syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Minute) // the signal may arrive after the call
		return err
	}
	return blames(p, p.g.AllReduce(context.Background(), on[float32](p, 1), dist.Sum), "AllReduce", dist.ErrTimeout)
}

// meeting returns a store in which the ranks meet outside of their group.
func meeting() (*dist.Store, error) {
	return dist.NewTCPStore(context.Background(), net.JoinHostPort("127.0.0.1", os.Getenv("MASTER_PORT")), false)
}

// leaves returns a role in which rank 1 begins a collective, ends it by f, after which it has the error kind, and rank 0 names
// it in a collective that it begins afterwards.
func leaves(f func(g *dist.Group) error, kind error) func(p *part) error {
	return func(p *part) error {
		ctx := context.Background()
		if err := p.begin(); err != nil {
			return err
		}
		s, err := meeting()
		if err != nil {
			return err
		}
		defer s.Close()
		x := on[float32](p, 1)
		if p.g.Rank() == 0 {
			if err := s.Wait(ctx, "left"); err != nil {
				return err
			}
			err := p.g.AllReduce(ctx, x, dist.Sum)
			if err == nil && onHardware() { // what rank 1 had to send was on its way
				err = p.g.AllReduce(ctx, x, dist.Sum)
			}
			return blames(p, err, "AllReduce", dist.ErrConnection)
		}
		w, err := p.g.AllReduceAsync(x, dist.Sum)
		if err != nil {
			return err
		}
		err = errors.Join(f(p.g), s.Set("left", nil))
		for _, e := range []error{w.Wait(ctx), p.g.AllReduce(ctx, x, dist.Sum)} {
			if !errors.Is(e, kind) {
				err = errors.Join(err, fmt.Errorf("got %v, want %v", e, kind))
			}
		}
		return err
	}
}

func cancelled(p *part) error {
	if err := p.begin(); err != nil {
		return err
	}
	x := on[float32](p, 1)
	if p.g.Rank() == 1 {
		return blames(p, p.g.Barrier(context.Background()), "Barrier", dist.ErrConnection)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := p.g.AllReduce(ctx, x, dist.Sum); !errors.Is(err, dist.ErrTimeout) {
		return fmt.Errorf("got %v", err)
	}
	return nil
}

// cancelledAtFirst tests a context that ends while NCCL connects.
func cancelledAtFirst(p *part) error {
	if p.g.Rank() == 1 {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if err := p.g.AllReduce(ctx, on[float32](p, 1), dist.Sum); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	}
	return blames(p, p.g.Barrier(context.Background()), "Barrier", dist.ErrConnection)
}

// kernelFails tests an error of NCCL while a collective is in flight.
func kernelFails(p *part) error {
	if err := p.begin(); err != nil {
		return err
	}
	const remote = 6 // ncclRemoteError
	if p.g.Rank() == 0 {
		if err := p.control.AddRule(Rule{Function: "ncclKernel", Device: -1, Times: 1, Error: remote}); err != nil {
			return err
		}
	}
	x := on[float32](p, 1)
	err := p.g.AllReduce(context.Background(), x, dist.Sum)
	var peer *dist.PeerError
	if !errors.As(err, &peer) || !errors.Is(err, dist.ErrConnection) {
		return fmt.Errorf("got %v, want a *PeerError", err)
	}
	return nil
}

// callFails tests an error of NCCL that no other rank has caused, and that the group goes on.
func callFails(p *part) error {
	if err := p.begin(); err != nil {
		return err
	}
	const invalid = 5 // ncclInvalidUsage
	err := p.control.AddRule(Rule{Function: "ncclAllReduce", Device: -1, Times: 1, Error: invalid})
	if err != nil {
		return err
	}
	x := on(p, float32(p.g.Rank()))
	if err := p.g.AllReduce(context.Background(), x, dist.Sum); err == nil || errors.Is(err, dist.ErrConnection) || !strings.Contains(err.Error(), "NCCL") {
		return fmt.Errorf("got %v", err)
	}
	return errors.Join(p.g.AllReduce(context.Background(), x, dist.Sum), has[float32]("sum", x, 1))
}
