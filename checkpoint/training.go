package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// Part is something beside model and optimizer that a run needs to go on: Loader, Schedule, Value.
type Part struct {
	name string
	save func() (any, error)
	load func(raw []byte) error
}

// Loader is the position of a data loader.
func Loader(l *data.Loader) Part {
	return Part{
		name: "loader",
		save: func() (any, error) { return l.State(), nil },
		load: func(raw []byte) error {
			var s data.State
			if err := json.Unmarshal(raw, &s); err != nil {
				return err
			}
			return l.SetState(s)
		},
	}
}

// Schedule is the place in a learning-rate schedule.
func Schedule(s *optim.Scheduler) Part {
	return Part{
		name: "schedule",
		save: func() (any, error) { return s.StateDict(), nil },
		load: func(raw []byte) error {
			var state map[string]float64
			if err := json.Unmarshal(raw, &state); err != nil {
				return err
			}
			return s.LoadStateDict(state)
		},
	}
}

// Value is any value that package encoding/json can write and read, under a name of its own: a count of steps, the
// settings of a run. Floats come back bit for bit.
func Value[T any](name string, v *T) Part {
	return Part{
		name: "value." + name,
		save: func() (any, error) { return v, nil },
		load: func(raw []byte) error {
			var got T
			if err := json.Unmarshal(raw, &got); err != nil {
				return err
			}
			*v = got
			return nil
		},
	}
}

// The names in a training checkpoint: tensors have these prefixes, and one remark holds the rest as JSON.
const (
	modelPrefix     = "model."
	optimizerPrefix = "optimizer."
	rngName         = "rng.cpu"
	remark          = "linstock"
)

type training struct {
	Format    int                        `json:"format"`
	Optimizer map[string]float64         `json:"optimizer"`
	Parts     map[string]json.RawMessage `json:"parts"`
}

// SaveTraining writes all that a run needs to go on as if it had not been stopped into one safetensors file: the
// model's parameters and buffers, the state of the optimizer (nil for none), that of the CPU's random generator,
// and the parts. As Save it replaces path as a whole or not at all.
//
//	checkpoint.SaveTraining(path, model, opt, checkpoint.Loader(loader), checkpoint.Value("step", &step))
//
// On the CPU, LoadTraining with the same arguments makes the run go on bit for bit, with the same number of
// threads. Generators of other devices are not in it.
func SaveTraining(path string, model any, opt *optim.Optimizer, parts ...Part) error {
	if err := nn.Check(model); err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		rng := tensor.RNGState()
		tensors := map[string]*tensor.Tensor{rngName: rng}
		for _, n := range nn.StateDict(model) {
			tensors[modelPrefix+n.Name] = n.Tensor
		}
		t := training{Format: 1, Parts: map[string]json.RawMessage{}}
		if opt != nil {
			s := opt.StateDict()
			t.Optimizer = s.Numbers
			for name, x := range s.Tensors {
				tensors[optimizerPrefix+name] = x
			}
		}
		for _, p := range parts {
			if err := p.store(t.Parts); err != nil {
				return fmt.Errorf("linstock: checkpoint: %q: %w", p.name, err)
			}
		}
		text, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("linstock: checkpoint: %w", err)
		}
		return Save(path, tensors, map[string]string{remark: string(text)})
	})
}

func (p Part) store(to map[string]json.RawMessage) error {
	if p.save == nil {
		return errors.New("an empty Part")
	}
	if _, twice := to[p.name]; twice {
		return errors.New("given twice")
	}
	v, err := p.save()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(v)
	to[p.name] = raw
	return err
}

// LoadTraining brings model, optimizer, random generator and parts to where they were at SaveTraining. Model and
// optimizer must be made as they were there, and what is in them is replaced; parts may be fewer. After an error
// some of it may have changed.
func LoadTraining(path string, model any, opt *optim.Optimizer, parts ...Part) error {
	return withFile(path, func(f *File) error {
		t, err := f.training()
		if err != nil {
			return err
		}
		if err := f.loadModel(model, modelPrefix); err != nil {
			return err
		}
		if opt != nil {
			s := optim.State{Numbers: t.Optimizer, Tensors: map[string]*tensor.Tensor{}}
			if err := f.collect(optimizerPrefix, s.Tensors); err != nil {
				return err
			}
			if err := opt.LoadStateDict(s); err != nil {
				return err
			}
		}
		if err := t.load(parts); err != nil {
			return err
		}
		return tensor.SetRNGState(f.Tensor(rngName))
	})
}

// LoadModel brings a model's parameters and buffers to those of a file: one that SaveTraining wrote, or any other
// with the model's names, such as Python's safetensors.torch.save_file(model.state_dict(), path) writes.
func LoadModel(path string, model any, opts ...nn.LoadOption) error {
	return withFile(path, func(f *File) error {
		prefix := ""
		if _, ok := f.header.metadata[remark]; ok {
			prefix = modelPrefix
		}
		return f.loadModel(model, prefix, opts...)
	})
}

// LoadValues reads parts of a training checkpoint alone, the settings to make the model with, say.
func LoadValues(path string, parts ...Part) error {
	return withFile(path, func(f *File) error {
		t, err := f.training()
		if err != nil {
			return err
		}
		return t.load(parts)
	})
}

func (t *training) load(parts []Part) error {
	for _, p := range parts {
		raw, ok := t.Parts[p.name]
		if !ok || p.load == nil {
			return fmt.Errorf("%q is not in it", p.name)
		}
		if err := p.load(raw); err != nil {
			return fmt.Errorf("%q: %w", p.name, err)
		}
	}
	return nil
}

// withFile runs f on an open file in a scope, where its tensors die.
func withFile(path string, f func(*File) error) error {
	file, err := Load(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := tensor.WithScope(func() error { return f(file) }); err != nil {
		return fmt.Errorf("linstock: checkpoint: %s: %w", path, err)
	}
	return nil
}

func (f *File) training() (*training, error) {
	text, ok := f.header.metadata[remark]
	if !ok {
		return nil, errors.New("it is not a training checkpoint")
	}
	t := &training{}
	if err := json.Unmarshal([]byte(text), t); err != nil {
		return nil, malformed("its remark %q: %v", remark, err)
	}
	if t.Format != 1 {
		return nil, fmt.Errorf("it is a training checkpoint of format %d, not 1", t.Format)
	}
	return t, nil
}

// collect adds the tensors whose names begin with prefix, without it.
func (f *File) collect(prefix string, to map[string]*tensor.Tensor) error {
	for _, name := range f.Names() {
		short, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		x := f.Tensor(name)
		if err := x.Err(); err != nil {
			return err
		}
		to[short] = x
	}
	return nil
}

func (f *File) loadModel(model any, prefix string, opts ...nn.LoadOption) error {
	state := map[string]*tensor.Tensor{}
	if err := f.collect(prefix, state); err != nil {
		return err
	}
	return nn.LoadStateDict(model, state, opts...)
}
