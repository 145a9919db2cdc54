package nn

import (
	"reflect"
	"strings"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// NamedModules returns m and its submodules with their names in the state, each once, a module before its parts: m itself
// has the name "". A module is a pointer to a struct that has a method Forward or SetTraining or holds tensors or modules;
// slices and maps of modules are not listed themselves. A pointer to a struct without fields, such as a Tanh, does not
// identify a module: it is listed in each of its places. PyTorch: Module.named_modules.
func NamedModules(m any) []NamedModule { return listModules(m, false) }

// listModules returns the modules of NamedModules, with after a module after its parts.
func listModules(m any, after bool) []NamedModule {
	var out []NamedModule
	w := walker{once: true, after: after, named: func(name string, m any) bool {
		if isListed(m) {
			out = append(out, NamedModule{name, m})
		}
		return true
	}}
	w.walk(reflect.ValueOf(m), "")
	return out
}

// NamedChildren returns the submodules that m, a pointer or a layer, holds directly, with their names in m's state, each
// once: of those that NamedModules lists, the nearest. An element of a slice or map of modules is one, with a name such
// as "blocks.0", and so is a part with the tag `nn:"."`, with the name "". PyTorch: Module.named_children,
// Module.children.
func NamedChildren(m any) []NamedModule {
	var out []NamedModule
	first := true
	w := walker{once: true, named: func(name string, part any) bool {
		root := first && name == "" // m, or the layer for which it stands
		first = false
		if root || !isListed(part) {
			return true
		}
		out = append(out, NamedModule{name, part})
		return false
	}}
	w.walk(reflect.ValueOf(m), "")
	return out
}

// isListed reports whether NamedModules lists m, a pointer to a struct.
func isListed(m any) bool {
	t := reflect.TypeOf(m)
	return factsOf(t).module || planOf(t.Elem()).module
}

// Apply calls f with each submodule of m and then with m, parts before the module that has them, and returns the first
// error of f. The order is PyTorch's, so that f draws the same random numbers. A submodule that several modules have is
// visited once, in its first place. PyTorch: Module.apply, which visits it once for each of them.
func Apply(m any, f func(m any) error) error {
	if f == nil {
		return refuse.Nil("Apply", "a function")
	}
	for _, n := range listModules(m, true) {
		if err := f(n.Module); err != nil {
			return err
		}
	}
	return nil
}

// GetSubmodule returns the submodule of m with the given name, such as "blocks.0.attn", or an error if there is none; ""
// is m. A submodule in several places has the name of each. PyTorch: Module.get_submodule.
func GetSubmodule(m any, name string) (any, error) {
	var found any
	w := walker{once: true, named: func(at string, m any) bool {
		if found == nil && at == name && isListed(m) {
			found = m
		}
		return true
	}, skip: func(at string) bool {
		leads := at == "" || strings.HasPrefix(name, at) && (len(at) == len(name) || name[len(at)] == '.')
		return found != nil || !leads
	}}
	w.walk(reflect.ValueOf(m), "")
	if found == nil {
		return nil, refuse.Error("GetSubmodule", tensor.ErrArgument, "%T has no submodule %q", m, name)
	}
	return found, nil
}
