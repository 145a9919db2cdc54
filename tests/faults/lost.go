package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/fakecuda"
	"github.com/linstock-ml/linstock/vram"
)

// The row "device-errors" injects a sticky error at each CUDA call of a training step. A lost device stays lost, so a
// process has 64 devices, loses 63 one after the other, and the last one continues. The number of a case is its variant
// (of models and seeds) times a million, plus the error and the call.
const (
	lostDevices  = 64
	perVariant   = 1_000_000
	lostVariants = 40 // the full count needs 30
	callsEnv     = "LINSTOCK_FAULTS_CALLS"
)

var stickyErrors = []int{700, 719, 999, 46}

func lostModel(variant int) string { return models[variant%len(models)] }

func lostEnv(number int) []string {
	if lostModel(number/perVariant) == "cnn" {
		return nil
	}
	return []string{"LINSTOCK_CUDNN=0"}
}

func runDeviceErrors(h *harness) (string, bool, error) {
	target := int64(20_000 * h.share)
	var t tally
	// Number of calls in the step of each variant; -1 if not known yet.
	var mu sync.Mutex
	calls := make([]int, lostVariants)
	ask := func(variant int) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		if calls[variant] == 0 {
			number := variant * perVariant
			o := h.process("device-errors", 100, batch{first: number, end: number, env: lostEnv(number)}, &tally{}, nil)
			if len(o.said) != 1 || o.err != nil {
				return 0, fmt.Errorf("variant %d: %v %w\n%s", variant, o.said, o.err, o.tail)
			}
			calls[variant], _ = strconv.Atoi(o.said[0])
		}
		return calls[variant], nil
	}
	variant, at, planned := 0, 0, int64(0)
	var failed error
	h.each("device-errors", target, &t, func() (batch, bool) {
		if planned >= target || failed != nil {
			return batch{}, false
		}
		n, err := ask(variant)
		if err != nil {
			failed = err
			return batch{}, false
		}
		all := n * len(stickyErrors)
		b := batch{first: variant*perVariant + at, end: variant*perVariant + min(at+lostDevices-1, all)}
		b.env = append(lostEnv(b.first), fmt.Sprintf("%s=%d", callsEnv, n))
		planned += int64(b.end - b.first)
		at += lostDevices - 1
		// A share of the full count takes that share of each variant.
		if at >= all || float64(at) >= float64(all)*h.share+lostDevices {
			variant, at = variant+1, 0
			if variant == lostVariants {
				planned = target
			}
		}
		return b, true
	})
	if failed != nil {
		return "", false, failed
	}
	return fmt.Sprintf("%s faults in %d processes; %d aborts, %d failures", thousands(t.faults), t.processes, t.crashes, t.bad),
		t.crashes+t.bad == 0 && t.faults >= target, nil
}

// loseDevices runs the cases of one process.
func loseDevices(c child) error {
	control, err := fakecuda.Open(os.Getenv("FAKECUDA_CONTROL"), lostDevices, 1<<40)
	if err != nil {
		return err
	}
	defer control.Close()
	variant := c.first / perVariant
	last := tensor.CUDA(lostDevices - 1)
	good, err := c.jobOn(variant, last)
	if err != nil {
		return err
	}
	before := control.Calls()
	if _, _, err := good.step(); err != nil {
		return err
	}
	if c.first == c.end {
		good.opt.ZeroGrad()
		c.report.say("%d", control.Calls()-before)
		return nil
	}
	good.opt.ZeroGrad()
	perError, err := strconv.Atoi(os.Getenv(callsEnv))
	if err != nil {
		return err
	}
	for number := c.first; number < c.end; number++ {
		index := number - c.first
		code, k := stickyErrors[number%perVariant/perError], number%perVariant%perError
		c.report.at("%d 0: %s, error %d at call %d of %d", number, good.name, code, k, perError)
		if err := c.lose(control, variant, index, code, int64(k), good); err != nil {
			c.report.bad("%d 0: %s, error %d at call %d of %d: %v", number, good.name, code, k, perError, err)
			continue
		}
		c.report.count(1)
	}
	return control.Misuse()
}

// jobOn returns a variant's job on a device after its first step, which initializes the device.
func (c child) jobOn(variant int, d tensor.Device) (*job, error) {
	j, err := newJob(lostModel(variant), c.seed+uint64(variant), d, false, c.dir)
	if err != nil {
		return nil, err
	}
	if _, _, err := j.step(); err != nil {
		return nil, err
	}
	j.opt.ZeroGrad()
	return j, nil
}

func (c child) lose(control *fakecuda.Control, variant, index, code int, k int64, good *job) error {
	d := tensor.CUDA(index)
	j, err := c.jobOn(variant, d)
	if err != nil {
		return err
	}
	kept := tensor.Ones([]int{3}, d).RequiresGrad_().Keep()
	// This tensor is on the CPU, but its graph reaches the device.
	tail := kept.Mul(kept).To(tensor.CPU).Keep()
	if err := tail.Err(); err != nil {
		return err
	}
	if err := control.AddRule(fakecuda.Rule{Function: fakecuda.Any, Device: index, Skip: k, Times: 1, Error: code, Kind: fakecuda.Sticky}); err != nil {
		return err
	}
	// The call with the fault may not report it, a free for example; then the next one does.
	for range 4 {
		if _, _, err = j.step(); err != nil {
			break
		}
		j.opt.ZeroGrad()
	}
	control.ClearRules()
	if control.Lost(index) != code {
		return fmt.Errorf("the device was not lost: %w", err)
	}
	if !errors.Is(err, tensor.ErrDeviceLost) {
		return fmt.Errorf("the device is lost, but: %w", err)
	}
	for i, call := range []func() error{
		func() error { _, _, err := j.step(); return err },
		func() error { return tensor.Zeros([]int{2}, d).Err() },
		func() error { return kept.Add(kept).Err() },
		func() error { _, err := tensor.Data[float32](kept); return err },
		func() error { return tensor.Synchronize(d) },
		func() error { return tail.Sum().Backward() },
	} {
		if err := call(); !errors.Is(err, tensor.ErrDeviceLost) {
			return fmt.Errorf("the device is lost, but then call %d gives: %w", i, err)
		}
	}
	var native *cshim.Error
	if err := vram.EmptyCache(d); !errors.As(err, &native) || native.Code != cshim.CodeDeviceLost {
		return fmt.Errorf("the device is lost, but emptying its cache gives: %w", err)
	}
	tail.Release()
	kept.Release()
	j.release()
	tensor.Flush()
	// The other device continues, and frees what it does not need.
	if _, _, err := good.step(); err != nil {
		return fmt.Errorf("a step on %v: %w", good.device, err)
	}
	good.opt.ZeroGrad()
	if err := vram.EmptyCache(good.device); err != nil {
		return fmt.Errorf("emptying the cache of %v: %w", good.device, err)
	}
	return nil
}
