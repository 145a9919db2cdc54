package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/tensor"
)

const length = 12 // maximum number of words in a review

// words are the vocabulary; the id of words[i] is i+1, and 0 is padding.
var words = strings.Fields("the film plot cast music ending was and good great superb moving bad dull awful weak not")

// value returns what a word says about the film: 1, -1 or 0.
func value(id int64) int {
	switch {
	case id >= 9 && id < 13:
		return 1
	case id >= 13 && id < 17:
		return -1
	}
	return 0
}

// label returns 1 for a positive review and 0 otherwise.
func label(ids []int64) int64 {
	score, sign := 0, 1
	for _, id := range ids {
		score += sign * value(id)
		if sign = 1; id == int64(len(words)) { // "not"
			sign = -1
		}
	}
	if score > 0 {
		return 1
	}
	return 0
}

// encode returns the ids of a review's words, padded with zeros to length.
func encode(text string) ([]int64, error) {
	ids := make([]int64, length)
	fields := strings.Fields(strings.ToLower(text))
	if len(fields) == 0 || len(fields) > length {
		return nil, fmt.Errorf("a review has 1 to %d words, got %d", length, len(fields))
	}
	for i, w := range fields {
		if ids[i] = int64(slices.Index(words, w) + 1); ids[i] == 0 {
			return nil, fmt.Errorf("unknown word %q: the vocabulary is %s", w, strings.Join(words, " "))
		}
	}
	return ids, nil
}

// reviews draws n reviews (n, length), padded with zeros, and their labels (n).
func reviews(n int) (ids, labels *tensor.Tensor, err error) {
	ids = tensor.RandInt(1, len(words)+1, []int{n, length})
	lengths := tensor.RandInt(4, length+1, []int{n})
	ids = ids.Mul(tensor.Arange(0, length).View(1, -1).Lt(lengths.View(-1, 1)).To(tensor.Int64))
	drawn, err := tensor.Data[int64](ids)
	if err != nil {
		return nil, nil, err
	}
	answers := make([]int64, n)
	for i := range answers {
		answers[i] = label(drawn[i*length : (i+1)*length])
	}
	return ids, tensor.FromSlice(answers, nil), nil
}
