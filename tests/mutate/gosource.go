package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A mutant is the library without one line that keeps it safe. All mutants are compiled into the same binaries, behind
// mutant.On(number), and LINSTOCK_MUTANT selects the one that is active.
type mutant struct {
	n       int
	key     string // identifies the mutant across versions of the sources
	kind    string // pin, unpin, lock, thread, atomic, guard, generated; of C++: lock, guard, exceptions, generated
	pkg     string // "tensor"; "cshim/src" or "cshim/cuda" for C++
	place   string // file:line
	removed []edit // the mutant as edits of a file, for the analyzers
	file    string
}

// edit replaces the bytes from start to end of a file.
type edit struct {
	start, end int
	text       string
}

// wrap puts text around the bytes from start to end, which may contain other wraps; with whole it replaces them.
type wrap struct {
	start, end int
	pre, post  string
	whole      bool
}

func rewrite(source []byte, wraps []wrap) []byte {
	slices.SortStableFunc(wraps, func(a, b wrap) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return b.end - a.end
	})
	pre, post, skip := map[int]string{}, map[int]string{}, map[int]int{}
	for _, w := range wraps {
		pre[w.start] += w.pre
		post[w.end] = w.post + post[w.end]
		if w.whole {
			skip[w.start] = w.end
		}
	}
	var b bytes.Buffer
	for i := 0; i <= len(source); i++ {
		b.WriteString(post[i])
		b.WriteString(pre[i])
		if end, ok := skip[i]; ok && end > i {
			i = end
			b.WriteString(post[i])
			b.WriteString(pre[i])
		}
		if i < len(source) {
			b.WriteByte(source[i])
		}
	}
	return b.Bytes()
}

func apply(source []byte, edits []edit) []byte {
	edits = slices.Clone(edits)
	slices.SortFunc(edits, func(a, b edit) int { return b.start - a.start })
	out := slices.Clone(source)
	for _, e := range edits {
		out = slices.Replace(out, e.start, e.end, []byte(e.text)...)
	}
	return out
}

// goPackages are the packages whose hand-written lines are removed.
var goPackages = []string{"cshim", "vram", "tensor", "autograd", "nn", "optim", "data", "checkpoint"}

// guardedFiles are the files in which every early return and every condition on the state of a lifetime is a guard. In
// other files, only pins, locks and atomics are removed.
var guardedFiles = []string{
	"cshim/cshim.go", "cshim/calls.go", "cshim/values.go",
	"vram/account.go", "vram/caches.go", "vram/counts.go", "vram/cycle.go", "vram/reclaimers.go", "vram/timers.go", "vram/wait.go",
	"tensor/byname.go", "tensor/call.go", "tensor/callbacks.go", "tensor/checks.go", "tensor/fused.go", "tensor/grad.go", "tensor/modes.go",
	"tensor/native.go", "tensor/pending.go", "tensor/scope.go", "tensor/statistics.go", "tensor/sweep.go", "tensor/tensor.go", "tensor/track.go",
	"tensor/unscoped.go",
	"autograd/function.go", "optim/optim.go",
	"data/copier.go", "data/loader.go", "data/workers.go",
	"checkpoint/file.go", "checkpoint/mapping.go",
}

// lifetime matches conditions on the state of a lifetime.
var lifetime = regexp.MustCompile(`\b(closed|gone|weak|released|freed|running|stopped|seen|tallied|attached|inScope|scopeOf|owner|marker|joined|held|mapping|users|loaded|late|began|outcome|Capturing|Sweeping)\b|\b(h|n|box|from|to|inner|in|t|s|p|r|b|c|f|e|m|x|g|v|h\.h|t\.h|u|root)(\.Handle|\.Err|\.spill|\.fail|\.h)? (==|!=) (nil|0|s|t|m|to)\b|\b(ok|is|failed)\b|fail (==|!=) nil|len\((ids|words|h|saved|data)\)|\bk >= 0`)

