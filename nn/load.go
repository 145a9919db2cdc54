package nn

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// LoadOption is a keyword argument of LoadStateDict.
type LoadOption func(*loadSettings)

type loadSettings struct {
	lax    bool
	assign bool
	rename func(string) string
	report *LoadReport
}

// Strict(false) allows names that are missing from the state or not in the module (strict=False). Shapes must match all
// the same. The default is true, which needs all names of tied weights, as in PyTorch; otherwise one is enough.
func Strict(on ...bool) LoadOption { return func(s *loadSettings) { s.lax = !options.On(on) } }

// Assign makes LoadStateDict put the tensors of the state into the module, instead of copying their values into the module's
// tensors: they share the state's storages, and have its dtypes and devices. So a model that was constructed on the meta
// device, without memory for its weights, gets the mapped pages of a file as its weights, which are read when they are first
// used:
//
//	model := newModel(nn.Device(tensor.Meta))
//	err := checkpoint.LoadModel("model.safetensors", model, nn.Assign(true))
//
// A parameter requires a gradient if the one that it replaces did. Make the optimizer after this. Assign replaces only
// the names that the state has: if it has one of several tied weights, they are no longer tied, as in PyTorch, and must
// be tied again. Tensors that the state does not have stay on the meta device (LoadReport.Meta): such weights, and
// buffers that are not saved, except those of this package's modules. A tensor in a map, an original of a Parametrized,
// or a tensor in a struct that the module does not hold by a pointer cannot be replaced and is an error. Weights of an
// RNN, GRU or LSTM on CUDA are not in one buffer then: To makes it. PyTorch: assign=True; off by default.
func Assign(on ...bool) LoadOption { return func(s *loadSettings) { s.assign = options.On(on) } }

// Rename sets the function that returns the module's name for a name of the state, or "" for a tensor that is not to be
// loaded. A state from a wrapped model, for example, loads with
//
//	nn.Rename(func(name string) string { return strings.TrimPrefix(name, "module.") })
//
// Two tensors with the same name are an error.
func Rename(f func(name string) string) LoadOption {
	return func(s *loadSettings) { s.rename = f }
}

// Report makes LoadStateDict describe in r what it did, also if it returns an error.
func Report(r *LoadReport) LoadOption { return func(s *loadSettings) { s.report = r } }

// LoadReport lists what LoadStateDict found, under the module's names, sorted. PyTorch: what load_state_dict returns.
type LoadReport struct {
	Loaded     []string   // copied into the module; empty if LoadStateDict returned an error
	Missing    []string   // in the module and not in the state (missing_keys)
	Unexpected []string   // in the state and not in the module (unexpected_keys)
	Skipped    []string   // names of the state for which Rename returned ""
	Mismatched []Mismatch // whose shapes differ, which is an error
	Converted  []Mismatch // loaded and converted, because the dtypes differ
	Meta       []string   // with Assign, still on the meta device: buffers that are not saved, and what Strict(false) left
}

// Mismatch is a tensor that differs in shape or dtype.
type Mismatch struct {
	Name                    string
	StateShape, ModuleShape []int
	StateDType, ModuleDType tensor.DType
}

// String returns "name: float32[2 3] in the state, float16[2 3] in the module".
func (m Mismatch) String() string {
	return fmt.Sprintf("%s: %v%v in the state, %v%v in the module", m.Name, m.StateDType, m.StateShape, m.ModuleDType, m.ModuleShape)
}

// String returns the report as a text of one line for each list that is not empty.
func (r LoadReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "loaded: %d", len(r.Loaded))
	for _, list := range []struct {
		name string
		all  []string
	}{{"missing", r.Missing}, {"unexpected", r.Unexpected}, {"skipped", r.Skipped}, {"mismatched", texts(r.Mismatched)}, {"converted", texts(r.Converted)},
		{"on the meta device", r.Meta}} {
		if len(list.all) > 0 {
			fmt.Fprintf(&b, "\n%s: %s", list.name, strings.Join(list.all, ", "))
		}
	}
	return b.String()
}

func texts(list []Mismatch) []string {
	out := make([]string, len(list))
	for i, m := range list {
		out[i] = m.String()
	}
	return out
}

