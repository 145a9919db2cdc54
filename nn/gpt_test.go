package nn_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// block is a block of the GPT in tests/golden/gpt.py.
type block struct {
	LN1  *nn.LayerNorm
	Attn *nn.CausalSelfAttention
	LN2  *nn.LayerNorm
	MLP  *nn.Sequential
}

func (b *block) Forward(x *tensor.Tensor) *tensor.Tensor {
	return nn.Pipe(x,
		nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, b.LN1, b.Attn) }),
		nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, b.LN2, b.MLP) }))
}

type gpt struct {
	Tok, Pos *nn.Embedding
	Blocks   []nn.Layer
	LN       *nn.LayerNorm
	Head     *nn.Linear
}

func (g *gpt) Forward(ids *tensor.Tensor) *tensor.Tensor {
	return tensor.Tidy(func() *tensor.Tensor {
		pos := tensor.Arange(0, ids.Size(1), tensor.Int64)
		x := g.Tok.Forward(ids).Add(g.Pos.Forward(pos))
		return nn.Pipe(x, append(append([]nn.Layer{}, g.Blocks...), g.LN, g.Head)...)
	})
}

type gptFile struct {
	Config struct {
		Layers, Width, Heads, Context, Vocab, Batch, Steps int
		LR, Beta1, Beta2, Eps                              float64
		WeightDecay                                        float64 `json:"weight_decay"`
	}
	Batches   [][][]int
	Losses    []float64
	GradNorms map[string]float64 `json:"grad_norms"`
	Norms     map[string]float64
}

func newGPT(f *gptFile) *gpt {
	c := f.Config
	g := &gpt{
		Tok:  nn.NewEmbedding(c.Vocab, c.Width),
		Pos:  nn.NewEmbedding(c.Context, c.Width),
		LN:   nn.NewLayerNorm(c.Width),
		Head: nn.NewLinear(c.Width, c.Vocab, nn.NoBias()),
	}
	for range c.Layers {
		g.Blocks = append(g.Blocks, &block{
			LN1:  nn.NewLayerNorm(c.Width),
			Attn: nn.NewCausalSelfAttention(c.Width, c.Heads),
			LN2:  nn.NewLayerNorm(c.Width),
			MLP:  nn.NewSequential(nn.NewLinear(c.Width, 4*c.Width), &nn.GELU{}, nn.NewLinear(4*c.Width, c.Width)),
		})
	}
	return g
}

// safetensors reads a file of float32 tensors.
func safetensors(t *testing.T, path string) map[string]*tensor.Tensor {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(data)
	var header map[string]struct {
		Shape   []int
		Offsets []int `json:"data_offsets"`
	}
	if err := json.Unmarshal(data[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	out := map[string]*tensor.Tensor{}
	for name, h := range header {
		if name == "__metadata__" {
			continue
		}
		raw := data[8+int(n)+h.Offsets[0] : 8+int(n)+h.Offsets[1]]
		values := make([]float32, len(raw)/4)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		out[name] = tensor.FromSlice(values, h.Shape)
	}
	return out
}

// loadedGPT returns the model of gpt.json with its first weights, and its batches.
func loadedGPT(t *testing.T) (*gpt, *gptFile) {
	var file gptFile
	golden.Read(t, "gpt.json", &file)
	g := newGPT(&file)
	t.Cleanup(func() { nn.Release(g) })
	if err := tensor.WithScope(func() error { return nn.LoadStateDict(g, safetensors(t, golden.Path("gpt.safetensors"))) }); err != nil {
		t.Fatal(err)
	}
	return g, &file
}

// loss returns the loss of a step.
func (f *gptFile) loss(g *gpt, step int) *tensor.Tensor {
	c, batch := f.Config, f.Batches[step%len(f.Batches)]
	var flat []int
	for _, row := range batch {
		flat = append(flat, row...)
	}
	ids := tensor.FromSlice(flat, []int{len(batch), c.Context + 1})
	logits := g.Forward(ids.Narrow(1, 0, c.Context))
	return nn.CrossEntropy(logits.Reshape(-1, c.Vocab).To(tensor.Float32), ids.Narrow(1, 1, c.Context).Reshape(-1))
}

// TestGPT compares twenty training steps with PyTorch's.
func TestGPT(t *testing.T) {
	leak.Check(t)
	g, file := loadedGPT(t)
	c := file.Config
	opt, err := optim.NewAdamW(nn.Parameters(g), c.LR, optim.Betas(c.Beta1, c.Beta2), optim.Eps(c.Eps), optim.WeightDecay(c.WeightDecay))
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	worst := 0.0
	for step := range file.Batches {
		err := tensor.WithScope(func() error {
			loss := file.loss(g, step)
			opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if step == 0 {
				checkNorms(t, "the gradient of ", g, file.GradNorms, (*tensor.Tensor).Grad)
			}
			if err := opt.Step(); err != nil {
				return err
			}
			v, err := loss.Item()
			worst = math.Max(worst, math.Abs(v-file.Losses[step]))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if t.Logf("losses differ from PyTorch's by at most %.3g", worst); !(worst <= 1e-5) {
		t.Errorf("losses differ from PyTorch's by up to %v", worst)
	}
	checkNorms(t, "", g, file.Norms, func(p *tensor.Tensor) *tensor.Tensor { return p.Detach() })
}

func checkNorms(t *testing.T, what string, g *gpt, want map[string]float64, of func(*tensor.Tensor) *tensor.Tensor) {
	params := nn.NamedParameters(g)
	if len(params) != len(want) {
		t.Errorf("%d parameters, PyTorch has %d", len(params), len(want))
	}
	for _, p := range params {
		norm := tensor.Tidy(func() *tensor.Tensor { return of(p.Tensor).To(tensor.Float64).LinalgVectorNorm() })
		golden.Near(t, "the norm of "+what+p.Name, norm, []float64{want[p.Name]}, 1e-5, 1e-4)
		norm.Release()
	}
}
