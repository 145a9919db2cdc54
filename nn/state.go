package nn

import (
	"fmt"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// To converts the parameters and buffers of m, and their gradients, to a dtype, moves them to a device, or both, in
// place: nn.To(m, tensor.CUDA(0)). The dtype must be floating-point or complex, and only such tensors get it, but
// neither the weight and scales of a Float8Linear nor what a RotaryEmbedding computes with. A memory format is that of
// tensors with as many dimensions as the format has: nn.To(m, tensor.ChannelsLast) is for the weights of 2d
// convolutions. The *Tensor handles stay the same, so an existing optimizer keeps its parameters, but its own state is
// not converted: make the optimizer after the call. Other goroutines must not use m meanwhile; it is an error if their
// backward pass reaches a parameter of m.
//
// On CUDA the weights of each RNN, GRU and LSTM of m are then in one buffer, in cuDNN's order, as their constructors,
// ToEmpty and Clone put them: otherwise each pass copies them into one. PyTorch: Module.to,
// RNNBase.flatten_parameters.
func To(m any, opts ...tensor.Option) error {
	for _, o := range opts {
		if d, ok := o.(tensor.DType); ok && !d.IsFloat() && !d.IsComplex() {
			return refuse.Error("To", tensor.ErrArgument, "a module needs a floating-point or complex dtype, got %v", d)
		}
	}
	if err := Check(m); err != nil {
		return err
	}
	fixed := map[*tensor.Tensor]bool{}
	for _, n := range NamedModules(m) {
		if f, ok := n.Module.(fixedDTypes); ok {
			for _, t := range f.fixedDTypes() {
				fixed[t] = true
			}
		}
	}
	seen := map[*tensor.Tensor]bool{}
	err := tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			for _, n := range tensors(m) {
				if seen[n.Tensor] {
					continue
				}
				seen[n.Tensor] = true
				if err := move(n.Tensor, opts, fixed[n.Tensor]); err != nil {
					return fmt.Errorf("%s: %w", n.Name, err)
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return flattenWeights(m)
}

// fixedDTypes is a module that needs some of its tensors in the dtype that they have.
type fixedDTypes interface{ fixedDTypes() []*tensor.Tensor }

// computedBuffers is a module with buffers that are not saved because they are computed from the module's other fields.
type computedBuffers interface{ computed() []computedBuffer }

type computedBuffer struct {
	at     **tensor.Tensor
	values func() *tensor.Tensor // on the CPU, called in a scope
}

func allComputed(m any) (all []computedBuffer) {
	for _, n := range NamedModules(m) {
		if c, ok := n.Module.(computedBuffers); ok {
			all = append(all, c.computed()...)
		}
	}
	return all
}

// computeBuffers computes the computed buffers of m on a device, or those on the meta device only.
func computeBuffers(m any, device tensor.Device, onlyMeta bool) error {
	return tensor.WithScope(func() error {
		for _, b := range allComputed(m) {
			if *b.at == nil || onlyMeta && (*b.at).Device() != tensor.Meta {
				continue
			}
			t := b.values().To(device).Keep()
			if err := t.Err(); err != nil {
				return err
			}
			tensor.Track(vram.Buffers, t)
			(*b.at).Release()
			*b.at = t
		}
		return nil
	})
}

// move converts t. With keepDType its dtype stays.
func move(t *tensor.Tensor, opts []tensor.Option, keepDType bool) error {
	before := detach(t)
	var kept []tensor.Option
	for _, o := range opts {
		keep := true
		switch o := o.(type) {
		case tensor.DType:
			d := before.DType()
			keep = !keepDType && (d.IsFloat() || d.IsComplex())
		case tensor.MemoryFormat:
			dims := map[tensor.MemoryFormat]int{tensor.ChannelsLast: 4, tensor.ChannelsLast3d: 5}[o]
			keep = dims == 0 || dims == before.Dim()
		}
		if keep {
			kept = append(kept, o)
		}
	}
	now := before.To(kept...)
	if err := now.Err(); err != nil {
		return err
	}
	before.Release() // otherwise the memory of t is freed only after all of the module is converted
	grad := t.Grad()
	if err := replaceData(t, now); err != nil {
		return err
	}
	if grad == nil {
		return nil
	}
	if err := t.SetGrad(nil); err != nil {
		return err
	}
	return t.SetGrad(grad.To(kept...))
}

// replacing is held while a tensor gets other data, and while a handle to the data it has is made.
var replacing sync.Mutex

func detach(t *tensor.Tensor) *tensor.Tensor {
	replacing.Lock()
	defer replacing.Unlock()
	return t.Detach()
}

// alias returns a view of t's data that can get other data.
func alias(op string, t *tensor.Tensor) *tensor.Tensor {
	replacing.Lock()
	defer replacing.Unlock()
	return call(op, "aten::alias", t)
}

// replaceData makes the data of t those of now, without a copy.
func replaceData(t, now *tensor.Tensor) error {
	replacing.Lock()
	defer replacing.Unlock()
	_, err := tensor.CallUnchecked("aten::set_data", t, now)
	return err
}