var quick = regexp.MustCompile(`^(ok|is|(h|n) (!=|==|<) .*|!?seen\[.*|.*%.*|.*weak != nil)$`)

// refusing matches calls whose errors mean that a value may not be used.
var refusing = regexp.MustCompile(`^(pinAll|prepare|NewScope|holdThread|enter|moveTo|Adopt|begin|check|use|hold|scopes\.enter|scope\.Adopt|tensor\.NewScope|l\.begin|p\.hold)$`)

var helperName = regexp.MustCompile(`^(pin|done|wrote)[123]$`)

type goFile struct {
	name    string // relative to the root
	source  []byte
	wraps   []wrap
	mutants []*mutant
}

type collector struct {
	root    string
	next    int
	keys    map[string]int
	files   []*goFile
	cpp     []*cppFile
	samples int // of generated code
	seed    uint64
	all     []*mutant
}

func (c *collector) add(f *goFile, kind, what string, line int) *mutant {
	key := f.name + ": " + what
	if c.keys[key]++; c.keys[key] > 1 {
		key = fmt.Sprintf("%s #%d", key, c.keys[key])
	}
	c.next++
	m := &mutant{n: c.next, key: key, kind: kind, pkg: filepath.ToSlash(filepath.Dir(f.name)), file: f.name, place: fmt.Sprintf("%s:%d", f.name, line)}
	f.mutants = append(f.mutants, m)
	c.all = append(c.all, m)
	return m
}

// goSources finds the mutants of the Go packages.
func (c *collector) goSources() error {
	var generated []*goFile
	for _, name := range guardedFiles {
		if _, err := os.Stat(filepath.Join(c.root, name)); err != nil {
			return fmt.Errorf("guardedFiles in gosource.go: %w", err)
		}
	}
	for _, pkg := range goPackages {
		names, err := filepath.Glob(filepath.Join(c.root, pkg, "*.go"))
		if err != nil {
			return err
		}
		for _, name := range names {
			base := filepath.Base(name)
			if strings.HasSuffix(base, "_test.go") || strings.HasSuffix(base, "_gc.go") || strings.Contains(base, "read_o") {
				continue
			}
			source, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			f := &goFile{name: pkg + "/" + base, source: source}
			c.files = append(c.files, f)
			if strings.HasSuffix(base, "_gen.go") {
				if pkg == "tensor" {
					generated = append(generated, f)
				}
				continue
			}
			if err := c.handWritten(f); err != nil {
				return err
			}
		}
	}
	return c.generated(generated)
}