// LoadStateDict copies state into the parameters and buffers of m, converting dtype and device where they differ. The
// names must be exactly those of StateDict, and the shapes must be equal, except that a tensor without dimensions takes
// the element of one of shape [1], as PyTorch before 0.4 saved it; a batch norm's num_batches_tracked may be missing, and
// keeps its value. Otherwise LoadStateDict copies nothing and returns an error that lists all differences. If a copy
// fails, as for want of memory, it copies the others and returns the errors. A module on the meta device needs Assign.
// For tied weights see [Strict] and [Assign]. PyTorch: Module.load_state_dict.
func LoadStateDict(m any, state map[string]*tensor.Tensor, opts ...LoadOption) (err error) {
	const op = "LoadStateDict"
	var s loadSettings
	for _, o := range opts {
		if o == nil {
			return refuse.NilOption(op)
		}
		o(&s)
	}
	report := LoadReport{}
	if s.report != nil {
		defer func() {
			if err != nil {
				report.Loaded = nil
			}
			*s.report = report
		}()
	}
	var wrong []string
	state = s.renamed(state, &report, &wrong)
	if err := materialize(m, state); err != nil {
		return err
	}
	if err := Check(m); err != nil {
		return err
	}
	if err := unmerged(op, m); err != nil {
		return err
	}
	own := saved(m)
	state = renamed(m, state)
	if len(own) == 0 && len(state) > 0 {
		return refuse.Error(op, tensor.ErrArgument, "%T has no parameters", m)
	}
	uncopied := map[string]bool{}
	for _, n := range own {
		src, ok := state[n.Name]
		if !ok {
			if !countsBatches(n.Name, state) {
				report.Missing = append(report.Missing, n.Name)
			}
			continue
		}
		if bad := unusable(op, src); bad != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", n.Name, bad.Err()))
			continue
		}
		if !s.assign {
			if why := uncopyable(src, n.Tensor); why != "" && !uncopied[why] {
				uncopied[why] = true // the first of a model is enough
				wrong = append(wrong, n.Name+why)
			}
		}
		d := Mismatch{n.Name, src.Shape(), n.Tensor.Shape(), src.DType(), n.Tensor.DType()}
		switch {
		case !slices.Equal(d.StateShape, d.ModuleShape) && !isElement(src, n.Tensor):
			report.Mismatched = append(report.Mismatched, d)
			wrong = append(wrong, fmt.Sprintf("%s has shape %v, the module's has %v", n.Name, d.StateShape, d.ModuleShape))
		case d.StateDType != d.ModuleDType:
			report.Converted = append(report.Converted, d)
		}
	}
	names := map[string]bool{}
	for _, n := range own {
		names[n.Name] = true
	}
	for name := range state {
		if !names[name] {
			report.Unexpected = append(report.Unexpected, name)
		}
	}
	report.sort()
	if !s.lax {
		wrong = append(missing(own, state, report.Missing), append(wrong, prefixed("unexpected ", report.Unexpected)...)...)
	}
	if len(wrong) != 0 {
		return refuse.Error(op, tensor.ErrArgument, "the state does not fit %T: %s", m, strings.Join(wrong, "; "))
	}
	return tensor.WithScope(func() error {
		state := withElements(own, state)
		if s.assign {
			return assign(m, withCounters(own, state), &report)
		}
		return autograd.NoGrad(func() error {
			var failed []error
			for _, n := range own {
				if src, ok := state[n.Name]; ok {
					if err := n.Tensor.Copy_(src).Err(); err != nil {
						failed = append(failed, fmt.Errorf("%s: %w", n.Name, err))
					}
					report.Loaded = append(report.Loaded, n.Name)
				}
			}
			slices.Sort(report.Loaded)
			return errors.Join(failed...)
		})
	})
}

// isElement reports whether t has no dimensions, and src, a tensor of the state, has the shape [1]: PyTorch before 0.4 had
// no tensors without dimensions.
func isElement(src, t *tensor.Tensor) bool {
	return t.Dim() == 0 && slices.Equal(src.Shape(), []int{1})
}

// withElements returns the state with the element of each tensor of which isElement is true. The tensors belong to the
// current scope.
func withElements(own State, state map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	out := maps.Clone(state)
	for _, n := range own {
		if src := state[n.Name]; src != nil && isElement(src, n.Tensor) {
			out[n.Name] = src.Select(0, 0)
		}
	}
	return out
}

// uncopyable returns why the values of src cannot be copied to t, or "".
func uncopyable(src, t *tensor.Tensor) string {
	from, to := src.Device() == tensor.Meta, t.Device() == tensor.Meta
	switch {
	case to && !from:
		return " is on the meta device in the module, and has no memory for values: use Assign(true)"
	case from && !to:
		return " is on the meta device in the state, and has no values"
	case src.Layout() != t.Layout():
		return fmt.Sprintf(" is %v in the state, %v in the module", src.Layout(), t.Layout())
	}
	return ""
}

