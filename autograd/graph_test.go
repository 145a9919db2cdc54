package autograd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// graphData is what tests/golden/graph.py wrote.
func graphData(t *testing.T) (data struct {
	Hooks     map[string][][][]float64
	Anomalies map[string]string
}) {
	t.Helper()
	text, err := os.ReadFile("../tests/golden/graph.json")
	if err == nil {
		err = json.Unmarshal(text, &data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// here returns the caller's line as errors name it.
func here() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line)
}

func zeros() *tensor.Tensor { return tensor.Zeros([]int{2}, tensor.Float64).RequiresGrad_() }

func TestDetectAnomaly(t *testing.T) {
	leak.Check(t)
	want := graphData(t).Anomalies
	var line string
	fs := map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"sqrt": func(x *tensor.Tensor) *tensor.Tensor {
			y := x.Sqrt()
			line = here()
			return y.Mul(0)
		},
		"div": func(x *tensor.Tensor) *tensor.Tensor {
			d := x.Detach()
			y := x.Div(d)
			line = here()
			return y.Mul(0)
		},
		"none":      func(x *tensor.Tensor) *tensor.Tensor { return x.Exp() },
		"unchecked": func(x *tensor.Tensor) *tensor.Tensor { return x.Sqrt().Mul(0) },
	}
	if len(fs) != len(want) {
		t.Fatalf("%d cases, graph.json has %d", len(fs), len(want))
	}
	for name, f := range fs {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			err := tensor.WithScope(func() error {
				return autograd.DetectAnomaly(func() error { return f(zeros()).Sum().Backward() }, autograd.CheckNaN(name != "unchecked"))
			})
			if want[name] == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var e *tensor.Error
			if !errors.As(err, &e) || !errors.Is(err, tensor.ErrNaN) || !strings.HasPrefix(e.Message, strings.TrimSuffix(want[name], ".")+"; ") {
				t.Fatalf("the error is %v, want %q of the kind ErrNaN", err, want[name])
			}
			if want := before(line); e.Forward != want || !strings.Contains(err.Error(), want) {
				t.Errorf("the error names %s, want %s: %v", e.Forward, want, err)
			}
		})
	}
	// Nothing is checked any more.
	if err := tensor.WithScope(func() error { return zeros().Sqrt().Mul(0).Sum().Backward() }); err != nil {
		t.Error(err)
	}
}

// TestDetectAnomalyNamesTheFunction tests that the error names the type of a Function whose Backward returns NaN or
// fails.
func TestDetectAnomalyNamesTheFunction(t *testing.T) {
	leak.Check(t)
	own := errors.New("mine")
	for _, c := range []struct {
		fails     error
		checks    bool
		kind      error
		what, not string
	}{
		{nil, true, tensor.ErrNaN, "Backward of *autograd_test.either: linstock: Apply: the gradient of input 0 has NaN values", "CppNode"},
		{own, true, own, "Backward of *autograd_test.either: mine; a Function failed, the backward of the operator called at", "CppNode"},
		{nil, false, nil, "", ""},
	} {
		err := tensor.WithScope(func() error {
			return autograd.DetectAnomaly(func() error {
				x := zeros()
				backward := func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{x.Log().Mul(0)}, c.fails }
				return applied(&either{backward: backward})(x).Sum().Backward()
			}, autograd.CheckNaN(c.checks))
		})
		if c.kind == nil {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		var e *tensor.Error
		if !errors.As(err, &e) || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.what) || strings.Contains(err.Error(), c.not) || e.Forward == "" {
			t.Errorf("%v, want %q of the kind %v", err, c.what, c.kind)
		}
	}
}

// before returns the line before.
func before(line string) string {
	at := strings.LastIndexByte(line, ':')
	var n int
	_, _ = fmt.Sscan(line[at+1:], &n)
	return fmt.Sprintf("%s:%d", line[:at], n-1)
}

