package main

import (
	"bytes"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
)

// start returns new networks. The end of the test releases them.
func start(t *testing.T, o options) *gan {
	t.Helper()
	g, err := newGAN(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(&g.networks)
		g.optG.Release()
		g.optD.Release()
	})
	return g
}

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	g := start(t, options{settings: settings{LR: 2e-3, Seed: 2}})
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
	err := command(t.Context(), options{settings: settings{Batch: 100_000, LR: 5e-4}, steps: 1, out: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "-batch must be at most") {
		t.Errorf("got %v", err)
	}
}

// TestResumedRunIsIdentical tests that a run that continues ends with the same checkpoint as one that was not stopped.
func TestResumedRunIsIdentical(t *testing.T) {
	leak.Check(t)
	set, err := readDigits()
	if err != nil {
		t.Fatal(err)
	}
	defer set.Release()
	perEpoch := set.Len() / 512
	run := func(out string, steps int) {
		t.Helper()
		o := options{settings: settings{Batch: 512, LR: 2e-3, Seed: 2}, steps: steps, out: out}
		g := start(t, o)
		pictures, err := newLoader(set, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.trainAndSave(t.Context(), pictures, o); err != nil || len(g.lossD) != steps {
			t.Fatalf("%d steps, want %d; %v", len(g.lossD), steps, err)
		}
	}
	whole := t.TempDir()
	run(whole, perEpoch+2)
	want, err := os.ReadFile(filepath.Join(whole, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, stop := range []int{1, perEpoch, perEpoch + 1} {
		out := t.TempDir()
		run(out, stop)
		run(out, perEpoch+2)
		if got, err := os.ReadFile(filepath.Join(out, "model.safetensors")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("stopped at %d: the checkpoints differ; %v", stop, err)
		}
	}
	finished := fmt.Sprintf("%s already has %d steps; -fresh trains anew\n", filepath.Join(whole, "model.safetensors"), perEpoch+2)
	if got := clitest.Printed(t, func() { run(whole, perEpoch+2) }); got != finished {
		t.Errorf("got %q, want %q", got, finished)
	}
}
