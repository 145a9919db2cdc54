package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
)

func TestMain(m *testing.M) {
	if os.Getenv("LINSTOCK_CRASHHUNT") != "" {
		main()
		return
	}
	if at := os.Getenv(reportsEnv); at != "" {
		if err := reports(at); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runHunt runs the program and returns its output.
func runHunt(t *testing.T, args ...string) (stdout, stderr string, err error) {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "LINSTOCK_CRASHHUNT=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// TestCrashIsFound tests that the hunt reports a call of an internal operator that ends the process, with a command
// that repeats it.
func TestCrashIsFound(t *testing.T) {
	leak.Check(t)
	out, errs, err := runHunt(t, "-unchecked", "-only", `^aten::(_convert_indices_from_csr_to_coo|copy\.out|_foreach_copy)$`, "-share", "0.002", "-jobs", "1", "-most", "1")
	if err == nil || !strings.HasPrefix(out, "scorecard|crashhunt|") || !strings.HasSuffix(out, "1 deaths|FAILED\n") {
		t.Errorf("%v, %q, want a death", err, out)
	}
	for _, want := range []string{"DEATH: call ", "SIGSEGV", "(", "again: go run ./tests/crashhunt -seed 1 -only "} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
}

func TestPublicOperatorsDoNotCrash(t *testing.T) {
	leak.Check(t)
	out, errs, err := runHunt(t, "-share", "0.002", "-seed", "7")
	if err != nil || !strings.HasSuffix(out, ": 0 deaths|ok\n") {
		t.Errorf("%v, %q, %s", err, out, errs)
	}
}

func TestArguments(t *testing.T) {
	leak.Check(t)
	got := arguments("aten::f(Tensor(a!) self, Tensor?[] i, int[2] k=[1, 2], *, Scalar? s=None, str m='x') -> (Tensor(a!), int)")
	want := []argument{{"self", "Tensor(a!)"}, {"i", "Tensor?[]"}, {"k", "int[2]"}, {"s", "Scalar?"}, {"m", "str"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
