package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// run adapts a model to a text.
type run struct {
	options  *options
	model    *gpt.GPT
	vocab    gpt.Vocab
	kind     kind
	adapters []*nn.LoRALinear // in the places of the linear layers of model's multilayer perceptrons

	learned, held []uint8   // the text
	losses        []float64 // of each step
}

// kind is what adapters belong to: their rank and scale, and a hash of the base's weights.
type kind struct {
	rank  int
	alpha float64
	base  string
}

// readText reads the file to learn.
func (o *options) readText() ([]byte, error) {
	if o.text == "" {
		root, err := gpt.GoRoot()
		if err != nil {
			return nil, err
		}
		o.text = filepath.Join(root, "src", "testdata", "Isaac.Newton-Opticks.txt")
	}
	return os.ReadFile(o.text)
}

// newRun puts adapters into the model, whose own parameters it freezes, to learn the text.
func newRun(o *options, chars []byte, model *gpt.GPT, vocab gpt.Vocab) (*run, error) {
	text := &gpt.Text{Tokens: vocab.Tokens(chars), Vocab: vocab}
	r := &run{options: o, model: model, vocab: vocab}
	r.learned, r.held = text.Split()
	if need := model.Config.Context + 1; len(r.held) < need {
		return nil, fmt.Errorf("%s has %d characters of the base's vocabulary; it needs at least %d", o.text, len(text.Tokens), 20*need)
	}
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	hash, err := hashWeights(model)
	if err != nil {
		return nil, err
	}
	r.kind = kind{o.rank, o.alpha, hash}
	return r, r.insert()
}

// hashWeights returns a hash of the model's weights. load.py has the same.
func hashWeights(model *gpt.GPT) (string, error) {
	h := sha256.New()
	for _, w := range nn.StateDict(model) {
		values, err := tensor.Data[float32](w.Tensor)
		if err != nil {
			return "", err
		}
		if err := binary.Write(h, binary.LittleEndian, values); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// insert freezes the model and puts an adapter around each linear layer of its multilayer perceptrons.
func (r *run) insert() error {
	for _, p := range nn.Parameters(r.model) {
		if err := p.RequiresGrad_(false).Err(); err != nil {
			return err
		}
	}
	for _, b := range r.model.Blocks {
		for i, l := range b.MLP.Layers {
			if l, ok := l.(*nn.Linear); ok {
				a := nn.NewLoRALinear(l, r.kind.rank, nn.Alpha(r.kind.alpha))
				b.MLP.Layers[i] = a
				r.adapters = append(r.adapters, a)
			}
		}
	}
	return nn.Check(r.model)
}

// count returns the numbers of trained and of all parameters.
func (r *run) count() (trained, total int) {
	for _, p := range nn.Parameters(r.model) {
		total += p.Numel()
		if p.RequiresGrad() {
			trained += p.Numel()
		}
	}
	return trained, total
}

// save writes the adapters alone (blocks.0.mlp.0.lora_A.weight and so on), then merges them and writes the whole model.
func (r *run) save() error {
	adapters := nn.LoRAState(r.model)
	file := func(name string) string { return filepath.Join(r.options.out, name) }
	k := r.kind
	err := checkpoint.Save(file("adapters.safetensors"), adapters.Map(), map[string]string{
		"format": "pt", "rank": fmt.Sprint(k.rank), "alpha": fmt.Sprint(k.alpha), "base": k.base,
	})
	if err != nil {
		return err
	}
	c := r.model.Config
	err = checkpoint.SavePyTorch(file("adapters.pt"), map[string]any{
		"adapters": adapters,
		"rank":     k.rank,
		"alpha":    k.alpha,
		"base":     k.base,
		"config":   map[string]any{"vocab": c.Vocab, "width": c.Width, "layers": c.Layers, "heads": c.Heads, "context": c.Context},
		"vocab":    string(r.vocab),
	})
	if err != nil {
		return err
	}
	if err := r.merge(); err != nil {
		return err
	}
	if err := checkpoint.SaveTraining(file("merged.safetensors"), r.model, nil, gpt.Saved(&r.model.Config, &r.vocab)...); err != nil {
		return err
	}
	return plot(file("loss.svg"), r.losses)
}

// readKind reads what the adapters of a file that save wrote belong to.
func readKind(path string) (k kind, err error) {
	f, err := checkpoint.Load(path)
	if err != nil {
		return k, err
	}
	defer f.Close()
	for name, v := range map[string]any{"rank": &k.rank, "alpha": &k.alpha, "base": &k.base} {
		text, ok := f.Metadata()[name] // of adapters.safetensors
		if !ok {
			value, err := f.Value(name) // of adapters.pt
			if err != nil {
				return k, fmt.Errorf("not adapters that finetune saved: %w", err)
			}
			text = fmt.Sprint(value)
		}
		if _, err := fmt.Sscan(text, v); err != nil {
			return k, fmt.Errorf("%s: %s: %w", path, name, err)
		}
	}
	return k, nil
}

// load sets the adapters to those of a file that save wrote, adapters.safetensors or adapters.pt.
func (r *run) load(path string) error {
	of, err := readKind(path)
	if err != nil {
		return err
	}
	if of.base != r.kind.base {
		return fmt.Errorf("%s has the adapters of another base", path)
	}
	if of != r.kind {
		return fmt.Errorf("%s has adapters of rank %d and alpha %v, want %d and %v", path, of.rank, of.alpha, r.kind.rank, r.kind.alpha)
	}
	var report nn.LoadReport
	err = checkpoint.LoadModel(path, r.model, nn.Strict(false), nn.Report(&report), nn.Rename(func(name string) string {
		return strings.TrimPrefix(name, "adapters.") // of the dict in adapters.pt
	}))
	if err == nil && (len(report.Unexpected) > 0 || len(report.Loaded) != 2*len(r.adapters)) {
		err = fmt.Errorf("%s does not have the adapters of this base: %v", path, report)
	}
	return err
}

// merge adds the updates to the weights and puts the linear layers back, so that the model has the names and the speed of
// the base.
func (r *run) merge() error {
	for _, b := range r.model.Blocks {
		for i, l := range b.MLP.Layers {
			if a, ok := l.(*nn.LoRALinear); ok {
				if err := a.Merge(); err != nil {
					return err
				}
				b.MLP.Layers[i] = a.Base
			}
		}
	}
	return nil
}
