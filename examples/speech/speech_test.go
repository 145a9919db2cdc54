package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	o := options{steps: 12, batch: 4, hidden: 16, test: 100, lr: 5e-3, seed: 1}
	r, err := newRun(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(r.model)
		r.opt.Release()
	})
	if err := r.train(t.Context(), o, func(_, _ float64) {}); err != nil {
		t.Fatal(err)
	}
	got := twin.Figures{"losses": r.losses}
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			s, err := speak(2)
			if err != nil {
				return err
			}
			x := features(s.sound)
			got["features"], err = tensor.Data[float64](x.Select(0, 0).Mean(tensor.Dim(1)).To(tensor.Float64))
			if err != nil {
				return err
			}
			y := r.model.Forward(x, s.frames).Select(1, 0).ArgMax(tensor.Dim(1))
			got["classes"], err = tensor.Data[float64](y.To(tensor.Float64))
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, got, 1e-4)

	dir := t.TempDir()
	if err := r.finish(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"utterance.wav", "loss.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 1000 {
			t.Error(name, err)
		}
	}
}

func TestDistance(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct {
		a, b []int
		want int
	}{
		{nil, nil, 0}, {[]int{1, 2}, nil, 2}, {nil, []int{3}, 1}, {[]int{1, 2, 3}, []int{1, 2, 3}, 0},
		{[]int{1, 2, 3}, []int{2, 3, 4}, 2}, {[]int{1, 5, 3}, []int{1, 2, 3}, 1},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("the distance of %v and %v is %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