// countsBatches reports whether name is the counter of a batch norm whose other statistics are in the state. PyTorch
// before 0.4.1 did not save it.
func countsBatches(name string, state map[string]*tensor.Tensor) bool {
	prefix, is := strings.CutSuffix(name, "num_batches_tracked")
	return is && state[prefix+"running_mean"] != nil
}

// withCounters returns the state with a 0 for each counter of a batch norm on the meta device that the state lacks. The
// tensors belong to the current scope.
func withCounters(own State, state map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	out := state
	for _, n := range own {
		if state[n.Name] == nil && n.Tensor.Device() == tensor.Meta && countsBatches(n.Name, state) {
			if len(out) == len(state) {
				out = maps.Clone(state)
			}
			prefix := strings.TrimSuffix(n.Name, "num_batches_tracked")
			out[n.Name] = tensor.Zeros([]int{}, n.Tensor.DType(), state[prefix+"running_mean"].Device())
		}
	}
	return out
}

// renamed returns the state under the module's names.
func (s *loadSettings) renamed(state map[string]*tensor.Tensor, report *LoadReport, wrong *[]string) map[string]*tensor.Tensor {
	if s.rename == nil {
		return state
	}
	out, from := make(map[string]*tensor.Tensor, len(state)), map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(state)) {
		as := s.rename(name)
		if as == "" {
			report.Skipped = append(report.Skipped, name)
			continue
		}
		if other, twice := from[as]; twice {
			*wrong = append(*wrong, fmt.Sprintf("%s and %s are both named %s", other, name, as))
			continue
		}
		out[as], from[as] = state[name], name
	}
	return out
}

func (r *LoadReport) sort() {
	slices.Sort(r.Missing)
	slices.Sort(r.Unexpected)
	byName := func(a, b Mismatch) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(r.Mismatched, byName)
	slices.SortFunc(r.Converted, byName)
}

// missing returns what an error says of the missing names. A tied tensor has several, of which the state may have one.
func missing(own State, state map[string]*tensor.Tensor, names []string) []string {
	found := map[*tensor.Tensor]string{}
	for _, n := range own {
		if state[n.Name] != nil {
			found[n.Tensor] = n.Name
		}
	}
	out := prefixed("missing ", names)
	for i, name := range names {
		at := slices.IndexFunc(own, func(n Named) bool { return n.Name == name })
		if other := found[own[at].Tensor]; other != "" {
			out[i] += fmt.Sprintf(", the same tensor as %s, which the state has", other)
		}
	}
	return out
}

func prefixed(with string, names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = with + n
	}
	return out
}

// assign puts tensors with the state's storages into m. A tensor with several names is replaced by one tensor.
func assign(m any, state map[string]*tensor.Tensor, report *LoadReport) error {
	var failed error
	places := map[string][]reflect.Value{}
	w := walker{place: func(name string, v reflect.Value) {
		if state[name] != nil && !v.CanSet() && failed == nil {
			failed = refuse.Error("LoadStateDict", tensor.ErrArgument, "%s cannot be assigned: it is in a map, a parametrization, or a struct that is not held by a pointer", name)
		}
		places[name] = append(places[name], v)
	}}
	w.walk(reflect.ValueOf(m), "")
	made := map[*tensor.Tensor]*tensor.Tensor{}
	for _, n := range saved(m) {
		src := state[n.Name]
		if src == nil || failed != nil || made[n.Tensor] != nil {
			continue
		}
		t := src.Detach().Keep()
		if err := t.Err(); err != nil {
			failed = err
			break
		}
		made[n.Tensor] = t
		failed = t.RequiresGrad_(n.Tensor.RequiresGrad()).Err() // false, too: it makes a frozen parameter
	}
	if failed != nil {
		for _, t := range made {
			t.Release()
		}
		return failed
	}
	for name, vs := range places {
		for _, v := range vs {
			if t := made[v.Interface().(*tensor.Tensor)]; t != nil && state[name] != nil {
				v.Set(reflect.ValueOf(t))
				report.Loaded = append(report.Loaded, name)
			}
		}
	}
	track(m)
	slices.Sort(report.Loaded)
	report.Loaded = slices.Compact(report.Loaded)
	report.Converted = nil
	for _, n := range tensors(m) {
		if n.Tensor.Device() != tensor.Meta {
			if err := computeBuffers(m, n.Tensor.Device(), true); err != nil {
				return err
			}
			break
		}
	}
	for _, n := range tensors(m) {
		if n.Tensor.Device() == tensor.Meta {
			report.Meta = append(report.Meta, n.Name)
		}
	}
	return nil
}
