package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/fakecuda"
	"github.com/linstock-ml/linstock/vram"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// A fault is armed before a step and reports afterwards whether it struck.
type fault interface {
	fmt.Stringer
	arm(k, times int64) error
	disarm() (struck bool, err error)
}

// shimFault is a fault point of the shim.
type shimFault struct {
	point cshim.FaultPoint
	throw cshim.Throw
}

func (f shimFault) String() string {
	switch f.point {
	case cshim.FaultCPU:
		return "CPU memory"
	case cshim.FaultSystem:
		return "the system's memory"
	case cshim.FaultShim:
		return "the shim's own memory"
	}
	return fmt.Sprintf("entries throw %d", f.throw)
}

func (f shimFault) arm(k, times int64) error {
	return cshim.Fault{Point: f.point, Skip: k, Times: times, Throw: f.throw}.Set()
}

func (f shimFault) disarm() (bool, error) {
	_, failed := f.point.Counts()
	return failed != 0, cshim.Fault{Point: f.point}.Set()
}

// deviceFault is a failure of the fake devices' memory.
type deviceFault struct {
	c      *fakecuda.Control
	errors int64
}

func (f *deviceFault) String() string { return "device memory" }

func (f *deviceFault) arm(k, times int64) error {
	f.errors = f.c.Errors()
	return f.c.AddRule(fakecuda.Rule{Function: fakecuda.Alloc, Device: -1, Skip: k, Times: times, Error: 2})
}

func (f *deviceFault) disarm() (bool, error) {
	f.c.ClearRules()
	return f.c.Errors() != f.errors, nil
}

// A sweep injects faults into steps of one job: at each k, until a step has too few events for the fault to strike.
type sweep struct {
	*job
	fault    fault
	times    int64 // number of failures: 1, or -1 for all from then on
	must     bool  // a fault that stays must be an error, unless a sweep frees enough that a retry needs no new memory
	kind     error // required kind of each error; nil allows any
	device   tensor.Device
	control  *fakecuda.Control
	empty    bool // empty the allocators' caches before each step
	uncached bool
	values   bool // losses are meaningful
}

// held holds the figures that must be the same after a failure.
type held struct{ cpu, device, handles int64 }

func (s *sweep) held() (h held, err error) {
	tensor.Flush()
	m, err := cshim.MemoryStats(0xff)
	if err != nil {
		return h, err
	}
	h.cpu, h.handles = m.Allocated, m.Handles
	if s.control == nil {
		return h, nil
	}
	if s.uncached {
		h.device = s.control.Live(0)
		return h, nil
	}
	d, err := cshim.MemoryStats(1 << 8)
	h.device = d.Allocated
	return h, err
}

// base returns the figures after everything that can be freed is freed.
func (s *sweep) base() (held, error) {
	for range 3 {
		runtime.GC()
		tensor.Flush()
	}
	return s.held()
}

// settle waits until no more is held than before: the engine's threads free late, and the collector frees what a
// failure has left outside scopes.
func (s *sweep) settle(before held) error {
	for round, start := 0, time.Now(); ; round++ {
		now, err := s.held()
		if err != nil {
			return err
		}
		if now == before {
			return nil
		}
		if round >= 200 && time.Since(start) > 5*time.Second {
			return fmt.Errorf("held are %+v, before %+v", now, before)
		}
		if round%4 == 2 {
			runtime.GC()
		}
		time.Sleep(time.Duration(min(round+1, 10)) * 50 * time.Microsecond)
	}
}

// at injects the k-th fault. It reports whether the fault struck.
func (s *sweep) at(k int64, before held) (struck bool, err error) {
	if s.empty {
		for _, d := range []tensor.Device{tensor.CPU, s.device} {
			if err := vram.EmptyCache(d); err != nil {
				return false, err
			}
		}
	}
	if err := s.fault.arm(k, s.times); err != nil {
		return false, err
	}
	armed := vram.ReadCounts()
	loss, at, failure := s.step()
	struck, err = s.fault.disarm()
	counts := vram.ReadCounts().Since(armed)
	if err != nil {
		return struck, err
	}
	switch {
	case failure != nil && !struck:
		return false, fmt.Errorf("without a fault: %w", failure)
	case failure != nil && s.kind != nil && !errors.Is(failure, s.kind):
		return true, fmt.Errorf("%v gives another error: %w", at, failure)
	case failure == nil && counts.OOMs != 0:
		return struck, fmt.Errorf("no error, but %d allocations failed in the end", counts.OOMs)
	case failure == nil && struck && s.must && s.times < 0 && counts.Retries == 0:
		return true, errors.New("no error, and nothing was tried again")
	}
	// The next step has no fault: it is the first step again if the parameters had not changed, and otherwise the
	// second.
	s.opt.ZeroGrad()
	next := s.losses[0]
	if at >= saving {
		if s.values && loss != s.losses[0] {
			return struck, fmt.Errorf("the loss is %v, without faults %v", loss, s.losses[0])
		}
		next = s.losses[1]
	}
	// Where values mean nothing, a fault from which the step recovered has already shown that the program continues.
	if failure != nil || s.values {
		if loss, _, err = s.train(false); err != nil {
			return struck, fmt.Errorf("%v failed (%v), and the next step: %w", at, failure, err)
		}
	}
	if s.values && loss != next {
		return struck, fmt.Errorf("%v failed (%v); the next step's loss is %v, without faults %v", at, failure, loss, next)
	}
	if err := s.reset(); err != nil {
		return struck, err
	}
	if err := s.settle(before); err != nil {
		return struck, fmt.Errorf("%v failed (%v): %w", at, failure, err)
	}
	return struck, nil
}