func TestDetectAnomalyWithoutNaN(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		return autograd.DetectAnomaly(func() error {
			x := zeros()
			if err := x.Sqrt().Mul(0).Sum().Backward(); err != nil {
				return err
			}
			values, err := tensor.Data[float64](x.Grad())
			if err == nil && !math.IsNaN(values[0]) {
				t.Errorf("the gradient is %v, want NaN", values)
			}
			return err
		}, autograd.CheckNaN(false))
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFailuresNameTheForwardLine tests errors other than NaN: of a changed tensor, of a function's Backward, of a hook, in
// nested regions and in the second derivative.
func TestFailuresNameTheForwardLine(t *testing.T) {
	leak.Check(t)
	bad := errors.New("bad")
	var line string
	for name, f := range map[string]func() error{
		"changed": func() error {
			x := points(2)
			y := x.Exp()
			line = here()
			y.Add_(1)
			return y.Sum().Backward()
		},
		"in place": func() error {
			x := points(2).Mul(1)
			x.Exp_()
			line = here()
			x.Detach().Add_(1)
			return x.Sum().Backward()
		},
		"function": func() error {
			y := applied(&either{backward: func() ([]*tensor.Tensor, error) { return nil, bad }})
			x := points(2)
			z, err := autograd.Apply(&either{backward: func() ([]*tensor.Tensor, error) { return nil, bad }}, x)
			line = here()
			if err != nil || y == nil {
				return err
			}
			return z[0].Mul(3).Sum().Backward()
		},
		"nested": func() error {
			x := points(2)
			y := x.Exp()
			line = here()
			err := autograd.DetectAnomaly(func() error { return y.Mul(2).Err() }, autograd.CheckNaN(false))
			y.Add_(1)
			return errors.Join(err, y.Sum().Backward())
		},
		"second derivative": func() error {
			x := tensor.Zeros([]int{2}, tensor.Float64).RequiresGrad_()
			y := x.Pow(1.5)
			line = here()
			gs, err := autograd.Grad([]*tensor.Tensor{y.Sum()}, []*tensor.Tensor{x}, tensor.CreateGraph(true))
			if err != nil {
				return err
			}
			return gs[0].Mul(0).Sum().Backward()
		},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			err := tensor.WithScope(func() error { return autograd.DetectAnomaly(f) })
			var e *tensor.Error
			if !errors.As(err, &e) || e.Forward != before(line) {
				t.Errorf("the error is %v, want one that names %s", err, before(line))
			}
			if name == "function" && !errors.Is(err, bad) {
				t.Errorf("the error is %v, want the Backward's", err)
			}
		})
	}
}

func TestAnomalyOfAnOperatorBefore(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		y := zeros().Sqrt()
		return autograd.DetectAnomaly(func() error { return y.Mul(0).Sum().Backward() })
	})
	var e *tensor.Error
	if !errors.As(err, &e) || e.Forward != "" || !strings.Contains(e.Message, "SqrtBackward0 failed, whose operator was called outside of DetectAnomaly") {
		t.Errorf("the error is %v", err)
	}
	if err := autograd.DetectAnomaly(nil); !errors.Is(err, tensor.ErrNil) {
		t.Error(err)
	}
	if err := autograd.DetectAnomaly(func() error { return nil }, nil); !errors.Is(err, tensor.ErrArgument) {
		t.Error(err)
	}
	want := errors.New("f's")
	if err := autograd.DetectAnomaly(func() error { return want }); err != want {
		t.Error(err)
	}
}

// TestAnomaliesOfGoroutines tests that lines of operators on several goroutines are not mixed up.
func TestAnomaliesOfGoroutines(t *testing.T) {
	leak.Check(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 10 {
				var line string
				err := tensor.WithScope(func() error {
					return autograd.DetectAnomaly(func() error {
						x := zeros().Mul(1)
						if i%2 == 0 {
							x.Sqrt_()
							line = here()
						} else {
							x = x.Sqrt()
							line = here()
						}
						return x.Mul(0).Sum().Backward()
					})
				})
				var e *tensor.Error
				if !errors.As(err, &e) || e.Forward != before(line) {
					t.Errorf("the error is %v, want one that names %s", err, before(line))
				}
			}
		}()
	}
	all.Wait()
}

