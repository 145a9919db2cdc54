package callsite

import (
	"runtime"
	"testing"
)

func TestLibrary(t *testing.T) {
	for _, c := range []struct {
		function, file string
		want           bool
	}{
		{"github.com/linstock-ml/linstock/checkpoint.SaveTraining", root + "checkpoint/training.go", true},
		// SaveTraining inlined into main, and its closure.
		{"main.main.SaveTraining.func1", root + "checkpoint/training.go", true},
		{"github.com/linstock-ml/linstock/cshim._Cfunc_call", "_cgo_gotypes.go", true},
		{"main.main._Cfunc_call", "_cgo_gotypes.go", true},
		{"main.main", root + "examples/chargpt/main.go", false},
		{"github.com/linstock-ml/linstock/tests/faults.run", root + "tests/faults/job.go", false},
		{"github.com/linstock-ml/linstock/tensor_test.TestX", root + "tensor/x_test.go", false},
		{"main.main", "/home/me/main.go", false},
		{"main.main.func1", "/home/me/main.go", false},
		{"runtime.goexit", "/usr/lib/go/src/runtime/asm_amd64.s", true},
		{"", "", true},
	} {
		if got := Library(runtime.Frame{Function: c.function, File: c.file}); got != c.want {
			t.Errorf("%s in %s: library %t, want %t", c.function, c.file, got, c.want)
		}
	}
}
