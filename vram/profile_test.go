package vram_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
	_ "github.com/linstock-ml/linstock/vram/pprof"
)

// here returns the line of its caller in the form that Holders uses, without the function.
func here() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

// atLine sums a value of a profile over the samples whose innermost frame is at a line.
func atLine(t *testing.T, p *profile.Profile, kind, line string) int64 {
	t.Helper()
	index, err := p.SampleIndexByName(kind)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, s := range p.Sample {
		l := s.Location[0].Line[0]
		if fmt.Sprintf("%s:%d", filepath.Base(l.Function.Filename), l.Line) == line {
			sum += s.Value[index]
		}
	}
	return sum
}

func readProfile(t *testing.T) *profile.Profile {
	t.Helper()
	var b bytes.Buffer
	if err := vram.WriteProfile(&b); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func rate(t *testing.T, bytes int) {
	t.Helper()
	if err := vram.SetProfileRate(bytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = vram.SetProfileRate(vram.DefaultProfileRate) })
}

func near(t *testing.T, what string, got, want int64) {
	t.Helper()
	if float64(got) < 0.9*float64(want) || float64(got) > 1.1*float64(want) {
		t.Errorf("%s: %d, want %d within a tenth", what, got, want)
	}
}

// Row "TorchSharp: a profile of native memory by Go call site": go tool pprof names the line, and its live
// bytes are within a tenth of the true value for blocks as large as the rate.
func TestProfileNamesTheLine(t *testing.T) {
	leak.Check(t)
	rate(t, 64<<10)
	// As in a scope. Otherwise an allocation that waits may continue on another thread, where its sample has no name.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tensor.Zeros([]int{1}).Release() // names what earlier tests have left on this thread
	const n, bytes = 4096, 64 << 10  // as large as the rate: two of three blocks are sampled
	kept := make([]*tensor.Tensor, n)
	var line string
	earlier := readProfile(t) // from an earlier run of this test
	for i := range kept {
		kept[i], line = tensor.Zeros([]int{bytes / 4}), here()
	}
	before := readProfile(t)
	near(t, "live bytes", atLine(t, before, "live_bytes", line), n*bytes)
	near(t, "live tensors", atLine(t, before, "live_tensors", line), n)

	file := filepath.Join(t.TempDir(), "native.pb.gz")
	var b strings.Builder
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := vram.WriteProfile(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-top"}, {"-top", "-lines"}, {"-tags"}} {
		out, err := exec.Command("go", append(append([]string{"tool", "pprof"}, args...), file)...).CombinedOutput()
		if err != nil {
			t.Fatalf("go tool pprof %v: %v\n%s", args, err, out)
		}
		b.Write(out)
	}
	for _, want := range []string{"Type: live_bytes", line, "vram_test.TestProfileNamesTheLine", "cpu", "Zeros"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("go tool pprof does not say %q:\n%s", want, b.String())
		}
	}

	for _, x := range kept {
		x.Release()
	}
	after := readProfile(t)
	if live := atLine(t, after, "live_bytes", line); live != 0 {
		t.Errorf("%d bytes are live after all was released", live)
	}
	near(t, "bytes allocated", atLine(t, after, "alloc_bytes", line)-atLine(t, earlier, "alloc_bytes", line), n*bytes)
}

