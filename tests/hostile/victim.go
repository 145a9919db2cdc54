package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const spare = 16 << 20

// trainee is the model into which training files are loaded and from which the seeds were saved.
type trainee struct {
	model       *nn.Linear
	opt, second *optim.Optimizer
	step        int
	notes       map[string]any
}

func newTrainee() (*trainee, error) {
	t := &trainee{model: nn.NewLinear(2, 3), notes: map[string]any{"lr": []any{0.5, "warm"}}}
	var err error
	if t.opt, err = optim.NewAdamW(nn.Parameters(t.model), 1e-3); err != nil {
		return nil, err
	}
	if t.second, err = optim.NewSGD([]*tensor.Tensor{t.model.Bias}, 1e-3, optim.Momentum(0.9)); err != nil {
		return nil, err
	}
	return t, t.train()
}

func (t *trainee) train() error {
	return tensor.WithScope(func() error {
		t.opt.ZeroGrad()
		if err := t.model.Forward(tensor.Ones([]int{2, 2})).Square().Sum().Backward(); err != nil {
			return err
		}
		t.step++
		return errors.Join(t.opt.Step(), t.second.Step())
	})
}

func (t *trainee) parts() []checkpoint.Part {
	return []checkpoint.Part{checkpoint.Value("step", &t.step), checkpoint.Value("notes", &t.notes), checkpoint.Named("second", checkpoint.Optimizer(t.second))}
}

// makeSeeds saves the files from which mutants are made.
func makeSeeds(dir string) error {
	return tensor.WithScope(func() error {
		t, err := newTrainee()
		if err != nil {
			return err
		}
		return errors.Join(
			checkpoint.Save(filepath.Join(dir, "plain.seed"), map[string]*tensor.Tensor{
				"a": tensor.Arange(0, 6).To(tensor.Float32).View(2, 3), "ä\n": tensor.Ones([]int{3}, tensor.Bool), "h": tensor.Ones([]int{2, 2}, tensor.Float16),
				"": tensor.Zeros([]int{0, 4}), "l": tensor.Arange(0, 2), "c": tensor.Ones([]int{1}, tensor.Complex64), "8": tensor.Ones([]int{3}, tensor.Float8E5M2),
			}, map[string]string{"k": "v\"\\\u00e4", "": ""}),
			checkpoint.Save(filepath.Join(dir, "small.seed"), map[string]*tensor.Tensor{"x": tensor.Ones([]int{2, 2})}, nil),
			checkpoint.Save(filepath.Join(dir, "model.seed"), nn.StateDict(t.model).Map(), nil),
			checkpoint.SaveTraining(filepath.Join(dir, "training.seed"), t.model, t.opt, t.parts()...),
		)
	})
}

// victim loads mutants.
type victim struct {
	mutators *mutators
	file     *os.File
	path     string
	trainee  *trainee
	tally    tally
	outcome  error
	sample   []metrics.Sample
	before   cshim.Memory
	native   int64 // allocated after the last mutant
	sink     byte  // of the bytes that are read and not compared
}

func newVictim(work, format string) (*victim, error) {
	v := &victim{path: work + ".safetensors", sample: []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
	var err error
	if v.mutators, err = newMutators(filepath.Dir(work), format); err != nil {
		return nil, err
	}
	if v.file, err = os.Create(v.path); err != nil {
		return nil, err
	}
	if v.trainee, err = newTrainee(); err != nil {
		return nil, err
	}
	// Make everything that is made once by reading every seed.
	for i := range v.mutators.seeds {
		s := &v.mutators.seeds[i]
		if err := v.feed(mutant{bytes: s.bytes, kind: s.kind}); err != nil {
			return nil, err
		}
		if v.outcome != nil {
			return nil, fmt.Errorf("a seed is refused: %w", v.outcome)
		}
	}
	for _, s := range v.mutators.objects {
		if err := errors.Join(v.feed(mutant{bytes: s.bytes, kind: object}), v.outcome); err != nil {
			return nil, fmt.Errorf("a seed is refused: %w", err)
		}
	}
	v.tally = tally{}
	v.before, err = v.settle()
	return v, err
}

// settle restores the trainee and returns the memory in use then.
func (v *victim) settle() (cshim.Memory, error) {
	defer func(t tally) { v.tally = t }(v.tally)
	for i := range v.mutators.seeds {
		if s := &v.mutators.seeds[i]; s.kind == training {
			if err := errors.Join(v.feed(mutant{bytes: s.bytes, kind: training}), v.outcome); err != nil {
				return cshim.Memory{}, err
			}
		}
	}
	if v.mutators.objects != nil {
		s := v.mutators.objects[1] // a run
		if err := errors.Join(v.feed(mutant{n: 1, bytes: s.bytes, kind: object}), v.outcome); err != nil {
			return cshim.Memory{}, err
		}
	}
	v.trainee.opt.ZeroGrad()
	for range 3 {
		runtime.GC()
		tensor.Flush()
	}
	return cshim.MemoryStats(0)
}

// settled returns an error for what leaked since the start.
func (v *victim) settled() error {
	after, err := v.settle()
	if err == nil && (after.Allocated != v.before.Allocated || after.Handles != v.before.Handles) {
		err = fmt.Errorf("a leak: %+d native bytes, %+d handles", after.Allocated-v.before.Allocated, after.Handles-v.before.Handles)
	}
	return err
}

func (v *victim) heap() uint64 {
	metrics.Read(v.sample)
	return v.sample[0].Value.Uint64()
}

// feed loads a mutant. The error is a fault of package checkpoint; the result of the mutant is in v.outcome.
func (v *victim) feed(m mutant) error {
	if _, err := v.file.WriteAt(m.bytes, 0); err != nil {
		return err
	}
	if err := v.file.Truncate(int64(len(m.bytes))); err != nil {
		return err
	}
	before := v.heap()
	v.outcome = nil
	fault := v.load(m)
	used := int64(v.heap() - before)
	if v.outcome == nil || m.kind == training {
		after, err := cshim.MemoryStats(0)
		if err != nil {
			return err
		}
		used += after.Peak - v.native
		v.native = after.Allocated
		if err := cshim.MemoryResetPeak(0); err != nil {
			return err
		}
	}
	v.tally.Mutants++
	v.tally.Excess = max(v.tally.Excess, used-int64(len(m.bytes)))
	if used > int64(len(m.bytes))+spare {
		return fmt.Errorf("%d bytes allocated for a file of %d", used, len(m.bytes))
	}
	return fault
}

func (v *victim) load(m mutant) error {
	if m.kind == training {
		v.tally.Trainings++
		if err := v.loadTraining(m); err != nil || m.n%8 != 0 {
			return err
		}
	}
	f, err := checkpoint.Load(v.path, checkpoint.SkipObjects(m.n%2 == 0))
	if err != nil {
		if !errors.Is(err, checkpoint.ErrFormat) {
			return fmt.Errorf("an error of another kind: %w", err)
		}
		if v.outcome == nil {
			v.outcome = err
		}
		return nil
	}
	defer f.Close()
	v.tally.Accepted++
	return tensor.WithScope(func() error {
		if m.kind == object {
			return v.readObject(f, m)
		}
		return v.read(f, m)
	})
}

// ranges parses the header of a safetensors file: where each tensor's bytes are in the data.
func ranges(header []byte) (map[string][2]int, error) {
	var entries map[string]map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		return nil, err
	}
	at := make(map[string][2]int, len(entries))
	for name, fields := range entries {
		if name == "__metadata__" {
			continue
		}
		var r [2]int
		if err := json.Unmarshal(fields["data_offsets"], &r); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		at[name] = r
	}
	return at, nil
}

