package vram_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

const mib = 1 << 20

// policies are all policies, alone and wrapped.
var policies = map[string]vram.Policy{
	"Paced":             vram.Paced{},
	"Threshold":         vram.Threshold{Bytes: 64 * mib},
	"Threshold+Paced":   vram.Threshold{Bytes: 64 * mib, Else: vram.Paced{}},
	"Rates":             vram.Rates{},
	"Rates+Threshold":   vram.Rates{Else: vram.Threshold{}},
	"LiveShare":         vram.LiveShare{Share: 0.5},
	"LiveShare+Paced":   vram.LiveShare{Else: vram.Paced{}},
	"Off":               vram.Off{},
	"Any":               vram.Any{vram.Off{}, vram.LiveShare{}, vram.Paced{}},
	"Any of none":       vram.Any{},
	"Threshold default": vram.Threshold{},
}

func memoryNow(t testing.TB) vram.Memory {
	t.Helper()
	m, err := vram.Stats(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// limit sets the hard limit to the given number of bytes above those live, until the test ends.
func limit(t testing.TB, above int64) {
	t.Helper()
	if err := vram.SetLimit(vram.CPU, vram.Bytes(memoryNow(t).Allocated+above)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vram.SetLimit(vram.CPU, vram.Share(0.9)); err != nil {
			t.Error(err)
		}
	})
}

func setPercent(t testing.TB, percent int) {
	t.Helper()
	_, err := vram.SetGCPercent(vram.CPU, percent)
	ok(t, err)
}

func usePolicy(t testing.TB, p vram.Policy) {
	before := vram.SetPolicy(p)
	t.Cleanup(func() { vram.SetPolicy(before) })
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The conformance suite: tests that hold under every policy.
func TestPolicies(t *testing.T) {
	for name, p := range policies {
		t.Run(name, func(t *testing.T) {
			t.Run("answers any state", func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 2))
				for range 20000 {
					n := func() int64 { return r.Int64N(1 << uint(1+r.IntN(50))) }
					s := vram.State{Live: n(), Capacity: n(), Limit: n(), SoftLimit: n(), Reachable: n(), Target: n(), Request: n(),
						Allocated: n(), Percent: r.IntN(300) - 1, Available: time.Duration(n()) - time.Second, Cost: time.Duration(n()),
						Backward: r.IntN(2) == 0, Largest: n() * r.Int64N(2)}
					s.Reserved = s.Live + n()
					if r.IntN(10) == 0 {
						s = vram.State{}
					}
					d := p.Decide(s)
					if d != p.Decide(s) {
						t.Fatalf("two answers to %+v", s)
					}
					if d.Sweep < vram.None || d.Sweep > vram.Deep || d.Again < 0 || d.Total < 0 || d.Wait < 0 {
						t.Fatalf("%+v gives %+v", s, d)
					}
					// A sweep is not repeated before something has been allocated.
					s.Allocated, s.Backward = 0, false
					if d := p.Decide(s); d.Sweep != vram.None && s.Live > 0 {
						t.Fatalf("nothing was allocated since the last sweep, but %+v gives %+v", s, d)
					}
				}
			})
			t.Run("garbage never fails an allocation", func(t *testing.T) {
				leak.Check(t)
				usePolicy(t, p)
				limit(t, 40*mib)
				for range 100 {
					ok(t, tensor.Ones([]int{mib}).Add(1).Err()) // 8 MiB of garbage
				}
				ok(t, tensor.WithScope(func() error {
					for range 100 {
						if err := tensor.Ones([]int{mib}).Add(1).Err(); err != nil {
							return err
						}
					}
					return nil
				}))
				ok(t, vram.ResetPeak(vram.CPU))
			})
			t.Run("what is reachable fails one", func(t *testing.T) {
				leak.Check(t)
				usePolicy(t, p)
				limit(t, 20*mib)
				var held []*tensor.Tensor
				var err error
				for len(held) < 10 && err == nil {
					x := tensor.Ones([]int{mib})
					if err = x.Err(); err == nil {
						held = append(held, x)
					}
				}
				if !errors.Is(err, tensor.ErrOutOfMemory) || len(held) != 5 {
					t.Fatalf("after %d tensors of 4 MiB below a limit of 20 MiB: %v", len(held), err)
				}
				for _, x := range held {
					x.Release()
				}
			})
			t.Run("many goroutines", func(t *testing.T) {
				leak.Check(t)
				usePolicy(t, p)
				limit(t, 64*mib)
				var wg sync.WaitGroup
				errs := make([]error, 8)
				for g := range errs {
					wg.Go(func() {
						for range 40 {
							if errs[g] = tensor.Ones([]int{mib / 2}).Mul(2).Err(); errs[g] != nil {
								return
							}
						}
					})
				}
				wg.Wait()
				ok(t, errors.Join(errs...))
			})
		})
	}
}

// live ≤ max(256 MiB, (1 + percent/100) × reachable at the last sweep), at every moment, if sweeps may take the time.
func TestPacedInvariant(t *testing.T) {
	leak.Counted(t)
	usePolicy(t, vram.Paced{Share: -1}) // these loops do nothing but allocate: sweeps take most of their time
	for _, percent := range []int{20, 100} {
		for _, reachable := range []int64{0, 200 * mib, 400 * mib} {
			t.Run(fmt.Sprintf("%d percent, %d MiB", percent, reachable/mib), func(t *testing.T) {
				leak.Check(t)
				before, err := vram.SetGCPercent(vram.CPU, percent)
				ok(t, err)
				defer setPercent(t, before)
				var held []*tensor.Tensor
				for range reachable / (4 * mib) {
					held = append(held, tensor.Empty([]int{mib}))
				}
				ok(t, vram.Collect())
				base := memoryNow(t)
				ok(t, vram.ResetPeak(vram.CPU))
				goal := max(256*mib, base.Reachable+base.Reachable*int64(percent)/100)
				sweeps := vram.ReadCounts()
				rounds := 400
				for range rounds {
					ok(t, tensor.Empty([]int{mib}).Err())
				}
				m, c := memoryNow(t), vram.ReadCounts()
				if m.Peak > goal {
					t.Errorf("peak %d MiB, the goal is %d MiB", m.Peak/mib, goal/mib)
				}
				if c.Full+c.Deep == sweeps.Full+sweeps.Deep {
					t.Error("no sweep has run")
				}
				for _, x := range held {
					x.Release()
				}
			})
		}
	}
}

