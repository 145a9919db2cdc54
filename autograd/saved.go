package autograd

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// SavedPolicy is how SavedTensors keeps tensors until the backward pass: SaveOnCPU, SaveOnDisk or SaveAs.
type SavedPolicy struct {
	how  handle.SavedPolicy
	dir  string
	made bool
	none bool // an option was nil
}

// SavedOption is an option of a SavedPolicy.
type SavedOption func(*SavedPolicy)

// Pinned makes SaveOnCPU use pinned memory, from which copies to a CUDA device are faster (pin_memory=True); off by
// default.
func Pinned(on ...bool) SavedOption { return func(p *SavedPolicy) { p.how.Pinned = options.On(on) } }

// MinBytes keeps tensors of less than n bytes as they are. The default is 4096.
func MinBytes(n int64) SavedOption { return func(p *SavedPolicy) { p.how.MinBytes = n } }

// KeepFirst keeps the first tensors of a region as they are, up to n bytes in all, and applies the policy to the rest.
func KeepFirst(n int64) SavedOption { return func(p *SavedPolicy) { p.how.Keep = n } }

func policy(how handle.SavedPolicy, opts []SavedOption) SavedPolicy {
	p := SavedPolicy{how: how, made: true}
	p.how.MinBytes = 4096
	for _, o := range opts {
		if o == nil {
			p.none = true
			break
		}
		o(&p)
	}
	return p
}

// SaveOnCPU copies tensors of other devices to the CPU. Options: Pinned, MinBytes, KeepFirst. PyTorch:
// torch.autograd.graph.save_on_cpu.
func SaveOnCPU(opts ...SavedOption) SavedPolicy {
	return policy(handle.SavedPolicy{Kind: cshim.SavedCPU}, opts)
}

// SaveOnDisk writes tensors to a temporary file in dir, or in os.TempDir if dir is empty. The file has no name, and its
// space is freed with the graph, also if the program is killed. Options: MinBytes, KeepFirst.
func SaveOnDisk(dir string, opts ...SavedOption) SavedPolicy {
	p := policy(handle.SavedPolicy{Kind: cshim.SavedFile}, opts)
	p.dir = dir
	return p
}

// SaveAs casts float32 and float64 tensors to dtype, tensor.BFloat16 or tensor.Float16, and back in the backward pass:
// gradients are less precise. Values beyond dtype's range become infinite or 0: with Float16, magnitudes from 65520 and up to
// about 3e-8, and with BFloat16, float64 values beyond float32's range. Options: MinBytes, KeepFirst.
func SaveAs(dtype tensor.DType, opts ...SavedOption) SavedPolicy {
	return policy(handle.SavedPolicy{Kind: cshim.SavedCast, DType: int32(dtype)}, opts)
}

// SavedTensors returns f(). What the operators of f save for the backward pass is kept as p says and brought back when the
// pass needs it. It trades time for memory, as Checkpoint does, at the price of copies instead of computations.
//
//	loss := autograd.SavedTensors(autograd.SaveOnDisk(""), func() *tensor.Tensor {
//		return nn.CrossEntropy(model.Forward(x), targets)
//	})
//
// A tensor that several operators save is kept once. Parameters, and what the policy does not apply to, are kept as they
// are. The values and gradients are those without SavedTensors, but for SaveAs. The innermost SavedTensors or Checkpoint of a
// goroutine applies; the inputs of a Checkpoint are kept by the SavedTensors around it. The goroutine is locked to its OS
// thread meanwhile.
//
// PyTorch: torch.autograd.graph.saved_tensors_hooks.
func SavedTensors(p SavedPolicy, f func() *tensor.Tensor) *tensor.Tensor {
	const op = "SavedTensors"
	switch {
	case f == nil:
		return tensor.Failed(refuse.Nil(op, "a function"))
	case !p.made:
		return tensor.Failed(refuse.Error(op, tensor.ErrArgument, "the policy is empty: want SaveOnCPU, SaveOnDisk or SaveAs"))
	case p.none:
		return tensor.Failed(refuse.NilOption(op))
	case p.how.MinBytes < 0 || p.how.Keep < 0:
		return tensor.Failed(refuse.Error(op, tensor.ErrArgument, "MinBytes %d or KeepFirst %d is negative", p.how.MinBytes, p.how.Keep))
	case p.how.Pinned && p.how.Kind != cshim.SavedCPU:
		return tensor.Failed(refuse.Error(op, tensor.ErrArgument, "Pinned is an option of SaveOnCPU"))
	}
	if !tensor.GradEnabled() || tensor.InferenceEnabled() {
		return f()
	}
	if p.how.Kind == cshim.SavedFile {
		file, err := os.CreateTemp(p.dir, "linstock-saved-*")
		if errors.Is(err, syscall.EMFILE) && vram.Collect() == nil { // graphs that are unreachable have files open
			file, err = os.CreateTemp(p.dir, "linstock-saved-*")
		}
		if err != nil {
			return tensor.Failed(fmt.Errorf("linstock: %s: %w", op, err))
		}
		defer file.Close() // the native policy has a descriptor of its own
		if err := os.Remove(file.Name()); err != nil {
			return tensor.Failed(fmt.Errorf("linstock: %s: %w", op, err))
		}
		p.how.FD = int32(file.Fd())
	}
	var out *tensor.Tensor
	if err := handle.WithSaved(p.how, func() error {
		out = f()
		return nil
	}); err != nil {
		return tensor.Failed(err)
	}
	return out
}

var keepInCheckpoint = handle.KeepInCheckpoint.(func(f func() *tensor.Tensor) *tensor.Tensor)

// KeepInCheckpoint returns f(), for a part of the function of a Checkpoint that is slow to compute and whose result is
// small, such as attention (selective checkpointing). What the operators of f save for the backward pass and the result of
// f are kept, and the recomputation takes the result instead of calling f.
//
//	y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
//		x := in[0]
//		a := autograd.KeepInCheckpoint(func() *tensor.Tensor { return attention.Forward(norm.Forward(x)) })
//		return mlp.Forward(x.Add(a))
//	}, x)
//
// The result must not be changed in place. Random numbers after the part are those of the first run. A backward pass that the
// checkpointed function itself starts (Grad, Backward) must not go through the result, which has no graph when the
// function is computed again: the outer pass then fails with tensor.ErrArgument. Outside of a Checkpoint,
// KeepInCheckpoint only calls f. PyTorch: torch.utils.checkpoint.create_selective_checkpoint_contexts, which chooses
// operators instead of parts of a function.
func KeepInCheckpoint(f func() *tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return tensor.Failed(refuse.Nil("KeepInCheckpoint", "a function"))
	}
	return keepInCheckpoint(f)
}
