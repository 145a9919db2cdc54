package nn_test

import (
	"fmt"
	"log"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// A small network learns XOR.
func Example() {
	if err := xor(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0.weight [8 2]
	// 0.bias [8]
	// 2.weight [1 8]
	// 2.bias [1]
	// learned: true
}

func xor() error {
	if err := tensor.ManualSeed(1); err != nil {
		return err
	}
	model := nn.NewSequential(nn.NewLinear(2, 8), &nn.Tanh{}, nn.NewLinear(8, 1))
	for _, p := range nn.NamedParameters(model) {
		fmt.Println(p.Name, p.Tensor.Shape())
	}
	opt, err := optim.NewAdamW(nn.Parameters(model), 0.05)
	if err != nil {
		return err
	}
	x := tensor.FromSlice([]float32{0, 0, 0, 1, 1, 0, 1, 1}, []int{4, 2})
	y := tensor.FromSlice([]float32{0, 1, 1, 0}, []int{4, 1})
	var last float64
	for range 200 {
		err := tensor.WithScope(func() (err error) {
			loss := nn.BCEWithLogitsLoss(model.Forward(x), y)
			opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			last, err = loss.Item()
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Println("learned:", last < 0.1)
	return nil
}

// Block is a user-defined residual block: its fields are its parts.
type Block struct {
	LN1  *nn.LayerNorm
	Attn *nn.CausalSelfAttention
}

func (b *Block) Forward(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, b.LN1, b.Attn) }

func ExampleStateDict() {
	block := &Block{LN1: nn.NewLayerNorm(8), Attn: nn.NewCausalSelfAttention(8, 2)}
	for _, n := range nn.StateDict(block) {
		fmt.Println(n.Name, n.Tensor.Shape())
	}
	// Output:
	// ln1.weight [8]
	// ln1.bias [8]
	// attn.qkv.weight [24 8]
	// attn.qkv.bias [24]
	// attn.proj.weight [8 8]
	// attn.proj.bias [8]
}

// The Linears of a model whose widths 16 divides multiply in float8 from now on, also in the backward pass.
func ExampleConvertToFloat8Training() {
	model := nn.NewSequential(nn.NewLinear(32, 64), &nn.ReLU{}, nn.NewLinear(64, 10))
	names, err := nn.ConvertToFloat8Training(model, nn.Float8RowWise, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(names)
	fmt.Println(nn.String(model))
	// Output:
	// [0]
	// Sequential(
	//   (0): Linear(in_features=32, out_features=64, bias=True, float8=rowwise)
	//   (1): ReLU()
	//   (2): Linear(in_features=64, out_features=10, bias=True)
	// )
}