// all injects every fault k from from on.
func (s *sweep) all(from int64, report *reporter, id string) error {
	if err := s.start(); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	before, err := s.base()
	if err != nil {
		return err
	}
	for k := from; ; k++ {
		report.at("%s %d: %s, fault %d", id, k, s.name, k)
		struck, err := s.at(k, before)
		if err != nil {
			report.bad("%s %d: %s, fault %d: %v", id, k, s.name, k, err)
			// The next fault must not see the state that this one left.
			if err := s.reset(); err != nil {
				return err
			}
			if before, err = s.base(); err != nil {
				return err
			}
		}
		if !struck {
			return nil
		}
		report.count(1)
		if os.Getenv("LINSTOCK_FAULTS_ONE") != "" {
			return nil
		}
	}
}

// oomHost runs a case of the row "oom-host". The model, what fails and how often follow from its number.
func oomHost(number int, seed uint64, from int64, report *reporter, dir string) error {
	points := []cshim.FaultPoint{cshim.FaultShim, cshim.FaultCPU, cshim.FaultShim, cshim.FaultSystem}
	point := points[number%len(points)] // 4 points, 5 models, 3 ways to fail: all combinations occur
	s := &sweep{fault: shimFault{point: point}, device: tensor.CPU, kind: tensor.ErrOutOfMemory, values: true,
		empty: point == cshim.FaultSystem, must: point == cshim.FaultCPU, times: 1}
	// Faults that stay take longer, because an operator without memory waits.
	if number%3 == 2 {
		s.times = -1
	}
	return s.run(number, seed, from, report, dir)
}

// oomDevice runs a case of the row "oom-device".
func oomDevice(number int, seed uint64, from int64, report *reporter, dir string) error {
	c, err := fakecuda.Open(os.Getenv("FAKECUDA_CONTROL"), 2, 1<<40)
	if err != nil {
		return err
	}
	defer c.Close()
	uncached := os.Getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != ""
	s := &sweep{fault: &deviceFault{c: c}, device: tensor.CUDA(0), kind: tensor.ErrOutOfMemory, control: c, must: true,
		times: -1, empty: !uncached, uncached: uncached}
	if number%8 != 0 {
		s.times = 1
	}
	if err := s.run(number, seed, from, report, dir); err != nil {
		return err
	}
	return c.Misuse()
}

// throws runs a case of the row "exceptions": the entries of a step throw.
func throws(number int, seed uint64, from int64, report *reporter, dir string) error {
	throw := cshim.Throw(number % cshim.Throws)
	s := &sweep{fault: shimFault{point: cshim.FaultEntry, throw: throw}, device: tensor.CPU, values: true, times: 1}
	if throw == 1 || throw == 2 { // exceptions about memory
		s.kind = tensor.ErrOutOfMemory
	}
	return s.run(number, seed, from, report, dir)
}

// run makes the job and sweeps it.
func (s *sweep) run(number int, seed uint64, from int64, report *reporter, dir string) (err error) {
	large := s.control != nil && !s.uncached
	model := models[number%len(models)]
	if model == "cnn" && os.Getenv("LINSTOCK_CUDNN") == "0" {
		model = "mlp"
	}
	if model == "gru" && s.control != nil && os.Getenv("LINSTOCK_CUDNN") != "0" {
		model = "gpt"
	}
	if s.job, err = newJob(model, rand.New(rand.NewPCG(seed, uint64(number))).Uint64(), s.device, large, dir); err != nil {
		return err
	}
	defer s.release()
	how := "once"
	if s.times < 0 {
		how = "from then on"
	}
	s.name = fmt.Sprintf("case %d (%s; %v fails %s)", number, s.name, s.fault, how)
	return s.all(from, report, fmt.Sprint(number))
}
