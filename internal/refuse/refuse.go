// Package refuse makes the errors with which the library's upper packages turn an argument down.
package refuse

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/linstock-ml/linstock/tensor"
)

// Error is a *tensor.Error of the given kind, with the line that called the library.
func Error(op string, kind error, format string, args ...any) error {
	return &tensor.Error{Op: op, Message: fmt.Sprintf(format, args...), Kind: kind, Caller: caller()}
}

// Nil is an ErrNil: what is needed, and was nil.
func Nil(op, what string) error {
	return Error(op, tensor.ErrNil, "%s is needed, got nil", what)
}

// Tensor is the failed tensor of Error.
func Tensor(op string, kind error, format string, args ...any) *tensor.Tensor {
	return tensor.Failed(Error(op, kind, format, args...))
}

const module = "github.com/linstock-ml/linstock/"

// caller is the first line outside the library.
func caller() string {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if f.Function != "" && (!ours(f.Function) || strings.HasSuffix(f.File, "_test.go")) {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}

func ours(function string) bool {
	rest, in := strings.CutPrefix(function, module)
	if !in {
		return strings.HasPrefix(function, "runtime.") || strings.HasPrefix(function, "reflect.") || strings.HasPrefix(function, "iter.")
	}
	return !strings.HasPrefix(rest, "examples/") && !strings.HasPrefix(rest, "cmd/") && !strings.HasPrefix(rest, "tests/")
}