func (c *collector) handWritten(f *goFile) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, f.name, f.source, parser.ParseComments)
	if err != nil {
		return err
	}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	line := func(n ast.Node) int { return fset.Position(n.Pos()).Line }
	text := func(n ast.Node) string {
		return strings.Join(strings.Fields(string(f.source[at(n.Pos()):at(n.End())])), " ")
	}
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		in := nameOf(fn)
		pairs := map[string]*mutant{}
		literals := 0
		var visit func(n ast.Node, scope string)
		visit = func(root ast.Node, scope string) {
			ast.Inspect(root, func(n ast.Node) bool {
				if n == nil || n == root {
					return true
				}
				around := func(m *mutant, n ast.Node, pre, post string) {
					f.wraps = append(f.wraps, wrap{start: at(n.Pos()), end: at(n.End()), pre: pre, post: post})
				}
				replaced := func(m *mutant, n ast.Node, text string) {
					m.removed = append(m.removed, edit{at(n.Pos()), at(n.End()), text})
				}
				switch n := n.(type) {
				case *ast.FuncLit:
					literals++
					visit(n, fmt.Sprintf("%s.func%d", in, literals))
					return false
				case *ast.ExprStmt, *ast.DeferStmt:
					call, _ := callOf(n)
					sel, recv := method(call)
					switch sel {
					case "unpin", "letGo", "KeepAlive":
						m := c.add(f, "unpin", fmt.Sprintf("%s in %s", text(n), in), line(n))
						around(m, n, fmt.Sprintf("if !mutant.On(%d) { ", m.n), " }")
						replaced(m, n, "")
					case "LockOSThread", "LockThread", "lockThread":
						m := c.add(f, "thread", fmt.Sprintf("%s in %s", text(n), in), line(n))
						around(m, n, fmt.Sprintf("if !mutant.On(%d) { ", m.n), " }")
						replaced(m, n, "")
					case "Lock", "Unlock", "RLock", "RUnlock":
						what := text(recv)
						key := scope + " " + what
						m := pairs[key]
						if m == nil {
							m = c.add(f, "lock", fmt.Sprintf("lock of %s in %s", what, scope), line(n))
							pairs[key] = m
						}
						around(m, n, fmt.Sprintf("if !mutant.On(%d) { ", m.n), " }")
						replaced(m, n, "")
					}
				case *ast.CallExpr:
					sel, recv := method(n)
					switch {
					case sel == "pin" || sel == "hold" && recv != nil:
						m := c.add(f, "pin", fmt.Sprintf("%s in %s", text(n), in), line(n))
						around(m, n, fmt.Sprintf("(mutant.On(%d) || ", m.n), ")")
						replaced(m, n, "bool(true)")
					case sel == "TryLock":
						m := c.add(f, "lock", fmt.Sprintf("%s in %s", text(n), in), line(n))
						pairs[scope+" "+text(recv)] = m
						around(m, n, fmt.Sprintf("(mutant.On(%d) || ", m.n), ")")
						replaced(m, n, "bool(true)")
					case sel == "CompareAndSwap" && text(recv) != "attached":
						m := c.add(f, "atomic", fmt.Sprintf("%s in %s", text(n), in), line(n))
						around(m, n, "(", fmt.Sprintf(" || mutant.On(%d) && mutant.True(func() { %s.Store(%s) }))", m.n, text(recv), text(n.Args[1])))
					case sel == "Swap" && len(n.Args) == 1 && (text(n.Args[0]) == "0" || text(n.Args[0]) == "nil"):
						m := c.add(f, "atomic", fmt.Sprintf("%s in %s", text(n), in), line(n))
						f.wraps = append(f.wraps, wrap{start: at(n.Pos()), end: at(n.End()), whole: true,
							pre: fmt.Sprintf("mutant.Keep(%d, %s.Load, %s.Swap, %s)", m.n, text(recv), text(recv), text(n.Args[0]))})
					case sel == "LoadAndDelete":
						m := c.add(f, "atomic", fmt.Sprintf("%s in %s", text(n), in), line(n))
						f.wraps = append(f.wraps, wrap{start: at(n.Fun.Pos()), end: at(n.Fun.End()), whole: true,
							pre: fmt.Sprintf("mutant.Pick(%d, %s.Load, %s)", m.n, text(recv), text(n.Fun))})
					case sel == "Do" && len(n.Args) == 1:
						m := c.add(f, "atomic", fmt.Sprintf("%s in %s", text(n.Fun), in), line(n))
						around(m, n.Fun, fmt.Sprintf("mutant.Once(%d, ", m.n), ")")
					}
				case *ast.IfStmt:
					if slices.Contains(guardedFiles, f.name) {
						c.guards(f, n, in, at, line, text)
					}
				}
				return true
			})
		}
		visit(fn, in)
	}
	if len(f.mutants) > 0 {
		f.wraps = append(f.wraps, wrap{start: at(file.Name.End()), end: at(file.Name.End()), pre: `; import "github.com/linstock-ml/linstock/internal/mutant"`})
	}
	return nil
}

