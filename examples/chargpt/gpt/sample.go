package gpt

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/tensor"
)

// Sampling sets how the next character is chosen: at random by its probability after dividing logits by Temperature, or
// the most probable one if Temperature is 0. The same Seed gives the same text.
type Sampling struct {
	Temperature float64
	Seed        uint64
}

// Generate continues prompt by n characters and calls emit, if it is not nil, with each. It stops when ctx is done or
// emit returns an error. It returns the text generated so far.
func (g *GPT) Generate(ctx context.Context, v Vocab, prompt string, n int, s Sampling, emit func(char string) error) (string, error) {
	ids, err := v.Encode(prompt)
	if err != nil {
		return "", err
	}
	if len(ids) == 0 {
		return "", errors.New("the prompt is empty")
	}
	start := len(ids)
	random := rand.New(rand.NewPCG(s.Seed, 0))
	err = autograd.NoGrad(func() error {
		for range n {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			logits, err := g.next(ids)
			if err != nil {
				return err
			}
			id := choose(logits, s.Temperature, random)
			ids = append(ids, int64(id))
			if emit != nil {
				if err := emit(v.Decode(int64(id))); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return v.Decode(ids[start:]...), err
}

// next returns the logits of the character after ids. The model uses as many of the last ids as its context allows.
func (g *GPT) next(ids []int64) (logits []float32, err error) {
	seen := ids[max(0, len(ids)-g.Config.Context):]
	err = tensor.WithScope(func() error {
		x := tensor.FromSlice(seen, []int{1, len(seen)}, g.Tok.Weight.Device())
		logits, err = tensor.Data[float32](g.Forward(x).Select(1, -1).View(-1).To(tensor.CPU))
		return err
	})
	return logits, err
}

// choose draws an index with probability softmax(logits / temperature).
func choose(logits []float32, temperature float64, random *rand.Rand) int {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	if temperature <= 0 {
		return best
	}
	weights, total := make([]float64, len(logits)), 0.0
	for i, l := range logits {
		weights[i] = math.Exp(float64(l-logits[best]) / temperature)
		total += weights[i]
	}
	at := random.Float64() * total
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return best
}
