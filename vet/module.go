package vet

import (
	"fmt"
	"go/ast"
	"go/types"
	"reflect"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"

	"github.com/linstock-ml/linstock/internal/nntag"
)

// Module reports fields of modules that package nn does not find or cannot distinguish.
var Module = &analysis.Analyzer{
	Name: "module",
	Doc: `report fields of modules that would be lost

Package nn finds a module's tensors and parts through its exported fields. The analyzer
reports two fields with the same state name, unexported fields that hold tensors or
modules, maps of them whose keys are not strings, pointers that nn does not follow, and
unknown tag options. A module is a struct with a method Forward on tensors, an argument
of a function of nn such as Parameters, or a part of either. nn.Check reports the same
faults and more at run time.`,
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		if !uses(pass.Pkg) {
			return nil, nil
		}
		m := modules{pass: pass, done: map[types.Type]bool{}}
		in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
		in.Preorder([]ast.Node{(*ast.TypeSpec)(nil), (*ast.CallExpr)(nil), (*ast.StructType)(nil)}, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if obj, ok := pass.TypesInfo.Defs[n.Name].(*types.TypeName); ok && isModule(obj.Type()) {
					m.check(obj.Type())
				}
			case *ast.CallExpr:
				at, takes := takeModules[nameOf(typeutil.StaticCallee(pass.TypesInfo, n))]
				if takes && at < len(n.Args) {
					m.check(pass.TypesInfo.TypeOf(n.Args[at]))
				}
			case *ast.StructType:
				if s, ok := pass.TypesInfo.TypeOf(n).(*types.Struct); ok {
					m.tags(s)
				}
			}
		})
		return nil, nil
	},
}

// isModule reports whether t, or a pointer to it, has a method Forward with a tensor, or SetTraining.
func isModule(t types.Type) bool {
	if _, pointer := t.Underlying().(*types.Pointer); !pointer && !types.IsInterface(t) {
		t = types.NewPointer(t)
	}
	methods := types.NewMethodSet(t)
	for i := range methods.Len() {
		f := methods.At(i).Obj()
		if f.Name() == "SetTraining" {
			return true
		}
		if sig, ok := f.Type().(*types.Signature); ok && f.Name() == "Forward" {
			tensors := false
			for i := range sig.Params().Len() {
				p := sig.Params().At(i).Type()
				if is(p, "autograd", "Context") {
					return false // an autograd.Function
				}
				tensors = tensors || isTensor(p)
			}
			return tensors
		}
	}
	return false
}

type modules struct {
	pass *analysis.Pass
	done map[types.Type]bool // underlying types
}

func (m *modules) report(f *types.Var, format string, args ...any) {
	report(m.pass, analysis.Diagnostic{Pos: f.Pos(), Message: f.Name() + " " + fmt.Sprintf(format, args...)})
}

func (m *modules) name(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string {
		if p == m.pass.Pkg {
			return ""
		}
		return p.Name()
	})
}

// tags reports unknown options in struct tags.
func (m *modules) tags(s *types.Struct) {
	for i := range s.NumFields() {
		f := s.Field(i)
		for _, o := range nntag.Parse(reflect.StructTag(s.Tag(i)), f.Name(), f.Embedded()).Unknown {
			m.report(f, "has the tag option %q, which does not exist; the options are %s", o, strings.Join(nntag.Options, ", "))
		}
	}
}

