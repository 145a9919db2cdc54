package fakecuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() {
	scenarios["contexts"] = contexts
	scenarios["start"] = start
	scenarios["backend"] = backend
	scenarios["fraction"] = fraction
	scenarios["pinned"] = pinned
}

func TestContexts(t *testing.T) { run(t, "contexts", 4, 1<<30) }

// TestStart tests what is said where CUDA does not start.
func TestStart(t *testing.T) {
	for _, e := range []struct {
		name, function string
		code           int
		says, extra    string
	}{
		{"old driver", "cudaGetDeviceCount", 35, "driver on your system is too old", ""},
		{"mismatch", "cuInit", 803, "cuInit returns error 803", ""},
		{"unknown", "cuInit", 999, "cuInit returns error 999", ""},
		{"hidden devices", "cuInit", 100, "CUDA_VISIBLE_DEVICES=7", "CUDA_VISIBLE_DEVICES=7"},
	} {
		t.Run(e.name, func(t *testing.T) {
			run(t, "start", 2, 1<<30, "FUNCTION="+e.function, "ERROR="+strconv.Itoa(e.code), "SAYS="+e.says, e.extra)
		})
	}
}

func TestAllocatorBackend(t *testing.T) {
	run(t, "backend", 2, 1<<30, "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync")
}

func TestMemoryFraction(t *testing.T) {
	run(t, "fraction", 1, 1<<30, "PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.25")
}

func TestPinnedMemory(t *testing.T) { run(t, "pinned", 2, 1<<30) }

// contexts: a device that is not used has no context.
func contexts(c *Control) error {
	has := func(when string, want ...int64) error {
		var got []int64
		for d := range 4 {
			got = append(got, c.Contexts(d))
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s: contexts %v, want %v", when, got, want)
		}
		return nil
	}
	if err := errors.Join(tensor.Ones([]int{2}).Add(1).Err(), has("after work on the CPU", 0, 0, 0, 0)); err != nil {
		return err
	}
	if err := errors.Join(tensor.ManualSeed(7), has("after ManualSeed", 0, 0, 0, 0)); err != nil {
		return err
	}
	d := tensor.CUDA(2)
	y := tensor.Ones([]int{2}, d).Add(1)
	if err := errors.Join(y.Err(), has("after work on cuda:2", 0, 0, 1, 0)); err != nil {
		return err
	}
	if err := errors.Join(tensor.ManualSeed(8), has("after ManualSeed with cuda:2 in use", 0, 0, 1, 0)); err != nil {
		return err
	}
	s, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	if err := errors.Join(cuda.WithStream(s, func() error { return y.Add(1).Err() }), has("after WithStream", 0, 0, 1, 0)); err != nil {
		return err
	}
	before, after := cuda.NewEvent(cuda.EnableTiming()), cuda.NewEvent(cuda.EnableTiming())
	for name, f := range map[string]func() error{
		"Record": func() error { return errors.Join(before.Record(s), after.Record(s)) }, "Synchronize": func() error { return tensor.Synchronize(d) },
	} {
		if err := errors.Join(f(), has("after "+name, 0, 0, 1, 0)); err != nil {
			return err
		}
	}
	_, elapsed := before.ElapsedTime(after)
	if err := errors.Join(s.WaitEvent(before), elapsed, before.Close(), after.Close(), has("after the events", 0, 0, 1, 0)); err != nil {
		return err
	}
	// An operator's error asks whether the devices are well.
	if err := errors.Join(expect("an operator", y.Add(tensor.Ones([]int{3}, d)).Err(), tensor.ErrArgument), has("after an error", 0, 0, 1, 0)); err != nil {
		return err
	}
	if err := c.AddRule(Rule{Function: Sync, Device: 2, Times: 1, Error: 719}); err != nil {
		return err
	}
	failed := tensor.Synchronize(d)
	c.ClearRules()
	if err := errors.Join(expect("Synchronize", failed, tensor.ErrDevice), has("after an error of the device", 0, 0, 1, 0)); err != nil {
		return err
	}
	w := tensor.Ones([]int{2}, d).RequiresGrad_()
	return errors.Join(w.Mul(w).Sum().Backward(), has("after a backward pass", 0, 0, 1, 0), vram.EmptyCache(tensor.CPU), vram.EmptyCache(d),
		vram.EmptyCache(tensor.CUDA(0)), has("after EmptyCache of cuda:0", 0, 0, 1, 0), vram.SetLimit(tensor.CUDA(1), vram.Bytes(1<<20)), has("in the end", 0, 0, 1, 0))
}