// calls records the calls of a hook of several tensors, in a graph of two leaves x and y, a = x*y, b = sin(a), c = exp(y).
func calls(t *testing.T, first bool, choose func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor, run func(x, y, a, b, c *tensor.Tensor) error) (got [][][]float64) {
	t.Helper()
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float64{-0.5, 0, 0.5}, nil).RequiresGrad_()
		y := tensor.FromSlice([]float64{0.25, 0.5, 0.75}, nil).RequiresGrad_()
		a := x.Mul(y)
		b, c := a.Sin(), y.Exp()
		hook := func(grads []*tensor.Tensor) error {
			var call [][]float64
			for _, g := range grads {
				if g == nil {
					call = append(call, nil)
					continue
				}
				values, err := tensor.Data[float64](g)
				if err != nil {
					return err
				}
				call = append(call, values)
			}
			got = append(got, call)
			return nil
		}
		var remove func()
		var err error
		if ts := choose(x, y, a, b, c); first {
			remove, err = autograd.RegisterAnyGradHook(ts, func(g *tensor.Tensor) error { return hook([]*tensor.Tensor{g}) })
		} else {
			remove, err = autograd.RegisterMultiGradHook(ts, hook)
		}
		if err != nil {
			return err
		}
		if err := run(x, y, a, b, c); err != nil {
			return err
		}
		remove()
		remove()
		return x.Mul(y).Sum().Backward()
	})
	if err != nil {
		t.Error(err)
	}
	return got
}

func TestHooksOfSeveralTensors(t *testing.T) {
	leak.Check(t)
	type ts = []*tensor.Tensor
	want := graphData(t).Hooks
	for name, c := range map[string]struct {
		first  bool
		choose func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor
		run    func(x, y, a, b, c *tensor.Tensor) error
	}{
		"all": {false, func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor { return ts{x, y, a, b} },
			func(x, y, a, b, c *tensor.Tensor) error { return b.Add(c).Sum().Backward() }},
		"unreached": {false, func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor { return ts{c, a} },
			func(x, y, a, b, c *tensor.Tensor) error { return b.Sum().Backward() }},
		"any": {true, func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor { return ts{x, a} },
			func(x, y, a, b, c *tensor.Tensor) error { return b.Sum().Backward() }},
		"any without": {true, func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor { return ts{x.Detach(), a} },
			func(x, y, a, b, c *tensor.Tensor) error { return b.Sum().Backward() }},
		"inputs": {false, func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor { return ts{x, y} },
			func(x, y, a, b, c *tensor.Tensor) error { return b.Sum().Backward(tensor.Inputs(x)) }},
		"twice": {false, func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor { return ts{a, x} },
			func(x, y, a, b, c *tensor.Tensor) error {
				return errors.Join(b.Sum().Backward(tensor.RetainGraph(true)), b.Mul(2).Sum().Backward())
			}},
		"grad": {false, func(x, y, a, b, c *tensor.Tensor) []*tensor.Tensor { return ts{a, b} },
			func(x, y, a, b, c *tensor.Tensor) error {
				_, err := autograd.Grad(ts{b.Sum()}, ts{a})
				return err
			}},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			got := calls(t, c.first, c.choose, c.run)
			close := func(a, b []float64) bool {
				return (a == nil) == (b == nil) && slices.EqualFunc(a, b, func(a, b float64) bool { return math.Abs(a-b) < 1e-14 })
			}
			if !slices.EqualFunc(got, want[name], func(a, b [][]float64) bool { return slices.EqualFunc(a, b, close) }) {
				t.Errorf("the hook received %v, want %v", got, want[name])
			}
		})
	}
}

