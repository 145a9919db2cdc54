package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/lastuse"
	"github.com/linstock-ml/linstock/internal/scorecard"
)

func TestGeneratedPrograms(t *testing.T) {
	res, err := compare(context.Background(), 2001, 300, "")
	if err != nil {
		t.Fatal(err)
	}
	if res.programs != 300 || res.wrong != 0 || res.releases < res.programs {
		t.Errorf("%d programs, %d differ, %d releases", res.programs, res.wrong, res.releases)
	}
	if res.after > res.before*3/4 {
		t.Errorf("the rewritten programs held %d bytes at their probes, the others %d", res.after, res.before)
	}
}

// A comparison that passes whatever the rewrite does would prove nothing. "go run ./tests/lastuse" tries every fault.
func TestAFaultIsNoticed(t *testing.T) {
	res, err := compare(context.Background(), 1, 100, lastuse.Faults()[0])
	if err != nil {
		t.Fatal(err)
	}
	if res.wrong == 0 {
		t.Error("none of the programs shows it")
	}
}

// module is a program in two packages, one of them with cgo, a file under a build tag, and a test.
var module = map[string]string{
	"go.mod": `module example.com/app

go 1.26.0

require github.com/linstock-ml/linstock v0.0.0

replace github.com/linstock-ml/linstock => ROOT
`,
	"layers/layers.go": `package layers

import "github.com/linstock-ml/linstock/tensor"

func Double(x *tensor.Tensor) *tensor.Tensor { return x.Add(x).Mul(1) }

func Same(x *tensor.Tensor) *tensor.Tensor { return x }

var Kept *tensor.Tensor

func Keep(x *tensor.Tensor) *tensor.Tensor { Kept = x; return x.Neg() }
`,
	"between/between.go": `package between

import "example.com/app/layers"

var Double, Same = layers.Double, layers.Same

type Net struct{}

func (Net) Twice(x T) T { return layers.Double(layers.Double(x)) }
`,
	"between/type.go": `package between

import "github.com/linstock-ml/linstock/tensor"

type T = *tensor.Tensor
`,
	"c/c.go": `package c

// static int seven(void) { return 7; }
import "CGO"

import "github.com/linstock-ml/linstock/tensor"

func Sevens() *tensor.Tensor { return tensor.Zeros([]int{2}).Add(int(C.seven())).Mul(2) }
`,
	"tagged.go": `//go:build special

package main

func init() { special = true }
`,
	"main.go": `package main

import (
	"fmt"
	"os"
	"runtime"

	"example.com/app/between"
	"example.com/app/c"
	"example.com/app/layers"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

var special bool

func live() int64 { s, _ := vram.Stats(tensor.CPU); return s.Allocated }

func compute() int64 {
	x := tensor.Ones([]int{1000})
	y := between.Net{}.Twice(x)
	z := layers.Same(y).Neg()
	n := live()
	fmt.Println(z.Sum().Item())
	return n
}

func main() {
	err := tensor.WithScope(func() error {
		base := live()
		n := compute() - base
		fmt.Println(n, live() - base, special)
		fmt.Println(c.Sevens().Sum().Item())
		k := layers.Keep(tensor.Ones([]int{2}).Mul(3))
		fmt.Println(layers.Kept.Sum().Item())
		_ = k
		_, _, line, _ := runtime.Caller(0)
		fmt.Println(line)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	if len(os.Args) > 1 {
		var list []int
		fmt.Println(tensor.Ones([]int{2}).Mul(2).Size(list[1]))
	}
}
`,
	"main_test.go": `package main

import "testing"

func TestCompute(t *testing.T) {
	if n := compute(); n < 4000 {
		t.Error(n)
	}
}
`,
}

func TestGoCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("the standard library is compiled anew")
	}
	root, err := scorecard.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	linstock := filepath.Join(dir, "bin", "linstock")
	out, err := exec.Command("go", "build", "-o", linstock, "../../cmd/linstock").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	app := filepath.Join(dir, "my app")
	for name, text := range module {
		file := filepath.Join(app, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.NewReplacer("ROOT", root, `"CGO"`, `"C"`).Replace(text)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err == nil {
		err = os.WriteFile(filepath.Join(app, "go.sum"), sum, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(want bool, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = app
		cmd.Env = append(os.Environ(), lastuse.EnvStrict+"=1", "LINSTOCK_POLICY=off", "GOWORK=off", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod")
		out, err := cmd.CombinedOutput()
		if (err == nil) != want {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	plain, rewritten := filepath.Join(dir, "plain"), filepath.Join(dir, "rewritten")
	run(true, "go", "build", "-o", plain, ".")
	run(true, linstock, "go", "build", "-o", rewritten, ".")
	was, now := strings.Split(run(true, plain), "\n"), strings.Split(run(true, rewritten), "\n")
	if len(was) != len(now) || len(was) < 5 {
		t.Fatalf("%q, rewritten %q", was, now)
	}
	for i := range was {
		if i == 1 {
			continue // bytes
		}
		if was[i] != now[i] {
			t.Errorf("%q, rewritten %q", was[i], now[i])
		}
	}
	// In compute x and the sum, then y and z: at the probe z alone is still used; plain, all that was made is there.
	if !strings.HasSuffix(now[1], " 0 false") || !strings.HasPrefix(now[1], "4") || now[1] == was[1] {
		t.Errorf("bytes %q, rewritten %q", was[1], now[1])
	}
	// The line of a panic, and of the statement in it.
	for _, program := range []string{plain, rewritten} {
		if out := run(false, program, "panic"); !strings.Contains(out, "index out of range") || !strings.Contains(out, "my app/main.go:46") {
			t.Errorf("%s: %s", filepath.Base(program), out)
		}
	}
	if out := run(true, linstock, "go", "test", "-cover", "./..."); !strings.Contains(out, "ok  \texample.com/app\t") || !strings.Contains(out, "coverage: ") {
		t.Error(out)
	}
	if out := run(true, linstock, "go", "run", "-tags", "special", "."); !strings.Contains(out, " true\n") {
		t.Error(out)
	}
	if out := run(true, linstock, "go", "vet", "./..."); out != "" {
		t.Error(out)
	}
	// A fault of the program is the compiler's to report, in its words.
	if err := os.WriteFile(filepath.Join(app, "layers", "bad.go"), []byte("package layers\n\nfunc bad() { x := 1 }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := run(false, linstock, "go", "build", "."); !strings.Contains(out, "layers/bad.go:3:14: declared and not used: x") {
		t.Error(out)
	}
	if err := os.Remove(filepath.Join(app, "layers", "bad.go")); err != nil {
		t.Fatal(err)
	}
	// The setting that an editor would use; nothing is left to do.
	cmd := exec.Command("go", "build", "-v", "-toolexec="+linstock, "-mod=mod", "-o", rewritten, ".")
	cmd.Dir, cmd.Env = app, append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("%v: %s", err, out)
	}
	// What it says of the program.
	if out := run(true, linstock, "lastuse", "./..."); !strings.Contains(out, "layers/layers.go:5:55: result of Add: released when Mul has used it, in line 5") ||
		!strings.Contains(out, "main.go:34:20: result of Mul: left to scopes: Keep keeps it") {
		t.Error(out)
	}
}
