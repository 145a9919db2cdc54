package lastuse

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the expected results")

// library loads the types that test packages import, once.
func loadLibrary(t testing.TB) map[string]*types.Package {
	t.Helper()
	pkgs, err := packages.Load(&packages.Config{Mode: packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedName},
		tensorPath, Module+"/nn", Module+"/autograd", Module+"/cuda", Module+"/dist", Module+"/profiler", "fmt", "errors", "sync", "slices")
	if err != nil || packages.PrintErrors(pkgs) > 0 {
		t.Fatal("the library does not load: ", err)
	}
	all := map[string]*types.Package{}
	packages.Visit(pkgs, nil, func(p *packages.Package) { all[p.PkgPath] = p.Types })
	return all
}

type mapImporter map[string]*types.Package

func (m mapImporter) Import(path string) (*types.Package, error) {
	if p := m[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no package %q", path)
}

// parsePackage makes a Package of one file.
func parsePackage(lib map[string]*types.Package, path, name string, src []byte) (*Package, error) {
	p := &Package{Fset: token.NewFileSet(), Info: NewInfo(), Sources: [][]byte{src}, Imports: Facts{}}
	f, err := parser.ParseFile(p.Fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	p.Files = append(p.Files, f)
	conf := types.Config{Importer: mapImporter(lib)}
	p.Types, err = conf.Check(path, p.Fset, p.Files, p.Info)
	return p, err
}

// TestRewrite compares rewritten sources with those in testdata/*.txtar: in.go, and out.go, the lines that change.
// go test -update writes them.
func TestRewrite(t *testing.T) {
	lib := loadLibrary(t)
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			src := ar.Files[0].Data
			p, err := parsePackage(lib, "example.com/p", "p/in.go", src)
			if err != nil {
				t.Fatal(err)
			}
			p.Analyze()
			sources, notes := p.Rewrite(true)
			out := sources[0]
			if out == nil {
				out = src
			}
			if _, err := parsePackage(lib, "example.com/p", "p/in.go", out); err != nil {
				t.Errorf("the rewritten source is not valid: %v\n%s", err, out)
			}
			if a, b := strings.Count(string(src), "\n"), strings.Count(string(out), "\n"); a != b {
				t.Errorf("%d lines became %d", a, b)
			}
			was, now := strings.Split(string(src), "\n"), strings.Split(string(out), "\n")
			var changed, explained strings.Builder
			for i := range now {
				if i < len(was) && was[i] != now[i] {
					fmt.Fprintf(&changed, "%d:%s\n", i+1, now[i])
				}
			}
			for _, n := range notes {
				if !n.Released {
					fmt.Fprintf(&explained, "%d: %s\n", p.Fset.Position(n.Pos).Line, n)
				}
			}
			if *update {
				ar.Files = []txtar.File{{Name: "in.go", Data: src}, {Name: "out.go", Data: []byte(changed.String())}, {Name: "left", Data: []byte(explained.String())}}
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(ar.Files) != 3 || string(ar.Files[1].Data) != changed.String() || string(ar.Files[2].Data) != explained.String() {
				t.Errorf("changed lines:\n%s\nleft:\n%s\nwanted:\n%s", &changed, &explained, txtar.Format(&txtar.Archive{Files: ar.Files[1:]}))
			}
		})
	}
}

// loadSources loads a package of the library with its sources.
func loadSources(t *testing.T, path string) *Package {
	t.Helper()
	pkgs, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax}, path)
	if err != nil || len(pkgs) != 1 || packages.PrintErrors(pkgs) > 0 {
		t.Fatalf("%s does not load: %v", path, err)
	}
	p := &Package{Fset: pkgs[0].Fset, Files: pkgs[0].Syntax, Types: pkgs[0].Types, Info: pkgs[0].TypesInfo}
	for _, f := range p.Files {
		src, err := os.ReadFile(p.Fset.File(f.FileStart).Name())
		if err != nil {
			t.Fatal(err)
		}
		p.Sources = append(p.Sources, src)
	}
	return p
}

