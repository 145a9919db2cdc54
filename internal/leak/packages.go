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

// elsewhere lists packages whose tests compute in processes other than that of go test.
var elsewhere = map[string]string{
	"cmd/linstock":   "loads no library",
	"tests/fakecuda": "runs each test in a process; the fake runtime reports leaks and double frees",
	"tests/verify":   "runs programs and go test",
	"tests/stress":   "runs its rounds in processes, which check this and more",
}

// Package is a package of the module, as go list describes it.
type Package struct {
	ImportPath, Dir           string
	Deps                      []string
	TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports []string
}

// Packages returns the packages whose tests can reach native memory: the package or its tests depend on cshim.
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