// guards removes each condition of an if that returns early, or that acts only in one state of a lifetime.
func (c *collector) guards(f *goFile, n *ast.IfStmt, in string, at func(token.Pos) int, line func(ast.Node) int, text func(ast.Node) string) {
	leaves := false
	if k := len(n.Body.List); k > 0 && n.Else == nil {
		switch last := n.Body.List[k-1].(type) {
		case *ast.ReturnStmt:
			leaves = true
		case *ast.BranchStmt:
			leaves = last.Tok == token.CONTINUE || last.Tok == token.BREAK
		}
	}
	operands := []ast.Expr{n.Cond}
	op := token.LOR
	if !leaves {
		op = token.LAND
	}
	for i := 0; i < len(operands); {
		if b, ok := operands[i].(*ast.BinaryExpr); ok && b.Op == op {
			operands = slices.Replace(operands, i, i+1, b.X, b.Y)
			continue
		}
		i++
	}
	for _, e := range operands {
		what := text(e)
		if strings.Contains(what, "pin()") || strings.Contains(what, "hold(") || strings.Contains(what, "CompareAndSwap") || strings.Contains(what, "TryLock") {
			continue
		}
		if what == "err != nil" {
			if !refuses(n, text) {
				continue
			}
		} else if !lifetime.MatchString(what) {
			continue
		}
		// An action that happens only if there is something to do is not a guard.
		if what == "ok" || !leaves && quick.MatchString(what) {
			continue
		}
		m := c.add(f, "guard", fmt.Sprintf("if %s in %s", what, in), line(n))
		w := wrap{start: at(e.Pos()), end: at(e.End()), pre: fmt.Sprintf("(!mutant.On(%d) && (", m.n), post: "))"}
		m.removed = []edit{{at(e.Pos()), at(e.Pos()), "(false && ("}, {at(e.End()), at(e.End()), "))"}}
		if !leaves {
			w.pre = fmt.Sprintf("(mutant.On(%d) || (", m.n)
			m.removed[0].text = "(true || ("
		}
		f.wraps = append(f.wraps, w)
	}
}

// refuses reports whether the error in n's condition comes from a call that rejects values that may not be used.
func refuses(n *ast.IfStmt, text func(ast.Node) string) bool {
	if a, ok := n.Init.(*ast.AssignStmt); ok && len(a.Rhs) == 1 {
		if call, ok := a.Rhs[0].(*ast.CallExpr); ok {
			name := text(call.Fun)
			return refusing.MatchString(name) || refusing.MatchString(name[strings.LastIndexByte(name, '.')+1:])
		}
	}
	return false
}

// generated finds the lines of the generator, each in all generated files at once, and a sample of single places.
func (c *collector) generated(files []*goFile) error {
	templates := map[string]*mutant{}
	type instance struct {
		f        *goFile
		fn, name string
		line     int
		id       wrap
		removed  edit
	}
	var all []instance
	for _, f := range files {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, f.name, f.source, parser.ParseComments)
		if err != nil {
			return err
		}
		at := func(p token.Pos) int { return fset.Position(p).Offset }
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				id, ok := call.Fun.(*ast.Ident)
				if !ok || !helperName.MatchString(id.Name) {
					return true
				}
				all = append(all, instance{f: f, fn: nameOf(fn), name: id.Name, line: fset.Position(id.Pos()).Line,
					id: wrap{start: at(id.Pos()), end: at(id.End())}, removed: edit{at(call.Pos()), at(call.End()), without(id.Name, call)}})
				return true
			})
		}
	}
	for _, i := range all {
		if templates[i.name] == nil {
			c.next++
			m := &mutant{n: c.next, key: "internal/opgen/emit_go.go: the last operand of " + i.name, kind: "generated", pkg: "tensor", place: "internal/opgen/emit_go.go"}
			templates[i.name] = m
			c.all = append(c.all, m)
		}
	}
	random := rand.New(rand.NewPCG(c.seed, 0))
	chosen := map[int]bool{}
	for _, k := range random.Perm(len(all)) {
		if len(chosen) < c.samples {
			chosen[k] = true
		}
	}
	for k, i := range all {
		n := -1
		if chosen[k] {
			m := c.add(i.f, "generated", fmt.Sprintf("the last operand of %s in %s", i.name, i.fn), i.line)
			m.removed = []edit{i.removed}
			n = m.n
		}
		i.id.whole = true
		i.id.pre = fmt.Sprintf("%sMutated(%d, %d)", i.name, templates[i.name].n, n)
		i.f.wraps = append(i.f.wraps, i.id)
	}
	return nil
}