// The same with several goroutines: bytes that one allocates while another sweeps do not count as reachable,
// and an allocation that waits does not pass the goal even if another goroutine has taken the room.
func TestPacedInvariantOnManyGoroutines(t *testing.T) {
	leak.Counted(t)
	usePolicy(t, vram.Paced{Share: -1})
	for _, n := range []int{4, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			leak.Check(t)
			ok(t, vram.Collect())
			ok(t, vram.ResetPeak(vram.CPU))
			before := vram.ReadCounts()
			var wg sync.WaitGroup
			errs := make([]error, n)
			for g := range n {
				wg.Go(func() {
					for i := range 3000 / n {
						if i%10 == 0 { // 8 MiB: less than 128 MiB are reachable at any time
							errs[g] = errors.Join(errs[g], tensor.Empty([]int{2 * mib}).Err())
						}
						errs[g] = errors.Join(errs[g], tensor.Empty([]int{mib}).Err())
					}
				})
			}
			wg.Wait()
			ok(t, errors.Join(errs...))
			c := vram.ReadCounts().Since(before)
			if peak := memoryNow(t).Peak; peak > 256*mib && c.Timeouts == 0 {
				t.Errorf("a peak of %d MiB; %d sweeps, %d waits", peak/mib, c.Full+c.Deep, c.Waits)
			}
			if c.Full == 0 {
				t.Error("no sweep has run")
			}
		})
	}
}