// The layers of package nn, whose facts are a table, keep the contract of nn.Layer.
func TestLibraryKeepsTheContract(t *testing.T) {
	p := loadSources(t, Module+"/nn")
	p.Analyze()
	for _, b := range p.Breaches() {
		t.Errorf("%v: %s", p.Fset.Position(b.Pos), b.What)
	}
}

// Reasons of several exceptions.
const (
	viaKind   = "recurrent calls an operator of its rnnKind, a method of package tensor, in a TidyAll and returns its new handles"
	viaStep   = "step calls an operator, a method of package tensor, in a TidyAll and returns its new handles"
	viaLayers = "Pipe and Residual call the layers, which hold the masks and the memory, and keep none of them"
)

// exceptions are the functions for which the table states more than inference finds, with the reason why that
// is correct.
var exceptions = map[string]string{
	"tensor.FromSlice":                            "the elements are numbers",
	"tensor.Tidy":                                 "the results are those of the argument, by resultsOfArg",
	"tensor.TidyAll":                              "the results are those of the argument, by resultsOfArg",
	"(*tensor.Tensor).Index":                      "indexing holds operands in a struct behind a pointer until Index returns a new handle",
	"(*tensor.Tensor).SetIndex":                   "indexing holds operands in a struct behind a pointer until SetIndex returns",
	"(*tensor.Tensor).String":                     "a deferred call unpins the receiver",
	"(*nn.Embedding).Forward":                     "tensor.CallUnchecked holds operands until it returns new handles",
	"(*nn.EmbeddingBag).ForwardBags":              "tensor.CallUnchecked holds operands until it returns new handles",
	"(*nn.CausalSelfAttention).Forward":           "the last layer of its Pipe gets a product, which is a new handle",
	"(*nn.MultiheadAttention).Attend":             "its views of the operands are in an array, which ends with the call",
	"(*nn.RNN).Forward":                           viaKind,
	"(*nn.RNN).ForwardState":                      viaKind,
	"(*nn.RNN).ForwardPacked":                     viaKind,
	"(*nn.GRU).Forward":                           viaKind,
	"(*nn.GRU).ForwardState":                      viaKind,
	"(*nn.GRU).ForwardPacked":                     viaKind,
	"(*nn.LSTM).Forward":                          viaKind,
	"(*nn.LSTM).ForwardState":                     viaKind,
	"(*nn.LSTM).ForwardPacked":                    viaKind,
	"(*nn.RNNCell).Forward":                       viaStep,
	"(*nn.GRUCell).Forward":                       viaStep,
	"(*nn.LSTMCell).Forward":                      viaStep,
	"(*nn.TransformerEncoderLayer).ForwardMasked": viaLayers,
	"(*nn.TransformerDecoderLayer).ForwardMasked": viaLayers,
	"nn.GaussianNLLLoss":                          "its function literal assigns the parameter variance, and the options are read into a local struct",
	"nn.MultiLabelSoftMarginLoss":                 "the options are read into a local struct",
	"nn.TripletMarginWithDistanceLoss":            "a distance has the contract of nn.Layer, and the options are read into a local struct",
	"(*nn.Loss).Forward":                          "the loss functions borrow and return a new handle; a distance has the contract of nn.Layer",
	"nn.Release":                                  "it reads the module by reflection, and keeps nothing",
	"autograd.Autocast":                           "a function of package tensor, which it reaches by a variable, calls the argument",
	"autograd.WithAutocast":                       "a function of package tensor, which it reaches by a variable, calls the argument",
	"autograd.DetectAnomaly":                      "a function of package tensor, which it reaches by a variable, calls the argument",
	"autograd.DualLevel":                          "a function of package tensor, which it reaches by a variable, calls the argument",
	"autograd.SavedTensors":                       "the results are those of the argument, by resultsOfArg, and a variable calls it",
	"autograd.KeepInCheckpoint":                   "the results are those of the argument, by resultsOfArg, and a variable calls it",
	"nn.SDPAKernel":                               "the results are those of the argument, by resultsOfArg, and a variable calls it",
	"tensor.FromScalar":                           "a number or an option that it compares holds no tensor",
	"autograd.Backward":                           "a function of package tensor, which it reaches by a variable",
	"autograd.Grad":                               "a function of package tensor, which it reaches by a variable",
	"autograd.MakeDual":                           "tensor.CallUnchecked holds operands until it returns new handles",
	"autograd.UnpackDual":                         "tensor.CallUnchecked holds operands until it returns new handles",
	"autograd.JVP":                                "the function is in a struct, which ends with the call",
	"autograd.Jacobian":                           "the function is in a struct, which ends with the call",
	"autograd.Hessian":                            "the function is in a struct, which ends with the call",

	"(*nn.AdaptiveLogSoftmaxWithLoss).Forward": "tensor.TidyAll returns new handles",
	"(*nn.AdaptiveLogSoftmaxWithLoss).LogProb": "its views of the operand are in a slice, which ends with the call",
	"(nn.float8Product).Forward":               "autograd.Apply gives the saved operands to native code and forgets them",
	"nn.ConvertToFloat8Training":               "the filter gets a layer, which it must not keep",
	"(*nn.Float8Linear).Forward":               "tensor.CallUnchecked holds operands until it returns new handles",
	"(*nn.Int8Linear).Forward":                 "tensor.CallUnchecked holds operands until it returns new handles",
	"tensor.SparseCOOTensor":                   "it reads a bool in an option",
	"(*nn.KVCache).Update":                     "it copies the operands, and tensor.TidyAll returns new views of its buffers",
	"(*nn.Lazy[M]).Forward":                    "its module is a Layer, whose Forward has the contract",
	"(*nn.LoRALinear).Forward":                 "a Linear, also in 8 bits, borrows its operand and returns a new handle",
	"(*nn.RotaryEmbedding).ForwardAt":          "its function literal assigns the parameter positions",
	"(*nn.SwiGLU).Forward":                     "the last layer of its Pipe gets a product, which is a new handle",
	"(*nn.orthogonal).Forward":                 "its function literal assigns the operand",
	"(*nn.weightNorm).Forward":                 "tensor.CallUnchecked holds operands until it returns new handles",
	"nn.GetTotalNorm":                          "its function literal returns a variable that another one assigns a new tensor",
	"nn.ClipGradNorm_":                         "it returns the result of GetTotalNorm",
	"nn.ParametersToVector":                    "its views of the operands are in a slice, which ends with the call",
}