// TestHookOfSeveralTensorsWaitsForAPass tests that a pass calls no hook of several tensors that was registered since it began.
func TestHookOfSeveralTensorsWaitsForAPass(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		a, b, c := points(2), points(2), points(2)
		var calls []string
		register := func(name string, ts ...*tensor.Tensor) error {
			_, err := autograd.RegisterMultiGradHook(ts, func([]*tensor.Tensor) error { calls = append(calls, name); return nil })
			return err
		}
		sum := a.Mul(2).Add(b.Mul(c).Mul(3)).Sum()
		last := sum.Mul(1)
		if err := register("early", a, b); err != nil {
			return err
		}
		once := false
		if _, err := last.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) {
			if once {
				return nil, nil
			}
			once = true
			return nil, register("late", b, c)
		}); err != nil {
			return err
		}
		for range 2 {
			if err := last.Backward(tensor.RetainGraph(true)); err != nil {
				return err
			}
			calls = append(calls, "end")
		}
		slices.Sort(calls[2:4])
		if want := []string{"early", "end", "early", "late", "end"}; !slices.Equal(calls, want) {
			t.Errorf("calls: %v, want %v", calls, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestHooksOfSeveralTensorsFail(t *testing.T) {
	leak.Check(t)
	bad := errors.New("bad")
	err := tensor.WithScope(func() error {
		x, y := points(2), points(2)
		if _, err := autograd.RegisterMultiGradHook(nil, func([]*tensor.Tensor) error { return nil }); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("without tensors: %v", err)
		}
		if _, err := autograd.RegisterMultiGradHook([]*tensor.Tensor{x, nil}, func([]*tensor.Tensor) error { return nil }); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("with nil: %v", err)
		}
		if _, err := autograd.RegisterMultiGradHook([]*tensor.Tensor{x, y.Detach()}, func([]*tensor.Tensor) error { return nil }); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("with a tensor that requires no gradient: %v", err)
		}
		if _, err := autograd.RegisterMultiGradHook([]*tensor.Tensor{x}, nil); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("without a function: %v", err)
		}
		if _, err := autograd.RegisterAnyGradHook([]*tensor.Tensor{x}, nil); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("without a function: %v", err)
		}
		remove, err := autograd.RegisterMultiGradHook([]*tensor.Tensor{x, y}, func([]*tensor.Tensor) error { return bad })
		if err != nil {
			return err
		}
		if err := x.Mul(y).Sum().Backward(); !errors.Is(err, bad) {
			t.Errorf("the pass returns %v, want the hook's error", err)
		}
		remove()
		if remove, err = autograd.RegisterAnyGradHook([]*tensor.Tensor{x}, func(*tensor.Tensor) error { panic(bad) }); err != nil {
			return err
		}
		if err := x.Mul(y).Sum().Backward(); err == nil || !strings.Contains(err.Error(), "bad") {
			t.Errorf("the pass returns %v, want the hook's panic", err)
		}
		remove()
		// The gradient of x, received by the first hook, is freed with the pass that fails.
		called := 0
		remove, err = autograd.RegisterMultiGradHook([]*tensor.Tensor{x, y}, func([]*tensor.Tensor) error { called++; return nil })
		if err != nil {
			return err
		}
		defer remove()
		fail := true
		z, err := autograd.Apply(&either{backward: func() ([]*tensor.Tensor, error) {
			if fail {
				return nil, bad
			}
			return []*tensor.Tensor{y.Detach()}, nil
		}}, y)
		if err != nil {
			return err
		}
		sum := z[0].Sum().Add(x.Mul(2).Sum())
		if err := sum.Backward(tensor.RetainGraph(true)); !errors.Is(err, bad) || called != 0 {
			t.Errorf("the pass returns %v after %d calls", err, called)
		}
		fail = false
		if err := sum.Backward(); err != nil || called != 1 {
			t.Errorf("the pass returns %v after %d calls, want 1", err, called)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPanicsOfHooks tests that the error of a backward pass has the panic of a hook, and its text has no stack.
func TestPanicsOfHooks(t *testing.T) {
	leak.Check(t)
	mine := errors.New("mine")
	fail := func() { panic(mine) }
	for name, register := range map[string]func(x *tensor.Tensor) (func(), error){
		"RegisterHook": func(x *tensor.Tensor) (func(), error) {
			return x.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { fail(); return nil, nil })
		},
		"RegisterPostAccumulateGradHook": func(x *tensor.Tensor) (func(), error) {
			return x.RegisterPostAccumulateGradHook(func(*tensor.Tensor) error { fail(); return nil })
		},
		"RegisterMultiGradHook": func(x *tensor.Tensor) (func(), error) {
			return autograd.RegisterMultiGradHook([]*tensor.Tensor{x}, func([]*tensor.Tensor) error { fail(); return nil })
		},
		"RegisterAnyGradHook": func(x *tensor.Tensor) (func(), error) {
			return autograd.RegisterAnyGradHook([]*tensor.Tensor{x}, func(*tensor.Tensor) error { fail(); return nil })
		},
	} {
		err := tensor.WithScope(func() error {
			x := tensor.Ones([]int{2}).RequiresGrad_()
			remove, err := register(x)
			if err != nil {
				t.Fatal(err)
			}
			defer remove()
			return x.Mul(2).Sum().Backward()
		})
		var p *autograd.PanicError
		if !errors.Is(err, mine) || !errors.As(err, &p) || p.Value != any(mine) || !strings.Contains(string(p.Stack), "graph_test.go") {
			t.Errorf("%s: %v has the panic %+v", name, err, p)
		} else if strings.Contains(err.Error(), "goroutine ") {
			t.Errorf("%s: the text has the stack: %v", name, err)
		}
	}
}

