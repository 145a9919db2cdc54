package main

import (
	"math"
	"os"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// newTestRun returns a run on the digits. The end of the test releases it.
func newTestRun(t *testing.T, batch int, lr float64) *run {
	t.Helper()
	train, test, _, err := readData("")
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRun(&options{batch: batch, workers: 1, lr: lr, seed: 1, device: tensor.CPU}, train, test)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(r.model)
		r.opt.Release()
	})
	return r
}

// TestDigits tests that two epochs on digits reach an accuracy of 90 %, and that the native bytes do not grow.
func TestDigits(t *testing.T) {
	leak.Check(t)
	r := newTestRun(t, 32, 2e-3)
	var last int64
	for epoch := range 4 {
		if _, err := r.epoch(t.Context()); err != nil {
			t.Fatal(err)
		}
		accuracy, err := r.accuracy(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("epoch %d: accuracy %.3f", epoch+1, accuracy); epoch == 1 && !(accuracy >= 0.9) {
			t.Errorf("accuracy %.3f after two epochs, want 0.9", accuracy)
		}
		// Gradients exist until the next step. glibc rounds each of their blocks by up to 16 bytes, differently each
		// time.
		r.opt.ZeroGrad()
		stats, err := vram.Stats(tensor.CPU)
		if err != nil {
			t.Fatal(err)
		}
		if epoch > 0 && stats.Allocated != last {
			t.Errorf("epoch %d ends with %d native bytes, the one before with %d", epoch+1, stats.Allocated, last)
		}
		last = stats.Allocated
	}
}

// TestLossIsTheMeanOfAllImages tests that a small last batch has its share of an epoch's loss.
func TestLossIsTheMeanOfAllImages(t *testing.T) {
	leak.Check(t)
	train, _, _, err := readData("")
	if err != nil {
		t.Fatal(err)
	}
	start := func() *run { return newTestRun(t, train.Len()-2, 0) }
	got, err := start().epoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, want := start(), 0.0
	for batch, err := range r.train.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		loss, err := nn.CrossEntropy(r.model.Forward(batch.Inputs), batch.Targets, tensor.ReduceSum).Item()
		if err != nil {
			t.Fatal(err)
		}
		want += loss / float64(train.Len())
	}
	if math.Abs(got-want) > 1e-5*want {
		t.Errorf("the loss is %v, want %v", got, want)
	}
}

func TestFashionMNISTIsRead(t *testing.T) {
	leak.Check(t)
	dir := os.Getenv("LINSTOCK_FASHION_MNIST")
	if dir == "" {
		dir = fashionDir
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no Fashion-MNIST: ", err)
	}
	train, test, _, err := readData(dir)
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 60_000 || test.Len() != 10_000 || train.Height != 28 {
		t.Errorf("%d and %d images, %d high", train.Len(), test.Len(), train.Height)
	}
}