// TestTable compares the table of the library's facts with those inferred from the library's source. The table
// may state more only where exceptions has a reason. A handle that the table finds in a result is not retained.
func TestTable(t *testing.T) {
	used := map[string]bool{}
	helpers := loadSources(t, Module+"/internal/refuse").Analyze()
	for _, name := range []string{"tensor", "nn", "autograd", "optim", "data", "checkpoint", "distributions", "distributions/constraints"} {
		p := loadSources(t, Module+"/"+name)
		p.Imports = helpers
		own := p.Analyze()
		for _, r := range p.roots() {
			if r.decl == nil || !r.decl.Name.IsExported() {
				continue
			}
			fn := p.Info.Defs[r.decl.Name].(*types.Func)
			full := strings.ReplaceAll(fn.FullName(), Module+"/", "")
			if strings.Contains(full, "(nn.internal)") || strings.Contains(full, "(nn.identity)") {
				continue // users call it through the interface
			}
			table, ok := library(fn)
			if !ok {
				t.Errorf("%s is not in the table", fn.FullName())
				continue
			}
			for _, excess := range p.statesMore(table, own[fn.FullName()], fn.Signature()) {
				if exceptions[full] == "" {
					t.Errorf("%s: %s", full, excess)
				}
				used[full] = true
			}
		}
	}
	for name := range exceptions {
		if !used[name] {
			t.Errorf("inference finds all that the table states about %s: remove the exception", name)
		}
	}
}

