package fakecuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestTrainingCheckpointHoldsGenerators saves a run that uses two devices and loads it on machines with two,
// one and no devices.
func TestTrainingCheckpointHoldsGenerators(t *testing.T) {
	file := "CHECKPOINT=" + filepath.Join(t.TempDir(), "run.safetensors")
	t.Run("devices", func(t *testing.T) {
		t.Run("3, two of them used", func(t *testing.T) { run(t, "generators", 3, 1<<30, file) })
	})
	for _, devices := range []int{2, 1, 0} {
		t.Run(fmt.Sprint("loaded on a machine with ", devices), func(t *testing.T) {
			run(t, "elsewhere", devices, 1<<30, file, fmt.Sprint("DEVICES=", devices))
		})
	}
}

// TestForkRNGOfLostDevice tests that a device that is lost does not keep the other generators from their states.
func TestForkRNGOfLostDevice(t *testing.T) { run(t, "forked", 1, 1<<30) }

func forked(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{8, 8}, d)
	defer x.Release()
	before := tensor.RNGState(tensor.CPU)
	defer before.Release()
	err := tensor.ForkRNG(func() error {
		if err := tensor.Rand([]int{2}).Err(); err != nil {
			return err
		}
		c.Lose(0, 719)
		return expect("a sum on a lost device", x.Sum().Err(), tensor.ErrDeviceLost)
	}, d)
	if err := expect("ForkRNG", err, tensor.ErrDeviceLost); err != nil {
		return err
	}
	after := tensor.RNGState(tensor.CPU)
	defer after.Release()
	if same, err := after.Equal(before); err != nil || !same {
		return fmt.Errorf("the CPU's generator has moved; %w", err)
	}
	return nil
}

func training(d tensor.Device) (*nn.Linear, *optim.Optimizer, error) {
	model := nn.NewLinear(4, 4, nn.Device(d))
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3)
	return model, opt, err
}

func stateOf(i int) ([]byte, error) {
	s := tensor.RNGState(tensor.CUDA(i))
	defer s.Release()
	return tensor.Data[byte](s)
}

func generators(*Control) error {
	model, opt, err := training(tensor.CUDA(2))
	if err != nil {
		return err
	}
	if err := tensor.ManualSeed(7); err != nil {
		return err
	}
	draw := func(i, n int) error {
		for range n {
			x := tensor.Randn([]int{8}, tensor.CUDA(i))
			defer x.Release()
			if x.Err() != nil {
				return x.Err()
			}
		}
		return nil
	}
	states := func() (all [][]byte, err error) {
		for _, i := range []int{0, 2} {
			s, err := stateOf(i)
			if err != nil {
				return nil, err
			}
			all = append(all, s)
		}
		return all, nil
	}
	if err := errors.Join(draw(0, 3), draw(2, 5)); err != nil {
		return err
	}
	// Forking a device's generator forks the CPU's, too.
	cpu := tensor.RNGState(tensor.CPU)
	defer cpu.Release()
	if err := tensor.ForkRNG(func() error { return errors.Join(tensor.Rand([]int{2}).Err(), draw(2, 1)) }, tensor.CUDA(2)); err != nil {
		return err
	}
	after := tensor.RNGState(tensor.CPU)
	defer after.Release()
	if same, err := after.Equal(cpu); err != nil || !same {
		return errors.Join(errors.New("the CPU's generator was not forked"), err)
	}
	saved, err := states()
	if err != nil {
		return err
	}
	path := os.Getenv("CHECKPOINT")
	if err := checkpoint.SaveTraining(path, model, opt); err != nil {
		return err
	}
	if err := errors.Join(draw(0, 1), draw(2, 1)); err != nil {
		return err
	}
	moved, err := states()
	if err != nil {
		return err
	}
	if err := checkpoint.LoadTraining(path, model, opt); err != nil {
		return err
	}
	loaded, err := states()
	if err != nil {
		return err
	}
	for i := range saved {
		if bytes.Equal(saved[i], moved[i]) || !bytes.Equal(saved[i], loaded[i]) || bytes.Equal(saved[0], saved[1]) {
			return fmt.Errorf("the states were %v when saved, %v when more was drawn, %v when loaded", saved, moved, loaded)
		}
	}
	f, err := checkpoint.Load(path)
	if err != nil {
		return err
	}
	defer f.Close()
	names := slices.DeleteFunc(f.Names(), func(name string) bool { return !strings.HasPrefix(name, "rng.") })
	slices.Sort(names)
	if want := []string{"rng.cpu", "rng.cuda.0", "rng.cuda.2"}; !slices.Equal(names, want) {
		return fmt.Errorf("the generators in the file are %v, want %v", names, want)
	}
	return nil
}