// check reports the faults of a struct that is a module, and those of its parts that this package declares.
func (m *modules) check(t types.Type) {
	if m.done[t.Underlying()] {
		return
	}
	m.done[t.Underlying()] = true
	switch u := t.Underlying().(type) {
	case *types.Pointer:
		m.check(u.Elem())
		return
	case *types.Slice:
		m.check(u.Elem())
		return
	case *types.Array:
		m.check(u.Elem())
		return
	case *types.Map:
		m.check(u.Elem())
		return
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok || s.NumFields() == 0 || s.Field(0).Pkg() != m.pass.Pkg {
		return
	}
	for i := range s.NumFields() {
		f := s.Field(i)
		tag := nntag.Parse(reflect.StructTag(s.Tag(i)), f.Name(), f.Embedded())
		switch {
		case tag.Skip || f.Name() == "_":
		case !f.Exported() && !f.Embedded():
			if m.holds(f.Type(), map[types.Type]bool{}) {
				m.report(f, "is unexported and holds a %s, which nn does not find: export it, or tag it `nn:\"-\"`", m.name(f.Type()))
			}
		default:
			m.followed(f, f.Type(), map[types.Type]bool{})
			m.check(f.Type())
		}
	}
	m.names(s)
}

// followed reports fields that nn does not search.
func (m *modules) followed(f *types.Var, t types.Type, seen map[types.Type]bool) {
	if isTensor(t) || seen[t] {
		return
	}
	seen[t] = true
	switch u := t.Underlying().(type) {
	case *types.Slice:
		m.followed(f, u.Elem(), seen)
	case *types.Array:
		m.followed(f, u.Elem(), seen)
	case *types.Map:
		key, ok := u.Key().Underlying().(*types.Basic)
		if ok && key.Info()&types.IsString != 0 {
			m.followed(f, u.Elem(), seen)
		} else if m.holds(u.Elem(), map[types.Type]bool{}) {
			m.report(f, "holds a %s, which nn cannot search for parts: its keys must be strings, which become names in the state", m.name(t))
		}
	case *types.Pointer:
		if _, ok := u.Elem().Underlying().(*types.Struct); !ok && m.holds(u.Elem(), map[types.Type]bool{}) {
			m.report(f, "holds a %s, which nn cannot search for parts: use a pointer to a struct, a slice or a map", m.name(t))
		}
	}
}

// holds reports whether the type t declares tensors or modules.
func (m *modules) holds(t types.Type, seen map[types.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	if is(t, "tensor", "Tensor") {
		return true
	}
	switch u := t.Underlying().(type) {
	case *types.Interface:
		return isModule(t)
	case *types.Pointer:
		return isModule(t) || m.holds(u.Elem(), seen)
	case *types.Slice:
		return m.holds(u.Elem(), seen)
	case *types.Array:
		return m.holds(u.Elem(), seen)
	case *types.Map:
		return m.holds(u.Elem(), seen)
	case *types.Struct:
		if isModule(t) {
			return true
		}
		for i := range u.NumFields() {
			f := u.Field(i)
			visible := f.Exported() || f.Embedded() || f.Pkg() == m.pass.Pkg
			if visible && f.Name() != "_" && !nntag.Parse(reflect.StructTag(u.Tag(i)), f.Name(), f.Embedded()).Skip && m.holds(f.Type(), seen) {
				return true
			}
		}
	}
	return false
}

// names reports fields with the same state name, including those of structs that add no prefix.
func (m *modules) names(s *types.Struct) {
	type origin struct {
		inner *types.Struct
		field string
	}
	known := map[string]origin{}
	seen := map[*types.Struct]bool{s: true} // types on the path from s
	var compare func(inner *types.Struct, prefix string, outer *types.Var)
	compare = func(inner *types.Struct, prefix string, outer *types.Var) {
		for i := range inner.NumFields() {
			f := inner.Field(i)
			tag := nntag.Parse(reflect.StructTag(inner.Tag(i)), f.Name(), f.Embedded())
			if tag.Skip || !f.Exported() && !f.Embedded() {
				continue
			}
			// The report is placed at this field of s.
			at := f
			if outer != nil {
				at = outer
			}
			if tag.Name == "" {
				t := f.Type()
				if p, ok := t.Underlying().(*types.Pointer); ok {
					t = p.Elem()
				}
				if part, ok := t.Underlying().(*types.Struct); ok && !seen[part] {
					seen[part] = true
					compare(part, prefix+f.Name()+".", at)
					delete(seen, part)
				}
				continue
			}
			if !m.holds(f.Type(), map[types.Type]bool{}) {
				continue
			}
			name := prefix + f.Name()
			first, ok := known[tag.Name]
			switch {
			case !ok:
				known[tag.Name] = origin{inner, name}
			case inner != s && first.inner == inner && strings.HasPrefix(first.field, prefix): // it is a fault of the inner struct
			case at != f:
				m.report(at, "holds %s, which has the state name %q, as does %s", f.Name(), tag.Name, first.field)
			default:
				m.report(at, "has the state name %q, as does %s", tag.Name, first.field)
			}
		}
	}
	compare(s, "", nil)
}
