package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/internal/lastuse"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

// buildLinstock builds the command in dir. Equal sources give equal bytes, for which the build cache holds the
// packages compiled before.
func buildLinstock(dir string) (string, error) {
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "bin", "linstock")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", name, "./cmd/linstock")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/linstock: %w\n%s", err, out)
	}
	return name, nil
}

// writeModule writes the files of a module into dir.
func writeModule(dir string, files map[string]string) error {
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return err
	}
	// The library's requirements are indirect requirements of the module.
	requirements := strings.Join(regexp.MustCompile(`(?ms)^require \(.*?^\)`).FindAllString(string(mod), -1), "\n")
	write := func(name, text string) error {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, []byte(text), 0o644)
	}
	for name, text := range files {
		if err := write(name, strings.NewReplacer("ROOT", root, "REQUIRE", requirements, `"CGO"`, `"C"`).Replace(text)); err != nil {
			return err
		}
		if filepath.Base(name) == "go.mod" {
			if err := write(filepath.Join(filepath.Dir(name), "go.sum"), string(sum)); err != nil {
				return err
			}
		}
	}
	return nil
}

// slow runs a module's tests, rewritten, in the ways that compile every package again: under the race detector,
// and with vendored packages, including the library's.
func slow(ctx context.Context, linstock string) error {
	dir, err := os.MkdirTemp("", "lastuse")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := writeModule(dir, module); err != nil {
		return err
	}
	for _, args := range [][]string{{"go", "test", "-race", "-mod=mod", "./..."}, {"go", "mod", "vendor"}, {"go", "test", "-mod=vendor", "./..."}} {
		cmd := exec.CommandContext(ctx, linstock, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), lastuse.EnvStrict+"=1", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("linstock %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// repository runs the tests of the repository that compute with tensors, unchanged and rewritten, and returns
// the number of tests whose results differ. A test that fails unchanged is an error: it would be equal to one that
// fails rewritten. The packages of the library are not rewritten; their external test files and the examples are.
func repository(ctx context.Context, linstock string) (tests, differ int, err error) {
	packages := []string{"./tensor", "./nn", "./optim", "./autograd", "./data", "./checkpoint", "./profiler", "./serve", "./examples/..."}
	plain, err := testResults(ctx, "go", append([]string{"test", "-json"}, packages...)...)
	if err == nil {
		err = noFailures(plain)
	}
	if err != nil {
		return 0, 0, err
	}
	rewritten, err := testResults(ctx, linstock, append([]string{"go", "test", "-json"}, packages...)...)
	if err != nil {
		return 0, 0, err
	}
	var names []string
	for name := range plain {
		names = append(names, name)
	}
	for name := range rewritten {
		if plain[name] == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if plain[name] != rewritten[name] {
			differ++
			fmt.Fprintf(os.Stderr, "%s: %s, rewritten %s\n", name, plain[name], rewritten[name])
		}
	}
	return len(names), differ, nil
}

// noFailures returns an error that names the tests and packages that fail or do not build.
func noFailures(results map[string]string) error {
	var failed []string
	for name, action := range results {
		if action != "pass" && action != "skip" {
			failed = append(failed, name)
		}
	}
	if failed == nil {
		return nil
	}
	slices.Sort(failed)
	return fmt.Errorf("%d tests and packages fail unchanged: %.2000s", len(failed), strings.Join(failed, ", "))
}

// testResults returns "pass", "skip", "fail" or "build-fail" by package and test.
func testResults(ctx context.Context, name string, args ...string) (map[string]string, error) {
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), lastuse.EnvStrict+"=1")
	var report bytes.Buffer
	cmd.Stderr = &report
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	results := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var event struct{ Action, Package, ImportPath, Test, Output string } // ImportPath: instead of Package, of a build
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}
		switch event.Action {
		case "pass", "skip", "fail", "build-fail":
			results[strings.TrimSpace(event.Package+event.ImportPath+" "+event.Test)] = event.Action
		case "output":
			report.WriteString(event.Output)
		}
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("%s %s: no results: %w\n%.2000s", name, strings.Join(args, " "), err, report.String())
	}
	return results, lines.Err()
}

// module is a program in two packages, one of them with cgo, a file with a build tag, and a test.
var module = map[string]string{
	"go.mod": `module example.com/app

go 1.26.0

require github.com/linstock-ml/linstock v0.0.0

REQUIRE

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
	"outside_test.go": `package main_test

import (
	"testing"

	"example.com/app/layers"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// An external test file is rewritten too: y is released before the bytes are read.
func TestDouble(t *testing.T) {
	if err := tensor.WithScope(func() error {
		before, _ := vram.Stats(tensor.CPU)
		y := layers.Double(tensor.Ones([]int{1000}))
		if v, err := y.Sum().Item(); v != 2000 || err != nil {
			t.Error(v, err)
		}
		after, _ := vram.Stats(tensor.CPU)
		t.Log("left: ", after.Allocated-before.Allocated)
		return nil
	}); err != nil {
		t.Error(err)
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