// A Paced within another policy keeps its goal, also for a block whose size is unknown before the operator.
func TestAWrappedPacedKeepsItsGoal(t *testing.T) {
	leak.Counted(t)
	for name, p := range map[string]vram.Policy{
		"alone": vram.Paced{Share: -1}, "Any": vram.Any{vram.Off{}, vram.Paced{Share: -1}}, "Threshold": vram.Threshold{Else: vram.Paced{Share: -1}},
		"twice": vram.LiveShare{Share: 1, Else: vram.Rates{Else: vram.Paced{Share: -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			usePolicy(t, p)
			ok(t, vram.Collect())
			ok(t, vram.ResetPeak(vram.CPU))
			before := vram.ReadCounts()
			for range 20 {
				for range 45 {
					ok(t, tensor.Empty([]int{mib}).Err())
				}
				ok(t, tensor.Empty([]int{40 * mib}).Err())
			}
			c := vram.ReadCounts().Since(before)
			if peak := memoryNow(t).Peak; peak > 256*mib && c.Timeouts == 0 {
				t.Errorf("a peak of %d MiB; %d sweeps, %d waits", peak/mib, c.Full+c.Deep, c.Waits)
			}
		})
	}
}

// Below 8 MiB no sweep runs.
func TestNoSweepAtToySize(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	ok(t, vram.Collect())
	before := vram.ReadCounts()
	for range 200 {
		ok(t, tensor.WithScope(func() error {
			x := tensor.Ones([]int{64, 64}).RequiresGrad_()
			for range 4 {
				x = x.MatMul(x).Tanh()
			}
			return x.Sum().Backward()
		}))
	}
	c := vram.ReadCounts()
	if c.Full != before.Full || c.Deep != before.Deep {
		t.Errorf("%d sweeps have run", c.Full+c.Deep-before.Full-before.Deep)
	}
}

// fresh is the default policy without what earlier tests leave: a budget that is overdrawn, and a target of their size.
type fresh struct{}

func (fresh) Decide(s vram.State) vram.Decision {
	s.Available, s.Target = time.Second, s.Reachable
	return vram.Paced{}.Decide(s)
}

// A small program outside scopes that makes garbage slowly is swept for when its heap has doubled. It makes 128 MiB.
func TestSmallHeap(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	usePolicy(t, fresh{})
	ok(t, vram.Collect())
	ok(t, vram.ResetPeak(vram.CPU))
	start := memoryNow(t).Allocated
	for range 2000 {
		ok(t, tensor.Empty([]int{16 << 10}).Err())
		time.Sleep(time.Millisecond)
	}
	if n := memoryNow(t).Peak - start; n > max(2*start, 40*mib) {
		t.Errorf("a peak of %d MiB above %d", n/mib, start/mib)
	}
}

func TestGCPercentOffSweepsOnlyAtTheLimit(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	before, err := vram.SetGCPercent(vram.CPU, -1)
	ok(t, err)
	defer setPercent(t, before)
	limit(t, 600*mib)
	c := vram.ReadCounts()
	peak := int64(0)
	for i := range 300 {
		ok(t, tensor.Empty([]int{mib}).Err())
		peak = max(peak, memoryNow(t).Allocated)
		if i == 120 && vram.ReadCounts().Full+vram.ReadCounts().Deep != c.Full+c.Deep {
			t.Error("a sweep has run below the limit")
		}
	}
	if peak < 500*mib {
		t.Errorf("the live bytes got to %d MiB only", peak/mib)
	}
	if vram.ReadCounts().Deep == c.Deep {
		t.Error("no sweep has run at the limit")
	}
}

func TestOutOfMemoryErrorSuggestsRemedies(t *testing.T) {
	leak.Check(t)
	rate(t, 1) // at the default rate, one block of 16 MiB in 3,000 is not sampled
	limit(t, 24*mib)
	held := tensor.Ones([]int{4 * mib}) // 16 MiB
	x := tensor.Ones([]int{4 * mib})
	var oom *vram.OutOfMemoryError
	if !errors.As(x.Err(), &oom) || !errors.Is(x.Err(), tensor.ErrOutOfMemory) || !errors.Is(x.Err(), vram.ErrOutOfMemory) {
		t.Fatalf("got %v", x.Err())
	}
	if oom.Device != vram.CPU || oom.Asked != 16*mib || oom.Allocated < 16*mib || oom.Limit == 0 || oom.Capacity == 0 || oom.Reserved < oom.Allocated {
		t.Errorf("%+v", oom)
	}
	if len(oom.Holders) == 0 || !strings.Contains(oom.Holders[0].Line, "policy_test.go") || oom.Holders[0].Bytes < 12*mib {
		t.Errorf("holders %+v", oom.Holders)
	}
	// What the operator had allocated itself counts, too: of two results, the second does not fit.
	small := tensor.Ones([]int{5 * mib / 8}) // 2.5 MiB
	if values, indices := small.Sort(tensor.Dim(0)); !errors.As(errors.Join(values.Err(), indices.Err()), &oom) || oom.Allocated+oom.Asked <= oom.Limit {
		t.Errorf("%d bytes asked, %d allocated, the limit is %d", oom.Asked, oom.Allocated, oom.Limit)
	}
	small.Release()
	text := x.Err().Error()
	for _, want := range []string{"16 MiB asked", "limit", "policy_test.go", "a smaller batch", "vram.SetLimit"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	if strings.Contains(text, "expandable_segments") {
		t.Error("advice for CUDA on the CPU")
	}
	if err := tensor.Ones([]int{1 << 44}).Err(); !errors.As(err, &oom) || !strings.Contains(err.Error(), "alone does not fit") {
		t.Errorf("a tensor larger than the machine: %v", err)
	}
	ok(t, held.Narrow(0, 0, 1).Add(0).Err()) // the program continues
	held.Release()
}

// The error of a library that does not say how much it asked for names the device and the library's call.
func TestOutOfMemoryOfALibrary(t *testing.T) {
	leak.Check(t)
	err := reclaim.OutOfMemory(&cshim.Error{Code: cshim.CodeOutOfMemory, Device: cshim.DeviceWord(1, 2),
		Message: "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\nSearch for it"})
	const says = "out of memory on cuda:2: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`;"
	if text := err.Error(); !strings.Contains(text, says) || strings.Contains(text, "\n") {
		t.Errorf("got %q, want %q", text, says)
	}
	if text := reclaim.OutOfMemory(&cshim.Error{Message: "out of memory"}).Error(); !strings.HasPrefix(text, "out of memory on cpu; ") {
		t.Errorf("without a call: %q", text)
	}
}

// The error of an allocation that the system refuses, for example below ulimit -v, does not blame the limit.
func TestOutOfMemoryOfTheSystem(t *testing.T) {
	leak.Check(t)
	limit(t, 256*mib)
	const says = "the system refused the memory"
	var oom *vram.OutOfMemoryError
	if err := tensor.Empty([]int{128 * mib}).Err(); !errors.As(err, &oom) || strings.Contains(err.Error(), says) {
		t.Errorf("above the limit: %v", err)
	}
	ok(t, vram.EmptyCache(vram.CPU))
	fault := cshim.Fault{Point: cshim.FaultSystem, Times: -1, Mine: true}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ok(t, fault.Set())
	err := tensor.Empty([]int{16 * mib}).Err()
	fault.Times = 0
	ok(t, fault.Set())
	if !errors.As(err, &oom) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "vram.SetLimit") {
		t.Errorf("below the limit: %v", err)
	}
}

// A backward pass reaches the limit: garbage makes room, reachable tensors make the pass fail, and the next
// pass works again.
func TestLimitInsideBackward(t *testing.T) {
	leak.Check(t)
	pass := func() (float64, error) {
		var sum float64
		err := tensor.WithScope(func() error {
			w := tensor.Ones([]int{mib}).RequiresGrad_()
			x := w
			for range 6 {
				x = x.Mul(w)
			}
			if err := x.Sum().Backward(); err != nil {
				return err
			}
			v, err := tensor.Item[float64](w.Grad().Sum().To(tensor.Float64))
			sum = v
			return err
		})
		return sum, err
	}
	ok(t, vram.ResetPeak(vram.CPU))
	base := memoryNow(t).Allocated
	want, err := pass()
	ok(t, err)
	need := memoryNow(t).Peak - base
	// With this much room the pass succeeds, although garbage fills the room first.
	limit(t, need+need/20)
	for range 3 {
		for range 20 {
			ok(t, tensor.Empty([]int{mib}).Err())
		}
		got, err := pass()
		if err != nil || got != want {
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
	}
	// With less room the pass fails where the graph is largest.
	ok(t, vram.Collect())
	ok(t, vram.SetLimit(vram.CPU, vram.Bytes(memoryNow(t).Allocated+need-12*mib)))
	if _, err := pass(); !errors.Is(err, tensor.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	ok(t, vram.SetLimit(vram.CPU, vram.Share(0.9)))
	if got, err := pass(); err != nil || got != want {
		t.Errorf("afterwards: %v, %v; want %v", got, err, want)
	}
}

func TestParseAmount(t *testing.T) {
	leak.Check(t)
	for _, a := range []vram.Amount{vram.Bytes(1), vram.Bytes(5 << 30), vram.Bytes(1<<53 + 1), vram.Bytes(math.MaxInt64), vram.Share(0.9), vram.Share(1), vram.Unlimited()} {
		if got, err := vram.ParseAmount(a.String()); err != nil || got != a {
			t.Errorf("%v: %v, %v", a, got, err)
		}
	}
	for s, want := range map[string]vram.Amount{
		"8GiB": vram.Bytes(8 << 30), "500 MB": vram.Bytes(500e6), "1073741824": vram.Bytes(1 << 30), "0.9": vram.Share(0.9),
		"90%": vram.Share(0.9), " 90 % ": vram.Share(0.9), "none": vram.Unlimited(), "1.5kb": vram.Bytes(1500),
		"2tib": vram.Bytes(2 << 40), "1e9": vram.Bytes(1e9), "8388607TiB": vram.Bytes(8388607 << 40),
		"9007199254740993": vram.Bytes(1<<53 + 1), "1": vram.Share(1),
	} {
		if got, err := vram.ParseAmount(s); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "-1", "0", "x", "NaN", "inf", "1e400", "101%", "0%", "-5%", "GiB", "8 GB x", "nan%", "1e30", "1.5", "1.5B", "0.0001kb", "8388608TiB", "+Inf", "0B", "%",
		vram.Amount{}.String(), vram.Share(2).String(), vram.Share(-1).String(), vram.Share(math.NaN()).String(), vram.Share(math.Inf(1)).String()} {
		if got, err := vram.ParseAmount(s); err == nil {
			t.Errorf("%q gives %v", s, got)
		}
	}
}

// Settings that contain amounts are stored and loaded, also those without a limit.
func TestAmountsAsJSON(t *testing.T) {
	leak.Check(t)
	type settings struct{ Hard, Soft, Unset vram.Amount }
	want := settings{Hard: vram.Bytes(5), Soft: vram.Share(0.5)}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := settings{Unset: vram.Unlimited()}
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("%s is %v, %v; want %v", text, got, err, want)
	}
}

// A share of less than a byte is a limit of one byte, not the 0 that means no limit.
func TestTinyShare(t *testing.T) {
	leak.Check(t)
	limit(t, mib) // which the end of the test sets back
	ok(t, vram.SetLimit(vram.CPU, vram.Share(1e-15)))
	if n := memoryNow(t).Limit; n != 1 {
		t.Errorf("a limit of %d bytes", n)
	}
}

func refused[T any](_ T, err error) error { return err }

func TestInvalidSettings(t *testing.T) {
	leak.Check(t)
	for _, err := range []error{
		vram.SetLimit(nil, vram.Bytes(1)), vram.SetLimit(vram.Name("tpu"), vram.Bytes(1)), vram.SetLimit(vram.Name("cuda:99"), vram.Bytes(1)),
		vram.SetLimit(vram.CPU, vram.Bytes(0)), vram.SetLimit(vram.CPU, vram.Bytes(-5)), vram.SetLimit(vram.CPU, vram.Share(1.5)),
		vram.SetLimit(vram.CPU, vram.Share(math.Inf(1))), vram.SetLimit(vram.CPU, vram.Share(math.NaN())), vram.SetProfileRate(-1),
		refused(vram.SetGCPercent(vram.Name("cuda:63"), 50)), vram.ResetPeak(vram.Name("cuda:63")),
		vram.SetLimit(vram.CPU, vram.Amount{}), vram.SetSoftLimit(vram.CPU, vram.Share(-1)), vram.EmptyCache(vram.Name("cuda:x")), vram.ResetPeak(nil),
		refused(vram.Stats(vram.Name("cuda:"))), refused(vram.Stats(vram.Name("cuda:63"))), refused(vram.Explain(vram.Name("cuda:63"))),
		vram.EmptyCache(vram.Name("cuda:63")), refused(vram.Holders(vram.Name("cuda:63"))), refused(vram.SetGCPercent(vram.Name("meta"), 1)),
		refused(vram.ParseAmount("a lot")), refused(vram.Estimate(vram.CPU, 7, nil)), refused(vram.Measure(vram.CPU, nil)), vram.WriteProfile(nil), vram.Snapshot(nil),
		vram.RecordHistory(-1), vram.SetAllocatorSettings(vram.MaxSplitSizeMB(-1)),
	} {
		if !errors.Is(err, tensor.ErrArgument) || !strings.HasPrefix(err.Error(), "linstock: vram: ") {
			t.Errorf("got %v, want ErrArgument", err)
		}
	}
}

// Reclaimers are called only when an allocation does not fit, in order of rank, and may themselves allocate or
// panic.
func TestReclaimers(t *testing.T) {
	leak.Check(t)
	limit(t, 40*mib)
	cache := tensor.Ones([]int{6 * mib}) // 24 MiB that a reclaimer can free
	var order []string
	var mu sync.Mutex
	note := func(s string) {
		mu.Lock()
		order = append(order, s)
		mu.Unlock()
	}
	defer vram.Register(vram.Reclaimer{Name: "dear", Rank: 1000, Reclaim: func(int64) { note("dear") }})()
	defer vram.Register(vram.Reclaimer{Name: "cache", Rank: 150, Reclaim: func(want int64) {
		note("cache")
		if want < 4*mib {
			t.Errorf("want %d", want)
		}
		tensor.Ones([]int{10}).Release()
		cache.Release()
	}})()
	defer vram.Register(vram.Reclaimer{Name: "panics", Rank: 120, Reclaim: func(int64) { note("panics"); panic("no") }})()
	defer vram.Register(vram.Reclaimer{Name: "empty", Rank: 130})()
	var held []*tensor.Tensor
	for range 8 {
		x := tensor.Ones([]int{mib})
		ok(t, x.Err())
		held = append(held, x)
	}
	mu.Lock()
	got := strings.Join(order, " ")
	mu.Unlock()
	if got != "panics cache" {
		t.Errorf("asked: %s", got)
	}
	for _, x := range held {
		x.Release()
	}
}

// Reclaim follows every Prepare: after the collection that makes room, after another reclaimer that makes room, and
// after a Prepare that takes longer than the sweep waits.
func TestReclaimFollowsPrepare(t *testing.T) {
	type caches struct {
		dropped, released *tensor.Tensor // by the two
		blocks            chan struct{}
		calls             chan string
	}
	for name, c := range map[string]struct {
		prepare func(*caches)
		fails   bool
		want    []string
	}{
		"a collection makes room": {func(c *caches) { c.dropped = nil }, false, []string{"prepare", "reclaim"}},
		"another makes room":      {func(*caches) {}, false, []string{"prepare", "other", "reclaim"}},
		"another, which prepared": {func(*caches) {}, false, []string{"prepare", "other", "reclaim"}},
		"late":                    {func(c *caches) { <-c.blocks }, true, []string{"prepare", "reclaim"}},
		"panics":                  {func(*caches) { panic("no") }, true, []string{"prepare", "reclaim"}},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			usePolicy(t, vram.Off{})
			limit(t, 40*mib)
			all := caches{blocks: make(chan struct{}), calls: make(chan string, 100)}
			defer vram.Register(vram.Reclaimer{Name: "test", Prepare: func() {
				all.calls <- "prepare"
				c.prepare(&all)
			}, Reclaim: func(want int64) {
				if all.calls <- "reclaim"; (want == 0) == (name == "panics") {
					t.Errorf("want %d", want)
				}
			}})()
			if slices.Contains(c.want, "other") {
				other := vram.Reclaimer{Name: "other", Rank: 1, Reclaim: func(int64) {
					all.calls <- "other"
					all.released.Release()
					all.released = nil
				}}
				if name == "another, which prepared" {
					other.Rank, other.Prepare = -1, func() {}
				}
				defer vram.Register(other)()
			}
			all.dropped, all.released = tensor.Empty([]int{4 * mib}), tensor.Empty([]int{4 * mib}) // 16 MiB each
			x := tensor.Empty([]int{4 * mib})
			if err := x.Err(); c.fails != errors.Is(err, tensor.ErrOutOfMemory) {
				t.Errorf("got %v", err)
			}
			close(all.blocks)
			for _, want := range c.want {
				select {
				case got := <-all.calls:
					if got != want {
						t.Errorf("%s was called, want %s", got, want)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%s was not called", want)
				}
			}
			for len(vram.BlockedCalls()) != 0 {
				time.Sleep(time.Millisecond)
			}
			for _, y := range []*tensor.Tensor{all.dropped, all.released, x} {
				if y != nil {
					y.Release()
				}
			}
		})
	}
}

// The allocator's cache counts towards the limit, and shrinks while the program allocates nothing.
func TestCacheIsLimitedAndShrinksWhenIdle(t *testing.T) {
	if !elsewhere.Process(t) { // start at a tick of the pacer
		return
	}
	// Meanwhile the pacer stays on its thread, which is marked.
	var asked, strayed atomic.Bool
	drain := reclaim.Drain
	reclaim.Drain = func() {
		if cshim.SweepingSet(true) {
			for range 100 {
				elsewhere.Thread()
				if !cshim.SweepingSet(true) {
					strayed.Store(true)
				}
			}
			asked.Store(true)
		} else {
			cshim.SweepingSet(false)
		}
		drain()
	}
	leak.Check(t)
	tensor.Empty([]int{16 * mib}).Release()
	if m := memoryNow(t); m.Cached < 64*mib {
		t.Fatalf("%d bytes are kept", m.Cached)
	}
	limit(t, 8*mib)
	if m := memoryNow(t); m.Reserved > m.Limit {
		t.Errorf("reserved %d beyond the limit %d", m.Reserved, m.Limit)
	}
	ok(t, vram.SetLimit(vram.CPU, vram.Share(0.9)))
	tensor.Empty([]int{16 * mib}).Release()
	before := memoryNow(t).Cached
	for start := time.Now(); memoryNow(t).Cached > before/2; time.Sleep(50 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Fatalf("%d bytes are still kept of %d after 20 idle seconds", memoryNow(t).Cached, before)
		}
	}
	yields := vram.Yields()
	if i := slices.IndexFunc(yields, func(y vram.Yield) bool { return y.Name == "caches" }); i < 0 || yields[i].Calls == 0 || yields[i].Bytes < before/2 {
		t.Errorf("the caches are not among the yields with what they gave, %d bytes: %+v", before/2, yields)
	}
	if !asked.Load() || strayed.Load() {
		t.Errorf("the pacer has asked: %v, strayed from its thread: %v", asked.Load(), strayed.Load())
	}
}

