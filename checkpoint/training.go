package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/optimstate"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// Part is a part of a run's state besides model and optimizer: Loader, Schedule, Scaler, Optimizer or Value. A run that
// has several of a kind gives them names with Named.
type Part struct {
	name string // name of its tensor, with which those of an optimizer's other tensors begin
	save func(name string, to map[string]content) error
	load func(*File, *entry) error
}

// Named gives a part a name, so that a file can have several of its kind. A dot in the name is an error.
//
//	err := checkpoint.SaveTraining(path, &models, optG, checkpoint.Schedule(scheduleG),
//		checkpoint.Named("d", checkpoint.Optimizer(optD)), checkpoint.Named("d", checkpoint.Schedule(scheduleD)))
func Named(name string, p Part) Part {
	p.name += ":" + name
	if strings.Contains(name, ".") { // the tensors of an optimizer "a.state" could be those of an optimizer "a"
		p.save = func(string, map[string]content) error { return errors.New("a part's name cannot have a dot") }
	}
	return p
}

// Loader is the position of a data loader. It is read into a loader that has the order of the one that was saved; see
// [data.Loader.SetState], also for another order.
func Loader(l *data.Loader) Part {
	if l == nil {
		return Part{name: "loader"}
	}
	return state("loader", func() data.State { return l.State() }, l.SetState)
}

// Schedule is the position in a learning-rate schedule.
func Schedule(s *optim.Scheduler) Part {
	if s == nil {
		return Part{name: "schedule"}
	}
	return state("schedule", s.StateDict, s.LoadStateDict)
}

// Scaler is the state of a gradient scaler.
func Scaler(s *optim.GradScaler) Part {
	if s == nil {
		return Part{name: "scaler"}
	}
	return state("scaler", s.StateDict, s.LoadStateDict)
}

// Optimizer is the state of an optimizer, for runs that have several. SaveTraining's argument opt is this part without
// a name, so that others need one; see Named.
func Optimizer(opt *optim.Optimizer) Part {
	p := Part{name: optimizerName}
	if opt != nil {
		p.save = func(name string, to map[string]content) error { return saveOptimizer(opt, name, to) }
		p.load = func(f *File, e *entry) error { return f.loadOptimizer(opt, e) }
	}
	return p
}

func saveOptimizer(opt *optim.Optimizer, name string, to map[string]content) (err error) {
	for _, g := range opt.Groups() {
		if sharding.GroupsOf(g.Params) != nil {
			return errors.New("it has this process's parts of parameters that package dist divides: save it with package dist/dcp, in State.Optimizer or State.Optimizers")
		}
	}
	plain, tensors := optimstate.Flatten(opt.StateDict())
	for path, t := range tensors {
		path = name + "." + path
		if to[path], err = contentOf(t); err != nil {
			return fmt.Errorf("tensor %s: %w", quoted(path), err)
		}
	}
	to[name], err = encode(&plain)
	return err
}

// Value is a variable of the program under a name: a step count, the losses, the settings of a run. It may be
// of any size and is restored exactly, floats bit for bit, NaN and infinities included; only a float32 that is a
// signalling NaN is restored as a quiet one, unless v points to a []float32. A value that could not be read again is an
// error when it is saved.
//
// v may point to a bool, a number of up to 64 bits that is not complex, a string, a time.Time, and to slices,
// arrays, maps, pointers and structs of these. The exported fields of a struct are stored under the names in their json
// tags, except those with the tag "-". A struct without any is an error, and so are a tensor and fields of which only
// one would be stored, because they have the same name or one hides another. A load sets the fields that are stored, to
// zero if the file does not have them. The other fields of *v, and of structs in it, keep their values; what is behind a
// pointer, in a slice, an array or a map is made anew.
//
// A type that has MarshalBinary, MarshalText or MarshalJSON, and its counterpart, is stored by the first of these
// methods that it has, and read by UnmarshalJSON if it has that. A load replaces it as a whole. It is an error if the
// two do not fit, as in slog.Level, if one panics, or if the method is that of an embedded field and would not store the
// other fields.
// A big.Int of more than 64 bits is an error, because numbers in a hostile file could take hours to read.
//
// A time.Time is restored with its instant and the offset of its zone, but not the zone's name, and in UTC if the
// offset has seconds. A year outside 0…9999 is an error. The zero time is restored as nil in a pointer or an any.
//
// An empty slice of numbers or bools is restored as nil. In a variable of type any, an int64, a float64, a bool,
// a string, a []byte, a time.Time, a []any and a map[string]any are restored with their types. Other integers are
// restored as int64 (or big.Int beyond its range), other values as the nearest of these types; a map whose keys
// are numbers or bools is an error.
func Value[T any](name string, v *T) Part {
	p := Part{name: valuePrefix + name}
	if v != nil {
		p.save = encoded(func() *T { return v })
		p.load = func(f *File, e *entry) error { return decode(f, e, v) }
	}
	return p
}