// without returns the source of a call of pin2 and the like with one operand less.
func without(name string, call *ast.CallExpr) string {
	args := make([]string, len(call.Args))
	for i, a := range call.Args {
		args[i] = types.ExprString(a)
	}
	if name == "pin3" {
		args = args[:4]
	}
	kind, count := name[:len(name)-1], name[len(name)-1]
	switch {
	case name == "pin1":
		return "(*Tensor)(nil)"
	case name == "done1":
		return `wrapResult("", ` + args[1] + ")"
	case name == "wrote1":
		return "failed(asError(" + args[1] + "))"
	}
	return kind + string(count-1) + "(" + strings.Join(args[:len(args)-1], ", ") + ")"
}

func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	return strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*") + "." + fn.Name.Name
}

func callOf(n ast.Node) (*ast.CallExpr, bool) {
	switch n := n.(type) {
	case *ast.ExprStmt:
		c, ok := n.X.(*ast.CallExpr)
		return c, ok
	case *ast.DeferStmt:
		return n.Call, true
	}
	return nil, false
}

// method returns the name of the method or function that is called, and the receiver or package.
func method(call *ast.CallExpr) (name string, recv ast.Expr) {
	if call == nil {
		return "", nil
	}
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name, f.X
	case *ast.Ident:
		return f.Name, nil
	}
	return "", nil
}

// mutantPackage is compiled as internal/mutant.
const mutantPackage = `package mutant

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

var active, _ = strconv.Atoi(os.Getenv("LINSTOCK_MUTANT"))

// record is the file for what tests reach; "": do not record. record.map is a byte for each mutant, which the
// library and child processes set as well.
var record = os.Getenv("LINSTOCK_MUTANT_HITS")
var hits = mapped()

func mapped() []byte {
	if record == "" {
		return nil
	}
	f, err := os.OpenFile(record+".map", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 14); err != nil {
		panic(err)
	}
	hits, err := syscall.Mmap(int(f.Fd()), 0, 1<<14, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return hits
}

// On reports whether mutant n is active.
func On(n int) bool {
	if hits != nil && n > 0 {
		hits[n] = 1
	}
	return n == active && n > 0
}

func True(f func()) bool { f(); return true }

func Keep[T any](n int, load func() T, swap func(T) T, v T) T {
	if On(n) {
		return load()
	}
	return swap(v)
}

func Pick[F any](n int, mutated, right F) F {
	if On(n) {
		return mutated
	}
	return right
}

func Once(n int, do func(func())) func(func()) {
	if On(n) {
		return func(f func()) { f() }
	}
	return do
}

var mu sync.Mutex

// Test records what a test reaches and how long it takes.
func Test(name string) func() {
	if record == "" {
		return func() {}
	}
	start := time.Now()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		f, err := os.OpenFile(record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			panic(err)
		}
		defer f.Close()
		line := fmt.Sprintf("%s %.4f", name, time.Since(start).Seconds())
		for n, hit := range hits {
			if hit != 0 {
				line += " " + strconv.Itoa(n)
				hits[n] = 0
			}
		}
		fmt.Fprintln(f, line)
	}
}
`

