package gpt

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

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
// emit returns an error. It returns the text generated so far. The model must be in evaluation mode, which has no dropout.
func (g *GPT) Generate(ctx context.Context, v Vocab, prompt string, n int, s Sampling, emit func(char string) error) (text string, err error) {
	err = autograd.NoGrad(func() error {
		text, err = Continue(ctx, v, prompt, n, s, func(_ context.Context, ids []int64) ([]float32, error) {
			logits, err := g.Next(g.Seen(ids))
			if err != nil {
				return nil, err
			}
			return logits[0], nil
		}, emit)
		return err
	})
	return text, err
}

// Continue is Generate with next in the model's place: next returns the logits of the character after ids.
func Continue(ctx context.Context, v Vocab, prompt string, n int, s Sampling, next func(ctx context.Context, ids []int64) (logits []float32, err error), emit func(char string) error) (string, error) {
	ids, err := v.Prompt(prompt)
	if err != nil {
		return "", err
	}
	start := len(ids)
	random := rand.New(rand.NewPCG(s.Seed, 0))
	for range n {
		if err = context.Cause(ctx); err != nil {
			break
		}
		var logits []float32
		if logits, err = next(ctx, ids); err != nil {
			break
		}
		id := choose(logits, s.Temperature, random)
		ids = append(ids, int64(id))
		if emit != nil {
			if err = emit(v.Decode(int64(id))); err != nil {
				break
			}
		}
	}
	return v.Decode(ids[start:]...), err
}

// Seen returns the part of ids that the model uses: as many of the last ones as its context allows.
func (g *GPT) Seen(ids []int64) []int64 { return ids[max(0, len(ids)-g.Config.Context):] }

// Next returns for each row the logits of the character after it. The rows have the same length, from 1 to the context.
func (g *GPT) Next(rows ...[]int64) (logits [][]float32, err error) {
	err = tensor.WithScope(func() error {
		x := tensor.FromSlice(slices.Concat(rows...), []int{len(rows), len(rows[0])}, g.Tok.Weight.Device())
		flat, err := tensor.Data[float32](g.Forward(x).Select(1, -1).To(tensor.CPU))
		for row := range slices.Chunk(flat, g.Config.Vocab) {
			logits = append(logits, row)
		}
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
