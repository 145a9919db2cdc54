package options_test

import (
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/profiler"
	"github.com/linstock-ml/linstock/tensor"
)

// TestBooleans tests that a boolean option without an argument is on, and off with false.
func TestBooleans(t *testing.T) {
	leak.Check(t)
	// Options of one package each, of the types that have no value to look at.
	_ = []autograd.SavedOption{autograd.Pinned(), autograd.Pinned(false)}
	_ = []cuda.EventOption{cuda.EnableTiming(), cuda.EnableTiming(false)}
	_ = []optim.Option{optim.AMSGrad(), optim.AMSGrad(false)}
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 3})
		with, without := nn.NewLinear(2, 2, nn.NoBias(false)), nn.NewLinear(2, 2, nn.NoBias())
		if with.Bias == nil || without.Bias != nil {
			t.Error("NoBias(false) omits the bias, or NoBias() does not")
		}
		if n, m := x.ProdDim(1, tensor.KeepDim()).Dim(), x.ProdDim(1, tensor.KeepDim(false)).Dim(); n != 2 || m != 1 {
			t.Errorf("KeepDim() gives %d dimensions, KeepDim(false) %d", n, m)
		}
		set, err := data.NewTensorDataset(tensor.Arange(0, 5))
		if err != nil {
			return err
		}
		defer set.Release()
		for want, o := range map[int]data.Option{2: data.DropLast(), 3: data.DropLast(false)} {
			if l, err := data.NewLoader(set, data.BatchSize(2), o); err != nil || l.Len() != want {
				t.Errorf("%d batches, %v, want %d", l.Len(), err, want)
			}
		}
		for _, shapes := range []bool{true, false} {
			p, err := profiler.Start(profiler.RecordShapes(shapes))
			if err != nil {
				return err
			}
			x.Add(x).Release()
			trace, err := p.Stop()
			if err != nil {
				return err
			}
			recorded := false
			for _, e := range trace.Events {
				recorded = recorded || len(e.Shapes) != 0
			}
			if recorded != shapes {
				t.Errorf("RecordShapes(%t) records shapes: %t", shapes, recorded)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
