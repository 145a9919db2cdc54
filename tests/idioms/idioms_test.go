// Package idioms tests the pairs of docs/from-pytorch.md: the Go half of each assigns to y what Python's half does.
package idioms

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// result is a pair of tests/golden/idioms.json, which idioms.py made by running Python's half.
type result struct {
	Python string
	Y      any
}

func TestPairs(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "docs/from-pytorch.md"))
	if err != nil {
		t.Fatal(err)
	}
	python, golang := snippets(doc, "python"), snippets(doc, "go")
	data, err := os.ReadFile(filepath.Join(root, "tests/golden/idioms.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want []result
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if len(python) != len(golang) || len(want) != len(python) || len(want) == 0 {
		t.Fatalf("%d snippets of Python, %d of Go, %d results: run tests/golden/idioms.py", len(python), len(golang), len(want))
	}
	for i, w := range want {
		if w.Python != python[i] {
			t.Fatalf("idioms.json is older than the document: run tests/golden/idioms.py\n%s", python[i])
		}
	}
	got := run(t, golang)
	for i, w := range want {
		if !same(got[i], w.Y) {
			t.Errorf("%s\ngives %v, and\n%s\n%v", golang[i], got[i], python[i], w.Y)
		}
	}
}

func snippets(doc []byte, language string) (list []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllSubmatch(doc, -1) {
		list = append(list, string(m[1]))
	}
	return list
}

// run compiles all snippets as one program and returns what each assigns to y.
func run(t *testing.T, snippets []string) (ys []any) {
	t.Helper()
	program, err := os.ReadFile("testdata/program.go")
	if err != nil {
		t.Fatal(err)
	}
	var calls strings.Builder
	for i, s := range snippets {
		fmt.Fprintf(&calls, "\trun(func(ctx context.Context, x, w, i *tensor.Tensor, device tensor.Device, path string) error {\n//line snippet%d.go:1\n%s\nreturn report(y)\n})\n", i, s)
	}
	// In the module, so that its packages are found; the underscore hides the folder from ./... .
	dir, err := os.MkdirTemp(".", "_run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, bytes.Replace(program, []byte("\t// snippets\n"), []byte(calls.String()), 1), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if err := json.Unmarshal(out, &ys); err != nil || len(ys) != len(snippets) {
		t.Fatalf("%d results of %d snippets: %v\n%s", len(ys), len(snippets), err, out)
	}
	return ys
}

// same compares two values of JSON, numbers to 1e-6.
func same(a, b any) bool {
	switch a := a.(type) {
	case float64:
		b, ok := b.(float64)
		return ok && math.Abs(a-b) <= 1e-6*max(1, math.Abs(b))
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && a["dtype"] == b["dtype"] && same(a["shape"], b["shape"]) && same(a["values"], b["values"])
	}
	return reflect.DeepEqual(a, b)
}