// TestFunctionArguments: the library keeps the functions that it is given, except those that it calls before it
// returns. Inference cannot show this, because it trusts the table for the library's own helpers.
func TestFunctionArguments(t *testing.T) {
	now := strings.Fields("tensor.ForkRNG tensor.Join tensor.Tidy tensor.TidyAll tensor.WithScope autograd.Autocast autograd.DetectAnomaly " +
		"autograd.DualLevel autograd.EnableGrad autograd.HVP autograd.Hessian autograd.Inference autograd.JVP autograd.Jacobian " +
		"autograd.KeepInCheckpoint autograd.NoGrad autograd.SavedTensors autograd.VHP autograd.VJP autograd.WithAutocast " +
		"nn.ConvertToFloat8Training nn.SDPAKernel nn.TripletMarginWithDistanceLoss cuda.WithStream dist.Join dist.NoSync " +
		"profiler.EmitNVTX profiler.RecordFunction")
	lib := loadLibrary(t)
	check := func(pkg string, fn *types.Func) {
		fact, ok := library(fn)
		if !fn.Exported() || !ok {
			return
		}
		sig, recv := fn.Signature(), 0
		if sig.Recv() != nil {
			recv = 1
		}
		for i := range sig.Params().Len() {
			_, is := types.Unalias(sig.Params().At(i).Type()).(*types.Signature)
			if name := pkg + "." + fn.Name(); is && fact.retains(recv+i) == slices.Contains(now, name) {
				t.Errorf("%s: the table says that it keeps its function: %t", name, fact.retains(recv+i))
			}
		}
	}
	for _, pkg := range []string{"tensor", "autograd", "nn", "cuda", "dist", "profiler"} {
		scope := lib[Module+"/"+pkg].Scope()
		for _, name := range scope.Names() {
			switch o := scope.Lookup(name).(type) {
			case *types.Func:
				check(pkg, o)
			case *types.TypeName:
				if n, ok := o.Type().(*types.Named); ok {
					for m := range n.Methods() {
						check(pkg, m)
					}
				}
			}
		}
	}
}

// statesMore returns the facts that f states about a function with the given signature and g does not.
func (p *Package) statesMore(f, g *Func, sig *types.Signature) (excess []string) {
	recv := 0
	if sig.Recv() != nil {
		recv = 1
	}
	for i := range g.Retains {
		v := sig.Recv()
		if i >= recv {
			v = sig.Params().At(i - recv)
		}
		inResult := len(f.Results) > 0 && slices.Contains(f.result(0).From, i)
		if g.retains(i) && !f.retains(i) && !inResult && p.holds(v.Type()) {
			excess = append(excess, fmt.Sprintf("parameter %d may be retained", i))
		}
	}
	for i := range g.Results {
		if t := sig.Results().At(i).Type(); !isTensor(t) && !isTensors(t) || f.result(i).Other {
			continue
		}
		if g.result(i).Other {
			excess = append(excess, fmt.Sprintf("result %d may be others' handles", i))
		}
		for _, from := range g.result(i).From {
			if !slices.Contains(f.result(i).From, from) {
				excess = append(excess, fmt.Sprintf("result %d may be parameter %d", i, from))
			}
		}
	}
	return excess
}

