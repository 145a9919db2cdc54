package lastuse

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// Module is the path of the library's module.
const Module = "github.com/linstock-ml/linstock"

const tensorPath = Module + "/tensor"

// Core reports whether the package with the given path is part of the library. Such packages are not rewritten, and their
// facts are in this file's table. Examples and tests are programs that use the library.
func Core(path string) bool {
	rest, ok := strings.CutPrefix(path, Module+"/")
	first, _, _ := strings.Cut(rest, "/")
	return ok && first != "examples" && first != "tests" && (first == "internal" || !strings.HasSuffix(rest, "_test"))
}

// retaining are the functions of the library that keep a handle they receive, or return handles that are not
// new. All others borrow their arguments and return new handles, with the exceptions in function library.
var retaining = map[string]bool{
	"tensor.Keep": true, "tensor.MoveOut": true, "tensor.Adopt": true, "tensor.ReleaseExcept": true, "tensor.Track": true,
	"tensor.Replace": true, "tensor.Call": true, "tensor.CallUnchecked": true,
	"tensor.FromMapped": true, "tensor.OptionValue": true,

	"autograd.Apply": true, "autograd.SaveForBackward": true, "autograd.Set": true, "autograd.Saved": true,
	"autograd.Value": true, "autograd.GradCheck": true,
	"autograd.GradGradCheck": true,

	"nn.NewParameter": true, "nn.Parameters": true, "nn.NamedParameters": true, "nn.NamedBuffers": true,
	"nn.StateDict": true, "nn.CheckpointSequential": true, "nn.Map": true, "nn.NewSequential": true, "nn.GetSubmodule": true,
}

// calling are functions of other packages that call a function before they return. All others keep what they receive.
var calling = map[string]bool{
	"cuda.WithStream": true, "dist.Join": true, "dist.NoSync": true, "profiler.EmitNVTX": true, "profiler.RecordFunction": true,
}

// aliasing are functions of package nn that may return one of their tensors, with its index among the parameters after the
// receiver. The layers that can work in place may, too.
var aliasing = map[string]int{
	"(*Dropout).Forward": 0, "(*DropPath).Forward": 0, "(*Identity).Forward": 0, "(*LocalResponseNorm).Forward": 0,
	"(*Sequential).Forward": 0, "(*Lazy[M]).Forward": 0, "(*Parametrized).Forward": 0, "(Layer).Forward": 0, "Pipe": 0,

	// The zero values have no layers.
	"(*TransformerEncoder).Forward": 0, "(*TransformerEncoder).ForwardMasked": 0,
	"(*TransformerDecoder).Forward": 0, "(*TransformerDecoder).ForwardMasked": 0,
	"(*Transformer).Forward": 1, "(*Transformer).ForwardMasked": 1,
}

// unstated are functions of package nn without facts: wrappers run functions and hooks of users, a module made from
// tensors holds them, and LinearCrossEntropy needs the class weights again in the backward pass.
var unstated = map[string]bool{
	"(Func).Forward": true, "(*Hooked).Forward": true, "(*Parametrized).Module": true,
	"(*weightNorm).RightInverse": true, "(*orthogonal).RightInverse": true, "(*spectralNorm).RightInverse": true,
	"FunctionalCall": true, "SkipInit": true,
	"FuseConvBNEval": true, "FuseLinearBNEval": true, "LinearCrossEntropy": true, "(*LinearCrossEntropyLoss).Forward": true,
}

// packing are functions of package nn that borrow their tensors. The result, a *nn.PackedSequence, is not a place.
var packing = map[string]bool{"PackPaddedSequence": true, "PackSequence": true}

// ofInterface reports whether fn is a method of an interface.
func ofInterface(fn *types.Func) bool {
	recv := fn.Signature().Recv()
	return recv != nil && types.IsInterface(recv.Type())
}

// layerForward reports whether fn is nn.Layer's Forward.
func layerForward(fn *types.Func) bool {
	return fn.Name() == "Forward" && named(fn.Signature().Recv().Type(), Module+"/nn", "Layer")
}

// worksInPlace reports whether a method is the Forward of a layer with a field InPlace.
func worksInPlace(fn *types.Func) bool {
	recv := fn.Signature().Recv()
	if recv == nil || fn.Name() != "Forward" {
		return false
	}
	t := recv.Type()
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		if f.Name() == "InPlace" {
			return true
		}
	}
	return false
}

