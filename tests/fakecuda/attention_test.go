package fakecuda

import (
	"fmt"
	"os"
	"testing"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func init() { scenarios["attention"] = attention }

// TestAttention runs on devices on which libtorch prefers cuDNN, as an H100, and on others.
func TestAttention(t *testing.T) {
	for _, major := range []string{"8", "9"} {
		t.Run(major+".0", func(t *testing.T) { run(t, "attention", 1, 1<<30, "FAKECUDA_MAJOR="+major) })
	}
}

// attention: the first region of SDPAKernel has its own order, and leaves that of the process as libtorch chooses it.
func attention(*Control) error {
	x := tensor.Zeros([]int{1, 2, 16, 16}, tensor.Float16, tensor.CUDA(0))
	choice := func() (nn.SDPBackend, error) {
		r, err := tensor.CallUnchecked("aten::_fused_sdp_choice", x, x, x)
		if err != nil {
			return 0, err
		}
		n, ok := r[0].(int)
		if !ok {
			return 0, fmt.Errorf("the choice is %v", r)
		}
		return nn.SDPBackend(n), nil
	}
	for _, first := range []nn.SDPBackend{nn.SDPFlash, nn.SDPEfficient} {
		var got nn.SDPBackend
		y := nn.SDPAKernel([]nn.SDPBackend{first, nn.SDPCuDNN, nn.SDPMath}, func() *tensor.Tensor {
			var err error
			if got, err = choice(); err != nil {
				return tensor.Failed(err)
			}
			return x
		})
		if err := y.Err(); err != nil || got != first {
			return fmt.Errorf("in the region libtorch chooses %v, want %v; %w", got, first, err)
		}
	}
	want := nn.SDPFlash
	if os.Getenv("FAKECUDA_MAJOR") == "9" {
		want = nn.SDPCuDNN
	}
	got, err := choice()
	if err != nil || got != want {
		return fmt.Errorf("after the regions libtorch chooses %v, want %v; %w", got, want, err)
	}
	return nil
}