// Requested and rounded bytes, a view and a graph: a storage counts once.
func TestAccounting(t *testing.T) {
	leak.Check(t)
	base := memoryNow(t)
	x := tensor.Empty([]int{100_001}) // 400,004 bytes
	m := memoryNow(t)
	if n := m.Requested - base.Requested; n != 400_004 {
		t.Errorf("requested %d", n)
	}
	if n := m.Allocated - base.Allocated; n < 400_004 || n > 400_004*9/8 {
		t.Errorf("allocated %d", n)
	}
	v, s := x.View(-1), x.Narrow(0, 1, 1000)
	if n := memoryNow(t); n.Allocated != m.Allocated || n.Requested != m.Requested || n.Allocations != m.Allocations {
		t.Error("a view counts")
	}
	x.Release()
	if n := memoryNow(t); n.Allocated != m.Allocated {
		t.Error("the storage was freed under its views")
	}
	v.Release()
	s.Release()
	if n := memoryNow(t); n.Allocated != base.Allocated || n.Requested != base.Requested {
		t.Errorf("%d and %d bytes are left", n.Allocated-base.Allocated, n.Requested-base.Requested)
	}
	// The tensors saved for backward are included.
	w := tensor.Ones([]int{mib}).RequiresGrad_()
	before := memoryNow(t).Allocated
	y := w.Exp()
	z := y.Sum()
	y.Release()
	if n := memoryNow(t).Allocated - before; n < 4*mib {
		t.Errorf("what the graph saves is not counted: %d", n)
	}
	z.Release()
	if n := memoryNow(t).Allocated - before; n != 0 {
		t.Errorf("%d bytes of the graph are left", n)
	}
	w.Release()
	if err := tensor.Empty([]int{0}).Err(); err != nil {
		t.Error(err)
	}
}