// The command refuses to compile the package tensor of another version of the module.
func TestFactsOfAnotherVersion(t *testing.T) {
	own := filepath.Join("..", "..", "tensor", "facts_gen.go")
	if err := sameFacts([]string{"../../tensor/tensor.go", own}); err != nil {
		t.Error("of this version: ", err)
	}
	data, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "facts_gen.go")
	if err := os.WriteFile(other, bytes.Replace(data, []byte(factsVersion), []byte("0"+factsVersion[1:]+"0"), 1), 0o666); err != nil {
		t.Fatal(err)
	}
	covered := filepath.Join(filepath.Dir(other), "facts_gen.cover.go")
	if err := errors.Join(os.WriteFile(covered, data, 0o666), sameFacts([]string{covered})); err != nil {
		t.Error("with -cover: ", err)
	}
	for name, sources := range map[string][]string{"others": {other}, "none": {"../../tensor/tensor.go"}} {
		if err := sameFacts(sources); err == nil || !strings.Contains(err.Error(), "go install "+Module+"/cmd/linstock") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFactsInArchives(t *testing.T) {
	name := filepath.Join(t.TempDir(), "p.a")
	entry := fmt.Sprintf("%-16s%-12d%-6d%-6d%-8o%-10d`\n%s\n", "__.PKGDEF", 0, 0, 0, 0o644, 5, "abcde")
	if err := os.WriteFile(name, []byte(archiveMagic+entry), 0o644); err != nil {
		t.Fatal(err)
	}
	if data, err := readEntry(name); data != nil || err != nil {
		t.Fatalf("an archive without facts gives %q, %v", data, err)
	}
	facts := Facts{"p.F": {Retains: []bool{true, false}, Results: []Result{{From: []int{1}}, {Other: true}}}, "(*p.T).M": {Retains: []bool{false}}}
	data, err := facts.Encode()
	if err == nil {
		err = appendEntry(name, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	read, err := readEntry(name)
	if err != nil {
		t.Fatal(err)
	}
	got := Facts{}
	if err := got.Decode(read); err != nil || len(got) != 2 || !got["p.F"].equal(facts["p.F"]) || !got["(*p.T).M"].equal(facts["(*p.T).M"]) {
		t.Errorf("%v, %v", got, err)
	}
	again, err := got.Encode()
	if err != nil || string(again) != string(data) {
		t.Errorf("equal facts are other bytes (%v)", err)
	}
}

// TestOtherGo tests that a package which this program cannot read, as if the compiler were of a newer version of Go, is
// compiled without releases, and that this is reported.
func TestOtherGo(t *testing.T) {
	const library = "github.com/linstock-ml/linstock/tensor"
	out, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", library).Output()
	if err != nil {
		t.Fatal(err)
	}
	export := strings.TrimSpace(string(out))
	data, err := os.ReadFile(export)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "\n$$B\nu" // before the version of the export data
	at := bytes.Index(data, []byte(begin))
	if at < 0 {
		t.Fatalf("no export data in %s", export)
	}
	data[at+len(begin)] = 0x7f
	dir := t.TempDir()
	write := func(name, text string) string { t.Helper(); return writeFile(t, dir, name, text) }
	newer := write("newer.a", string(data))
	source := write("p.go", "package p\n\nimport \""+library+"\"\n\nvar X *tensor.Tensor\n")
	for _, c := range []struct{ name, archive, lang, want string }{
		{"the language", export, "go1.99", "package requires newer Go version go1.99"},
		{"the export data", newer, "go1.26", "its imports cannot be read: "},
	} {
		config := write("importcfg", "packagefile "+library+"="+c.archive+"\n")
		for _, r := range []struct {
			strict         string
			compiler, want int // exit codes
			reported       bool
		}{
			{"", 0, 0, true},
			{"", 2, 2, false}, // the compiler has said what is wrong
			{"1", 0, 1, true},
		} {
			if r.strict != "" && c.archive == newer {
				continue // it panics, to show where
			}
			t.Setenv(EnvStrict, r.strict)
			compiler := write("compile", fmt.Sprintf("#!/bin/sh\nexit %d\n", r.compiler))
			var code int
			said := stderr(t, func() {
				code = RunTool([]string{compiler, "-o", filepath.Join(dir, "p.a"), "-p", "p", "-lang=" + c.lang, "-importcfg", config, source})
			})
			reported := strings.Contains(said, "package p is compiled without releases: ") && strings.Contains(said, c.want)
			if code != r.want || reported != r.reported || !r.reported && said != "" {
				t.Errorf("%s, %+v: exit code %d, %q", c.name, r, code, said)
			}
		}
	}
}

// writeFile writes an executable file into dir and returns its path.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTakenName tests that a package with a name that inserted text needs is compiled without releases, and that this
// is reported; the text of a literal, comment or build tag and the package's own name are not such names.
func TestTakenName(t *testing.T) {
	out, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", tensorPath).Output()
	if err != nil {
		t.Fatal(err)
	}
	const plain = "package p\n\nimport \"" + tensorPath + "\"\n\nfunc F(x *tensor.Tensor) *tensor.Tensor { return x.Exp().Log() }\n\n"
	dir := t.TempDir()
	write := func(name, text string) string { t.Helper(); return writeFile(t, dir, name, text) }
	config := write("importcfg", "packagefile "+tensorPath+"="+strings.TrimSpace(string(out))+"\n")
	lib := loadLibrary(t)
	output, file := filepath.Join(dir, "p.a"), filepath.Join(dir, "compiled.go")
	compiler := write("compile", "#!/bin/sh\necho '!<arch>' >"+output+"\nfor file; do :; done\ncp \"$file\" "+file+"\n")
	for _, c := range []struct{ source, taken string }{
		{plain, ""},
		{"//go:build !linstock_off\n\n" + plain + "// linstock_a\nconst Metric = \"linstock_bytes\"\n", ""},
		{strings.Replace(plain, "package p", "package linstock_p", 1), ""},
		{plain + "type s struct{ bool, linstock_t1 bool }\n\nfunc (v s) true() bool { return v.bool && v.linstock_t1 }\n", ""},
		{plain + "var linstock_t1 = 1\n", "linstock_t1"},
		{plain + "func g(linstock_t1 int) {}\n", "linstock_t1"},
		{plain + "const true = 1 > 2\n", "true"},
		{plain + "func g(v any) {\n\tswitch bool := v.(type) {\n\tcase int:\n\t\t_ = bool\n\t}\n}\n", "bool"},
	} {
		p, err := parsePackage(lib, "p", "p.go", []byte(c.source))
		if err != nil {
			t.Fatal(err)
		}
		p.Analyze()
		_, notes := p.Rewrite(true)
		listed := slices.ContainsFunc(notes, func(n Note) bool { return n.Name == c.taken && strings.Contains(n.Text, "without releases") })
		if listed != (c.taken != "") {
			t.Errorf("%s\nlisted: %v", c.source, notes)
		}
		source := write("p.go", c.source)
		for _, strict := range []string{"", "1"} {
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
			t.Setenv(EnvStrict, strict)
			var code int
			said := stderr(t, func() {
				code = RunTool([]string{compiler, "-o", output, "-p", "p", "-lang=go1.26", "-importcfg", config, source})
			})
			want := ""
			if c.taken != "" {
				want = "linstock: package p is compiled without releases: inserted text needs the name " + c.taken + ", which " + source + ":"
			}
			if !strings.HasPrefix(said, want) || want == "" && said != "" || (code == 0) != (want == "" || strict == "") {
				t.Errorf("%s\nstrict %q: exit code %d, %q", c.source, strict, code, said)
			}
			compiled, err := os.ReadFile(file)
			if rewritten := strings.Contains(string(compiled), "LastUse"); rewritten != (want == "") || (err == nil) != (code == 0) {
				t.Errorf("%s\nstrict %q: rewritten: %v, %v", c.source, strict, rewritten, err)
			}
		}
	}
}

// stderr returns what f writes to os.Stderr: less than a pipe holds.
func stderr(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	old := os.Stderr
	os.Stderr = w
	f()
	os.Stderr = old
	_ = w.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Analyze takes time in proportion to the length of a chain of calls, also if the callers stand first.
func TestChainOfCalls(t *testing.T) {
	const n = 300
	src := "package p\n\nimport \"github.com/linstock-ml/linstock/tensor\"\n\nvar g *tensor.Tensor\n\n"
	for i := range n {
		src += fmt.Sprintf("func f%d(x *tensor.Tensor) *tensor.Tensor { return f%d(x) }\n", i, i+1)
	}
	src += fmt.Sprintf("func f%d(x *tensor.Tensor) *tensor.Tensor { g = x; return x }\n", n)
	p, err := parsePackage(loadLibrary(t), "example.com/p", "p/in.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if own := p.Analyze(); !own["example.com/p.f0"].retains(0) || p.analyses > 3*n {
		t.Errorf("%d analyses of %d functions; f0 retains its parameter: %v", p.analyses, n, own["example.com/p.f0"].retains(0))
	}
}