// state is a part that get returns and set takes.
func state[T any](name string, get func() T, set func(T) error) Part {
	return Part{
		name: name,
		save: encoded(func() *T {
			v := get()
			return &v
		}),
		load: func(f *File, e *entry) error {
			var v T
			if err := decode(f, e, &v); err != nil {
				return err
			}
			return set(v)
		},
	}
}

// encoded returns a function that stores what get returns.
func encoded[T any](get func() *T) func(name string, to map[string]content) error {
	return func(name string, to map[string]content) (err error) {
		to[name], err = encode(get())
		return err
	}
}

// Names in a training checkpoint, which the package comment lists.
const (
	modelPrefix   = "model."
	optimizerName = "optimizer"
	valuePrefix   = "value."
	rngPrefix     = "rng." // followed by "cpu" or a device's type and index, such as "cuda.0"
	rngName       = rngPrefix + "cpu"

	formatKey = "linstock" // key in the metadata
	format    = "training checkpoint, format 3"
)

// SaveTraining writes the complete state of a run into one safetensors file, so that it can continue as if it
// had not been stopped: the model's parameters and buffers, the state of the optimizer (nil for none), the
// states of the random generators, and the parts. The generators are the CPU's and those of the devices that
// this process has used. Like Save it replaces path completely or not at all. A value that LoadTraining could
// not read is an error.
//
//	err := checkpoint.SaveTraining(path, model, opt, checkpoint.Loader(loader), checkpoint.Value("step", &step))
//
// Several models are one: a pointer to a struct with a field for each. Further optimizers are parts, see Named.
//
// Gradients are not saved: save after a step of the optimizer, not between the batches whose gradients it adds up.
//
// On the CPU, after LoadTraining with the same arguments and with the same number of threads, the run continues
// bit for bit. On CUDA devices random numbers continue too; some operators add in an order that varies. A dataset must
// draw its random numbers with data.SampleSeed, not from libtorch's generators, if batches are prepared ahead of the
// loop (data.Workers, data.PinMemory): the state of a generator is then that after the batches ahead.
func SaveTraining(path string, model any, opt *optim.Optimizer, parts ...Part) error {
	const op = "SaveTraining"
	state, err := wholeState(op, model)
	if err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		all := map[string]content{}
		add := func(name string, t *tensor.Tensor) error {
			c, err := contentOf(t)
			if err != nil {
				return called(op, fmt.Errorf("linstock: checkpoint: tensor %s: %w", quoted(name), err))
			}
			all[name] = c
			return nil
		}
		if err := add(rngName, tensor.RNGState()); err != nil {
			return err
		}
		for _, t := range cshim.DeviceTypes {
			for _, i := range t.Used() {
				d := tensor.Device{Type: tensor.DeviceType(t.Number), Index: i}
				if err := add(rngPrefix+t.Name+"."+strconv.Itoa(i), tensor.RNGState(d)); err != nil {
					return err
				}
			}
		}
		for _, n := range state {
			if err := add(modelPrefix+n.Name, n.Tensor); err != nil {
				return err
			}
		}
		for _, p := range withOptimizer(opt, parts) {
			if err := p.store(all); err != nil {
				return called(op, fmt.Errorf("linstock: checkpoint: %s: %w", quoted(p.name), err))
			}
		}
		return called(op, save(path, all, map[string]string{formatKey: format}))
	})
}

func withOptimizer(opt *optim.Optimizer, parts []Part) []Part {
	if opt == nil {
		return parts
	}
	return append([]Part{Optimizer(opt)}, parts...)
}

func (p Part) store(to map[string]content) error {
	if p.save == nil {
		return errors.New("nothing to save: the Part is empty or of nil")
	}
	if _, twice := to[p.name]; twice {
		return errors.New("given twice: Named gives one of them another name")
	}
	return p.save(p.name, to)
}