// Settings, sweeps and reports from many goroutines at once.
func TestEverythingOnManyGoroutines(t *testing.T) {
	leak.Check(t)
	defer func() {
		ok(t, vram.SetLimit(vram.CPU, vram.Share(0.9)))
		ok(t, vram.SetSoftLimit(vram.CPU, vram.Share(0.8)))
		ok(t, vram.RecordHistory(0))
		ok(t, vram.SetProfileRate(vram.DefaultProfileRate))
		vram.SetPolicy(nil)
	}()
	percent, err := vram.SetGCPercent(vram.CPU, 100)
	ok(t, err)
	defer func() { setPercent(t, percent) }()
	calls := map[string]func(k int) error{
		"SetLimit":       func(int) error { return vram.SetLimit(vram.CPU, vram.Share(0.8)) },
		"SetSoftLimit":   func(int) error { return vram.SetSoftLimit(vram.CPU, vram.Share(0.7)) },
		"SetGCPercent":   func(k int) error { _, err := vram.SetGCPercent(vram.CPU, 50+k); return err },
		"Stats":          func(int) error { _, err := vram.Stats(vram.CPU); return err },
		"Collect":        func(int) error { return vram.Collect() },
		"Relieve":        func(int) error { reclaim.Relieve(1<<8, 0); return nil },
		"Register":       func(int) error { vram.Register(vram.Reclaimer{Rank: 5, Reclaim: func(int64) {}})(); return nil },
		"Explain":        func(int) error { _, err := vram.Explain(vram.CPU); return err },
		"SetProfileRate": func(k int) error { return vram.SetProfileRate(1 << (10 + k%4)) },
		"RecordHistory":  func(k int) error { return vram.RecordHistory(100 * (k % 2)) },
		"WriteProfile":   func(int) error { return vram.WriteProfile(io.Discard) },
		"Snapshot":       func(int) error { return vram.Snapshot(io.Discard) },
		"Holders":        func(int) error { _, err := vram.Holders(vram.CPU); return err },
		"Boundary":       func(int) error { vram.SetPolicy(vram.LiveShare{}); reclaim.Boundary(); return nil },
		"Summary":        func(int) error { _, err := vram.Summary(vram.CPU); return err },
		"OutOfMemory":    func(int) error { _ = reclaim.OutOfMemory(&cshim.Error{}); return nil },
	}
	names := slices.Sorted(maps.Keys(calls))
	// Each function runs concurrently with itself and its neighbours: a race is only detected if nothing else
	// orders the two.
	for i := range names {
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				name := names[(i+g/2)%len(names)]
				start := time.Now()
				for k := 0; k < 400 && time.Since(start) < 30*time.Millisecond; k++ {
					x := tensor.Ones([]int{1000})
					if err := calls[name](k); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					x.Release()
				}
			})
		}
		wg.Wait()
	}
}

