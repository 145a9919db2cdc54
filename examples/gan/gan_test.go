package main

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	g, err := newGAN(options{lr: 2e-3, seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(g.generator)
		nn.Release(g.discriminator)
		g.optG.Release()
		g.optD.Release()
	})
	set, err := readDigits()
	if err != nil {
		t.Fatal(err)
	}
	defer set.Release()
	pictures, err := data.NewLoader(set, data.BatchSize(16))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.train(t.Context(), pictures, 12, func() {}); err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, twin.Figures{"discriminator": g.lossD, "generator": g.lossG}, 1e-4)

	dir := t.TempDir()
	if err := g.save(dir); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "pictures.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil || picture.Bounds().Dx() != 4*(8*17+1) {
		t.Errorf("%v, %v", picture, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "loss.svg")); err != nil {
		t.Error(err)
	}
}

// TestLargeBatch tests that a batch larger than the number of pictures is an error.
func TestLargeBatch(t *testing.T) {
	leak.Check(t)
	err := command(t.Context(), options{steps: 1, batch: 100_000, lr: 5e-4, out: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "-batch must be at most") {
		t.Errorf("got %v", err)
	}
}