// elsewhere loads the file on a machine with fewer devices and checks that the generators of its devices are
// restored.
func elsewhere(*Control) error {
	d := tensor.CPU
	devices := os.Getenv("DEVICES")
	if devices != "0" {
		d = tensor.CUDA(0)
	}
	model, opt, err := training(d)
	if err != nil {
		return err
	}
	path := os.Getenv("CHECKPOINT")
	f, err := checkpoint.Load(path)
	if err != nil {
		return err
	}
	defer f.Close()
	want, err := tensor.Data[byte](f.Tensor("rng.cuda.0"))
	if err != nil {
		return err
	}
	if err := checkpoint.LoadTraining(path, model, opt); err != nil {
		return fmt.Errorf("on a machine with %s devices: %w", devices, err)
	}
	if devices == "0" {
		return nil
	}
	if got, err := stateOf(0); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("the state of cuda:0 is %v, want %v; %v", got, want, err)
	}
	return nil
}

func init() {
	scenarios["seeded"] = seeded
	scenarios["first generator"] = firstGenerator
}

func TestSeeds(t *testing.T) { run(t, "seeded", 4, 1<<30) }

// TestFirstGenerator tests the calls that may be the first to need a generator of a device.
func TestFirstGenerator(t *testing.T) {
	for name := range firstCalls {
		t.Run(name, func(t *testing.T) { run(t, "first generator", 4, 1<<30, "CALL="+name) })
	}
}

var firstCalls = map[string]func(d tensor.Device) error{
	"RNGState":   func(d tensor.Device) error { s := tensor.RNGState(d); defer s.Release(); return s.Err() },
	"Randn":      func(d tensor.Device) error { x := tensor.Randn([]int{4}, d); defer x.Release(); return x.Err() },
	"ManualSeed": func(tensor.Device) error { return tensor.ManualSeed(3) },
	"NewGenerator": func(d tensor.Device) error {
		g := tensor.NewGenerator(d)
		defer g.Release()
		_, err := g.ManualSeed(3).InitialSeed()
		return err
	},
	"Checkpoint": func(d tensor.Device) error {
		x := tensor.Ones([]int{4}, d).RequiresGrad_()
		defer x.Release()
		return autograd.Checkpoint(func(x ...*tensor.Tensor) *tensor.Tensor { return x[0].Mul(2) }, x).Sum().Backward()
	},
}

// firstGenerator: a device's generator is made on the device. The calling thread's own device, cuda:0, gets no context, and
// may be lost.
func firstGenerator(c *Control) error {
	d := tensor.CUDA(2)
	if err := tensor.Ones([]int{2}, d).Err(); err != nil {
		return err
	}
	if err := firstCalls[os.Getenv("CALL")](d); err != nil {
		return err
	}
	for i, want := range []int64{0, 0, 1, 0} {
		if n := c.Contexts(i); n != want {
			return fmt.Errorf("%d contexts on cuda:%d, want %d", n, i, want)
		}
	}
	// cuda:3 is used first when cuda:0 has been lost.
	if err := tensor.Ones([]int{2}, tensor.CUDA(0)).Err(); err != nil {
		return err
	}
	c.Lose(0, 719)
	if err := expect("the lost device", tensor.Synchronize(tensor.CUDA(0)), tensor.ErrDeviceLost); err != nil {
		return err
	}
	return firstCalls[os.Getenv("CALL")](tensor.CUDA(3))
}

// seeded: ManualSeed seeds all devices that can be used, now or at their first use.
func seeded(c *Control) error {
	seeded := func(i int, want uint64) error {
		s, err := stateOf(i)
		if err != nil || binary.LittleEndian.Uint64(s) != want {
			return fmt.Errorf("the state of cuda:%d is %v, want seed %d; %w", i, s, want, err)
		}
		return nil
	}
	if err := errors.Join(tensor.ManualSeed(7), seeded(1, 7), seeded(2, 7), tensor.ManualSeed(8), seeded(1, 8), seeded(2, 8), seeded(0, 8)); err != nil {
		return err
	}
	// ManualSeed finds that a device is lost, and later knows.
	c.Lose(0, 719)
	if err := errors.Join(expect("ManualSeed", tensor.ManualSeed(9), tensor.ErrDeviceLost), seeded(1, 9), seeded(2, 9)); err != nil {
		return err
	}
	return errors.Join(tensor.ManualSeed(10), seeded(1, 10), seeded(2, 10), seeded(3, 10))
}
