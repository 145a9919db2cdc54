package tensor

import (
	"fmt"
	"runtime"

	"github.com/linstock-ml/linstock/cshim"
)

// ManualSeed seeds every device's generator. PyTorch: torch.manual_seed.
func ManualSeed(seed uint64) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	return newError("ManualSeed", cshim.ManualSeed(seed))
}

// RNGState is the state of a device's random number generator, of the CPU's without one: a uint8 tensor on the CPU.
// PyTorch: torch.get_rng_state, torch.cuda.get_rng_state.
func RNGState(d ...Device) *Tensor {
	if err := cshim.Load(); err != nil {
		return &Tensor{fail: &failure{err: err}}
	}
	return wrapResult("RNGState", cshim.RNGState(generator(d).word()))
}

// SetRNGState sets the state of a device's random number generator, of the CPU's without one. PyTorch:
// torch.set_rng_state, torch.cuda.set_rng_state.
func SetRNGState(state *Tensor, d ...Device) error {
	return state.use("SetRNGState", func(h cshim.Handle) error {
		return newError("SetRNGState", asError(cshim.SetRNGState(generator(d).word(), h)), state)
	})
}

func generator(d []Device) Device {
	if len(d) == 0 {
		return CPU
	}
	return d[len(d)-1]
}

// SetNumThreads sets how many threads an operator on the CPU may use, on every thread that a goroutine may land
// on, now and later: at least 1, and at most 1,024 or four times the machine's cores, since OpenMP ends the process
// when it cannot start as many as it was told. PyTorch: torch.set_num_threads.
func SetNumThreads(n int) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	if most := max(1024, 4*runtime.NumCPU()); n < 1 || n > most {
		return refused("SetNumThreads", ErrArgument, "from 1 to %d threads can be had, not %d", most, n)
	}
	return newError("SetNumThreads", cshim.SetNumThreads(n))
}

// NumThreads is how many threads an operator on the CPU may use; 0 without libtorch. PyTorch:
// torch.get_num_threads.
func NumThreads() int {
	if cshim.Load() != nil {
		return 0
	}
	return cshim.NumThreads()
}

// SetDeterministic makes operators without a deterministic algorithm fail (or only warn, with warnOnly).
// PyTorch: torch.use_deterministic_algorithms.
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

// DeterministicMode says what an operator without a deterministic algorithm does.
type DeterministicMode int

// WarnOnly lets it run.
const WarnOnly DeterministicMode = 1

// Deterministic says whether SetDeterministic is on.
func Deterministic() bool { return cshim.Load() == nil && cshim.Deterministic() }

// SetMatMulPrecision is "highest" (float32 throughout), "high" or "medium", for float32 matrix products.
// PyTorch: torch.set_float32_matmul_precision.
func SetMatMulPrecision(precision string) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	for i, name := range precisions {
		if name == precision {
			return newError("SetMatMulPrecision", cshim.SetMatMulPrecision(i))
		}
	}
	return refused("SetMatMulPrecision", ErrArgument, "%q is none of highest, high and medium", precision)
}

var precisions = [...]string{"highest", "high", "medium"}

// MatMulPrecision gives it. PyTorch: torch.get_float32_matmul_precision.
func MatMulPrecision() string {
	if cshim.Load() != nil {
		return ""
	}
	if p := cshim.MatMulPrecision(); p >= 0 && p < len(precisions) {
		return precisions[p]
	}
	return ""
}

// SetDefaultDType sets what constructors make when not told: Float32, Float64, Float16 or BFloat16. PyTorch:
// torch.set_default_dtype.
func SetDefaultDType(d DType) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	return newError("SetDefaultDType", cshim.SetDefaultDType(int32(d)))
}

// DefaultDType gives it.
func DefaultDType() DType {
	if cshim.Load() != nil {
		return Invalid
	}
	return DType(cshim.DefaultDType())
}

// Version is the libtorch in this process, "2.15.0".
func Version() (string, error) {
	if err := cshim.Load(); err != nil {
		return "", err
	}
	v := cshim.VersionLoaded()
	return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]), nil
}

// ShimPath is the shim that this process loaded.
func ShimPath() (string, error) {
	err := cshim.Load()
	return cshim.Path(), err
}

// Config is libtorch's build configuration. PyTorch: torch.__config__.show.
func Config() (string, error) {
	if err := cshim.Load(); err != nil {
		return "", err
	}
	return cshim.ShowConfig()
}
