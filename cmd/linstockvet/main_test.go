package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const bad = `package bad

import "github.com/linstock-ml/linstock/tensor"

func step(loss *tensor.Tensor) { loss.Backward() }

func Scope() {
	s, err := tensor.NewScope()
	if err == nil {
		s.Len()
	}
	step(nil)
}
`

const good = `package good

import "github.com/linstock-ml/linstock/tensor"

func Step(loss *tensor.Tensor) error { return loss.Backward() }
`

// TestCommand runs the command by itself and as a tool of go vet, in a user's module.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "linstockvet")
	if out, err := exec.Command("go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// Create a user's module.
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"bad.go":       bad,
		"good/good.go": good,
		"go.mod":       "module example.org/bad\n\ngo 1.26.0\n\nrequire github.com/linstock-ml/linstock v0.0.0\n\nreplace github.com/linstock-ml/linstock => " + root + "\n",
		"go.sum":       string(sums),
	} {
		name = filepath.Join(dir, "module", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		command []string
		reports []string
	}{
		"alone":        {[]string{tool, "."}, []string{"the error of Backward is dropped", "the scope is never closed"}},
		"go vet":       {[]string{"go", "vet", "-vettool=" + tool, "."}, []string{"the error of Backward is dropped", "the scope is never closed"}},
		"one analyzer": {[]string{"go", "vet", "-vettool=" + tool, "-sinkerr", "."}, []string{"the error of Backward is dropped"}},
		"clean":        {[]string{"go", "vet", "-vettool=" + tool, "./good"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(c.command[0], c.command[1:]...)
			cmd.Dir = filepath.Join(dir, "module")
			cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
			out, err := cmd.CombinedOutput()
			if (err == nil) != (c.reports == nil) {
				t.Errorf("%v", err)
			}
			for _, want := range c.reports {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q", want)
				}
			}
			if got := strings.Count(string(out), "bad.go:"); got != len(c.reports) {
				t.Errorf("%d reports instead of %d", got, len(c.reports))
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}