// library returns the facts of a function of the library's public packages or of certain functions of the standard library.
// ok is false for other packages.
func library(fn *types.Func) (fact *Func, ok bool) {
	if fn.Pkg() == nil {
		return nil, false
	}
	path := fn.Pkg().Path()
	if borrowing[path+"."+fn.Name()] {
		return unknownResults(fn, false), true
	}
	if !Core(path) || strings.HasPrefix(path, Module+"/internal/") {
		return nil, false
	}
	rest := strings.TrimPrefix(path, Module+"/")
	// A hook is called later; the program implements interfaces, and nn.Layer's alone have a contract.
	if retaining[rest+"."+fn.Name()] || strings.HasPrefix(fn.Name(), "LastUse") || strings.HasPrefix(fn.Name(), "Register") ||
		ofInterface(fn) && !layerForward(fn) {
		return unknownResults(fn, true), true
	}
	sig := fn.Signature()
	recv := 0
	receiver := ""
	if sig.Recv() != nil {
		recv = 1
		receiver = "(" + types.TypeString(sig.Recv().Type(), func(*types.Package) string { return "" }) + ")."
	}
	f := &Func{Retains: make([]bool, recv+sig.Params().Len()), Results: make([]Result, sig.Results().Len())}
	first := func() []int { // the first parameter that is a tensor
		for i := range sig.Params().Len() {
			if isTensor(sig.Params().At(i).Type()) {
				return []int{recv + i}
			}
		}
		return []int{0}
	}
	switch rest {
	case "tensor":
		switch {
		case fn.Name() == "Tidy" || fn.Name() == "TidyAll":
			f.resultsOfArg = true
		case sig.Results().Len() == 1 && carries(sig.Results().At(0).Type()):
			for i := range f.Retains { // an option
				f.Results[0].From = append(f.Results[0].From, i)
			}
		case strings.HasSuffix(fn.Name(), "_"):
			if recv == 1 && isTensor(sig.Recv().Type()) {
				f.Results[0] = Result{From: []int{0}, Old: true}
			} else {
				return unknownResults(fn, false), true
			}
		}
	case "autograd":
		switch fn.Name() {
		case "Autocast", "SavedTensors", "KeepInCheckpoint":
			f.resultsOfArg = true
			return f, true
		case "Checkpoint", "CheckpointAll":
			f.resultsOfArg, f.calledWith = true, true
			f.Retains[0] = true // the function; native code holds the inputs
			return f, true
		}
		if sig.Results().Len() == 1 && carries(sig.Results().At(0).Type()) {
			return unknownResults(fn, true), true
		}
	case "nn":
		alias, aliases := aliasing[receiver+fn.Name()]
		switch {
		case fn.Name() == "tidy", // called by package nn itself
			fn.Name() == "SDPAKernel":
			f.resultsOfArg = true
		case unstated[receiver+fn.Name()]:
			return unknownResults(fn, true), true
		case receiver == "(ParameterDict)." && fn.Name() == "Get": // a parameter, which the module holds
			return unknownResults(fn, true), true
		case aliases || worksInPlace(fn):
			f.Results[0].From = []int{recv + alias}
		case fn.Name() == "ClipGradNorm_":
		case strings.HasSuffix(fn.Name(), "_"):
			f.Results[0] = Result{From: first(), Old: true}
		case sig.Results().Len() == 1 && !isTensor(sig.Results().At(0).Type()) && !packing[fn.Name()]:
			return unknownResults(fn, true), true
		}
	default:
		return unknownResults(fn, !calling[rest+"."+fn.Name()]), true
	}
	return f, true
}

// borrowing are functions of the standard library that read their arguments.
var borrowing = map[string]bool{
	"fmt.Print": true, "fmt.Println": true, "fmt.Printf": true, "fmt.Fprint": true, "fmt.Fprintln": true,
	"fmt.Fprintf": true, "fmt.Sprint": true, "fmt.Sprintln": true, "fmt.Sprintf": true,
	"log.Print": true, "log.Println": true, "log.Printf": true,
}

func unknownResults(fn *types.Func, retains bool) *Func {
	sig := fn.Signature()
	f := &Func{Results: make([]Result, sig.Results().Len())}
	for i := range f.Results {
		f.Results[i].Other = true
	}
	n := sig.Params().Len()
	if sig.Recv() != nil {
		n++
	}
	f.Retains = make([]bool, n)
	for i := range f.Retains {
		f.Retains[i] = retains
	}
	return f
}

func named(t types.Type, path, name string) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == name && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path
}

func isTensor(t types.Type) bool {
	p, ok := types.Unalias(t).(*types.Pointer)
	return ok && named(p.Elem(), tensorPath, "Tensor")
}

