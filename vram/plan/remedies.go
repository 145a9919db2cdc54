package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Remedy is a change of the program that lowers the peak.
type Remedy struct {
	Name string // "half the batch"
	Peak int64  // of the program with the remedy alone
	How  string // what computed Peak, and the function that applies the remedy
}

const (
	pieces   = 4   // of an accumulated batch, at most
	loraRank = 8   // of the remedy LoRA
	codes    = 256 // elements of 8-bit state that share a scale of four bytes
)

// remedies fills Remedies with what lowers the peak. A smaller batch with which step fails is not a remedy.
func (p *Plan) remedies(model any, optimizer *optim.Optimizer, step func(batch int) error) {
	add := func(name string, peak int64, how string, args ...any) {
		if peak < p.Peak {
			p.Remedies = append(p.Remedies, Remedy{name, peak, fmt.Sprintf(how, args...)})
		}
	}
	if p.Batch > 1 {
		if half, err := once("plan.New", model, optimizer, p.Batch/2, step); err == nil {
			add("half the batch", half.Peak, "a plan with batch %d", half.Batch)
		}
	}
	gradients := p.bytes(vram.Gradients)
	if p.Batch >= pieces {
		size := (p.Batch + pieces - 1) / pieces
		if piece, err := once("plan.New", model, optimizer, size, step); err == nil {
			// Gradients live throughout, and those of one more layer exist while they are added.
			all := int64(0)
			for _, x := range p.trained {
				all += x.bytes(x.dtype)
			}
			add(fmt.Sprintf("accumulate %d batches of %d", (p.Batch+size-1)/size, size), piece.Peak+max(0, all-piece.bytes(vram.Gradients)),
				"a plan with batch %d, and all gradients", size)
		}
	}
	activations := p.bytes(vram.Activations)
	state := p.bytes(vram.OptimizerState)
	half := int64(0)
	for _, part := range p.Parts {
		if part.Name == vram.Weights || part.Name == vram.Gradients || part.Name == vram.Activations || part.Name == vram.Temporaries {
			half += part.ByDType[tensor.Float32] / 2
		}
	}
	if p.Part(vram.Weights).ByDType[tensor.Float32] > 0 {
		masters := int64(0)
		if optimizer != nil || state > 0 {
			for _, x := range p.trained {
				if x.dtype == tensor.Float32 {
					masters += x.bytes(tensor.Float32)
				}
			}
		}
		add("bfloat16 with master weights", p.Peak-half+masters,
			"float32 weights, gradients, activations and temporaries halved, and 4 bytes a trained parameter; nn.DType, optim.MasterWeights")
	}
	if n := len(p.saved); n > 4 {
		add("checkpointing", p.Peak-activations+int64(float64(activations)*2/math.Sqrt(float64(n))),
			"2/√%d of the activations, for √%d segments (Chen et al., 2016); autograd.Checkpoint", n, n)
	}
	if activations > 0 {
		add("activations on the CPU", p.Peak-activations+min(activations, 2*slices.Max(p.saved)),
			"two of the largest activation stay; autograd.SavedTensors")
	}
	if offloaded := state + p.bytes(Masters); offloaded > 0 {
		add("optimizer state on the CPU", p.Peak-offloaded, "without masters and optimizer state")
	}
	if full := p.Part(vram.OptimizerState).ByDType[tensor.Float32]; full > 0 {
		add("8-bit optimizer state", p.Peak-full+full/4+full/codes,
			"a byte an element and a scale for each %d (Dettmers et al., 2022)", codes)
		if factored := p.factored(); factored < state {
			add("factored optimizer state", p.Peak-state+factored, "a row and a column for each matrix; optim.NewAdafactor")
		}
	}
	trained := int64(0)
	for _, x := range p.trained {
		trained += x.elements()
	}
	if adapters, bytes := p.adapters(); adapters > 0 && adapters < trained && gradients+state > 0 {
		share := float64(adapters) / float64(trained)
		kept := int64(share * float64(gradients+state+p.bytes(Masters)))
		add(fmt.Sprintf("LoRA of rank %d", loraRank), p.Peak-gradients-state-p.bytes(Masters)+kept+bytes,
			"gradients and state of %d adapter elements instead of %d; activations unchanged", adapters, trained)
	}
}

// factored returns the bytes of Adafactor's state. Its dtype is that of what the optimizer updates: of the parameter or
// of its master.
func (p *Plan) factored() (n int64) {
	for _, x := range p.trained {
		elements, s := x.elements(), x.shape
		if k := len(s); k >= 2 && s[k-1] > 0 && s[k-2] > 0 {
			elements = elements/int64(s[k-1]) + elements/int64(s[k-2])
		}
		size := x.dtype.Size()
		if p.bytes(Masters) > 0 {
			size = max(size, tensor.Float32.Size())
		}
		n += int64(size) * elements
	}
	return n
}

// adapters returns the elements and the bytes of LoRA's matrices for all matrices of the model. They have its dtypes.
func (p *Plan) adapters() (n, bytes int64) {
	for _, x := range p.trained {
		if s := x.shape; len(s) == 2 {
			elements := loraRank * int64(s[0]+s[1])
			n += elements
			bytes += elements * int64(x.dtype.Size())
		}
	}
	return n, bytes
}

// Stage is what ZeRO (Rajbhandari et al., 2020) divides among ranks.
type Stage int

// The stages. Each divides what the one before does.
const (
	DataParallel Stage = iota // nothing: each rank has all of it
	ZeRO1                     // optimizer state and masters
	ZeRO2                     // and gradients
	ZeRO3                     // and weights
)

// String returns the name of the stage, such as "ZeRO-1".
func (s Stage) String() string {
	if names := []string{"data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"}; s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("stage(%d)", int(s))
}

// PerRank returns the bytes of each of so many ranks, every one with the plan's batch: the peak with what the stage divides
// divided by ranks, rounded up. Weights that ZeRO-3 gathers for a layer while it computes are not included. For mixed
// precision with Adam and without activations these are the 16Ψ, 4Ψ+12Ψ/N, 2Ψ+14Ψ/N and 16Ψ/N of the paper. ranks
// below 1 count as 1.
func (p *Plan) PerRank(s Stage, ranks int) int64 {
	if p == nil {
		return 0
	}
	var divided int64
	if s >= ZeRO1 {
		divided += p.bytes(vram.OptimizerState, Masters)
	}
	if s >= ZeRO2 {
		divided += p.bytes(vram.Gradients)
	}
	if s >= ZeRO3 {
		divided += p.bytes(vram.Weights)
	}
	n := int64(max(1, ranks))
	return p.Peak - divided + (divided+n-1)/n
}