// Memory allocated by Backward, Step, Data and in-place operators is attributed to their caller, not to the
// caller of the operator before.
func TestProfileNamesCallsWithoutResult(t *testing.T) {
	leak.Check(t)
	rate(t, 1)
	const numel = 1 << 18
	err := tensor.WithScope(func() error {
		w := tensor.Ones([]int{numel}).RequiresGrad_()
		opt, err := optim.NewAdam([]*tensor.Tensor{w}, 1e-3)
		if err != nil {
			return err
		}
		defer opt.Release()
		loss := w.Mul(2.0).Sum()
		err = loss.Backward()
		backward := here()
		if err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		err = opt.Step()
		step := here()
		if err != nil {
			return err
		}
		turned := tensor.Ones([]int{512, 512}).T()
		_, err = tensor.Data[float32](turned)
		data := here()
		if err != nil {
			return err
		}
		gs, err := autograd.Grad([]*tensor.Tensor{w.Mul(w).Sum()}, []*tensor.Tensor{w})
		grad := here()
		if err != nil {
			return err
		}
		_ = gs
		p := readProfile(t)
		for name, at := range map[string]struct {
			line  string
			kind  string
			least int64
		}{
			"Backward": {up(backward), "live_bytes", 4 * numel},
			"Data":     {up(data), "alloc_bytes", 4 * numel},
			"Grad":     {up(grad), "live_bytes", 4 * numel},
		} {
			if got := atLine(t, p, at.kind, at.line); got < at.least {
				t.Errorf("%s at %s: %s %d, want %d at least", name, at.line, at.kind, got, at.least)
			}
		}
		// The second step allocates at most scalars, which are not attributed to Data.
		if got := atLine(t, p, "live_bytes", up(step)); got > 4096 {
			t.Errorf("the second step holds %d bytes", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// up returns the line above.
func up(line string) string {
	file, n, _ := strings.Cut(line, ":")
	var i int
	fmt.Sscan(n, &i)
	return fmt.Sprintf("%s:%d", file, i-1)
}

// What an operator has allocated before it fails is attributed to its line, not to that of the thread's next call.
func TestProfileOfFailedCalls(t *testing.T) {
	leak.Check(t)
	rate(t, 1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	limit(t, 24*mib)
	held, x := tensor.Empty([]int{4 * mib}), tensor.Ones([]int{5 * mib / 8})
	defer held.Release()
	defer x.Release()
	earlier := readProfile(t)
	values, indices := x.Sort(tensor.Dim(0)) // the values fit, the indices do not
	if err := errors.Join(values.Err(), indices.Err()); !errors.Is(err, vram.ErrOutOfMemory) {
		t.Fatal(err)
	}
	next, line := tensor.Zeros([]int{mib}), here()
	defer next.Release()
	after := readProfile(t)
	if n := atLine(t, after, "alloc_bytes", line) - atLine(t, earlier, "alloc_bytes", line); n != 4*mib {
		t.Errorf("%d bytes were allocated in the line after an error, want %d", n, 4*mib)
	}
}

func TestProfileOverHTTP(t *testing.T) {
	leak.Check(t)
	rate(t, 4096)
	x := tensor.Zeros([]int{1 << 20})
	defer x.Release()
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
		http.DefaultServeMux.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for path, check := range map[string]func(body string) error{
		"/debug/pprof/native":           parses,
		"/debug/pprof/native?gc=1":      parses,
		"/debug/pprof/native?seconds=1": parses,
		"/debug/pprof/native?debug=1": func(body string) error {
			for _, want := range []string{"memory summary", "profile_test.go:"} {
				if !strings.Contains(body, want) {
					return fmt.Errorf("the text does not say %q:\n%s", want, body)
				}
			}
			return nil
		},
		"/debug/pprof/native/snapshot": func(body string) error {
			if !strings.HasPrefix(body, "\x80\x02") {
				return fmt.Errorf("no pickle")
			}
			return nil
		},
		"/debug/pprof/heap": parses, // Go's own profile is still served
	} {
		code, body := get(path)
		if code != http.StatusOK {
			t.Errorf("%s: status %d: %s", path, code, body)
		} else if err := check(body); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if code, _ := get("/debug/pprof/native?seconds=x"); code != http.StatusBadRequest {
		t.Errorf("seconds=x: status %d", code)
	}
}

func parses(body string) error {
	_, err := profile.ParseData([]byte(body))
	return err
}

// TestNilWriters tests that nil writers are errors.
func TestNilWriters(t *testing.T) {
	leak.Check(t)
	for name, f := range map[string]func(io.Writer) error{"WriteProfile": vram.WriteProfile, "Snapshot": vram.Snapshot} {
		if err := f(nil); err == nil || !strings.Contains(err.Error(), name+": a writer is needed, got nil") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if e := (*vram.OutOfMemoryError)(nil); e.Error() != "<nil>" {
		t.Errorf("a nil error is %q", e.Error())
	}
}
