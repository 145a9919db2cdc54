// Package callsite finds the line of the user's program that called the library.
package callsite

import (
	"fmt"
	"path"
	"runtime"
	"strings"
)

const module = "github.com/linstock-ml/linstock/"

// root is the directory of the module's sources as the compiler recorded it, with a slash at its end.
var root = func() string {
	_, file, _, _ := runtime.Caller(0)
	return path.Dir(path.Dir(path.Dir(file))) + "/"
}()

// Library reports whether f belongs to Linstock's packages or to the Go runtime rather than to a program. Examples,
// commands, tests and the programs below tests/ count as programs.
//
// The name of the function does not decide alone: when the compiler inlines checkpoint.SaveTraining into main.main,
// the closures in it are called main.main.SaveTraining.func1.
func Library(f runtime.Frame) bool {
	if strings.HasSuffix(f.File, "_test.go") {
		return false
	}
	rest, in := strings.CutPrefix(f.File, root)
	if !in {
		rest, in = strings.CutPrefix(f.Function, module)
	}
	if in {
		for _, p := range []string{"examples/", "cmd/", "tests/"} {
			if strings.HasPrefix(rest, p) {
				return false
			}
		}
		return true
	}
	if f.Function == "" || f.File == "_cgo_gotypes.go" {
		return true
	}
	for _, p := range []string{"runtime.", "reflect.", "iter.", "sync."} {
		if strings.HasPrefix(f.Function, p) {
			return true
		}
	}
	return false
}

// Line is the innermost line of a program on the stack of the caller, "/home/me/model.go:31"; empty if there is none.
func Line() string {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !Library(f) {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}
