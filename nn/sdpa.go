package nn

import (
	"fmt"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// SDPBackend is an implementation of tensor.ScaledDotProductAttention. PyTorch: torch.nn.attention.SDPBackend.
type SDPBackend int32

// The backends. The values are libtorch's. The CPU has SDPMath and SDPFlash, and prefers the latter whatever the order.
const (
	SDPMath         SDPBackend = 0 // operators, for every device and shape
	SDPFlash        SDPBackend = 1 // FlashAttention
	SDPEfficient    SDPBackend = 2 // memory-efficient attention
	SDPCuDNN        SDPBackend = 3 // cuDNN's attention
	SDPOverrideable SDPBackend = 4 // of a device type that an extension adds
)

var sdpBackends = [...]string{"MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "OVERRIDEABLE"}

// String returns PyTorch's name, such as "FLASH_ATTENTION".
func (b SDPBackend) String() string {
	if b >= 0 && int(b) < len(sdpBackends) {
		return sdpBackends[b]
	}
	return fmt.Sprintf("SDPBackend(%d)", int32(b))
}

// SDPAKernel returns f(). Attention in f, that of MultiheadAttention too, uses the first of backends that can compute it, and
// fails if none can:
//
//	y := nn.SDPAKernel([]nn.SDPBackend{nn.SDPFlash, nn.SDPMath}, func() *tensor.Tensor {
//		return model.Forward(x)
//	})
//
// Regions nest; the innermost one applies. The choice is the process's in libtorch: attention on other goroutines uses it,
// too, while f runs, and a region with other backends on another goroutine is an error. The first attention on a Hopper or
// Blackwell device puts cuDNN first for the process: if a CUDA device is first used within f, f's order is lost then, and
// cuDNN is not first after f. PyTorch: torch.nn.attention.sdpa_kernel with set_priority=True.
func SDPAKernel(backends []SDPBackend, f func() *tensor.Tensor) *tensor.Tensor {
	const op = "SDPAKernel"
	if f == nil {
		return tensor.Failed(refuse.Nil(op, "a function"))
	}
	if len(backends) == 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "at least one backend is needed")
	}
	order := make([]int32, len(backends))
	for i, b := range backends {
		if b < 0 || int(b) >= len(sdpBackends) {
			return refuse.Tensor(op, tensor.ErrArgument, "%v does not exist", b)
		}
		order[i] = int32(b)
	}
	var out *tensor.Tensor
	if err := handle.WithAttention(op, order, func() error {
		out = f()
		return nil
	}); err != nil {
		return tensor.Failed(err)
	}
	return out
}