// The waits of one part of a program can be reported without those before it.
func TestCountsSince(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	usePolicy(t, vram.Off{})
	limit(t, 64*mib)
	before := vram.ReadCounts()
	for range 100 {
		ok(t, tensor.Empty([]int{mib}).Err())
	}
	after := vram.ReadCounts()
	c := after.Since(before)
	median, p99, longest := c.WaitQuantiles()
	if c.Waits == 0 || c.Deep == 0 || c.Freed == 0 || median <= 0 || p99 < median || longest < p99 {
		t.Errorf("%+v: %v, %v, %v", c, median, p99, longest)
	}
	if none := after.Since(after); none != (vram.Counts{}) {
		t.Errorf("since then: %+v", none)
	}
	if median, p99, longest := after.Since(after).WaitQuantiles(); median+p99+longest != 0 {
		t.Errorf("no waits: %v, %v, %v", median, p99, longest)
	}
	ok(t, vram.Collect())
}

// wild is a policy whose depths do not exist.
type wild struct{ sweep vram.Depth }

func (w wild) Decide(s vram.State) vram.Decision {
	return vram.Decision{Sweep: w.sweep, Again: 1, Wait: 1}
}

func TestDepthsThatDoNotExist(t *testing.T) {
	leak.Check(t)
	defer vram.SetPolicy(vram.SetPolicy(nil))
	for _, depth := range []vram.Depth{-1 << 40, -1, vram.Deep + 1, 1 << 40} {
		vram.SetPolicy(wild{depth})
		ok(t, tensor.WithScope(func() error {
			for range 3 {
				if err := tensor.Ones([]int{mib}).Err(); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// counting is a policy without sweeps that counts the questions.
type counting struct{ asked *atomic.Int64 }

func (p counting) Decide(vram.State) vram.Decision {
	p.asked.Add(1)
	return vram.Decision{Again: 1}
}

// Rates repeats a light sweep, which need not free anything, when an eighth of the live bytes was allocated, and asks
// Else until then.
func TestRatesRepeatsLightSweeps(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	ok(t, vram.Collect())
	held := []*tensor.Tensor{tensor.Empty([]int{128 * mib})} // 512 MiB
	ok(t, held[0].Err())
	var asked atomic.Int64
	usePolicy(t, vram.Rates{Reserved: 1e-9, Total: 1e9, Allocated: 1e9, Else: counting{&asked}})
	before, questions := vram.ReadCounts(), asked.Load()
	for range 80 {
		x := tensor.Empty([]int{mib}) // 4 MiB
		ok(t, x.Err())
		held = append(held, x)
	}
	c := vram.ReadCounts().Since(before)
	if c.Light == 0 || c.Light > 320/64 || c.Full+c.Deep > 0 {
		t.Errorf("%d light, %d full and %d deep sweeps in 320 MiB", c.Light, c.Full, c.Deep)
	}
	if n := asked.Load() - questions; n < 40 {
		t.Errorf("Else was asked %d times in 320 MiB", n)
	}
	for _, x := range held {
		x.Release()
	}
}

// failing is a policy that calls fail, at operators or for allocations that wait, which it counts.
type failing struct {
	armed *atomic.Bool
	waits *atomic.Int32
	fail  func()
}

func (p failing) Decide(s vram.State) vram.Decision {
	if s.Largest > 0 {
		p.waits.Add(1)
	}
	if p.armed.Load() && (s.Largest > 0 || s.Live > 30*mib) {
		p.fail()
	}
	d := vram.Paced{}.Decide(s)
	d.Wait = 1
	return d
}

// If a policy panics, or ends the goroutine that asks it, allocations get their room and no lock is held afterwards. Only
// a policy that ends its goroutine ends that of an operator.
func TestPolicyFails(t *testing.T) {
	for name, fail := range map[string]func(){"panics": func() { panic("a bug in the policy") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			limit(t, 50*mib)
			defer vram.SetPolicy(vram.SetPolicy(nil))
			var armed atomic.Bool
			armed.Store(true)
			var waits, ended atomic.Int32
			vram.SetPolicy(failing{&armed, &waits, fail})
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 8 {
						left := make(chan struct{})
						go func() {
							defer close(left)
							// In a scope, which locks the goroutine to its thread: an allocation that waits is a sample of
							// that thread.
							if err := tensor.WithScope(func() error { return tensor.Ones([]int{mib}).Add(1).Err() }); err != nil {
								t.Error(err)
							}
							ended.Add(1)
						}()
						<-left
					}
				})
			}
			all.Wait()
			if n := ended.Load(); n != 32 && name == "panics" {
				t.Errorf("%d of 32 goroutines came to their end", n)
			}
			if waits.Load() < 2 {
				t.Error("the pacer asked the policy only once")
			}
			armed.Store(false)
			ok(t, vram.Collect())
		})
	}
}

// Small tensors in a scope that stays open are swept: the handles, which the Go collector would scan, do not make a sweep look
// expensive, and freeing them is not charged.
func TestSmallTensorsInOneScope(t *testing.T) {
	leak.Check(t)
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const child = "LINSTOCK_TEST_CHILD"
	if os.Getenv(child) == "" { // the memory that other tests needed would be the target
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{16})
		before := tensor.ReadStatistics().TotalCount
		for range 1_600_000 {
			_ = x.Mean()
		}
		if n := tensor.ReadStatistics().TotalCount - before; n > 400_000 {
			t.Errorf("%d unreachable tensors are live", n)
		}
		return x.Err()
	})
	ok(t, err)
}

