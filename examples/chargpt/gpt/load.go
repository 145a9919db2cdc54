package gpt

import (
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// Saved returns the parts of a checkpoint from which Load makes a model.
func Saved(c *Config, v *Vocab) []checkpoint.Part {
	return []checkpoint.Part{checkpoint.Value("config", c), checkpoint.Value("vocab", v)}
}

// Load makes the model of a checkpoint of chargpt, in evaluation mode.
func Load(path string, device tensor.Device) (*GPT, Vocab, error) {
	var c Config
	var v Vocab
	if err := checkpoint.LoadValues(path, Saved(&c, &v)...); err != nil {
		return nil, "", err
	}
	g := New(c, nn.Device(device))
	nn.Eval(g)
	return g, v, checkpoint.LoadModel(path, g)
}
