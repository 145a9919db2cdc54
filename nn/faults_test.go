package nn_test

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestFailingOperators calls each module while one of its operators fails. Only errors may result.
func TestFailingOperators(t *testing.T) {
	var file map[string]torchCase
	golden.Read(t, "torch_nn.json", &file)
	total := int64(0)
	for name, want := range file {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			c := torchModules[name]
			m := c.make()
			defer nn.Release(m)
			_ = tensor.WithScope(func() error {
				var xs []*tensor.Tensor
				for _, spec := range want.In {
					xs = append(xs, draw(t, spec))
				}
				total += leak.FailEachCall(t, func() { c.run(m, xs) })
				return nil
			})
		})
	}
	if total < int64(len(file)) {
		t.Errorf("%d modules have made %d calls", len(file), total)
	}
}

// TestErrorIsReportedOnce tests calls of several results that fail: the scope does not return the error again if the
// program has read it from one of the results, whichever that is.
func TestErrorIsReportedOnce(t *testing.T) {
	leak.Check(t)
	bad := tensor.Ones([]int{1, 1, 1, 1, 1, 1, 1})
	defer bad.Release()
	type tensors = []*tensor.Tensor
	for name, call := range map[string]func() tensors{
		"KVCache": func() tensors {
			k, v := nn.NewKVCache(1, 2, 4, 8).Update(bad, bad)
			return tensors{k, v}
		},
		"MultiheadAttention": func() tensors {
			y, weights := nn.NewMultiheadAttention(4, 2).AttendWeights(bad, bad, bad, nn.Masks{}, false)
			return tensors{y, weights}
		},
		"MultiheadAttention, a mask": func() tensors {
			x := tensor.Ones([]int{2, 3, 4})
			y, weights := nn.NewMultiheadAttention(4, 2).AttendWeights(x, x, x, nn.Masks{KeyPadding: bad}, false)
			return tensors{y, weights}
		},
		"AdaptiveLogSoftmaxWithLoss": func() tensors {
			y, loss := nn.NewAdaptiveLogSoftmaxWithLoss(4, 10, []int{2}).Forward(bad, bad)
			return tensors{y, loss}
		},
		"FuseConvBNWeights": func() tensors {
			w, b := nn.FuseConvBNWeights(bad, nil, bad, bad, 1e-5, nil, nil, false)
			return tensors{w, b}
		},
		"MaxPool3d": func() tensors {
			y, indices := nn.NewMaxPool3d(2).ForwardIndices(bad)
			return tensors{y, indices}
		},
		"AdaptiveMaxPool3d": func() tensors {
			y, indices := nn.NewAdaptiveMaxPool3d(2).ForwardIndices(bad)
			return tensors{y, indices}
		},
		"FractionalMaxPool2d": func() tensors {
			y, indices := nn.NewFractionalMaxPool2d(2, nn.OutputSize(1)).ForwardIndices(bad)
			return tensors{y, indices}
		},
		"AdaptiveMaxPool2d, one result": func() tensors { return tensors{nn.NewAdaptiveMaxPool2d(2).Forward(nil)} },
		"LSTM": func() tensors {
			y, h, c := nn.NewLSTM(2, 3).ForwardState(bad, nil, nil)
			return tensors{y, h, c}
		},
		"RNN, packed": func() tensors {
			y, h := nn.NewRNN(2, 3).ForwardPacked(&nn.PackedSequence{Data: bad}, nil)
			return tensors{y.Data, h}
		},
		"GRU, packed": func() tensors {
			y, h := nn.NewGRU(2, 3).ForwardPacked(nil, nil)
			return tensors{y.Data, h}
		},
		"LSTM, packed": func() tensors {
			y, h, c := nn.NewLSTM(2, 3).ForwardPacked(&nn.PackedSequence{Data: bad}, nil, nil)
			return tensors{y.Data, h, c}
		},
	} {
		for i, n := -1, 0; i <= n; i++ {
			var want error
			err := tensor.WithScope(func() error {
				out := call()
				n = len(out) - 1
				if i >= 0 {
					if want = out[i].Err(); want == nil {
						t.Errorf("%s: result %d has no error", name, i)
					}
				}
				return nil
			})
			if i < 0 && err == nil {
				t.Errorf("%s: the scope does not return an error that nothing has read", name)
			}
			if i >= 0 && err != nil {
				t.Errorf("%s: the scope returns %v, though result %d has returned %v", name, err, i, want)
			}
		}
	}
}
