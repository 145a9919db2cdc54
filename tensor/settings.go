package tensor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/linstock-ml/linstock/cshim"
)

// ManualSeed seeds the random number generators of all devices, that of a device that was not used yet at its first use. An
// error is that of a device; the others are seeded. PyTorch: torch.manual_seed.
func ManualSeed(seed uint64) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	return newError("ManualSeed", cshim.ManualSeed(seed))
}

// RNGState returns the state of a device's random number generator, by default the CPU's, as a uint8 tensor on the CPU.
// PyTorch: torch.get_rng_state, torch.cuda.get_rng_state.
func RNGState(d ...Device) *Tensor {
	if err := cshim.Load(); err != nil {
		return &Tensor{fail: &failure{err: err}}
	}
	if err := generator(d).check("RNGState"); err != nil {
		return failed(err)
	}
	return wrapResult("RNGState", cshim.RNGState(generator(d).word()))
}

// SetRNGState sets the state of a device's random number generator, by default the CPU's. PyTorch: torch.set_rng_state,
// torch.cuda.set_rng_state.
func SetRNGState(state *Tensor, d ...Device) error {
	return state.use("SetRNGState", func(h cshim.Handle) error {
		if err := generator(d).check("SetRNGState"); err != nil {
			return err
		}
		return newError("SetRNGState", asError(cshim.SetRNGState(generator(d).word(), h)), state)
	})
}

// RNGStates returns the states of the random number generators of devices, by default of all [Devices]. PyTorch:
// torch.get_rng_state with torch.cuda.get_rng_state_all.
func RNGStates(d ...Device) ([]*Tensor, error) { return rngStates("RNGStates", d) }

func rngStates(op string, d []Device) ([]*Tensor, error) {
	d, err := devicesOr(op, d)
	if err != nil {
		return nil, err
	}
	states := make([]*Tensor, len(d))
	for i := range d {
		states[i] = RNGState(d[i])
		if err := states[i].Err(); err != nil {
			for _, s := range states[:i] {
				s.Release()
			}
			return nil, err
		}
	}
	return states, nil
}

// SetRNGStates sets the states of the random number generators of devices, by default of all [Devices], as RNGStates returned
// them. PyTorch: torch.set_rng_state with torch.cuda.set_rng_state_all.
func SetRNGStates(states []*Tensor, d ...Device) error {
	d, err := devicesOr("SetRNGStates", d)
	if err != nil {
		return err
	}
	if len(states) != len(d) {
		return refused("SetRNGStates", ErrArgument, "%d states for %d devices", len(states), len(d))
	}
	for i := range d {
		if err := SetRNGState(states[i], d[i]); err != nil {
			return err
		}
	}
	return nil
}

func devicesOr(op string, d []Device) ([]Device, error) {
	for _, d := range d {
		if err := d.check(op); err != nil {
			return nil, err
		}
	}
	if len(d) != 0 {
		return d, nil
	}
	return Devices()
}

// ForkRNG runs f and then gives the random number generators of the CPU and of devices, by default of all [Devices], the
// states that they had before, also if f panics. It returns f's error, with those of generators that do not take their
// states back. The generators belong to the process: what other goroutines draw meanwhile is drawn again. PyTorch:
// torch.random.fork_rng.
func ForkRNG(f func() error, d ...Device) (err error) {
	if f == nil {
		return refused("ForkRNG", ErrNil, "a function is needed, got nil")
	}
	if len(d) > 0 && !slices.Contains(d, CPU) {
		d = append(slices.Clone(d), CPU)
	}
	if d, err = devicesOr("ForkRNG", d); err != nil {
		return err
	}
	states, err := rngStates("ForkRNG", d)
	if err != nil {
		return err
	}
	for _, s := range states {
		s.Keep() // f may end the scope
	}
	defer func() {
		for i, s := range states {
			if lost := SetRNGState(s, d[i]); lost != nil {
				err = errors.Join(err, lost)
			}
			s.Release()
		}
	}()
	return f()
}