// mutantHelpers is added to package tensor.
const mutantHelpers = `package tensor

import (
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/mutant"
)

func mutated[F any](template, one int, right, wrong F) F {
	if mutant.On(template) || mutant.On(one) {
		return wrong
	}
	return right
}

func pin1Mutated(template, one int) func(*op, *Tensor) *Tensor {
	return mutated(template, one, pin1, func(*op, *Tensor) *Tensor { return nil })
}

func pin2Mutated(template, one int) func(o *op, a, b *Tensor) *Tensor {
	return mutated(template, one, pin2, func(o *op, a, b *Tensor) *Tensor { return pin1(o, a) })
}

func pin3Mutated(template, one int) func(o *op, a, b, c *Tensor, optional uint8) *Tensor {
	return mutated(template, one, pin3, func(o *op, a, b, c *Tensor, optional uint8) *Tensor {
		if b == nil {
			return pin1(o, a)
		}
		return pin2(o, a, b)
	})
}

func done1Mutated(template, one int) func(o *op, r cshim.Result, a *Tensor) *Tensor {
	return mutated(template, one, done1, func(o *op, r cshim.Result, a *Tensor) *Tensor { return wrapResult(o.goName, r) })
}

func done2Mutated(template, one int) func(o *op, r cshim.Result, a, b *Tensor) *Tensor {
	return mutated(template, one, done2, func(o *op, r cshim.Result, a, b *Tensor) *Tensor { return done1(o, r, a) })
}

func done3Mutated(template, one int) func(o *op, r cshim.Result, a, b, c *Tensor) *Tensor {
	return mutated(template, one, done3, func(o *op, r cshim.Result, a, b, c *Tensor) *Tensor {
		if b == nil {
			return done1(o, r, a)
		}
		return done2(o, r, a, b)
	})
}

func wrote1Mutated(template, one int) func(o *op, err cshim.ErrorRef, a *Tensor) *Tensor {
	return mutated(template, one, wrote1, func(o *op, err cshim.ErrorRef, a *Tensor) *Tensor {
		if err != nil {
			return failed(asError(err))
		}
		return a
	})
}

func wrote2Mutated(template, one int) func(o *op, err cshim.ErrorRef, a, b *Tensor) *Tensor {
	return mutated(template, one, wrote2, func(o *op, err cshim.ErrorRef, a, b *Tensor) *Tensor { return wrote1(o, err, a) })
}

func wrote3Mutated(template, one int) func(o *op, err cshim.ErrorRef, a, b, c *Tensor) *Tensor {
	return mutated(template, one, wrote3, func(o *op, err cshim.ErrorRef, a, b, c *Tensor) *Tensor { return wrote2(o, err, a, b) })
}
`

// marked returns a test file whose tests record what they reach, or nil if it has no tests.
func (b *builder) marked(pkg, name string, source []byte) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, 0)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	var wraps []wrap
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Name.Name == "TestMain" {
			continue
		}
		name, pre := fn.Name.Name, ""
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				b.several[pkg+" "+name] = true
			case *ast.CallExpr:
				id, _ := n.Fun.(*ast.Ident)
				if sel, _ := method(n); sel == "Go" || id != nil && id.Name == "parallel" {
					b.several[pkg+" "+name] = true
				}
			}
			return true
		})
		switch {
		case strings.HasPrefix(name, "Example"):
			pre = fmt.Sprintf(" defer mutant.Test(%q)();", name)
		case strings.HasPrefix(name, "Test") && len(fn.Type.Params.List) == 1 && len(fn.Type.Params.List[0].Names) == 1 && fn.Type.Params.List[0].Names[0].Name != "_":
			pre = fmt.Sprintf(" %s.Cleanup(mutant.Test(%q));", fn.Type.Params.List[0].Names[0].Name, name)
		default:
			continue
		}
		p := at(fn.Body.Lbrace) + 1
		wraps = append(wraps, wrap{start: p, end: p, pre: pre})
	}
	if wraps == nil {
		return nil, nil
	}
	p := at(file.Name.End())
	wraps = append(wraps, wrap{start: p, end: p, pre: `; import "github.com/linstock-ml/linstock/internal/mutant"`})
	return rewrite(source, wraps), nil
}