// start: CUDA cannot be used, and every error says why.
func start(c *Control) error {
	code, err := strconv.Atoi(os.Getenv("ERROR"))
	if err != nil {
		return err
	}
	if err := c.AddRule(Rule{Function: os.Getenv("FUNCTION"), Device: -1, Times: Forever, Error: code}); err != nil {
		return err
	}
	says := os.Getenv("SAYS")
	if err := cpuOnly(c); err != nil {
		return err
	}
	if _, why := cshim.CUDA(); !strings.Contains(why, says) {
		return fmt.Errorf("the reason is %q, want %q", why, says)
	}
	_, err = cuda.NewStream(tensor.CUDA(0))
	if !errors.Is(err, cuda.ErrUnavailable) || !strings.Contains(err.Error(), says) {
		return fmt.Errorf("NewStream: %v, want %q", err, says)
	}
	if err := tensor.Zeros([]int{2}, tensor.CUDA(0)).Err(); err == nil || errors.Is(err, tensor.ErrDeviceLost) {
		return fmt.Errorf("Zeros: %v", err)
	}
	return tensor.ManualSeed(1)
}

// backend: an allocator that is not libtorch's own is refused by its name.
func backend(*Control) error {
	for i := range 2 {
		err := tensor.Zeros([]int{2}, tensor.CUDA(i)).Err()
		if err == nil || !strings.Contains(err.Error(), "backend:cudaMallocAsync of PYTORCH_CUDA_ALLOC_CONF is not supported") {
			return fmt.Errorf("Zeros: %v", err)
		}
	}
	return tensor.Zeros([]int{2}).Add(1).Err()
}

// fraction: that of the environment is the default limit.
func fraction(c *Control) error {
	d := tensor.CUDA(0)
	m, err := vram.Stats(d)
	if err != nil {
		return err
	}
	if m.Limit != 256<<20 || m.SoftLimit >= m.Limit || m.SoftLimit < 200<<20 {
		return fmt.Errorf("limits %d and %d of 1 GiB", m.SoftLimit, m.Limit)
	}
	x := tensor.Empty([]int{300 << 20}, tensor.Uint8, d)
	if err := expect("300 MiB", x.Err(), tensor.ErrOutOfMemory); err != nil {
		return err
	}
	if live := c.Live(0); live > 256<<20 {
		return fmt.Errorf("%d bytes live", live)
	}
	if err := vram.SetLimit(d, vram.Share(0.5)); err != nil {
		return err
	}
	x = tensor.Empty([]int{300 << 20}, tensor.Uint8, d)
	defer x.Release()
	return x.Err()
}

// pinned: EmptyCache of the CPU returns pinned memory, but not during a capture.
func pinned(c *Control) error {
	fill := func() error {
		for i := range 4 {
			r, err := tensor.Call("aten::pin_memory", tensor.Ones([]int{(1 << 20) << i}, tensor.Uint8))
			if err != nil {
				return err
			}
			r[0].(*tensor.Tensor).Release()
		}
		if c.HostLive() < 8<<20 {
			return fmt.Errorf("%d bytes of pinned memory", c.HostLive())
		}
		return nil
	}
	if err := fill(); err != nil {
		return err
	}
	x := tensor.Ones([]int{8}, tensor.CUDA(1))
	before := c.HostLive()
	_, err := cuda.Capture(tensor.CUDA(1), func() error { return errors.Join(vram.EmptyCache(tensor.CPU), x.Add(1).Err()) })
	if err != nil || c.HostLive() < before || c.Invalidated() != 0 {
		return fmt.Errorf("in a capture: %v, %d bytes of %d, %d captures made invalid", err, c.HostLive(), before, c.Invalidated())
	}
	for range 2 {
		if err := errors.Join(fill(), vram.EmptyCache(tensor.CPU)); err != nil {
			return err
		}
		if n := c.HostLive(); n > 1<<20 {
			return fmt.Errorf("%d bytes of pinned memory are left", n)
		}
	}
	return nil
}
