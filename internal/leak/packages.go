package leak

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/linstock-ml/linstock/"

// elsewhere are packages whose tests compute in processes of their own, and not in that of go test.
var elsewhere = map[string]string{
	"cmd/linstock":   "loads no library",
	"tests/fakecuda": "a process for each test; what it frees twice or not at all the fake runtime tells",
	"tests/stress":   "a process for its rounds, which holds each to this and more",
}

// Package is one of the module's, as go list describes it.
type Package struct {
	ImportPath, Dir           string
	Deps                      []string
	TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports []string
}

// Packages are those whose tests can reach native memory: they, or their tests, depend on cshim.
func Packages() ([]Package, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Deps,TestGoFiles,XTestGoFiles,TestImports,XTestImports", module+"...")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, errs.String())
	}
	byPath := map[string]Package{}
	var order []string
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		byPath[p.ImportPath] = p
		order = append(order, p.ImportPath)
	}
	native := func(path string) bool {
		return path == module+"cshim" || slices.Contains(byPath[path].Deps, module+"cshim")
	}
	var found []Package
	for _, path := range order {
		p := byPath[path]
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 || elsewhere[strings.TrimPrefix(path, module)] != "" {
			continue
		}
		if native(path) || slices.ContainsFunc(slices.Concat(p.TestImports, p.XTestImports), native) {
			found = append(found, p)
		}
	}
	return found, nil
}