// A collection of the program that ends while a sweep's begins does not make the sweep keep tensors.
func TestCollectionsBesideSweeps(t *testing.T) {
	leak.Check(t)
	defer vram.SetPolicy(vram.SetPolicy(vram.Off{}))
	limit(t, 20*mib)
	var stop atomic.Bool
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for !stop.Load() {
				runtime.GC()
			}
		})
	}
	for i := range 1000 {
		if err := tensor.Empty([]int{mib / 4}).Err(); err != nil {
			t.Errorf("allocation %d: %v", i, err)
			break
		}
	}
	stop.Store(true)
	others.Wait()
	ok(t, vram.Collect())
}

// Explain and Track of another goroutine do not make a sweep keep tensors.
func TestReportsBesideSweeps(t *testing.T) {
	leak.Check(t)
	usePolicy(t, vram.Off{})
	one := tensor.Ones([]int{1})
	defer one.Release()
	all := slices.Repeat([]*tensor.Tensor{one}, 200)
	report := func() error { _, err := vram.Explain(vram.CPU); return err }
	const name = "a test's"
	for what, c := range map[string]struct {
		scoped bool
		beside func() error
	}{
		"Explain, a scope":    {true, report},
		"Explain, a category": {false, report},
		"Track":               {false, func() error { tensor.Track(name, all...); return nil }},
	} {
		limit(t, 20*mib)
		var stop atomic.Bool
		var other sync.WaitGroup
		other.Go(func() {
			for !stop.Load() {
				if err := c.beside(); err != nil {
					t.Error(err)
				}
			}
		})
		loop := func() error {
			for i := range 1000 {
				x := tensor.Empty([]int{mib / 4})
				if x.Err() != nil {
					return fmt.Errorf("allocation %d: %w", i, x.Err())
				}
				if !c.scoped {
					tensor.Track(name, x)
				}
			}
			return nil
		}
		var err error
		if c.scoped {
			err = tensor.WithScope(loop)
		} else {
			err = loop()
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		stop.Store(true)
		other.Wait()
	}
	ok(t, vram.Collect())
}

// asking is a policy that never sweeps and calls a function.
type asking struct{ f func() }

func (p asking) Decide(vram.State) vram.Decision { p.f(); return vram.Decision{} }

// Functions of the program that a sweep calls or waits for may call Explain.
func TestExplainDuringASweep(t *testing.T) {
	type object struct{ _ *object }
	for name, begin := range map[string]func(t *testing.T, f func()){
		"Reclaim": func(t *testing.T, f func()) {
			t.Cleanup(vram.Register(vram.Reclaimer{Name: "test", Reclaim: func(int64) { f() }}))
		},
		"Prepare":     func(t *testing.T, f func()) { t.Cleanup(vram.Register(vram.Reclaimer{Name: "test", Prepare: f})) },
		"a policy":    func(t *testing.T, f func()) { usePolicy(t, asking{f}) },
		"a cleanup":   func(_ *testing.T, f func()) { runtime.AddCleanup(new(object), func(int) { f() }, 0) },
		"a finalizer": func(_ *testing.T, f func()) { runtime.SetFinalizer(new(object), func(*object) { f() }) },
		"FromMapped": func(_ *testing.T, f func()) {
			_ = tensor.FromMapped(tensor.Uint8, []int{64}, make([]byte, 64), f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			limit(t, 4*mib)
			var calls atomic.Int64
			begin(t, func() {
				if _, err := vram.Explain(vram.CPU); err != nil {
					t.Error(err)
				}
				calls.Add(1)
			})
			start := time.Now()
			err := tensor.Empty([]int{2 * mib}).Err()
			took := time.Since(start)
			var oom *vram.OutOfMemoryError
			if !errors.As(err, &oom) || len(oom.Blocked) != 0 || took > 10*time.Second {
				t.Errorf("after %v: %v", took, err)
			}
			if n := calls.Load(); n == 0 {
				t.Error("the function was not called")
			}
		})
	}
}

// Memory that another goroutine is freeing does not count as exhausted.
func TestFreesBesideSweeps(t *testing.T) {
	leak.Check(t)
	defer vram.SetPolicy(vram.SetPolicy(vram.Off{}))
	for name, free := range map[string]func(*tensor.Scope) error{"Close": (*tensor.Scope).Close, "ReleaseAll": (*tensor.Scope).ReleaseAll} {
		limit(t, 200*mib)
		views, started := make(chan error), make(chan struct{})
		go func() {
			s, err := tensor.NewScope()
			if err != nil {
				views <- err
				return
			}
			x := tensor.Empty([]int{150 * mib / 4})
			for range 300_000 {
				_ = x.View(-1)
			}
			close(started)
			err = free(s)
			_ = s.Close()
			views <- err
		}()
		<-started
		time.Sleep(10 * time.Millisecond) // while the views are freed, the tensor is live and not in the scope
		if err := tensor.WithScope(func() error { return tensor.Empty([]int{100 * mib / 4}).Err() }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		ok(t, <-views)
	}
	ok(t, vram.Collect())
}

// An allocation that fails runs few collections, although each of them calls finalizers: one for the tensors outside
// scopes, and those of a program that sets its finalizer again.
func TestFinalizersOfEveryCollection(t *testing.T) {
	leak.Check(t)
	defer vram.SetPolicy(vram.SetPolicy(vram.Off{}))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	type object struct{ _ *object }
	x := tensor.Empty([]int{mib})
	ok(t, x.Err())
	limit(t, 50*mib)
	fail := func() uint64 {
		before := collections()
		if err := tensor.WithScope(func() error { return tensor.Empty([]int{100 * mib}).Err() }); !errors.Is(err, tensor.ErrOutOfMemory) {
			t.Errorf("%v instead of out of memory", err)
		}
		return collections() - before
	}
	if n := fail(); n > 4 {
		t.Errorf("%d collections before an allocation failed", n)
	}
	var again func(*object)
	var stopped atomic.Bool
	again = func(o *object) {
		if !stopped.Load() {
			runtime.SetFinalizer(o, again)
		}
	}
	runtime.SetFinalizer(new(object), again)
	if n := fail(); n < 2 || n > 14 {
		t.Errorf("%d collections before an allocation failed, with a finalizer in each", n)
	}
	stopped.Store(true)
	ok(t, vram.Collect())
	runtime.KeepAlive(x)
	x.Release()
}

func collections() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}

// What a finalizer or a cleanup function refers to is unreachable when that has run, and is freed before an allocation fails.
func TestMemoryOfFinalizers(t *testing.T) {
	leak.Check(t)
	type object struct {
		x    *tensor.Tensor
		next *object
	}
	defer vram.SetPolicy(vram.SetPolicy(nil))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, drop := range map[string]func(){
		"finalizer": func() { runtime.SetFinalizer(&object{x: tensor.Empty([]int{8 * mib})}, func(*object) {}) },
		"cleanup":   func() { runtime.AddCleanup(new(object), func(*tensor.Tensor) {}, tensor.Empty([]int{8 * mib})) },
		"chain": func() {
			var o *object
			for range 4 {
				o = &object{tensor.Empty([]int{2 * mib}), o}
				runtime.SetFinalizer(o, func(*object) {})
			}
		},
	} {
		for _, p := range []vram.Policy{vram.Paced{}, vram.Off{}} {
			vram.SetPolicy(p)
			ok(t, vram.Collect())
			limit(t, 50*mib)
			drop()
			if err := tensor.WithScope(func() error { return tensor.Empty([]int{8 * mib}).Err() }); err != nil {
				t.Errorf("%s, %T: %v", name, p, err)
			}
		}
	}
}