// read compares every byte of every tensor with the file's data at the place that the header says. Together the
// tensors are the data.
func (v *victim) read(f *checkpoint.File, m mutant) error {
	size := 8 + binary.LittleEndian.Uint64(m.bytes)
	data := m.bytes[size:]
	at, err := ranges(m.bytes[8:size])
	if err != nil {
		return fmt.Errorf("an accepted header: %w", err)
	}
	_ = f.Metadata()
	names := f.Names()
	if len(names) != len(at) {
		return fmt.Errorf("%d tensors, the header has %d", len(names), len(at))
	}
	sum, all := 0, true
	for i, name := range names {
		if i == 50 {
			return nil
		}
		if !f.Has(name) {
			return fmt.Errorf("%q is listed, and not there", name)
		}
		x := f.Tensor(name)
		if err := x.Err(); err != nil {
			all = false
			if errors.Is(err, tensor.ErrOutOfMemory) || errors.Is(err, os.ErrClosed) {
				return err
			}
			continue
		}
		v.tally.Tensors++
		var b []byte
		if x.Numel() > 0 {
			if b, err = tensor.Data[uint8](x.View(-1).ViewDType(tensor.Uint8)); err != nil {
				return fmt.Errorf("tensor %q %v%v: %w", name, x.DType(), x.Shape(), err)
			}
		}
		r, ok := at[name]
		if !ok || r[0] < 0 || r[1] < r[0] || r[1] > len(data) || !bytes.Equal(b, data[r[0]:r[1]]) {
			return fmt.Errorf("tensor %q: its %d bytes are not the file's at %v", name, len(b), r)
		}
		sum += len(b)
	}
	if all && sum != len(data) {
		return fmt.Errorf("%d of %d bytes are in tensors", sum, len(data))
	}
	return nil
}

func (v *victim) loadTraining(m mutant) error {
	t := v.trainee
	if err := checkpoint.LoadTraining(v.path, t.model, t.opt, t.parts()...); err != nil {
		v.outcome = err
	} else {
		v.tally.Loaded++
	}
	for _, p := range nn.StateDict(t.model) {
		if want := map[string][]int{"weight": {3, 2}, "bias": {3}}[p.Name]; !slices.Equal(p.Tensor.Shape(), want) {
			return fmt.Errorf("the parameter %s is %v now", p.Name, p.Tensor.Shape())
		}
	}
	if v.outcome != nil || m.n%16 != 0 {
		return nil
	}
	// Training must continue after loading, whatever the loaded numbers are.
	return errors.Join(t.train(), tensor.WithScope(func() error { return tensor.Randn([]int{40}).Err() }))
}

// child loads the mutants [from, to).
func child(work, format string, seed uint64, from, to int64) error {
	state, err := os.OpenFile(work+".state", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer state.Close()
	v, err := newVictim(work, format)
	if err != nil {
		return err
	}
	for n := from; n < to; n++ {
		v.tally.At = n
		if err := v.tally.write(state); err != nil {
			return err
		}
		m := v.mutators.mutant(seed, n)
		if err := v.feed(m); err != nil {
			return fmt.Errorf("%s: %w", m.how, err)
		}
	}
	if err = v.settled(); err == nil {
		v.tally.At = to
	} else {
		err = fmt.Errorf("mutants %d to %d: %w", from, to, err)
	}
	return errors.Join(err, v.tally.write(state))
}