// LoadTraining sets model, optimizer, random generators and parts to what SaveTraining saved. Model and
// optimizer must be constructed as they were for SaveTraining; parts may be fewer. After an error some of them
// may have changed.
//
// The state of a device's generator is restored on the device with the same index. A file from a machine with
// more devices is not an error: the states of missing devices are ignored. A device that is not in the file
// keeps its state.
func LoadTraining(path string, model any, opt *optim.Optimizer, parts ...Part) error {
	return withFile("LoadTraining", path, func(f *File) error {
		if err := f.isTraining(); err != nil {
			return err
		}
		if err := f.loadModel(model, modelPrefix); err != nil {
			return err
		}
		if err := f.loadParts(withOptimizer(opt, parts)); err != nil {
			return err
		}
		return f.loadGenerators()
	})
}

func (f *File) loadGenerators() error {
	for _, t := range cshim.DeviceTypes {
		prefix := rngPrefix + t.Name + "."
		states := map[string]*tensor.Tensor{}
		if err := f.collect(prefix, states); err != nil {
			return err
		}
		for index, state := range states {
			i, err := strconv.ParseUint(index, 10, 31)
			if err != nil {
				return fmt.Errorf("%s is not the state of a device's generator", quoted(prefix+index))
			}
			if int(i) >= t.Count() {
				continue
			}
			if err := tensor.SetRNGState(state, tensor.Device{Type: tensor.DeviceType(t.Number), Index: int(i)}); err != nil {
				return err
			}
		}
	}
	state, err := f.tensor(rngName)
	if err == errNoTensor {
		err = errors.New("it is not in the file")
	}
	if err != nil {
		return fmt.Errorf("tensor %s: %w", quoted(rngName), err)
	}
	return tensor.SetRNGState(state)
}

// wholeState returns nn.StateDict's result, and an error if this process alone cannot save it.
func wholeState(op string, model any) (nn.State, error) {
	state := nn.StateDict(model)
	for _, n := range state {
		if err := n.Tensor.Err(); n.Name == "" && err != nil { // StateDict's
			return nil, called(op, err)
		}
		if sharding.Groups(n.Tensor) != nil {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s is this process's part of a parameter that package dist divides: save the model "+
				"with package dist/dcp, or the result of dist.FullStateDict with Save", n.Name)
		}
	}
	return state, nil
}

// SaveModel writes only a model's parameters and buffers to a safetensors file, under the names of
// nn.StateDict, so that Python can load it:
//
//	model.load_state_dict(safetensors.torch.load_file(path))
//
// Like Save it replaces path completely or not at all. A path that ends in .pt or .pth is an error: SavePyTorch writes such
// files. PyTorch: safetensors.torch.save_file(model.state_dict(), path).
func SaveModel(path string, model any) error {
	const op = "SaveModel"
	if ext := filepath.Ext(path); ext == ".pt" || ext == ".pth" {
		return refuse.Error(op, tensor.ErrArgument, "%s: SaveModel writes safetensors; for files of torch.save use SavePyTorch(path, nn.StateDict(model))", path)
	}
	state, err := wholeState(op, model)
	if err != nil {
		return err
	}
	if len(state) == 0 {
		return refuse.Error(op, tensor.ErrArgument, "%T has no parameters", model)
	}
	return tensor.WithScope(func() error {
		return saveTensors(op, path, state.Map(), map[string]string{"format": "pt"}) // as PyTorch's libraries write
	})
}

// LoadModel sets a model's parameters and buffers to those of a file written by SaveModel, SaveTraining, or any
// other program that uses the model's names, such as Python's safetensors.torch.save_file(model.state_dict(),
// path).
//
// A tensor of the file that cannot be used is an error if the model needs it.
//
// It maps the file while it copies the tensors. For options of Load, such as Mapped(false) to read the file instead
// (see [File]), use Load and [File.LoadModel].
func LoadModel(path string, model any, opts ...nn.LoadOption) error {
	return withFile("LoadModel", path, func(f *File) error { return f.modelOf(model, opts) })
}

// LoadModel is the function LoadModel for an open file.
func (f *File) LoadModel(model any, opts ...nn.LoadOption) error {
	const op = "LoadModel"
	if !f.opened() {
		return notOpened(op)
	}
	if err := tensor.WithScope(func() error { return f.modelOf(model, opts) }); err != nil {
		return called(op, fmt.Errorf("linstock: checkpoint: %s: %w", f.path, err))
	}
	return nil
}

func (f *File) modelOf(model any, opts []nn.LoadOption) error {
	prefix := ""
	if f.isTraining() == nil {
		prefix = modelPrefix
	}
	return f.loadModel(model, prefix, opts...)
}

// SaveValues writes a file of parts alone, which LoadValues reads. Like Save it replaces path completely or not at all.
func SaveValues(path string, parts ...Part) error {
	const op = "SaveValues"
	all := map[string]content{}
	for _, p := range parts {
		if err := p.store(all); err != nil {
			return called(op, fmt.Errorf("linstock: checkpoint: %s: %w", quoted(p.name), err))
		}
	}
	return called(op, save(path, all, map[string]string{formatKey: format}))
}

