package main

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// A storm counts allocations that fail, and times those that wait as their callers see them.
func TestStormCountsWhatCallersSee(t *testing.T) {
	leak.Check(t)
	var w waits
	x := tensor.Ones([]int{2})
	defer x.Release()
	after := func(d time.Duration, y func() *tensor.Tensor) func() *tensor.Tensor {
		return func() *tensor.Tensor { time.Sleep(d); return y() }
	}
	good := func() *tensor.Tensor { y := x.Add(1); y.Release(); return x }
	w.allocate(after(20*time.Millisecond, good))
	events, failed := w.counts()
	if median, p99, slowest := w.quantiles(); events != 1 || failed != 0 || min(median, p99, slowest) < 20*time.Millisecond {
		t.Errorf("an allocation of 20 ms: %d events, %d failed; %v, %v, %v", events, failed, median, p99, slowest)
	}
	w.allocate(func() *tensor.Tensor { return x.View(3) })
	if events, failed = w.counts(); events != 1 || failed != 1 || w.first == nil {
		t.Errorf("an allocation that fails: %d events, %d failed, %v", events, failed, w.first)
	}
	for _, c := range []struct {
		f     waitFigures
		holds bool
	}{
		{waitFigures{events: 10}, true},
		{waitFigures{events: 9}, false},
		{waitFigures{events: 10, failed: 1}, false},
		{waitFigures{events: 10, hangs: 1}, false},
	} {
		if c.f.holds(10) != c.holds {
			t.Errorf("%+v holds: %v, want %v", c.f, !c.holds, c.holds)
		}
	}
}

// A minute of garbage needs sweeps that free much of it and take little time; a part of a minute need not have any.
func TestGarbageNeedsSweeps(t *testing.T) {
	leak.Check(t)
	good := garbageFigures{took: time.Minute, sweeping: 2 * time.Second, longest: time.Second, sweeps: 2, peak: 2 << 30, allocated: 6 << 30}
	for _, c := range []struct {
		what   string
		change func(f *garbageFigures)
		whole  bool
		holds  bool
	}{
		{"sweeps", func(*garbageFigures) {}, true, true},
		{"no sweep", func(f *garbageFigures) { f.sweeping, f.longest, f.sweeps = 0, 0, 0 }, true, false},
		{"no sweep in a part", func(f *garbageFigures) { f.sweeping, f.longest, f.sweeps = 0, 0, 0 }, false, true},
		{"sweeps that free little", func(f *garbageFigures) { f.peak = 5 << 30 }, true, false},
		{"long sweeps", func(f *garbageFigures) { f.sweeping = 4 * time.Second }, true, false},
		{"long sweeps in a part", func(f *garbageFigures) { f.sweeping = 4 * time.Second }, false, false},
	} {
		f := good
		if c.change(&f); f.holds(c.whole) != c.holds {
			t.Errorf("%s: holds is %v, want %v", c.what, !c.holds, c.holds)
		}
	}
}

// A goroutine that does not return is noticed.
func TestReturned(t *testing.T) {
	leak.Check(t)
	var wg sync.WaitGroup
	if !returned(&wg, time.Minute) {
		t.Error("no goroutine has not returned")
	}
	stay := make(chan struct{})
	wg.Go(func() { <-stay })
	if returned(&wg, time.Millisecond) {
		t.Error("a goroutine that waits has returned")
	}
	close(stay)
	if !returned(&wg, time.Minute) {
		t.Error("the goroutine has not returned")
	}
}

// A small storm that holds, without its times.
func TestStorm(t *testing.T) {
	leak.Check(t)
	f, err := storm(settings{device: tensor.CPU, goroutines: 16, say: t.Logf}, 20, 1<<20)
	if err != nil || f.failed != 0 || f.hangs != 0 {
		t.Errorf("%+v: %v", f, err)
	}
}

// The kit does not read a time that misses its target as ok, nor as a failure.
func TestJSON(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct {
		l          line
		want, hide string
	}{
		{line{ok: true}, `"ok":true`, "slow"},
		{line{ok: false}, `"ok":false`, "slow"},
		{line{ok: true, timed: true}, `"slow":false`, `"ok"`},
		{line{ok: false, timed: true}, `"slow":true`, `"ok"`},
	} {
		if b, err := c.l.json(); err != nil || !strings.Contains(string(b), c.want) || strings.Contains(string(b), c.hide) {
			t.Errorf("%+v: %s, %v; want %s and no %s", c.l, b, err, c.want, c.hide)
		}
	}
}