func generator(d []Device) Device {
	if len(d) == 0 {
		return CPU
	}
	return d[len(d)-1]
}

// SetNumThreads sets how many threads a CPU operator may use, for calls from every OS thread of the process. n must be
// at least 1 and at most 1,024 or four times the number of cores, because OpenMP ends the process if it cannot start
// the requested number of threads. PyTorch: torch.set_num_threads.
func SetNumThreads(n int) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	if most := max(1024, 4*runtime.NumCPU()); n < 1 || n > most {
		return refused("SetNumThreads", ErrArgument, "n must be in [1, %d], got %d", most, n)
	}
	return newError("SetNumThreads", cshim.SetNumThreads(n))
}

// NumThreads returns how many threads a CPU operator may use, or 0 if libtorch cannot be loaded. PyTorch:
// torch.get_num_threads.
func NumThreads() int {
	if cshim.Load() != nil {
		return 0
	}
	return cshim.NumThreads()
}

// SetDeterministic makes operators without a deterministic algorithm fail, or only print a warning if mode is WarnOnly.
// On CUDA these include the backward passes of bilinear, bicubic and trilinear interpolation, of replicate padding and of
// MaxPool3d with indices, in whose place PyTorch's Python functions compute by deterministic operators. PyTorch:
// torch.use_deterministic_algorithms.
func SetDeterministic(on bool, mode ...DeterministicMode) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	warn := false
	for _, m := range mode {
		warn = warn || m == WarnOnly
	}
	return newError("SetDeterministic", cshim.SetDeterministic(on, warn))
}

// DeterministicMode selects what an operator without a deterministic algorithm does.
type DeterministicMode int

// WarnOnly makes the operator print a warning and run.
const WarnOnly DeterministicMode = 1

// Deterministic reports whether SetDeterministic is on. PyTorch: torch.are_deterministic_algorithms_enabled.
func Deterministic() bool { return cshim.Load() == nil && cshim.Deterministic() }

// SetMatMulPrecision sets the internal precision of float32 matrix products: "highest" (float32 throughout), "high" or
// "medium". PyTorch: torch.set_float32_matmul_precision.
func SetMatMulPrecision(precision string) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	for i, name := range precisions {
		if name == precision {
			return newError("SetMatMulPrecision", cshim.SetMatMulPrecision(i))
		}
	}
	return refused("SetMatMulPrecision", ErrArgument, "unknown precision %q: want highest, high or medium", precision)
}

var precisions = [...]string{"highest", "high", "medium"}

// MatMulPrecision returns the precision of float32 matrix products. PyTorch: torch.get_float32_matmul_precision.
func MatMulPrecision() string {
	if cshim.Load() != nil {
		return ""
	}
	if p := cshim.MatMulPrecision(); p >= 0 && p < len(precisions) {
		return precisions[p]
	}
	return ""
}

// SetDefaultDType sets the dtype that constructors use by default: Float32, Float64, Float16 or BFloat16. PyTorch:
// torch.set_default_dtype.
func SetDefaultDType(d DType) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	return newError("SetDefaultDType", cshim.SetDefaultDType(int32(d)))
}

// DefaultDType returns the dtype that constructors use by default. PyTorch: torch.get_default_dtype.
func DefaultDType() DType {
	if cshim.Load() != nil {
		return Invalid
	}
	return DType(cshim.DefaultDType())
}

// Version returns the version of the loaded libtorch, such as "2.15.0". PyTorch: torch.__version__.
func Version() (string, error) {
	if err := cshim.Load(); err != nil {
		return "", err
	}
	v := cshim.VersionLoaded()
	return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]), nil
}

// ShimPath returns the path of the shim library that this process loaded.
func ShimPath() (string, error) {
	err := cshim.Load()
	return cshim.Path(), err
}

// Config returns libtorch's build configuration. PyTorch: torch.__config__.show.
func Config() (string, error) {
	if err := cshim.Load(); err != nil {
		return "", err
	}
	return cshim.ShowConfig()
}
