package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

const envArgs = "LINSTOCK_TEST_ARGS"

// TestMain runs the command in the processes that the tests start.
func TestMain(m *testing.M) {
	if args := os.Getenv(envArgs); args != "" {
		if err := command(strings.Fields(args)); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// text returns this example's own source.
func text(t *testing.T) *gpt.Text {
	t.Helper()
	x, err := gpt.ReadGoSource(".")
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func tiny(t *testing.T, steps int, out string) *options {
	t.Helper()
	return &options{
		settings: settings{Model: gpt.Config{Width: 16, Layers: 2, Heads: 2, Context: 16, Dropout: 0.1}, Batch: 4, LR: 3e-3, Seed: 1},
		steps:    steps, device: tensor.CPU, out: out, prompt: "func ", sample: 20,
	}
}

func start(t *testing.T, o *options) *run {
	t.Helper()
	r, err := newRun(o, text(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(r.model)
		r.opt.Release()
	})
	return r
}

func trainTo(t *testing.T, r *run, steps int) {
	t.Helper()
	r.options.steps = steps
	if err := r.train(t.Context(), newReport(r)); err != nil {
		t.Fatal(err)
	}
}

func TestNativeBytesAreConstant(t *testing.T) {
	leak.Check(t)
	r := start(t, tiny(t, 0, t.TempDir()))
	var last int64
	for round := range 4 {
		trainTo(t, r, r.step+60)
		if _, err := r.evaluate(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		// Gradients exist until the next step. glibc rounds each of their blocks by up to 16 bytes, differently each
		// time.
		r.opt.ZeroGrad()
		stats, err := vram.Stats(tensor.CPU)
		if err != nil {
			t.Fatal(err)
		}
		if round > 0 && stats.Allocated != last {
			t.Errorf("round %d ends with %d native bytes, the one before with %d", round, stats.Allocated, last)
		}
		last = stats.Allocated
	}
	if first, last := r.losses[0], r.losses[len(r.losses)-1]; last > first-0.5 {
		t.Errorf("the loss went from %.3f to %.3f", first, last)
	}
}

func TestResumedRunIsIdentical(t *testing.T) {
	leak.Check(t)
	whole := start(t, tiny(t, 0, t.TempDir()))
	trainTo(t, whole, 25)
	if err := whole.save(); err != nil {
		t.Fatal(err)
	}
	for _, stop := range []int{1, 12, 24} {
		o := tiny(t, 0, t.TempDir())
		stopped := start(t, o)
		trainTo(t, stopped, stop)
		if err := stopped.save(); err != nil {
			t.Fatal(err)
		}
		resumed := start(t, o)
		if resumed.step != stop {
			t.Fatalf("resumed at step %d, want %d", resumed.step, stop)
		}
		trainTo(t, resumed, 25)
		for i, v := range resumed.losses {
			if v != whole.losses[i] {
				t.Fatalf("stopped at %d: loss %d is %v, want %v", stop, i, v, whole.losses[i])
			}
		}
		if err := resumed.save(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(resumed.path())
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(whole.path())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("stopped at %d: the checkpoints at step 25 differ", stop)
		}
	}
}

// TestLongRunIsSaved tests that the losses of a long run, including NaN, are saved and restored.
func TestLongRunIsSaved(t *testing.T) {
	leak.Check(t)
	o := tiny(t, 100_000, t.TempDir())
	r := start(t, o)
	r.step, r.losses = o.steps, make([]float64, o.steps)
	for i := range r.losses {
		r.losses[i] = 5 / math.Sqrt(float64(i+1))
	}
	r.losses[99_999] = math.NaN()
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	resumed := start(t, o)
	if resumed.step != o.steps || len(resumed.losses) != o.steps || resumed.losses[77_777] != r.losses[77_777] || !math.IsNaN(resumed.losses[99_999]) {
		t.Errorf("resumed at step %d with %d losses", resumed.step, len(resumed.losses))
	}
}

// TestRefused tests that a run does not continue with another text, even one of the same characters, or with other settings,
// and does not begin with a prompt that it cannot continue.
func TestRefused(t *testing.T) {
	leak.Check(t)
	o := tiny(t, 0, t.TempDir())
	if err := start(t, o).save(); err != nil {
		t.Fatal(err)
	}
	reversed := text(t)
	slices.Reverse(reversed.Tokens)
	faster := *o
	faster.LR *= 2
	mute, foreign := *o, *o
	mute.prompt, foreign.prompt = "", "Löwe"
	for want, run := range map[string]func() (*run, error){
		"trained on another text":              func() (*run, error) { return newRun(o, reversed) },
		"LR:0.003 Seed:1}, now {Model:{Vocab:": func() (*run, error) { return newRun(&faster, text(t)) },
		"no such file or directory":            func() (*run, error) { return newRun(&options{out: t.TempDir(), evalOnly: true}, text(t)) },
		"-prompt: the prompt is empty":         func() (*run, error) { return newRun(&mute, text(t)) },
		"-prompt: the character 'ö' is not in": func() (*run, error) { return newRun(&foreign, text(t)) },
	} {
		if _, err := run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	faster.fresh = true
	if r := start(t, &faster); r.LR != 2*o.LR {
		t.Errorf("-fresh trains with the learning rate %v", r.LR)
	}
	faster.fresh, faster.evalOnly = false, true
	if r := start(t, &faster); r.LR != o.LR {
		t.Errorf("-eval takes the learning rate %v, want that of the file", r.LR)
	}
}

// TestNoStepSavesNothing tests that a run that does no step leaves the checkpoint as it is.
func TestNoStepSavesNothing(t *testing.T) {
	leak.Check(t)
	o := tiny(t, 3, t.TempDir())
	r := start(t, o)
	if err := trainAndSave(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(r.path())
	if err != nil {
		t.Fatal(err)
	}
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	fresh, longer := *o, *o
	fresh.fresh, longer.steps = true, 6
	for name, o := range map[string]*options{"finished": o, "-fresh": &fresh, "-steps": &longer} {
		r := start(t, o)
		if err := trainAndSave(interrupted, r); (err == nil) != (name == "finished") {
			t.Errorf("%s: got %v", name, err)
		}
		if got, err := os.ReadFile(r.path()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the checkpoint was written again; %v", name, err)
		}
	}
}

func TestInterruptSaves(t *testing.T) {
	leak.Check(t)
	r := start(t, tiny(t, 1_000_000, t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	interrupted, stop := context.WithCancel(t.Context())
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := trainAndSave(interrupted, r); err == nil || !strings.Contains(err.Error(), "interrupted after step") {
		t.Fatalf("got %v", err)
	}
	step := 0
	if err := checkpoint.LoadValues(r.path(), checkpoint.Value("step", &step)); err != nil || step != r.step || step == 0 {
		t.Errorf("saved at step %d, stopped at %d, %v", step, r.step, err)
	}
	if _, err := os.Stat(filepath.Join(r.options.out, "loss.svg")); err != nil {
		t.Error(err)
	}
	model, vocab, err := gpt.Load(r.path(), tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(model)
	var emitted strings.Builder
	got, err := model.Generate(t.Context(), vocab, "func ", 30, gpt.Sampling{Temperature: 1, Seed: 3}, func(c string) error {
		emitted.WriteString(c)
		return nil
	})
	if err != nil || len(got) != 30 || emitted.String() != got {
		t.Errorf("%q, emitted %q, %v", got, emitted.String(), err)
	}
	if _, err := model.Generate(t.Context(), vocab, "\x01", 1, gpt.Sampling{}, nil); err == nil {
		t.Error("a character beyond the vocabulary was taken")
	}
}

// TestSIGTERM tests that SIGTERM, with which Kubernetes and Slurm end a job, saves and ends the command with an error, and
// that the same command continues.
func TestSIGTERM(t *testing.T) {
	leak.Check(t)
	root, out := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "src"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	begin := func(steps int) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		args := fmt.Sprintf("-layers 1 -width 8 -heads 2 -context 8 -steps %d -out %s", steps, out)
		cmd.Env = append(os.Environ(), "GOROOT="+root, envArgs+"="+args)
		return cmd
	}
	cmd := begin(1_000_000)
	var errs strings.Builder
	cmd.Stderr = &errs
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for s := bufio.NewScanner(lines); s.Scan(); {
		said.WriteString(s.Text() + "\n")
		if strings.HasPrefix(s.Text(), "step ") && !strings.Contains(s.Text(), "validation") {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "interrupted after step") {
		t.Errorf("%v\n%s%s", err, said.String(), errs.String())
	}
	step := 0
	if err := checkpoint.LoadValues(filepath.Join(out, "model.safetensors"), checkpoint.Value("step", &step)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{fmt.Sprintf("continuing after step %d of", step), fmt.Sprintf("already has %d steps", step+1)} {
		if got, err := begin(step + 1).CombinedOutput(); err != nil || !strings.Contains(string(got), want) || !strings.Contains(string(got), "validation loss") {
			t.Errorf("%v, want %q in\n%s", err, want, got)
		}
	}
}

// TestSampleHasNoDropout tests that the sample after the evaluation depends on the seed alone.
func TestSampleHasNoDropout(t *testing.T) {
	leak.Check(t)
	o := tiny(t, 0, t.TempDir())
	o.Model.Dropout = 0.5
	r := start(t, o)
	trainTo(t, r, 2)
	if _, err := r.evaluate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	var texts [2]string
	for i := range texts {
		var err error
		if texts[i], err = r.model.Generate(t.Context(), r.vocab, "func ", 50, gpt.Sampling{Temperature: 1, Seed: 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("the same seed gives %q and %q", texts[0], texts[1])
	}
}

// TestNoDirectory tests that a run whose directory cannot be made ends before it trains.
func TestNoDirectory(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	o := tiny(t, 3, file)
	o.fresh = true // else it looks for a checkpoint there
	r := start(t, o)
	if err := trainAndSave(t.Context(), r); err == nil || r.step != 0 {
		t.Errorf("%d steps, %v", r.step, err)
	}
}

func TestText(t *testing.T) {
	leak.Check(t)
	x, err := gpt.NewText([]byte("aab\xffé\nb"))
	if err != nil {
		t.Fatal(err)
	}
	if x.Vocab != "\nab" || string(x.Tokens) != "\x01\x01\x02\x00\x02" {
		t.Errorf("vocabulary %q, tokens %v", x.Vocab, x.Tokens)
	}
	if want := -0.8*math.Log(0.4) - 0.2*math.Log(0.2); !(math.Abs(x.Entropy()-want) <= 1e-12) {
		t.Errorf("entropy %v, want %v", x.Entropy(), want)
	}
	if _, err := gpt.NewText([]byte("é")); err == nil {
		t.Error("a text without ASCII was taken")
	}
	ids, err := x.Vocab.Encode("b\n")
	if err != nil || x.Vocab.Decode(ids...) != "b\n" {
		t.Errorf("%v, %v", ids, err)
	}
}