// LoadValues reads only parts of a training checkpoint, for example the settings with which to make the model.
func LoadValues(path string, parts ...Part) error {
	return withFile("LoadValues", path, func(f *File) error { return f.loadValues(parts) }, Mapped(false))
}

// LoadValues is the function LoadValues for an open file.
func (f *File) LoadValues(parts ...Part) error {
	const op = "LoadValues"
	if !f.opened() {
		return notOpened(op)
	}
	if err := f.loadValues(parts); err != nil {
		return called(op, fmt.Errorf("linstock: checkpoint: %s: %w", f.path, err))
	}
	return nil
}

func (f *File) loadValues(parts []Part) error {
	if err := f.isTraining(); err != nil {
		return err
	}
	return f.loadParts(parts)
}

// withFile calls f with an open file, in a scope that frees the file's tensors.
func withFile(op, path string, f func(*File) error, opts ...Option) error {
	file, err := Load(path, opts...)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := tensor.WithScope(func() error { return f(file) }); err != nil {
		return called(op, fmt.Errorf("linstock: checkpoint: %s: %w", path, err))
	}
	return nil
}

// called sets the operation of an error to op, the function that the program called, instead of one that op
// calls.
func called(op string, err error) error {
	within := []string{"Alias", "Check", "LoadStateDict", "Save", "SetRNGState", "StateDict"}
	var e *tensor.Error
	if !errors.As(err, &e) || !slices.Contains(within, e.Op) {
		return err
	}
	message := strings.Replace(err.Error(), e.Error(), e.Message, 1) // the line is the last part
	for _, w := range within {
		message = strings.ReplaceAll(message, "linstock: "+w+": ", "")
	}
	message = strings.TrimPrefix(message, "linstock: checkpoint: ")
	return &tensor.Error{Op: "checkpoint." + op, Message: message, Kind: err, Caller: e.Caller}
}

// isTraining returns an error unless SaveTraining wrote the file.
func (f *File) isTraining() error {
	switch f.header.metadata[formatKey] {
	case format:
		return nil
	case "":
		return errors.New("it is not a training checkpoint")
	}
	return fmt.Errorf("it is %s, not a %s", quoted(f.header.metadata[formatKey]), format)
}

func (f *File) loadParts(parts []Part) error {
	for _, p := range parts {
		e, ok := f.header.find(p.name)
		if !ok || p.name == "" {
			return refuse.Error("LoadStateDict", tensor.ErrArgument, "%s is not in it", quoted(p.name))
		}
		if p.load == nil {
			return fmt.Errorf("%s: nothing to load into: the Part is of nil", quoted(p.name))
		}
		if err := p.load(f, e); err != nil {
			return fmt.Errorf("%s: %w", quoted(p.name), err)
		}
	}
	return nil
}

func (f *File) loadOptimizer(opt *optim.Optimizer, e *entry) error {
	var plain map[string]any
	if err := decode(f, e, &plain); err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		tensors := map[string]*tensor.Tensor{}
		if err := f.collect(e.name+".", tensors); err != nil {
			return err
		}
		s, err := optimstate.Unflatten(plain, tensors)
		if err != nil {
			return refuse.Error("LoadStateDict", tensor.ErrArgument, "%v", err)
		}
		return opt.LoadStateDict(s)
	})
}

// collect returns the tensors whose names begin with prefix, under their names without it.
func (f *File) collect(prefix string, to map[string]*tensor.Tensor) error {
	return f.collected(prefix, func(name string, t *tensor.Tensor, err error) error {
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quoted(prefix+name), err)
		}
		to[name] = t
		return nil
	})
}

// collected adds the tensors whose names begin with prefix, under their names without it.
func (f *File) collected(prefix string, add adder) error {
	return f.each(func(name string) bool { return strings.HasPrefix(name, prefix) }, func(name string, t *tensor.Tensor, err error) error {
		return add(name[len(prefix):], t, err)
	})
}

func (f *File) loadModel(model any, prefix string, opts ...nn.LoadOption) error {
	state := map[string]*tensor.Tensor{}
	_ = f.collected(prefix, func(name string, t *tensor.Tensor, err error) error {
		if err != nil { // LoadStateDict reports it if the model needs the tensor
			t = tensor.Failed(err)
			_ = t.Err()
		}
		state[name] = t
		return nil
	})
	return nn.LoadStateDict(model, state, opts...)
}
