package nn_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestFlatWeights tests that the weights of a recurrent layer on CUDA are in one buffer, and that it trains like one
// whose weights have a storage each, as they have on other devices. tests/fakecuda tests what makes the buffer.
func TestFlatWeights(t *testing.T) {
	leak.Check(t)
	for name, m := range map[string]nn.Layer{
		"RNN": nn.NewRNN(8, 16, nn.Activation("relu"), nn.NoBias()), "GRU": nn.NewGRU(8, 16, nn.NumLayers(2), nn.Bidirectional()),
		"LSTM": nn.NewLSTM(8, 16, nn.NumLayers(2)), "LSTM_projection": nn.NewLSTM(8, 16, nn.ProjSize(4), nn.Bidirectional()),
	} {
		apart := nn.Clone(m)
		err := tensor.WithScope(func() error {
			state := map[string]*tensor.Tensor{}
			for _, n := range nn.StateDict(m) {
				state[n.Name] = n.Tensor.Detach().Clone()
			}
			old := nn.Parameters(apart)
			err := nn.LoadStateDict(apart, state, nn.Assign(true))
			for _, p := range old {
				p.Release()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer nn.Release([]any{m, apart})
		ps, qs := nn.Parameters(m), nn.Parameters(apart)
		flat := ps[0].Device().Type == tensor.CUDAType
		for i := range ps {
			if i > 0 && ps[i].SharesStorage(ps[0]) != flat || slices.ContainsFunc(qs[:i], qs[i].SharesStorage) {
				t.Errorf("%s: the storage of %s is not what it should be on %v", name, nn.NamedParameters(m)[i].Name, ps[0].Device())
			}
		}
		one, err1 := optim.NewAdamW(ps, 0.01)
		other, err2 := optim.NewAdamW(qs, 0.01)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		defer one.Release()
		defer other.Release()
		for range 3 {
			err := tensor.WithScope(func() error {
				x := tensor.Randn([]int{5, 3, 8})
				y, z := m.Forward(x), apart.Forward(x)
				golden.Near(t, name+": y", y.Detach(), data(t, z.Detach()), 1e-5, 1e-5)
				if err := errors.Join(y.Square().Sum().Backward(), z.Square().Sum().Backward()); err != nil {
					return err
				}
				for i, p := range ps {
					golden.Near(t, name+": a gradient", p.Grad(), data(t, qs[i].Grad()), 1e-4, 1e-4)
				}
				if err := errors.Join(one.Step(), other.Step()); err != nil {
					return err
				}
				for i, p := range ps {
					golden.Near(t, name+": a weight", p.Detach(), data(t, qs[i].Detach()), 1e-4, 1e-4)
				}
				one.ZeroGrad()
				other.ZeroGrad()
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