// TestRemoveMultiGradHookOfAnotherList tests that the hook is removed, and no other, after writes in place and releases.
func TestRemoveMultiGradHookOfAnotherList(t *testing.T) {
	leak.Check(t)
	for _, first := range []bool{false, true} {
		err := tensor.WithScope(func() error {
			x, plain := points(2), tensor.Ones([]int{2}, tensor.Float64)
			written, released := x.Mul(1), x.Mul(1)
			alias := released.Alias()
			calls := 0
			var remove func()
			var err error
			if first {
				remove, err = autograd.RegisterAnyGradHook([]*tensor.Tensor{written, plain, alias}, func(*tensor.Tensor) error { calls += 100; return nil })
			} else {
				remove, err = autograd.RegisterMultiGradHook([]*tensor.Tensor{written, alias}, func([]*tensor.Tensor) error { calls += 100; return nil })
			}
			if err != nil {
				return err
			}
			written.Mul_(2)
			alias.Release()
			plain.RequiresGrad_()
			for _, y := range []*tensor.Tensor{written, plain, released} {
				if _, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { calls++; return nil, nil }); err != nil {
					return err
				}
			}
			remove()
			remove()
			err = written.Add(plain).Add(released).Sum().Backward()
			if calls != 3 {
				t.Errorf("first gradient: %v: the sum of the calls is %d, want 3, one of each other hook", first, calls)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestHooksOfConcurrentPasses tests that passes on several goroutines do not mix what a hook of their tensors receives.
func TestHooksOfConcurrentPasses(t *testing.T) {
	leak.Check(t)
	x := points(2).Keep()
	y := points(2).Keep()
	defer x.Release()
	defer y.Release()
	var mu sync.Mutex
	called := 0
	remove, err := autograd.RegisterMultiGradHook([]*tensor.Tensor{x, y}, func(grads []*tensor.Tensor) error {
		a, err := tensor.Data[float64](grads[0])
		if err != nil {
			return err
		}
		b, err := tensor.Data[float64](grads[1])
		if err != nil {
			return err
		}
		if a[0] != b[0] {
			return fmt.Errorf("gradients %v and %v are of different passes", a, b)
		}
		mu.Lock()
		defer mu.Unlock()
		called++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	var all sync.WaitGroup
	for i := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 10 {
				err := tensor.WithScope(func() error {
					_, err := autograd.Grad([]*tensor.Tensor{x.Add(y).Mul(i + 1).Sum()}, []*tensor.Tensor{x, y})
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	if called != 80 {
		t.Errorf("the hook was called %d times in 80 passes", called)
	}
}
