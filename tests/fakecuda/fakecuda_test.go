package fakecuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Each test runs its scenario in a new process of this binary over the fake libraries: a process loads libtorch
// only once, and a lost device stays lost.
const childEnv = "FAKECUDA_TEST_CHILD"

var scenarios = map[string]func(*Control) error{
	"devices": devices, "train": train, "convolve": convolve, "recur": recur, "flatten": flatten, "scatter": scatter, "capacity": capacity, "limit": limit, "empty": empty,
	"allocations": allocations, "sticky": sticky, "async": async, "library": library, "first": first, "once": once,
	"cpu": cpuOnly, "uncached": uncached, "expandable": train, "slow": slow, "history": history, "pressure": pressure,
	"threads": threads, "fragments": fragments, "capturing": capturing, "checkpoint": recompute,
	"rank": rank, "options": options, "settings": settings, "losing": losing, "split": split, "threshold": threshold, "generators": generators, "elsewhere": elsewhere, "forked": forked,
	"numbers": numbers, "besides": besides, "beginning": beginning, "indices": indices, "occupied": occupied, "unsampled": unsampled, "refused": refused,
	"lacking": lacking, "moved": moved, "held": held,
}

func TestMain(m *testing.M) {
	name := os.Getenv(childEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	c, err := Open(os.Getenv("FAKECUDA_CONTROL"), 2, 1<<30)
	if err == nil {
		err = scenarios[name](c)
	}
	if err == nil {
		err = c.Misuse()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// environment builds the fake libraries once and returns the environment of a process that uses them.
var environment = sync.OnceValues(func() ([]string, error) {
	switch os.Getenv("LINSTOCK_TEST_FAKECUDA") {
	case "1":
		return Setup()
	case "here":
		return []string{}, nil
	}
	return nil, nil
})

// built lets t run in parallel, and returns the environment in which a process uses the fakes.
func built(t *testing.T) []string {
	t.Helper()
	t.Parallel()
	env, err := environment()
	if err != nil {
		t.Fatal(err)
	}
	if env == nil {
		t.Skip("builds libraries: run it with LINSTOCK_TEST_FAKECUDA=1, or tests/run.sh fakecuda")
	}
	return env
}

// run runs a scenario in its own process, which must succeed and exit by itself.
func run(t *testing.T, name string, devices int, capacity int64, extra ...string) {
	t.Helper()
	env := built(t)
	control := filepath.Join(t.TempDir(), "control")
	c, err := Open(control, devices, capacity)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(append(os.Environ(), env...), childEnv+"="+name, "GOTRACEBACK=none", "FAKECUDA_CONTROL="+control), extra...)
	if out, err := cmd.CombinedOutput(); err != nil {
		if len(out) > 6000 {
			out = append(out[:3000:3000], out[len(out)-3000:]...)
		}
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestDevices(t *testing.T)  { run(t, "devices", 3, 1<<30) }
func TestNumbers(t *testing.T)  { run(t, "numbers", 1, 1<<30) }
func TestIndices(t *testing.T)  { run(t, "indices", 1, 1<<30) }
func TestMoved(t *testing.T)    { run(t, "moved", 1, 1<<30) }
func TestTraining(t *testing.T) { run(t, "train", 2, 1<<30) }
func TestExpandable(t *testing.T) {
	run(t, "expandable", 2, 1<<30, "PYTORCH_ALLOC_CONF=expandable_segments:True")
}
func TestConvolution(t *testing.T) {
	run(t, "convolve", 1, 4<<30)
}
func TestRecurrent(t *testing.T) { run(t, "recur", 1, 4<<30) }
func TestRecurrentWithoutCuDNN(t *testing.T) {
	run(t, "recur", 1, 4<<30, "LINSTOCK_CUDNN=0")
}
func TestFlatWeights(t *testing.T) { run(t, "flatten", 2, 4<<30) }
func TestFlatWeightsWithoutCuDNN(t *testing.T) {
	run(t, "scatter", 1, 4<<30, "LINSTOCK_CUDNN=0")
}
func TestCapacity(t *testing.T)   { run(t, "capacity", 2, 64<<20) }
func TestOccupied(t *testing.T)   { run(t, "occupied", 1, 1<<30) }
func TestLacking(t *testing.T)    { run(t, "lacking", 2, 1<<30) }
func TestRefused(t *testing.T)    { run(t, "refused", 1, 1<<30) }
func TestLimit(t *testing.T)      { run(t, "limit", 2, 1<<30) }
func TestEmptyCache(t *testing.T) { run(t, "empty", 2, 1<<30) }
func TestFailedAllocation(t *testing.T) {
	run(t, "allocations", 1, 1<<30)
}
func TestFailedAllocationUncached(t *testing.T) {
	run(t, "allocations", 1, 1<<30, "PYTORCH_NO_CUDA_MEMORY_CACHING=1")
}
func TestUncached(t *testing.T)  { run(t, "uncached", 2, 64<<20, "PYTORCH_NO_CUDA_MEMORY_CACHING=1") }
func TestSlow(t *testing.T)      { run(t, "slow", 1, 1<<30) }
func TestPressure(t *testing.T)  { run(t, "pressure", 2, 64<<20) }
func TestFragments(t *testing.T) { run(t, "fragments", 1, 1<<30) }
func TestHeld(t *testing.T)      { run(t, "held", 1, 1<<30) }
func TestCapturing(t *testing.T) { run(t, "capturing", 2, 64<<20) }
func TestOneError(t *testing.T)  { run(t, "once", 1, 1<<30) }
func TestFirstCallFails(t *testing.T) {
	for _, function := range []string{"cudaGetDeviceProperties", "cudaMemGetInfo", "cudaMalloc"} {
		for _, e := range []int{46, 719, 999} {
			t.Run(fmt.Sprintf("%s/%d", function, e), func(t *testing.T) {
				run(t, "first", 2, 1<<30, "FIRST="+function, "ERROR="+strconv.Itoa(e))
			})
		}
	}
}

func TestStickyError(t *testing.T) {
	// Each process loses as many devices as it can, so that together they cover every call of a step.
	offsets := 2
	if n, err := strconv.Atoi(os.Getenv("FAKECUDA_OFFSETS")); err == nil {
		offsets = n
	}
	for _, e := range []int{46, 700, 719, 999} {
		for offset := range offsets {
			t.Run(fmt.Sprintf("%d/%d", e, offset), func(t *testing.T) {
				run(t, "sticky", 8, 1<<30, "ERROR="+strconv.Itoa(e), "OFFSET="+strconv.Itoa(offset))
			})
		}
	}
}

func TestAsyncError(t *testing.T)   { run(t, "async", 2, 1<<30) }
func TestLibraryError(t *testing.T) { run(t, "library", 2, 1<<30) }

// TestThreads makes the start of the engine's threads fail. The engine has one for each device.
func TestThreads(t *testing.T) {
	library := filepath.Join(t.TempDir(), "threads.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, "src/threads.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, which := range []string{"0:1", "1:1", "0:100", "1:100"} {
		t.Run(which, func(t *testing.T) { run(t, "threads", 2, 1<<30, "LD_PRELOAD="+library, "FAKE_THREADS="+which) })
	}
}

func TestWithoutDriver(t *testing.T)  { run(t, "cpu", 1, 1<<30, "LD_LIBRARY_PATH=") }
func TestWithoutDevices(t *testing.T) { run(t, "cpu", 0, 1<<30) }
func TestSwitchedOff(t *testing.T)    { run(t, "cpu", 1, 1<<30, "LINSTOCK_CUDA=0") }

func word(d tensor.Device) int32 { return cshim.DeviceWord(int32(d.Type), d.Index) }

func devices(*Control) error {
	got, err := tensor.Devices()
	if err != nil {
		return err
	}
	want := []tensor.Device{tensor.CPU, tensor.CUDA(0), tensor.CUDA(1), tensor.CUDA(2)}
	if !slices.Equal(got, want) {
		return fmt.Errorf("devices: got %v, want %v", got, want)
	}
	if n, why := cshim.CUDA(); n != 3 || why != "" {
		return fmt.Errorf("CUDA: %d, %q", n, why)
	}
	if x := tensor.Zeros([]int{2}, tensor.CUDA(3)); !errors.Is(x.Err(), tensor.ErrArgument) {
		return fmt.Errorf("a device that is not there: %v", x.Err())
	}
	for _, d := range want[1:] {
		x := tensor.FromSlice([]float32{1, 2, 3}, []int{3}, d)
		back, err := tensor.Data[float32](x)
		if err != nil || !slices.Equal(back, []float32{1, 2, 3}) {
			return fmt.Errorf("%s: there and back: %v, %w", d, back, err)
		}
		x.Release()
	}
	return nil
}

func cpuOnly(*Control) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	n, why := cshim.CUDA()
	if n != 0 || why == "" {
		return fmt.Errorf("CUDA: %d, %q", n, why)
	}
	got, err := tensor.Devices()
	if err != nil || !slices.Equal(got, []tensor.Device{tensor.CPU}) {
		return fmt.Errorf("devices: %v, %w", got, err)
	}
	if err := tensor.Zeros([]int{2}, tensor.CUDA(0)).Err(); err == nil || !strings.Contains(err.Error(), why) {
		return fmt.Errorf("a tensor on a device that is not there: %w, which must say %q", err, why)
	}
	return tensor.Ones([]int{2}).Add(tensor.Ones([]int{2})).Err()
}

// An mlp is a model with its optimizer on one device.
type mlp struct {
	net    *nn.Sequential
	opt    *optim.Optimizer
	device tensor.Device
}

func newMLP(d tensor.Device) (*mlp, error) {
	m := &mlp{net: nn.NewSequential(), device: d}
	for i, sizes := range [][2]int{{32, 64}, {64, 64}, {64, 10}} {
		if i > 0 {
			m.net.Layers = append(m.net.Layers, &nn.ReLU{})
		}
		m.net.Layers = append(m.net.Layers, nn.NewLinear(sizes[0], sizes[1], nn.Device(d)))
	}
	var err error
	m.opt, err = optim.NewAdamW(nn.Parameters(m.net), 1e-3)
	return m, err
}

// step is one training step. Batch sizes vary what is allocated.
func (m *mlp) step(batch int) error {
	return tensor.WithScope(func() error {
		x := tensor.Randn([]int{batch, 32}, m.device)
		y := tensor.Zeros([]int{batch}, tensor.Int64, m.device)
		loss := nn.CrossEntropy(m.net.Forward(x), y)
		if err := loss.Backward(); err != nil {
			return err
		}
		if err := m.opt.Step(); err != nil {
			return err
		}
		m.opt.ZeroGrad()
		_, err := loss.Item()
		return err
	})
}

func (m *mlp) release() {
	m.opt.Release()
	nn.Release(m.net)
}

func stats(d tensor.Device) (cshim.Memory, error) {
	tensor.Flush()
	return cshim.MemoryStats(word(d))
}

// settled waits until the engine's threads have released what a failed backward pass left.
func settled(d tensor.Device, want int64) error {
	return settledTo(func() (int64, error) {
		m, err := stats(d)
		return m.Allocated, err
	}, want)
}

func settledTo(live func() (int64, error), want int64) error {
	for round := 0; ; round++ {
		now, err := live()
		if err != nil || now == want {
			return err
		}
		if round == 100 {
			return fmt.Errorf("%d bytes are allocated, %d were before", now, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// numbers: the operators for which libtorch checks that all tensors are on one device take Go numbers, which count as
// numbers in type promotion.
func numbers(*Control) error {
	d := tensor.CUDA(0)
	x, half, n := tensor.Ones([]int{3}, d), tensor.Ones([]int{3}, d, tensor.BFloat16), tensor.Ones([]int{3}, d, tensor.Int64)
	called, err := tensor.Call("aten::clamp.Tensor", x, 0.5)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		got  *tensor.Tensor
		want tensor.DType
	}{
		{"ClampMin", half.ClampMin(0.5), tensor.BFloat16}, {"ClampMax", n.ClampMax(2), tensor.Int64}, {"ClampMax of int64", n.ClampMax(0.5), tensor.Float32},
		{"ClampMin_", x.ClampMin_(2), tensor.Float32}, {"ClampMax_", half.ClampMax_(2), tensor.BFloat16}, {"GCD", n.GCD(2), tensor.Int64},
		{"GCD_", n.GCD_(2), tensor.Int64}, {"LCM", n.LCM(2), tensor.Int64}, {"LCM_", n.LCM_(2), tensor.Int64}, {"Ldexp", x.Ldexp(2), tensor.Float32},
		{"LogAddExp", half.LogAddExp(2), tensor.BFloat16}, {"LogAddExp2", x.LogAddExp2(2), tensor.Float32},
		{"aten::clamp.Tensor", called[0].(*tensor.Tensor), tensor.Float32},
	} {
		if err := c.got.Err(); err != nil || c.got.DType() != c.want || c.got.Device() != d {
			return fmt.Errorf("%s: %v on %v, %w", c.what, c.got.DType(), c.got.Device(), err)
		}
	}
	return nil
}

// moved: distributions move a total count and a value to the device of their parameters where PyTorch's do.
func moved(*Control) error {
	d := tensor.CUDA(0)
	here, there := tensor.Full([]int{2}, 3.0), tensor.Full([]int{2}, 0.5, d)
	off := distributions.ValidateArgs(false)
	for what, got := range map[string]*tensor.Tensor{
		"Binomial":         distributions.NewBinomial(here, distributions.Probs(there), off).Mean(),
		"NegativeBinomial": distributions.NewNegativeBinomial(here, distributions.Logits(there), off).Mean(),
		"HalfCauchy":       distributions.NewHalfCauchy(there, off).LogProb(here),
		"Gamma":            distributions.NewGamma(there, there, off).LogProb(here),
	} {
		if err := got.Err(); err != nil || got.Device() != d {
			return fmt.Errorf("%s: a result on %v, %w", what, got.Device(), err)
		}
	}
	return nil
}

// indices: those that are not on the device are checked before the kernel, which would end the use of the device.
func indices(*Control) error {
	x := tensor.Zeros([]int{2, 3}, tensor.CUDA(0))
	var errs []error
	for _, idx := range []any{[]int{2}, []int{0, -3}, "[0, 5]", "[[0, 1], [1, 3]]", "..., [3]", tensor.FromSlice([]int32{2}, nil)} {
		for _, err := range []error{x.Index(idx).Err(), x.SetIndex(idx, 1)} {
			if !errors.Is(err, tensor.ErrIndex) || !strings.Contains(err.Error(), "out of bounds") {
				errs = append(errs, fmt.Errorf("%v: got %w, want an ErrIndex", idx, err))
			}
		}
	}
	if y := x.Index("[1, -2], [[0], [2]]"); y.Err() != nil || !slices.Equal(y.Shape(), []int{2, 2}) {
		errs = append(errs, fmt.Errorf("indices within the bounds: %v, %w", y.Shape(), y.Err()))
	}
	return errors.Join(errs...)
}

func train(c *Control) error {
	for i := range 2 {
		d := tensor.CUDA(i)
		// libtorch keeps cuBLAS's workspace from its first use on.
		m, err := newMLP(d)
		if err != nil {
			return err
		}
		if err := m.step(64); err != nil {
			return err
		}
		m.release()
		base, err := stats(d)
		if err != nil {
			return err
		}
		if m, err = newMLP(d); err != nil {
			return err
		}
		for range 20 {
			if err := m.step(64); err != nil {
				return fmt.Errorf("%s: %w", d, err)
			}
		}
		now, err := stats(d)
		if err != nil {
			return err
		}
		if now.Allocated <= base.Allocated || now.Reserved != c.Live(i) || now.Allocations <= base.Allocations || c.Launches(i) == 0 {
			return fmt.Errorf("%s: %+v after %+v; the device says %d bytes, %d kernels", d, now, base, c.Live(i), c.Launches(i))
		}
		m.release()
		if err := settled(d, base.Allocated); err != nil {
			return err
		}
	}
	return nil
}

// convolve trains a model with convolution, batch norm, pooling and a GRU through the fake cuDNN.
func convolve(*Control) error {
	d := tensor.CUDA(0)
	conv := nn.NewConv2d(3, 8, 3, nn.Device(d), nn.Padding(1))
	norm := nn.NewBatchNorm2d(8, nn.Device(d))
	opt, err := optim.NewAdamW(append(nn.Parameters(conv), nn.Parameters(norm)...), 1e-3)
	if err != nil {
		return err
	}
	for range 3 {
		err := tensor.WithScope(func() error {
			x := tensor.Randn([]int{4, 3, 16, 16}, d)
			h := norm.Forward(conv.Forward(x)).ReLU()
			if err := h.Sum().Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			opt.ZeroGrad()
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// recur trains a GRU on libtorch's own kernels, since the fake does not implement cuDNN's layout of weights.
func recur(*Control) error {
	d := tensor.CUDA(0)
	var weights []*tensor.Tensor
	for _, shape := range [][]int{{48, 8}, {48, 16}, {48}, {48}} {
		weights = append(weights, tensor.Randn(shape, d).RequiresGrad_())
	}
	opt, err := optim.NewAdamW(weights, 1e-3)
	if err != nil {
		return err
	}
	for range 3 {
		err := tensor.WithScope(func() error {
			y, _ := tensor.Randn([]int{5, 4, 8}, d).GRU(tensor.Zeros([]int{1, 4, 16}, d), weights, tensor.Train(true))
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			return opt.Step()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// recurrents are the recurrent layers that flatten uses.
var recurrents = map[string]func(opts ...nn.Option) nn.Layer{
	"RNN": func(o ...nn.Option) nn.Layer { return nn.NewRNN(8, 16, o...) },
	"RNN with ReLU": func(o ...nn.Option) nn.Layer {
		return nn.NewRNN(8, 16, append(o, nn.Activation("relu"), nn.NoBias())...)
	},
	"GRU": func(o ...nn.Option) nn.Layer {
		return nn.NewGRU(8, 16, append(o, nn.NumLayers(2), nn.Bidirectional())...)
	},
	"LSTM": func(o ...nn.Option) nn.Layer { return nn.NewLSTM(16, 16, append(o, nn.NumLayers(3))...) },
	"LSTM, projected": func(o ...nn.Option) nn.Layer {
		return nn.NewLSTM(8, 16, append(o, nn.ProjSize(4), nn.NumLayers(2), nn.Bidirectional())...)
	},
	"LSTM, projected, no bias": func(o ...nn.Option) nn.Layer {
		return nn.NewLSTM(8, 16, append(o, nn.ProjSize(4), nn.NumLayers(2), nn.NoBias())...)
	},
}

// storages returns the number of storages of m's parameters.
func storages(m any) (n int) {
	all := nn.Parameters(m)
	for i, p := range all {
		if !slices.ContainsFunc(all[:i], p.SharesStorage) {
			n++
		}
	}
	return n
}

// copies returns copies of m's parameters by their names, in storages of their own.
func copies(m any) map[string]*tensor.Tensor {
	all := map[string]*tensor.Tensor{}
	for _, n := range nn.StateDict(m) {
		all[n.Name] = n.Tensor.Detach().Clone()
	}
	return all
}

// flatten: on CUDA the weights of a recurrent layer are one buffer, however they came there, with the same values, and
// a pass does not copy them. It frees what they were in before.
func flatten(*Control) error {
	d := tensor.CUDA(1)
	base, err := stats(d)
	if err != nil {
		return err
	}
	for name, of := range recurrents {
		m, moved := of(nn.Device(d)), of()
		n, values := len(nn.Parameters(moved)), nn.Clone(moved)
		check := func(what string, m any, want int) error {
			if got := storages(m); got != want || len(nn.Parameters(m)) != n {
				return fmt.Errorf("%s, %s: the weights are in %d storages, want %d: %w", name, what, got, want, nn.Check(m))
			}
			return nil
		}
		handles := nn.Parameters(moved)
		c := nn.Clone(m)
		empty, err := nn.SkipInit(func(o nn.Option) nn.Layer { return of(o) }, d)
		if err := errors.Join(err, check("made", m, 1), check("a copy", c, 1), check("without values", empty, 1), check("on the CPU", moved, n)); err != nil {
			return err
		}
		if nn.Parameters(c)[0].SharesStorage(nn.Parameters(m)[0]) {
			return fmt.Errorf("%s: a copy shares the weights", name)
		}
		for _, to := range []struct {
			option tensor.Option
			want   int
		}{{d, 1}, {d, 1}, {tensor.Float64, 1}, {tensor.Float16, 1}, {tensor.CPU, n}} {
			if err := errors.Join(nn.To(c, to.option), check(fmt.Sprint(to.option), c, to.want)); err != nil {
				return err
			}
		}
		if err := errors.Join(nn.To(moved, d), check("moved", moved, 1)); err != nil {
			return err
		}
		if !slices.Equal(nn.Parameters(moved), handles) || !handles[0].RequiresGrad() || !handles[0].IsLeaf() {
			return fmt.Errorf("%s: the parameters are others", name)
		}
		// In one buffer the weights take as much as the device's allocator rounds it to.
		for _, other := range []any{m, c, empty} {
			nn.Release(other)
		}
		if err := settled(d, base.Allocated+int64(handles[0].StorageBytes()+511)&^511); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		err = tensor.WithScope(func() error {
			for i, v := range nn.Parameters(values) {
				if same, err := v.Equal(handles[i].Detach().To(tensor.CPU)); err != nil || !same {
					return fmt.Errorf("%s: weight %d has other values: %w", name, i, err)
				}
			}
			// A state that is assigned stays where it is.
			return errors.Join(nn.LoadStateDict(moved, copies(moved), nn.Assign(true)), check("assigned", moved, n))
		})
		if err := errors.Join(err, nn.To(moved, d), check("assigned and moved", moved, 1)); err != nil {
			return err
		}
		for _, t := range handles {
			t.Release()
		}
		nn.Release(moved)
		nn.Release(values)
		if err := settled(d, base.Allocated); err != nil {
			return fmt.Errorf("%s, released: %w", name, err)
		}
	}
	tied := nn.NewLSTM(16, 16, nn.Device(d))
	tied.Weights[1].Tensor = tied.Weights[0].Tensor
	if err := nn.To(tied, tensor.Float64); err != nil || tied.Weights[0].Tensor.SharesStorage(tied.Weights[2].Tensor) {
		return fmt.Errorf("tied weights are flat: %w", err)
	}
	nn.Release(tied)
	return passes(d)
}

// passes compares the memory of a pass over weights in one buffer and apart.
func passes(d tensor.Device) error {
	flat := nn.NewLSTM(256, 256, nn.Device(d))
	apart := nn.Clone(flat)
	defer nn.Release(flat)
	defer func() { nn.Release(apart) }()
	if err := tensor.WithScope(func() error { return nn.LoadStateDict(apart, copies(apart), nn.Assign(true)) }); err != nil {
		return err
	}
	peak := func(m *nn.LSTM) (int64, error) {
		return vram.Measure(d, func() error {
			return tensor.WithScope(func() error {
				y, _, _ := m.ForwardState(tensor.Zeros([]int{1, 1, 256}, d), nil, nil)
				return y.Err()
			})
		})
	}
	one, err1 := peak(flat)
	many, err2 := peak(apart)
	if whole := int64(flat.Weights[0].Tensor.StorageBytes()); one > whole/4 || many < whole {
		return fmt.Errorf("a pass over weights of %d bytes takes %d, and %d if they are apart: %w", whole, one, many, errors.Join(err1, err2))
	}
	return errors.Join(err1, err2)
}

// scatter: without cuDNN the weights of a recurrent layer stay where they are.
func scatter(*Control) error {
	for name, of := range recurrents {
		m := of(nn.Device(tensor.CUDA(0)))
		if err := nn.To(m, tensor.Float64); err != nil || storages(m) != len(nn.Parameters(m)) {
			return fmt.Errorf("%s: the weights are in %d storages: %w", name, storages(m), err)
		}
	}
	return nil
}

// capacity: a full device is an error, and the program continues.
func capacity(c *Control) error {
	d := tensor.CUDA(1)
	m, err := newMLP(d)
	if err != nil {
		return err
	}
	if err := m.step(64); err != nil {
		return err
	}
	base, err := stats(d)
	if err != nil {
		return err
	}
	for range 3 {
		x := tensor.Zeros([]int{32 << 20}, d)
		if !errors.Is(x.Err(), tensor.ErrOutOfMemory) {
			return fmt.Errorf("128 MiB of 64: %v", x.Err())
		}
		if err := m.step(1 << 20); !errors.Is(err, tensor.ErrOutOfMemory) {
			return fmt.Errorf("a step that does not fit: %v", err)
		}
		m.opt.ZeroGrad()
		if err := m.step(64); err != nil {
			return fmt.Errorf("a step that fits: %w", err)
		}
		if err := settled(d, base.Allocated); err != nil {
			return err
		}
	}
	if c.Peak(1) > 64<<20 {
		return fmt.Errorf("peak %d", c.Peak(1))
	}
	return nil
}

// occupied: the error of an allocation on a device that others have filled says so.
func occupied(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Zeros([]int{8 << 20}, tensor.Uint8, d)
	if x.Err() != nil {
		return x.Err()
	}
	c.Occupy(0, 700<<20)
	var e *vram.OutOfMemoryError
	err := tensor.Zeros([]int{512 << 20}, tensor.Uint8, d).Err()
	if !errors.As(err, &e) || e.Other < 700<<20 || !strings.Contains(err.Error(), "MiB of the 1.0 GiB are in use by other processes") {
		return fmt.Errorf("got %w", err)
	}
	c.Occupy(0, -700<<20)
	err = tensor.Zeros([]int{1<<30 + 1}, tensor.Uint8, d).Err()
	if !errors.As(err, &e) || strings.Contains(err.Error(), "other processes") {
		return fmt.Errorf("when no other process runs: %w", err)
	}
	return nil
}

// refused: the error of a backward pass that the limit refuses has the device and the bytes, not those of an earlier
// failure.
func refused(*Control) error {
	d := tensor.CUDA(0)
	const mib = 1 << 20
	for _, earlier := range []bool{false, true} {
		err := tensor.WithScope(func() error {
			x := tensor.Zeros([]int{8 * mib}, d).RequiresGrad_()
			loss := x.Exp().Sum()
			if earlier {
				if err := tensor.Zeros([]int{2 << 30}, tensor.Uint8, d).Err(); !errors.Is(err, tensor.ErrOutOfMemory) {
					return fmt.Errorf("2 GiB of 1: %v", err)
				}
			}
			m, err := stats(d)
			if err != nil {
				return err
			}
			if err := vram.SetLimit(d, vram.Bytes(m.Allocated+mib)); err != nil {
				return err
			}
			var oom *vram.OutOfMemoryError
			if err := loss.Backward(); !errors.As(err, &oom) || oom.Device != "cuda:0" || oom.Asked != 32*mib {
				return fmt.Errorf("the pass: %w", err)
			}
			return vram.SetLimit(d, vram.Unlimited())
		})
		if err != nil {
			return fmt.Errorf("after an earlier failure %v: %w", earlier, err)
		}
	}
	return nil
}

// lacking: the error of a call that is not the allocator's names the operands' device and the call, and its event is in
// that device's history.
func lacking(c *Control) error {
	d := tensor.CUDA(1)
	x := tensor.Ones([]int{8}, d).RequiresGrad_()
	loss := x.Exp().Sum()
	if err := errors.Join(loss.Err(), vram.RecordHistory(100)); err != nil {
		return err
	}
	if err := c.AddRule(Rule{Function: Launch, Device: 1, Times: Forever, Error: 2}); err != nil {
		return err
	}
	const says = "out of memory on cuda:1: CUDA error: out of memory;"
	for _, err := range []error{x.Add(x).Err(), loss.Backward()} {
		var e *vram.OutOfMemoryError
		if !errors.As(err, &e) || e.Device != "cuda:1" || e.Asked != 0 || e.Capacity != 1<<30 || !strings.Contains(err.Error(), says) {
			return fmt.Errorf("got %w, want %q", err, says)
		}
	}
	c.ClearRules()
	_, traces, _, err := readSnapshot()
	if err != nil {
		return err
	}
	var events [3]int // of the two devices and the CPU
	for i, trace := range traces {
		for _, e := range trace {
			if e.get("action") == "oom" {
				events[i]++
			}
		}
	}
	if want := [3]int{0, 2, 0}; events != want {
		return fmt.Errorf("out-of-memory events %v, want %v", events, want)
	}
	return vram.RecordHistory(0)
}

// limit: a limit that is set before the first use applies from then on and can be changed.
func limit(c *Control) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	d := tensor.CUDA(0)
	for _, mib := range []int{16, 100, 24} {
		if err := cshim.MemorySetLimit(word(d), int64(mib)<<20); err != nil {
			return err
		}
		if mib == 16 && c.Calls() > 100 {
			return fmt.Errorf("a limit on a device that is not in use took %d calls", c.Calls())
		}
		x := tensor.Zeros([]int{mib << 20}, tensor.Uint8, d)
		if x.Err() != nil {
			return fmt.Errorf("%d MiB within the limit: %w", mib, x.Err())
		}
		y := tensor.Zeros([]int{2 << 20}, tensor.Uint8, d)
		if !errors.Is(y.Err(), tensor.ErrOutOfMemory) {
			return fmt.Errorf("beyond %d MiB: %v", mib, y.Err())
		}
		x.Release()
		tensor.Flush()
		if err := cshim.MemoryEmptyCache(word(d)); err != nil {
			return err
		}
	}
	return nil
}

// fragments: a limit is compared with live bytes. Unused parts of libtorch's segments do not count, even where
// they would leave no room for new segments.
func fragments(c *Control) error {
	d := tensor.CUDA(0)
	const mib, limit = 1 << 20, 64
	if err := vram.SetLimit(d, vram.Bytes(limit*mib)); err != nil {
		return err
	}
	ask := func(n int) *tensor.Tensor { return tensor.Empty([]int{n * mib}, tensor.Uint8, d) }
	var held []*tensor.Tensor
	for range 18 { // 6 in each segment of 20 MiB
		x := ask(3)
		if x.Err() != nil {
			return x.Err()
		}
		held = append(held, x)
		defer x.Release()
	}
	for i, x := range held {
		if i%6 != 0 {
			x.Release()
		}
	}
	tensor.Flush()
	for range 3 {
		x := ask(40)
		if x.Err() != nil {
			return fmt.Errorf("40 MiB beside 9 of %d: %w", limit, x.Err())
		}
		m, err := stats(d)
		if err != nil || m.Requested != 49*mib || m.Reserved <= limit*mib {
			return fmt.Errorf("%d requested, %d reserved, %w", m.Requested, m.Reserved, err)
		}
		var oom *vram.OutOfMemoryError
		if err := ask(16).Err(); !errors.As(err, &oom) || oom.Asked != 16*mib { // fits in a segment
			return fmt.Errorf("16 MiB beside 49 of %d: %w", limit, err)
		}
		y := ask(15)
		if y.Err() != nil {
			return fmt.Errorf("15 MiB beside 49 of %d: %w", limit, y.Err())
		}
		y.Release()
		x.Release()
		tensor.Flush()
		if err := vram.EmptyCache(d); err != nil {
			return err
		}
		if m, err := stats(d); err != nil || m.Reserved > limit*mib {
			return fmt.Errorf("%d bytes are still reserved after all were freed: %w", m.Reserved, err)
		}
	}
	// When the device itself is full, the error contains the size of the request.
	if err := c.AddRule(Rule{Function: Alloc, Device: -1, Times: Forever, Error: 2}); err != nil {
		return err
	}
	defer c.ClearRules()
	// The same after an error has kept libtorch's limit from being reset.
	if err := c.AddRule(Rule{Function: "cudaGetDeviceProperties", Device: -1, Skip: 1, Times: 1, Error: 719}); err != nil {
		return err
	}
	for range 2 {
		var oom *vram.OutOfMemoryError
		if err := ask(40).Err(); !errors.As(err, &oom) || oom.Asked != 40*mib {
			return fmt.Errorf("40 MiB of a device that has none: %w", err)
		}
		// 51 MiB of the segments are free, 17 MiB of them contiguous.
		for _, want := range []string{"of the cached bytes outside the largest block", "vram.ExpandableSegments"} {
			if oom.Fragmentation < 0.5 || oom.Fragmentation > 0.8 || !strings.Contains(oom.Error(), want) {
				return fmt.Errorf("the fragmentation is %.2f; %q is to stand in %w", oom.Fragmentation, want, oom)
			}
		}
	}
	if n := c.Seen(1); n < 2 {
		return fmt.Errorf("the device's properties were queried %d times", n)
	}
	return nil
}

// held: the allocator holds no more than the limit after an error has ended an attempt to allocate past it.
func held(c *Control) error {
	d := tensor.CUDA(0)
	const mib, limit = 1 << 20, 64
	ask := func(n int) error {
		x := tensor.Empty([]int{n * mib}, tensor.Uint8, d)
		defer tensor.Flush()
		defer x.Release()
		return x.Err()
	}
	if err := errors.Join(ask(1), vram.EmptyCache(d), vram.SetLimit(d, vram.Bytes(limit*mib))); err != nil {
		return err
	}
	// The device has no memory, and then no properties, so that libtorch's limit cannot be raised.
	err := errors.Join(c.AddRule(Rule{Function: Alloc, Device: -1, Times: Forever, Error: 2}),
		c.AddRule(Rule{Function: "cudaGetDeviceProperties", Device: -1, Times: 1, Error: 719}))
	if err != nil {
		return err
	}
	err = ask(40)
	c.ClearRules()
	// EmptyCache sets libtorch's limit again. 40 MiB are cached when 50 are asked for.
	err = errors.Join(expect("40 MiB of a device that has none", err, tensor.ErrDevice), vram.EmptyCache(d), ask(40), ask(50))
	if err != nil {
		return err
	}
	if m, err := stats(d); err != nil || m.Reserved > limit*mib {
		return fmt.Errorf("%d bytes are reserved at a limit of %d MiB; %w", m.Reserved, limit, err)
	}
	return nil
}

func empty(c *Control) error {
	for i := range 2 {
		d := tensor.CUDA(i)
		x := tensor.Zeros([]int{1 << 20}, d)
		y := x.Add(x)
		if y.Err() != nil {
			return y.Err()
		}
		x.Release()
		y.Release()
		if now, err := stats(d); err != nil || now.Allocated != 0 || now.Reserved == 0 || now.Cached != now.Reserved {
			return fmt.Errorf("%+v, %w", now, err)
		}
		if err := cshim.MemoryEmptyCache(word(d)); err != nil {
			return err
		}
		if c.Live(i) != 0 {
			return fmt.Errorf("%d bytes are left on %s", c.Live(i), d)
		}
	}
	return relieve(c)
}

// relieve: an allocation that fails for lack of memory empties the cache, unless the limit refused it: the
// limit does not count cached blocks.
func relieve(c *Control) error {
	const mib = 1 << 20
	d := tensor.CUDA(0)
	if err := vram.SetLimit(d, vram.Bytes(64*mib)); err != nil {
		return err
	}
	keep := func() (int64, error) {
		x := tensor.Zeros([]int{8 * mib}, tensor.Uint8, d)
		defer tensor.Flush()
		defer x.Release()
		return c.Live(0), x.Err()
	}
	for _, test := range []struct {
		device int32
		asked  int64
		stays  bool
	}{
		{word(d), 64*mib + 1, true},            // refused by the limit
		{word(d), 64 * mib, false},             // granted by the limit
		{word(tensor.CUDA(1)), 64 * mib, true}, // a failure of another device
		{0, 0, false},                          // a failure of an unknown device
	} {
		before, err := keep()
		if err != nil {
			return err
		}
		want := before
		if !test.stays {
			want = 0
		}
		progress := reclaim.Relieve(test.device, test.asked)
		if now := c.Live(0); before == 0 || now != want || progress == test.stays {
			return fmt.Errorf("%+v: %d bytes of the device before, %d after, progress %v", test, before, now, progress)
		}
	}
	// An operator that the limit refuses leaves the cache to the next operator.
	before, err := keep()
	if err != nil {
		return err
	}
	if err := tensor.Zeros([]int{65 * mib}, tensor.Uint8, d).Err(); !errors.Is(err, tensor.ErrOutOfMemory) {
		return fmt.Errorf("65 MiB of 64: %v", err)
	}
	if now := c.Live(0); now != before {
		return fmt.Errorf("%d bytes of the device before an operator that the limit refused, %d after", before, now)
	}
	return nil
}

// allocations makes each allocation of a step fail, once and permanently.
func allocations(c *Control) error {
	d := tensor.CUDA(0)
	m, err := newMLP(d)
	if err != nil {
		return err
	}
	if err := m.step(64); err != nil {
		return err
	}
	live := func() (int64, error) {
		m, err := stats(d)
		return m.Allocated, err
	}
	if os.Getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != "" {
		live = func() (int64, error) {
			tensor.Flush()
			return c.Live(0), nil
		}
	}
	base, err := live()
	if err != nil {
		return err
	}
	faults := 0
	for _, times := range []int64{Forever, 1} {
		for k := int64(0); ; k++ {
			if err := cshim.MemoryEmptyCache(word(d)); err != nil {
				return err
			}
			if err := c.AddRule(Rule{Function: Alloc, Device: -1, Skip: k, Times: times, Error: 2}); err != nil {
				return err
			}
			err := m.step(4096)
			n := c.Seen(0)
			c.ClearRules()
			if n > k {
				faults++
			}
			// libtorch may recover by itself from an allocation that fails once.
			if err != nil && !errors.Is(err, tensor.ErrOutOfMemory) || err == nil && n > k && times == Forever {
				return fmt.Errorf("allocation %d fails: %v", k, err)
			}
			m.opt.ZeroGrad()
			if err := settledTo(live, base); err != nil {
				return fmt.Errorf("allocation %d fails: %w", k, err)
			}
			if n <= k {
				break
			}
		}
	}
	if faults < 4 {
		return fmt.Errorf("only %d faults", faults)
	}
	return m.step(64)
}

// uncached: without its cache, libtorch reports lack of memory by another error.
func uncached(c *Control) error {
	m, err := newMLP(tensor.CUDA(0))
	if err != nil {
		return err
	}
	if err := m.step(64); err != nil {
		return err
	}
	if x := tensor.Zeros([]int{32 << 20}, tensor.CUDA(0)); !errors.Is(x.Err(), tensor.ErrOutOfMemory) {
		return fmt.Errorf("128 MiB of 64: %v", x.Err())
	}
	if err := m.step(64); err != nil {
		return err
	}
	// The limit has room, the device has not.
	c.Occupy(1, 48<<20)
	var e *vram.OutOfMemoryError
	if err := tensor.Zeros([]int{8 << 20}, tensor.CUDA(1)).Err(); !errors.As(err, &e) || e.Device != "cuda:1" || e.Asked != 32<<20 || e.Capacity != 64<<20 {
		return fmt.Errorf("32 MiB of 16 on the other device: %w", err)
	}
	// While another device is lost there is still nothing to empty.
	if err := c.AddRule(Rule{Function: Alloc, Device: 1, Times: Forever, Error: 719, Kind: Sticky}); err != nil {
		return err
	}
	if x := tensor.Zeros([]int{1 << 20}, tensor.CUDA(1)); !errors.Is(x.Err(), tensor.ErrDeviceLost) {
		return fmt.Errorf("on the lost device: %v", x.Err())
	}
	return vram.EmptyCache(tensor.CUDA(0))
}

// threads: a backward pass whose threads cannot start is an error, and so is each later one. Forward passes work.
func threads(*Control) error {
	m, err := newMLP(tensor.CUDA(0))
	if err != nil {
		return err
	}
	if err := m.step(64); err == nil {
		return errors.New("a step without threads gives no error")
	}
	for range 3 {
		m.opt.ZeroGrad()
		if err := m.step(64); err == nil || !strings.Contains(err.Error(), "until the process is restarted") {
			return fmt.Errorf("the next step: %v", err)
		}
	}
	return tensor.Ones([]int{2}, tensor.CUDA(1)).Add(1).Err()
}

func slow(c *Control) error {
	if err := c.AddRule(Rule{Function: "cudaMalloc", Device: -1, Times: 1, Micros: 50_000}); err != nil {
		return err
	}
	start := time.Now()
	if x := tensor.Zeros([]int{4}, tensor.CUDA(0)); x.Err() != nil {
		return x.Err()
	}
	if took := time.Since(start); took < 50*time.Millisecond {
		return fmt.Errorf("took %v", took)
	}
	return nil
}

// gone checks that a device refuses every call at once and that releasing its tensors does nothing.
func gone(d tensor.Device, held ...*tensor.Tensor) error {
	calls := []func() error{
		func() error { return tensor.Zeros([]int{2}, d).Err() },
		func() error { return tensor.Synchronize(d) },
		func() error { return cshim.MemoryEmptyCache(word(d)) },
	}
	for _, t := range held {
		calls = append(calls,
			func() error { return t.Add(t).Err() },
			func() error { return t.To(tensor.CPU).Err() },
			func() error { _, err := tensor.Data[float32](t); return err })
	}
	for i, call := range calls {
		start := time.Now()
		err := call()
		if i == 2 {
			// Called below package tensor: this is the shim's own error.
			var native *cshim.Error
			if !errors.As(err, &native) || native.Code != cshim.CodeDeviceLost {
				return fmt.Errorf("%s is lost, emptying its cache gives: %v", d, err)
			}
		} else if !errors.Is(err, tensor.ErrDeviceLost) {
			return fmt.Errorf("%s is lost, call %d gives: %v", d, i, err)
		}
		if took := time.Since(start); took > time.Second {
			return fmt.Errorf("%s is lost, call %d took %v", d, i, took)
		}
	}
	for _, t := range held {
		t.Release()
	}
	tensor.Flush()
	return nil
}

// sticky loses one device after another at calls spread over a step. The last device keeps working.
func sticky(c *Control) error {
	code, err := strconv.Atoi(os.Getenv("ERROR"))
	if err != nil {
		return err
	}
	offset, err := strconv.Atoi(os.Getenv("OFFSET"))
	if err != nil {
		return err
	}
	last := tensor.CUDA(7)
	good, err := newMLP(last)
	if err != nil {
		return err
	}
	if err := good.step(64); err != nil {
		return err
	}
	for i := range 7 {
		d := tensor.CUDA(i)
		m, err := newMLP(d)
		if err != nil {
			return err
		}
		held := tensor.Ones([]int{3}, d).RequiresGrad_()
		// A tensor on the CPU whose graph includes operators on the device.
		tail := held.Mul(held).To(tensor.CPU)
		if tail.Err() != nil {
			return tail.Err()
		}
		before := c.Calls()
		if err := m.step(64); err != nil {
			return err
		}
		calls := c.Calls() - before
		at := (calls*int64(i)/7 + int64(offset)) % calls
		if err := c.AddRule(Rule{Function: Any, Device: i, Skip: at, Times: 1, Error: code, Kind: Sticky}); err != nil {
			return err
		}
		err = m.step(64)
		for range 3 {
			if err != nil {
				break
			}
			err = m.step(64)
		}
		c.ClearRules()
		if !errors.Is(err, tensor.ErrDeviceLost) {
			return fmt.Errorf("error %d on %s at call %d of %d gives: %v", code, d, at, calls, err)
		}
		if err := m.step(64); !errors.Is(err, tensor.ErrDeviceLost) {
			return fmt.Errorf("a step on %s, which is lost, gives: %v", d, err)
		}
		tail.Release()
		if err := gone(d, held); err != nil {
			return err
		}
		m.release()
		tensor.Flush()
		// The other devices are unchanged.
		if err := good.step(64); err != nil {
			return fmt.Errorf("%s, after %s was lost: %w", last, d, err)
		}
		tensor.Zeros([]int{64 << 20}, tensor.Uint8, last).Release()
		if err := cshim.MemoryEmptyCache(word(last)); err != nil {
			return fmt.Errorf("%s, after %s was lost: empty its cache: %w", last, d, err)
		}
		if now, err := stats(last); err != nil || now.Reserved != c.Live(7) || now.Reserved > 32<<20 {
			return fmt.Errorf("%s, after %s was lost: %+v, %w", last, d, now, err)
		}
	}
	return nil
}

func async(c *Control) error {
	m, err := newMLP(tensor.CUDA(1))
	if err != nil {
		return err
	}
	if err := m.step(64); err != nil {
		return err
	}
	if err := c.AddRule(Rule{Function: Launch, Device: 1, Skip: 5, Times: 1, Error: 700, Kind: Async}); err != nil {
		return err
	}
	if err := m.step(64); !errors.Is(err, tensor.ErrDeviceLost) {
		return fmt.Errorf("an asynchronous error gives: %v", err)
	}
	m.release()
	return gone(tensor.CUDA(1))
}

// library: the error is reported by cuBLAS.
func library(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{8, 8}, d)
	if err := x.MatMul(x).Err(); err != nil {
		return err
	}
	c.Lose(0, 719)
	if y := x.MatMul(x); !errors.Is(y.Err(), tensor.ErrDeviceLost) {
		return fmt.Errorf("cuBLAS on a lost device gives: %v", y.Err())
	}
	if err := gone(d, x); err != nil {
		return err
	}
	z := tensor.Ones([]int{8, 8}, tensor.CUDA(1))
	return z.MatMul(z).Err()
}

// first: libtorch must not be initialized a second time after its initialization has failed part-way.
func first(c *Control) error {
	code, err := strconv.Atoi(os.Getenv("ERROR"))
	if err != nil {
		return err
	}
	if err := c.AddRule(Rule{Function: os.Getenv("FIRST"), Device: -1, Times: 1, Error: code}); err != nil {
		return err
	}
	for i := range 6 {
		x := tensor.Ones([]int{4, 4}, tensor.CUDA(i%2))
		y := x.MatMul(x).Add(x)
		if err := y.Err(); err != nil && !errors.Is(err, tensor.ErrDeviceLost) && !errors.Is(err, tensor.ErrDevice) {
			return fmt.Errorf("use %d: %w", i, err)
		}
		x.Release()
		y.Release()
		if _, err := vram.Stats(tensor.CUDA(i % 2)); err != nil && !errors.Is(err, tensor.ErrDeviceLost) && !errors.Is(err, tensor.ErrDevice) {
			return fmt.Errorf("the figures after use %d: %w", i, err)
		}
	}
	if c.Errors() == 0 {
		return fmt.Errorf("%s has not been called", os.Getenv("FIRST"))
	}
	return nil
}

// once: an error that is not sticky loses nothing.
func once(c *Control) error {
	d := tensor.CUDA(0)
	m, err := newMLP(d)
	if err != nil {
		return err
	}
	if err := m.step(64); err != nil {
		return err
	}
	before := c.Calls()
	if err := m.step(64); err != nil {
		return err
	}
	calls, failed := c.Calls()-before, 0
	for k := range calls {
		if err := c.AddRule(Rule{Function: Any, Device: -1, Skip: k, Times: 1, Error: 719}); err != nil {
			return err
		}
		err := m.step(64)
		c.ClearRules()
		if err != nil {
			failed++
		}
		if err != nil && errors.Is(err, tensor.ErrDeviceLost) {
			return fmt.Errorf("call %d: %w", k, err)
		}
		m.opt.ZeroGrad()
	}
	if failed < int(calls)/2 {
		return fmt.Errorf("%d of %d errors were seen", failed, calls)
	}
	return m.step(64)
}

// capturing: while a thread captures a graph it frees nothing by itself. Other threads and the pacer continue
// to free.
func capturing(c *Control) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := tensor.CUDA(0)
	one := tensor.Zeros([]int{1}, d)
	defer one.Release()
	defer vram.SetPolicy(vram.SetPolicy(vram.Threshold{Bytes: 4 << 20}))
	const garbage = 20 << 20
	live := func() int64 {
		m, err := cshim.MemoryStats(word(d)) // must not free
		if err != nil {
			return -1
		}
		return m.Requested
	}
	// leave leaves 20 tensors in the queue of tensors to be freed.
	leave := func() error {
		for range 20 {
			if x := tensor.Zeros([]int{1 << 18}, d); x.Err() != nil {
				return x.Err()
			}
		}
		s := []metrics.Sample{{Name: "/gc/cleanups/queued:cleanups"}, {Name: "/gc/cleanups/executed:cleanups"}}
		for range 3 { // the last tensor may still be in a register
			runtime.GC()
			for metrics.Read(s); s[1].Value.Uint64() < s[0].Value.Uint64(); metrics.Read(s) {
				time.Sleep(time.Millisecond)
			}
		}
		return nil
	}
	operator := func() error { return one.Add(1).Err() }
	queue := func() (calls int64) {
		for _, y := range vram.Yields() {
			if y.Name == "waiting frees" {
				calls += y.Calls
			}
		}
		return calls
	}
	for try := 0; ; try++ {
		before, sweeps := queue(), vram.ReadCounts()
		c.SetCapturing(syscall.Gettid())
		if err := errors.Join(leave(), operator(), one.Add(1).Mul(2).Err()); err != nil {
			return err
		}
		held := live()
		if queue() != before && try < 10 {
			continue // the pacer frees on its own thread every two seconds
		}
		if n := vram.ReadCounts().Since(sweeps); held < garbage || n.Full+n.Deep != 0 {
			return fmt.Errorf("%d bytes live and %d sweeps while a graph is captured, want at least %d, and none", held, n.Full+n.Deep, garbage)
		}
		break
	}
	done := make(chan error)
	go func() { done <- operator() }()
	if err := <-done; err != nil || live() > garbage/2 {
		return fmt.Errorf("an operator on another thread left %d bytes live, %w", live(), err)
	}
	if err := leave(); err != nil {
		return err
	}
	c.SetCapturing(0)
	if err := operator(); err != nil || live() > garbage/2 {
		return fmt.Errorf("the first operator after the capture left %d bytes live, %w", live(), err)
	}
	// Three times the device's capacity: the pacer frees when an allocation does not fit.
	c.SetCapturing(syscall.Gettid())
	defer c.SetCapturing(0)
	for i := range 10 {
		if err := leave(); err != nil {
			return fmt.Errorf("MiB %d on a device of 64: %w", 20*i, err)
		}
	}
	return nil
}

// pressure allocates far more than the device's capacity in tensors that are never released.
func pressure(c *Control) error {
	d := tensor.CUDA(0)
	for i := range 2000 {
		if x := tensor.Zeros([]int{1 << 18}, d); x.Err() != nil {
			return fmt.Errorf("MiB %d of 2000, on a device of 64: %w", i, x.Err())
		}
	}
	return nil
}
