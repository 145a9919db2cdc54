package nn

import (
	"reflect"
	"sort"
	"strings"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// NamedModules returns m and its submodules with their names in the state, each once, a module before its parts: m itself
// has the name "". A module is a pointer to a struct that has a method Forward or SetTraining or holds tensors or modules;
// slices and maps of modules are not listed themselves. A pointer to a struct without fields, such as a Tanh, does not
// identify a module: it is listed in each of its places. PyTorch: Module.named_modules.
func NamedModules(m any) []NamedModule {
	var out []NamedModule
	w := walker{once: true, named: func(name string, m any) {
		if isListed(m) {
			out = append(out, NamedModule{name, m})
		}
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
// error of f. PyTorch: Module.apply.
func Apply(m any, f func(m any) error) error {
	if f == nil {
		return refuse.Nil("Apply", "a function")
	}
	all := NamedModules(m)
	// Parts stand after their module and have longer names.
	sort.SliceStable(all, func(i, j int) bool { return depth(all[i].Name) > depth(all[j].Name) })
	for _, n := range all {
		if err := f(n.Module); err != nil {
			return err
		}
	}
	return nil
}

func depth(name string) int {
	if name == "" {
		return 0
	}
	return 1 + strings.Count(name, ".")
}

// GetSubmodule returns the submodule of m with the given name, such as "blocks.0.attn", or an error if there is none; ""
// is m. A submodule in several places has the name of each. PyTorch: Module.get_submodule.
func GetSubmodule(m any, name string) (any, error) {
	var found any
	w := walker{once: true, named: func(at string, m any) {
		if found == nil && at == name && isListed(m) {
			found = m
		}
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
