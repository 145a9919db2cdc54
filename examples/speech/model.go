package main

import (
	"slices"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// Recognizer computes for each frame the probabilities of the digits and of the blank, which is class 0.
type Recognizer struct {
	LSTM *nn.LSTM
	Head *nn.Linear
}

func newRecognizer(hidden int) *Recognizer {
	return &Recognizer{
		LSTM: nn.NewLSTM(bands, hidden, nn.Bidirectional()),
		Head: nn.NewLinear(2*hidden, len(spoken)+1),
	}
}

// Forward maps features (N, T, bands) of utterances with the given numbers of frames to log probabilities (longest, N, 11).
func (r *Recognizer) Forward(x *tensor.Tensor, frames []int) *tensor.Tensor {
	y, _, _ := r.LSTM.ForwardPacked(nn.PackPaddedSequence(x, frames, nn.BatchFirst()), nil, nil)
	padded, _ := nn.PadPackedSequence(y)
	return r.Head.Forward(padded).LogSoftmax(-1)
}

// Loss returns the connectionist temporal classification loss (Graves et al. 2006).
func (r *Recognizer) Loss(s speech) *tensor.Tensor {
	return nn.CTCLoss(r.Forward(features(s.sound), s.frames), s.targets, s.frames, s.digits)
}

// Recognize returns the digits of each utterance: of the most probable class of each frame, those that are neither blank
// nor a repetition.
func (r *Recognizer) Recognize(s speech) ([][]int, error) {
	best, err := ints(r.Forward(features(s.sound), s.frames).ArgMax(tensor.Dim(2)).T().Flatten())
	if err != nil {
		return nil, err
	}
	all := make([][]int, len(s.frames))
	width := len(best) / len(all)
	for i, n := range s.frames {
		for _, class := range slices.Compact(best[i*width : i*width+n]) {
			if class > 0 {
				all[i] = append(all[i], class-1)
			}
		}
	}
	return all, nil
}

// distance returns the number of insertions, deletions and substitutions that make a of b.
func distance(a, b []int) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j, y := range b {
			replaced := diagonal
			if x != y {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
