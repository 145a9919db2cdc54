package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/lastuse"
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

// Checks that the comparison fails for a faulty rewrite. "go run ./tests/lastuse" tries every fault.
func TestFaultIsDetected(t *testing.T) {
	res, err := compare(context.Background(), 1, 100, lastuse.Faults()[0])
	if err != nil {
		t.Fatal(err)
	}
	if res.wrong == 0 {
		t.Error("none of the programs shows it")
	}
}

// TestFailuresUnchanged tests that a test that fails and a package that does not build are errors, although they give
// the same results both ways.
func TestFailuresUnchanged(t *testing.T) {
	dir := t.TempDir()
	if err := writeModule(dir, map[string]string{
		"go.mod":            "module example.com/app\n\ngo 1.26.0\n",
		"good/good_test.go": "package good\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n\nfunc TestSkipped(t *testing.T) { t.Skip() }\n",
		"bad/bad_test.go":   "package bad\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Fail() }\n",
		"none/none_test.go": "package none\n\nvar x int = \"\"\n",
	}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOWORK", "off")
	for name, want := range map[string]string{"good": "", "bad": "bad TestBad", "none": "example.com/app/none"} {
		results, err := testResults(t.Context(), "go", "test", "-C", dir, "-json", "./"+name)
		if err != nil {
			t.Fatal(err)
		}
		if err := noFailures(results); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: %v, want %q", name, results, err, want)
		}
	}
}

// workspace is a second module and a file of the first that imports it.
var workspace = map[string]string{
	"go.work": "go 1.26.0\n\nuse (\n\t\"./my app\"\n\t./lib\n)\n",
	"lib/go.mod": `module example.com/lib

go 1.26.0
`,
	"lib/lib.go": `package lib

import "github.com/linstock-ml/linstock/tensor"

func Twice(x *tensor.Tensor) *tensor.Tensor { return x.Add(x).Mul(1) }
`,
	"my app/workspace.go": `//go:build workspace

package main

import (
	"fmt"

	"example.com/lib"
	"github.com/linstock-ml/linstock/tensor"
)

func init() {
	err := tensor.WithScope(func() error {
		base := live()
		y := lib.Twice(tensor.Ones([]int{1000}))
		fmt.Println("workspace", live()-base)
		return y.Err()
	})
	fmt.Println(err)
}
`,
}

// testWorkspace tests a module in a workspace: the facts of a package in another module are found.
func testWorkspace(t *testing.T, linstock, dir string) {
	t.Helper()
	if err := writeModule(dir, workspace); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(linstock, "go", "run", "-tags", "workspace", ".")
	cmd.Dir = filepath.Join(dir, "my app")
	cmd.Env = append(os.Environ(), lastuse.EnvStrict+"=1", "LINSTOCK_POLICY=off", "GOWORK="+filepath.Join(dir, "go.work"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "workspace 4") {
		t.Errorf("in a workspace: %v\n%s", err, out)
	}
}

// runIn runs a command in the folder of a module, without sweeps, and returns what it prints.
func runIn(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), lastuse.EnvStrict+"=1", "LINSTOCK_POLICY=off", "GOWORK=off", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod")
	return cmd.CombinedOutput()
}

// command returns an empty folder and the command linstock.
func command(t *testing.T) (dir, linstock string) {
	t.Helper()
	if testing.Short() {
		t.Skip("the standard library is compiled again")
	}
	dir = t.TempDir()
	linstock, err := buildLinstock(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, linstock
}

func TestGoCommand(t *testing.T) {
	dir, linstock := command(t)
	app := filepath.Join(dir, "my app")
	if err := writeModule(app, module); err != nil {
		t.Fatal(err)
	}
	run := func(want bool, name string, args ...string) string {
		t.Helper()
		out, err := runIn(app, name, args...)
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
	// In compute x and the sum are released, then y and z: at the probe only z is in use. The plain program still
	// holds all of them.
	if !strings.HasSuffix(now[1], " 0 false") || !strings.HasPrefix(now[1], "4") || now[1] == was[1] {
		t.Errorf("bytes %q, rewritten %q", was[1], now[1])
	}
	// The line of a panic, and of its statement.
	for _, program := range []string{plain, rewritten} {
		if out := run(false, program, "panic"); !strings.Contains(out, "index out of range") || !strings.Contains(out, "my app/main.go:46") {
			t.Errorf("%s: %s", filepath.Base(program), out)
		}
	}
	if out := run(true, linstock, "go", "test", "-cover", "./..."); !strings.Contains(out, "ok  \texample.com/app\t") || !strings.Contains(out, "coverage: ") {
		t.Error(out)
	}
	if out := run(true, linstock, "go", "test", "-coverpkg=example.com/app,github.com/linstock-ml/linstock/tensor", "."); !strings.Contains(out, "coverage: ") {
		t.Error(out)
	}
	if out := run(true, linstock, "go", "run", "-tags", "special", "."); !strings.Contains(out, " true\n") {
		t.Error(out)
	}
	settings := filepath.Join(dir, "settings")
	if err := os.WriteFile(settings, []byte("GOFLAGS=-tags=special -mod=mod\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	special := exec.Command(linstock, "go", "run", ".")
	special.Dir, special.Env = app, append(os.Environ(), "GOENV="+settings, "GOFLAGS=", "GOWORK=off") // as after go env -w
	if out, err := special.CombinedOutput(); err != nil || !strings.Contains(string(out), " true\n") {
		t.Errorf("with GOFLAGS in GOENV: %v\n%s", err, out)
	}
	if out := run(true, linstock, "go", "vet", "./..."); out != "" {
		t.Error(out)
	}
	// The compiler reports an error in the program, with its own message.
	if err := os.WriteFile(filepath.Join(app, "layers", "bad.go"), []byte("package layers\n\nfunc bad() { x := 1 }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := run(false, linstock, "go", "build", "."); !strings.Contains(out, "layers/bad.go:3:14: declared and not used: x") {
		t.Error(out)
	}
	if err := os.Remove(filepath.Join(app, "layers", "bad.go")); err != nil {
		t.Fatal(err)
	}
	// The setting that an editor would use; everything is built already.
	cmd := exec.Command("go", "build", "-v", "-toolexec="+linstock, "-mod=mod", "-o", rewritten, ".")
	cmd.Dir, cmd.Env = app, append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("%v: %s", err, out)
	}
	testWorkspace(t, linstock, dir)
	// The explanations.
	if out := run(true, linstock, "lastuse", "-explain", "./..."); !strings.Contains(out, "layers/layers.go:5:55: result of Add: released when Mul has used it, in line 5") ||
		!strings.Contains(out, "main.go:34:20: result of Mul: left to scopes: Keep keeps it") {
		t.Error(out)
	}
}
