package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

func TestMain(m *testing.M) {
	switch os.Getenv("LINSTOCK_CRASHHUNT") {
	case "exit": // as if a library had called exit(0)
		return
	case "1":
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
func runHunt(args ...string) (stdout, stderr string, err error) {
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
	out, errs, err := runHunt("-unchecked", "-only", `^aten::(_convert_indices_from_csr_to_coo|copy\.out|_foreach_copy)$`, "-share", "0.002", "-jobs", "1", "-most", "1")
	if err == nil || !strings.HasPrefix(out, "scorecard|crashhunt|") || !strings.HasSuffix(out, "1 deaths|FAILED\n") {
		t.Errorf("%v, %q, want a death", err, out)
	}
	for _, want := range []string{"DEATH: call ", "SIGSEGV", "(", "again: go run ./tests/crashhunt -seed 1 -only "} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
}

// TestEarlyExitIsADeath tests that a process that ends without an error before its last call is a death, and that a
// hunt needs calls that return, and backward passes.
func TestEarlyExitIsADeath(t *testing.T) {
	leak.Check(t)
	t.Setenv("LINSTOCK_CRASHHUNT", "exit")
	h := &hunt{options: &options{only: regexp.MustCompile("")}, dir: t.TempDir(), most: 2}
	if next := h.run(0, 100, 200); next != 101 || len(h.deaths) != 1 {
		t.Errorf("goes on at %d after %d deaths, want 101 and 1", next, len(h.deaths))
	}
	for _, c := range []struct {
		t  tally
		ok bool
	}{
		{tally{Calls: 400, Returned: 150, Backward: 25}, true},
		{tally{Calls: 399, Returned: 150, Backward: 25}, false},
		{tally{Calls: 400, Returned: 0, Backward: 25}, false},
		{tally{Calls: 400, Returned: 150}, false},
	} {
		if err := c.t.missing(400); (err == nil) != c.ok {
			t.Errorf("%+v of 400 calls: %v", c.t, err)
		}
	}
}

func TestPublicOperatorsDoNotCrash(t *testing.T) {
	leak.Check(t)
	out, errs, err := runHunt("-share", "0.002", "-seed", "7")
	if err != nil || !strings.HasSuffix(out, ": 0 deaths|ok\n") {
		t.Errorf("%v, %q, %s", err, out, errs)
	}
}

// everyOperator returns the operators that Call accepts.
func everyOperator(t *testing.T) []operator {
	o := &options{only: regexp.MustCompile("")}
	all, err := o.operators()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// plain makes values of float32 without gradients.
func plain(seed int) *values {
	v := newValues(rand.New(rand.NewPCG(1, uint64(seed))))
	v.grad, v.dtype = false, tensor.Float32
	return v
}

// TestRecordedCalls tests that the recorded calls are valid.
func TestRecordedCalls(t *testing.T) {
	leak.Check(t)
	operators, calls, valid := everyOperator(t), 0, 0
	for i := range operators {
		op := &operators[i]
		for n, c := range op.calls {
			if c.Op != op.name {
				continue
			}
			err := tensor.WithScope(func() error {
				_, err := tensor.Call(op.name, plain(n).given(op, n)...)
				return err
			})
			if calls++; err == nil {
				valid++
			} else if testing.Verbose() {
				t.Logf("%s, call %d: %v", op.name, n, err)
			}
		}
	}
	if calls < 2000 || valid < calls*95/100 {
		t.Errorf("%d of %d recorded calls are valid", valid, calls)
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
