package vram_test

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func Example() {
	x := tensor.Zeros([]int{1024, 1024}) // 4 MiB of float32
	defer x.Release()
	stats, err := vram.Stats(tensor.CPU)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(stats.Allocated >= 4<<20, stats.Peak >= stats.Allocated)
	// Output: true true
}

func TestPeakFollowsAndResets(t *testing.T) {
	leak.Check(t)
	x := tensor.Zeros([]int{1 << 20})
	before, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	x.Release()
	if err := vram.ResetPeak(tensor.CPU); err != nil {
		t.Fatal(err)
	}
	after, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	if freed := before.Allocated - after.Allocated; freed < 4<<20 {
		t.Errorf("%d bytes were freed, want 4 MiB at least", freed)
	}
	if after.Peak >= before.Peak || after.Peak < after.Allocated {
		t.Errorf("peak after the reset %d, before %d, live %d", after.Peak, before.Peak, after.Allocated)
	}
	if after.Frees <= before.Frees {
		t.Errorf("frees went from %d to %d", before.Frees, after.Frees)
	}
}

// Memory that is not allocated for tensors is in Other; a tensor is not.
func TestOther(t *testing.T) {
	leak.Check(t)
	const bytes = 128 * mib
	near := func(what string, got, want int64) {
		t.Helper()
		if got < want-bytes/4 || got > want+bytes/4 {
			t.Errorf("%s: %d MiB more than before, want %d", what, got/mib, want/mib)
		}
	}
	ok(t, vram.EmptyCache(vram.CPU)) // cached blocks may not be resident
	ok(t, vram.ResetPeak(vram.CPU))
	base := memoryNow(t)
	if base.Other < mib || base.PeakOther < base.Other {
		t.Errorf("%d bytes, at most %d", base.Other, base.PeakOther)
	}
	x := tensor.Ones([]int{bytes / 4})
	near("a tensor", memoryNow(t).Other-base.Other, 0)
	x.Release()
	ok(t, vram.EmptyCache(vram.CPU))
	// Memory from mmap: the race detector would allocate a shadow for a Go slice.
	mapped, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	ok(t, err)
	defer func() { ok(t, syscall.Munmap(mapped)) }()
	for i := 0; i < bytes; i += 4096 {
		mapped[i] = 1
	}
	m := memoryNow(t)
	near("a mapping", m.Other-base.Other, bytes)
	if m.PeakOther != m.Other {
		t.Errorf("%d bytes, at most %d", m.Other, m.PeakOther)
	}
	ok(t, vram.ResetPeak(vram.CPU))
	if m := memoryNow(t); m.PeakOther != m.Other {
		t.Errorf("after ResetPeak: %d bytes, at most %d", m.Other, m.PeakOther)
	}
}

func TestFlush(t *testing.T) {
	leak.Check(t)
	ok(t, vram.Collect())
	before := memoryNow(t).Allocated
	for range 20 {
		ok(t, tensor.Zeros([]int{mib / 4}).Err())
	}
	s := []metrics.Sample{{Name: "/gc/cleanups/queued:cleanups"}, {Name: "/gc/cleanups/executed:cleanups"}}
	for range 3 { // the last tensor may still be in a register
		runtime.GC()
		for metrics.Read(s); s[1].Value.Uint64() < s[0].Value.Uint64(); metrics.Read(s) {
			time.Sleep(time.Millisecond)
		}
	}
	vram.Flush()
	if now := memoryNow(t).Allocated; now > before+mib {
		t.Errorf("%d unreachable bytes are live", now-before)
	}
}

// TestMeasureIsExact tests that Measure counts small blocks, which threads serve from memory reserved in advance, and that
// the reserve is not in Peak.
func TestMeasureIsExact(t *testing.T) {
	leak.Check(t)
	runtime.LockOSThread() // the reserve is a thread's
	defer runtime.UnlockOSThread()
	stats := func() vram.Memory {
		t.Helper()
		m, err := vram.Stats(vram.CPU)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	hold := func(sizes []int, f func()) {
		t.Helper()
		if err := tensor.WithScope(func() error {
			for _, n := range sizes {
				if err := tensor.Empty([]int{n}, tensor.Uint8, tensor.CPU).Err(); err != nil {
					return err
				}
			}
			f()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	many := make([]int, 200)
	for i := range many {
		many[i] = 64 + i*i%5000
	}
	for _, sizes := range [][]int{{64}, {16 << 10}, {40 << 10, 20 << 10}, {100 << 10}, many, {1 << 20, 100}} {
		if err := vram.ResetPeak(vram.CPU); err != nil {
			t.Fatal(err)
		}
		hold(sizes, func() {
			if m := stats(); m.Peak != m.Allocated {
				t.Errorf("%v: the peak is %d, with %d bytes live", sizes, m.Peak, m.Allocated)
			}
		})
		var live int64
		before := stats().Allocated
		got, err := vram.Measure(vram.CPU, func() error {
			hold(sizes, func() { live = stats().Allocated - before })
			return nil
		})
		if err != nil || got != live || live == 0 {
			t.Errorf("%v: Measure returns %d, %v, and %d bytes were live", sizes, got, err, live)
		}
	}
}

// TestEstimateCountsWhatIsReachable tests that Estimate does not count what its own steps have left, and that its text
// tells a limit that has been passed from none.
func TestEstimateCountsWhatIsReachable(t *testing.T) {
	leak.Check(t)
	usePolicy(t, vram.Off{})
	ok(t, vram.Collect())
	held := tensor.Empty([]int{mib / 4})
	defer held.Release()
	limit(t, 36*mib)
	estimate := func(elements int) vram.Estimation {
		t.Helper()
		e, err := vram.Estimate(vram.CPU, 32, func(batch int) error { return tensor.Empty([]int{batch * elements}).Err() })
		ok(t, err)
		return e
	}
	e := estimate(mib / 4) // 1 MiB a sample
	if e.Peak != 32*mib || e.Room < 35*mib || e.Limit != memoryNow(t).Limit || !e.Fits {
		t.Errorf("%+v", e)
	}
	for _, c := range []struct {
		limit vram.Amount
		fits  string
	}{{vram.Bytes(1), "; 0 B are free below the limit"}, {vram.Unlimited(), "; no limit is set"}} {
		ok(t, vram.SetLimit(vram.CPU, c.limit))
		if s := estimate(0).String(); !strings.HasSuffix(s, c.fits) {
			t.Errorf("%q is to end in %q", s, c.fits)
		}
	}
}
