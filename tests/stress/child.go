package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/fakecuda"
)

// A scenario is a way in which programs use or misuse Linstock.
type scenario struct {
	name, what string
	weight     int
	where      string // types of devices that it runs on, separated by commas; "" means all
	spoils     bool   // the process cannot be used after it
	alone      bool   // not part of the scenario mix
	run        func(r *round) error
}

func find(from []scenario, name string) (scenario, bool) {
	for _, s := range from {
		if s.name == name {
			return s, true
		}
	}
	return scenario{}, false
}

func (s scenario) on(device string) bool {
	kind := device
	if kind != "cpu" && kind != "fake" {
		kind = "cuda"
	}
	return s.where == "" || s.where == kind
}

// machine is the environment in which the rounds of a process run.
type machine struct {
	device tensor.Device
	fake   *fakecuda.Control // nil for a real device
	dir    string            // for files
	warm   map[string]bool   // scenarios that have run here
	known  references
}

// round is one run of a scenario.
type round struct {
	*machine
	seed       uint64
	goroutines int
	work       atomic.Int64
	notes      map[string]int64
	squeezed   bool // another scenario uses up memory meanwhile, so ErrOutOfMemory is a valid result
}

// computes reports whether values are meaningful: the kernels of the fake device do nothing.
func (m *machine) computes() bool { return m.fake == nil }

// rand returns the random source of the g-th goroutine.
func (r *round) rand(g int) *rand.Rand { return rand.New(rand.NewPCG(r.seed, uint64(g)+1)) }

// each runs f on the round's goroutines, each with its own random source, and returns their errors.
func (r *round) each(f func(g int, rng *rand.Rand) error) error { return r.on(r.goroutines, f) }

func (r *round) on(n int, f func(g int, rng *rand.Rand) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			if err := f(g, r.rand(g)); err != nil && !(r.squeezed && errors.Is(err, tensor.ErrOutOfMemory)) {
				errs[g] = fmt.Errorf("goroutine %d: %w", g, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// child runs the rounds that it reads from in. Its first report says whether it could set up the device.
func child(device string, from []scenario, in io.Reader, out io.Writer) int {
	signal.Ignore(os.Interrupt) // the parent ends it
	reply := json.NewEncoder(out)
	m, err := newMachine(device)
	if err != nil {
		_ = reply.Encode(report{Error: err.Error()}) // an error: the parent has ended
		return 1
	}
	defer os.RemoveAll(m.dir)
	if err := reply.Encode(report{}); err != nil {
		return 1
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var t task
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			fmt.Fprintln(os.Stderr, "stress:", err)
			return 1
		}
		s, _ := find(from, t.Scenario)
		if err := reply.Encode(m.round(s, t)); err != nil {
			return 1
		}
	}
	return 0
}

func newMachine(device string) (m *machine, err error) {
	m = &machine{warm: map[string]bool{}}
	if m.dir, err = os.MkdirTemp("", "child"); err != nil {
		return nil, err
	}
	if device == "fake" {
		device = "cuda:0"
		control := filepath.Join(m.dir, "fakecuda")
		if m.fake, err = fakecuda.Open(control, 2, 1<<30); err != nil {
			return nil, err
		}
		if err := os.Setenv("FAKECUDA_CONTROL", control); err != nil {
			return nil, err
		}
	}
	if m.device, err = tensor.ParseDevice(device); err != nil {
		return nil, err
	}
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	x := tensor.Ones([]int{1}, m.device)
	defer x.Release()
	if err := x.Err(); err != nil {
		return nil, fmt.Errorf("-device %s: %w", device, err)
	}
	return m, nil
}

// round runs a scenario and checks that all figures are as before. The first time, it runs the scenario twice and
// counts only the second run, because libtorch allocates some things at first use and keeps them.
func (m *machine) round(s scenario, t task) report {
	r := &round{machine: m, seed: t.Seed, goroutines: t.Goroutines, notes: map[string]int64{}}
	if !m.warm[s.name] && !s.spoils {
		m.warm[s.name] = true
		if err := s.run(r); err != nil {
			return r.report(err)
		}
	}
	before, err := m.settle(nil)
	if err != nil {
		return r.report(err)
	}
	if err := s.run(r); err != nil || s.spoils {
		return r.report(err)
	}
	after, err := m.settle(&before)
	if err == nil && after != before {
		err = fmt.Errorf("the figures were %v before the round and %v after it", before, after)
	}
	if bound := threadBound(t.Goroutines); err == nil && threads() > bound {
		err = fmt.Errorf("there are %d threads after the round; the bound is %d", threads(), bound)
	}
	if err == nil && m.fake != nil {
		err = m.fake.Misuse()
	}
	return r.report(err)
}

func (m *machine) settle(want *balance.Figures) (balance.Figures, error) {
	var devices []int32
	if m.device != tensor.CPU {
		devices = append(devices, cshim.DeviceWord(int32(m.device.Type), m.device.Index))
	}
	return balance.Settle(tensor.Flush, want, devices...)
}

func (r *round) report(err error) report {
	rep := report{Work: r.work.Load(), Threads: threads(), Notes: r.notes}
	if err != nil {
		rep.Error = err.Error()
	}
	return rep
}

// threads returns the number of threads of the process, or 0 if the system does not report it.
func threads() int {
	d, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(d)
}

// threadBound returns the maximum number of threads: each goroutine may be locked to a thread, also in a scope of
// another, and each thread that computes has an OpenMP pool; the others belong to the Go runtime and libtorch.
func threadBound(goroutines int) int {
	return 64 + 4*runtime.NumCPU() + 2*goroutines*max(2, runtime.NumCPU())
}