func isTensors(t types.Type) bool {
	s, ok := types.Unalias(t).(*types.Slice)
	return ok && isTensor(s.Elem())
}

// carries reports whether a value of type t can carry a handle that is followed, without being a tensor or a
// slice of tensors.
func carries(t types.Type) bool {
	t = types.Unalias(t)
	switch t := t.(type) {
	case *types.TypeParam:
		return true
	case *types.Slice:
		return carries(t.Elem())
	case *types.Signature:
		return true
	case *types.Interface:
		return t.Empty()
	}
	return named(t, tensorPath, "Option") || named(t, tensorPath, "BackwardOption")
}

// isStruct reports whether t is a struct with fields that are followed. One with a field whose type has a type
// parameter is not: an instance may have more fields that are followed than the generic function sees. Nor is one that
// hides a tensor, which another package's functions follow: this one cannot name it, so no release can compare with it.
func (p *Package) isStruct(t types.Type) bool {
	s, ok := t.Underlying().(*types.Struct)
	if !ok || p.hides(t, false) {
		return false
	}
	for f := range s.Fields() {
		if generic(f.Type()) {
			return false
		}
	}
	for f := range s.Fields() {
		if p.follows(f) {
			return true
		}
	}
	return false
}

// generic reports whether t has a type parameter.
func generic(t types.Type) bool {
	switch t := types.Unalias(t).(type) {
	case *types.TypeParam:
		return true
	case *types.Pointer:
		return generic(t.Elem())
	case *types.Slice:
		return generic(t.Elem())
	case *types.Array:
		return generic(t.Elem())
	case *types.Map:
		return generic(t.Key()) || generic(t.Elem())
	case *types.Chan:
		return generic(t.Elem())
	case *types.Signature:
		return slices.ContainsFunc([]*types.Tuple{t.Params(), t.Results()}, func(vs *types.Tuple) bool {
			for v := range vs.Variables() {
				if generic(v.Type()) {
					return true
				}
			}
			return false
		})
	case *types.Named:
		for arg := range t.TypeArgs().Types() {
			if generic(arg) {
				return true
			}
		}
	case *types.Struct:
		for f := range t.Fields() {
			if generic(f.Type()) {
				return true
			}
		}
	}
	return false
}

// hides reports whether a struct, or a struct in it, has tensors or slices of them to which this package cannot name
// the path. With hidden, it cannot name the path to the struct.
func (p *Package) hides(t types.Type, hidden bool) bool {
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		hidden := hidden || !f.Exported() && f.Pkg() != p.Types
		if hidden && (isTensor(f.Type()) || isTensors(f.Type())) || p.hides(f.Type(), hidden) {
			return true
		}
	}
	return false
}

// follows reports whether a struct's field is followed: it is a tensor, a slice of tensors or a struct with
// such fields, and this package can access it.
func (p *Package) follows(f *types.Var) bool {
	if f.Name() == "_" || !f.Exported() && f.Pkg() != p.Types {
		return false
	}
	return isTensor(f.Type()) || isTensors(f.Type()) || p.isStruct(f.Type())
}

// field is the path from a variable to a tensor or slice of tensors in it: ".a.b".
type field struct {
	path string
	many bool
}

// fields returns the tensors and slices of tensors in a struct.
func (p *Package) fields(t types.Type) (list []field) {
	for f := range t.Underlying().(*types.Struct).Fields() {
		switch {
		case !p.follows(f):
		case p.isStruct(f.Type()):
			for _, in := range p.fields(f.Type()) {
				list = append(list, field{"." + f.Name() + in.path, in.many})
			}
		default:
			list = append(list, field{"." + f.Name(), isTensors(f.Type())})
		}
	}
	return list
}

// hasSlices reports whether a struct holds slices of tensors.
func (p *Package) hasSlices(t types.Type) bool {
	for _, f := range p.fields(t) {
		if f.many {
			return true
		}
	}
	return false
}

// isField reports whether sel is a field that is followed, in a struct that is not accessed through a pointer.
func (p *Package) isField(sel *ast.SelectorExpr) bool {
	s := p.Info.Selections[sel]
	if s == nil || s.Kind() != types.FieldVal {
		return false
	}
	t := s.Recv()
	for _, i := range s.Index() {
		in, ok := t.Underlying().(*types.Struct)
		if !ok || !p.isStruct(t) || !p.follows(in.Field(i)) {
			return false
		}
		t = in.Field(i).Type()
	}
	return true
}

// holds reports whether a value of type t is followed.
func (p *Package) holds(t types.Type) bool {
	return t != nil && (isTensor(t) || isTensors(t) || p.isStruct(t) || carries(t))
}
