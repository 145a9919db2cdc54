package main

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// start returns a run on the text of the options.
func start(t *testing.T, o *options, model *gpt.GPT, vocab gpt.Vocab) *run {
	t.Helper()
	text, err := o.readText()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRun(o, text, model, vocab)
	if err != nil {
		t.Fatal(err)
	}
	release(t, r)
	return r
}

// release frees the model and the adapters at the end of the test.
func release(t *testing.T, r *run) {
	t.Helper()
	t.Cleanup(func() {
		for _, a := range r.adapters {
			nn.Release(a)
		}
		nn.Release(r.model)
	})
}

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	if err := tensor.ManualSeed(1); err != nil {
		t.Fatal(err)
	}
	const vocab, context, steps = 11, 8, 20
	r := &run{
		options: &options{},
		kind:    kind{rank: 4, alpha: 8},
		model:   gpt.New(gpt.Config{Vocab: vocab, Width: 16, Layers: 2, Heads: 2, Context: context}),
	}
	release(t, r)
	first, second := make([]int64, 100), make([]int64, 100)
	for i := range first {
		first[i], second[i] = int64(i*i%vocab), int64(i*i*i%7)
	}
	learn := func(tokens []int64) []float64 {
		t.Helper()
		windows, err := data.NewWindows(tokens, context, 1)
		if err != nil {
			t.Fatal(err)
		}
		loader, err := data.NewLoader(windows, data.BatchSize(4))
		if err != nil {
			t.Fatal(err)
		}
		losses, err := train(t.Context(), r.model, loader, steps, 1e-2)
		if err != nil {
			t.Fatal(err)
		}
		return losses
	}
	got := twin.Figures{"base": learn(first)}
	if err := r.insert(); err != nil {
		t.Fatal(err)
	}
	if trained, total := r.count(); trained != 2*(4*16+4*64)*2 || total <= trained {
		t.Errorf("%d of %d parameters are trained", trained, total)
	}
	got["adapted"] = learn(second)
	logits := func(name string) {
		t.Helper()
		err := tensor.WithScope(func() error {
			return autograd.NoGrad(func() (err error) {
				ids := tensor.FromSlice(second[:context], []int{1, context})
				got[name], err = tensor.Data[float64](r.model.Forward(ids).Flatten().To(tensor.Float64))
				return err
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	logits("before")
	if err := r.merge(); err != nil {
		t.Fatal(err)
	}
	logits("after")
	twin.Compare(t, got, 1e-4)
}

// TestSaved trains a base and adapters, and reads the files that are saved, here and in Python.
func TestSaved(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	source, err := gpt.ReadGoSource(".")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	file := func(name string) string { return filepath.Join(out, name) }
	o := &options{text: "load.py", out: out, baseSteps: 2, steps: 5, batch: 2, rank: 2, alpha: 4, held: 1, lr: 1e-2, seed: 1, device: tensor.CPU}
	model, vocab, err := trainBase(t.Context(), o, source, file("base.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, o, model, vocab)
	if err := r.adapt(t.Context()); err != nil {
		t.Fatal(err)
	}
	loss, err := r.evaluate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	const prompt = "import "
	generate := func(g *gpt.GPT) string {
		t.Helper()
		text, err := g.Generate(t.Context(), vocab, prompt, 10, gpt.Sampling{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := generate(r.model)

	merged, _, err := gpt.Load(file("merged.safetensors"), tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(merged)
	if got := generate(merged); got != want {
		t.Errorf("the merged model writes %q, want %q", got, want)
	}
	second := *o
	second.seed = 2
	model, vocab, err = trainBase(t.Context(), &second, source, file("second.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	another := start(t, o, model, vocab)
	for _, name := range []string{"adapters.safetensors", "adapters.pt"} {
		model, vocab, err := gpt.Load(file("base.safetensors"), tensor.CPU)
		if err != nil {
			t.Fatal(err)
		}
		again := start(t, o, model, vocab)
		if err := again.load(file(name)); err != nil {
			t.Fatal(err)
		}
		if got, err := again.evaluate(t.Context()); err != nil || got != loss {
			t.Errorf("%s: the loss is %v, want %v; %v", name, got, loss, err)
		}
		if got, err := readKind(file(name)); err != nil || got != r.kind {
			t.Errorf("%s: %+v, want %+v; %v", name, got, r.kind, err)
		}
		again.kind.alpha = 5
		if err := again.load(file(name)); err == nil || !strings.Contains(err.Error(), "rank 2 and alpha 4, want 2 and 5") {
			t.Errorf("%s: got %v", name, err)
		}
		if err := another.load(file(name)); err == nil || !strings.Contains(err.Error(), "of another base") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := r.load(file("adapters.pt")); err == nil {
		t.Error("adapters were loaded into a model without adapters")
	}
	if _, err := os.Stat(file("loss.svg")); err != nil {
		t.Error(err)
	}
	t.Run("PyTorch", func(t *testing.T) {
		cmd := exec.Command(golden.Python(t), "load.py", file("base.safetensors"), file("adapters.pt"), prompt, "10")
		var errs strings.Builder
		cmd.Stderr = &errs
		if got, err := cmd.Output(); err != nil || string(got) != prompt+want {
			t.Errorf("PyTorch writes %q, want %q; %v\n%s", got, prompt+want, err, errs.String())
		}
		cmd = exec.Command(golden.Python(t), "load.py", file("second.safetensors"), file("adapters.pt"), prompt, "10")
		if got, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(got), "of another base") {
			t.Errorf("with another base: %v\n%s", err, got)
		}
	})
}

// TestBaseIsKept tests that a run takes the base that an earlier one has trained.
func TestBaseIsKept(t *testing.T) {
	leak.Check(t)
	source, err := gpt.ReadGoSource(".")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	path := filepath.Join(out, "base.safetensors")
	o := &options{base: filepath.Join(out, "none"), out: out, baseSteps: 1, batch: 2, seed: 1, device: tensor.CPU}
	trained, _, err := trainBase(t.Context(), o, source, path)
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(trained)
	want, err := hashWeights(trained)
	if err != nil {
		t.Fatal(err)
	}
	kept, vocab, err := base(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(kept)
	if got, err := hashWeights(kept); err != nil || got != want || vocab != source.Vocab {
		t.Errorf("the base has the weights %s, want %s; %v", got, want, err)
	}
}

// TestUnreadable tests that a file that cannot be read, and a prompt that cannot be continued, are reported before a base is
// trained.
func TestUnreadable(t *testing.T) {
	leak.Check(t)
	for _, prompt := range []string{"", "Löwe"} {
		out := t.TempDir()
		err := command(t.Context(), []string{"-prompt", prompt, "-base", filepath.Join(out, "none"), "-base-steps", "1", "-out", out})
		if _, trained := os.Stat(filepath.Join(out, "base.safetensors")); err == nil || !strings.HasPrefix(err.Error(), "-prompt: ") || trained == nil {
			t.Errorf("-prompt %q: got %v; whether a base was trained: %v", prompt, err, trained == nil)
		}
	}
	for _, name := range []string{"-text", "-adapters"} {
		out := t.TempDir()
		none := filepath.Join(out, "none")
		err := command(t.Context(), []string{name, none, "-base", none, "-base-steps", "1", "-out", out})
		if _, trained := os.Stat(filepath.Join(out, "base.safetensors")); !errors.Is(err, os.ErrNotExist) || trained == nil {
			t.Errorf("%s: got %v; whether a base was trained: %v", name, err, trained == nil)
		}
	}
}

// TestShortText tests that a text that is too short for the model is an error.
func TestShortText(t *testing.T) {
	leak.Check(t)
	model := gpt.New(gpt.Config{Vocab: 3, Width: 8, Layers: 1, Heads: 1, Context: 8})
	defer nn.Release(model)
	if _, err := newRun(&options{rank: 2, alpha: 2}, []byte("abc"), model, "abc"); err == nil {
		t.Error("a text of three characters was accepted")
	}
}

// TestSeed tests that the adapters' first values depend on the seed alone.
func TestSeed(t *testing.T) {
	leak.Check(t)
	first := func(seed uint64) []float32 {
		t.Helper()
		model := gpt.New(gpt.Config{Vocab: 11, Width: 8, Layers: 1, Heads: 1, Context: 8})
		r := start(t, &options{text: "load.py", rank: 2, alpha: 2, seed: seed}, model, "\nabcdefgh .")
		values, err := tensor.Data[float32](r.adapters[0].A.Weight)
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	one := first(1)
	if again, two := first(1), first(2); !slices.Equal(one, again) || slices.Equal(one, two) {
		t.Errorf("with seed 1 %v and %v, with seed 2 %v", one, again, two)
	}
}

// TestLossIsTheMeanOfAllWindows tests that a small last batch has its share of the loss on held-out text.
func TestLossIsTheMeanOfAllWindows(t *testing.T) {
	leak.Check(t)
	model := gpt.New(gpt.Config{Vocab: 11, Width: 8, Layers: 1, Heads: 1, Context: 8})
	defer nn.Release(model)
	r := &run{options: &options{held: 100}, model: model, held: []uint8("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x00\x01\x03\x05\x07\x09")}
	var losses [2]float64
	for i, batch := range []int{3, 7} {
		r.options.batch = batch
		var err error
		if losses[i], err = r.evaluate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if math.Abs(losses[0]-losses[1]) > 1e-6 {
		t.Errorf("the loss is %v in batches of 3 windows, and %v in one of 7", losses[0], losses[1])
	}
}
