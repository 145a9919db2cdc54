package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/fakecuda"
	"github.com/linstock-ml/linstock/tests/internal/program"
	"github.com/linstock-ml/linstock/tests/internal/stats"
	"github.com/linstock-ml/linstock/vram"
)

// settings are the command's settings.
type settings struct {
	device     tensor.Device
	fake       *fakecuda.Control // control of the fake devices; nil: real devices
	goroutines int
	seed       uint64
	quick      bool
	programs   int                              // number of random programs; 0: chosen by quick
	json       bool                             // print rows for the kit of docs/gpu-kit.md
	share      float64                          // duration of storm
	scored     bool                             // run for the scorecard
	row        *func()                          // prints a line
	values     bool                             // whether kernels compute
	say        func(format string, args ...any) // prints progress
}

// unit is the number of elements of the smallest tensor. On a device it is so large that the segments of the
// device's allocator, of 2 MiB, are small beside the program's memory.
func (s settings) unit() int {
	if s.device == tensor.CPU {
		return 48 << 10
	}
	return 3 << 20
}

// unlimited removes the limit.
func unlimited(d tensor.Device) { _ = vram.SetLimit(d, vram.Share(0.9)) }

// limitAbove sets the limit to the live bytes plus the given number.
func limitAbove(d tensor.Device, bytes int64) error {
	now, err := program.Live(d)
	if err != nil {
		return err
	}
	return vram.SetLimit(d, vram.Bytes(now+bytes))
}

type loopFigures struct {
	limit, peak      int64
	ratio, low, high float64 // time unreleased over released: median of the turns and quartiles
	sweeps           int64
	operator         time.Duration
}

// loop allocates temporaries of 4 MiB that nobody releases, in one loop with a limit of 512 MiB, and then as
// many again in turns with released ones. Other programs change the machine's speed within seconds, so the
// turns are short; on a noisy machine there are more.
func loop(s settings, bytes int64, turns int) (f loopFigures, err error) {
	f.limit = 512 << 20
	defer unlimited(s.device)
	if err := vram.SetLimit(s.device, vram.Bytes(f.limit)); err != nil {
		return f, err
	}
	x := tensor.Rand([]int{1 << 20}, s.device)
	defer x.Release()
	if err := x.Err(); err != nil {
		return f, err
	}
	once := func(release bool, bytes int64) (float64, error) {
		if err := vram.Collect(); err != nil {
			return 0, err
		}
		n := int(bytes / (4 << 20) / int64(s.goroutines))
		errs := make([]error, s.goroutines)
		start := time.Now()
		var wg sync.WaitGroup
		for g := range s.goroutines {
			wg.Go(func() {
				for range n {
					y := x.Erf()
					if errs[g] = y.Err(); errs[g] != nil {
						return
					}
					if release {
						y.Release()
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start).Seconds(), errors.Join(errs...)
	}
	if s.fake != nil { // its kernels take no time
		if err := s.fake.AddRule(fakecuda.Rule{Function: fakecuda.Launch, Device: -1, Times: fakecuda.Forever, Micros: 300}); err != nil {
			return f, err
		}
		defer s.fake.ClearRules()
	}
	if err := vram.ResetPeak(s.device); err != nil {
		return f, err
	}
	before := vram.ReadCounts()
	whole, err := once(false, bytes)
	if err != nil {
		return f, err
	}
	counts := vram.ReadCounts().Since(before)
	f.sweeps = counts.Full + counts.Deep
	s.say("loop, %d goroutines: %d MiB of unreleased temporaries in %.2f s", s.goroutines, bytes>>20, whole)
	var ratios []float64
	var released float64
	for stats.More(ratios, turns) {
		took := map[bool]float64{}
		first := len(ratios)%2 == 0
		for _, release := range []bool{first, !first} {
			if took[release], err = once(release, bytes/int64(turns)); err != nil {
				return f, err
			}
		}
		released += took[true]
		ratios = append(ratios, took[false]/took[true])
	}
	f.ratio, f.low, f.high = stats.Median(ratios), stats.Quantile(ratios, 0.25), stats.Quantile(ratios, 0.75)
	m, err := vram.Stats(s.device)
	f.peak = m.Peak
	f.operator = time.Duration(released / float64(int64(len(ratios))*(bytes/int64(turns))/(4<<20)) * 1e9)
	return f, err
}

type programFigures struct {
	programs, falseOOM, wrong, leaked    int // runs with a limit above what they can reach
	beyond                               int // peaks above the limit
	below, missed, late, unwell, leaked2 int // runs with a limit below it
	slowest                              time.Duration
	first                                error // the first failure
}

// programs runs random programs with limits 5 % above and below what they can reach.
func programs(s settings, n int) (f programFigures, err error) {
	defer unlimited(s.device)
	sizes := []int{1, 1, 1, 2, 4, 8, 16, 64}
	note := func(format string, args ...any) {
		if f.first == nil {
			f.first = fmt.Errorf(format, args...)
		}
	}
	last := time.Now()
	for i := 0; f.programs < n; i++ {
		seed := s.seed + uint64(i)
		goroutines := sizes[i%len(sizes)]
		if s.goroutines > 0 {
			goroutines = min(goroutines, s.goroutines)
		}
		unlimited(s.device)
		base, err := program.Settle(s.device, 0)
		if err != nil {
			return f, err
		}
		g, err := program.NewGroup(s.device, seed, goroutines, 24, s.unit())
		if err != nil {
			return f, err
		}
		if now, err := program.Settle(s.device, base); err != nil || now != base {
			return f, errors.Join(err, fmt.Errorf("seed %d: %d bytes live before, %d after the reference run", seed, base, now))
		}
		f.programs += goroutines
		room := g.Reach / 20
		if s.device != tensor.CPU {
			room += 4 << 20 // granularity of the allocator: its segments for small blocks are 2 MiB
		}
		if err := limitAbove(s.device, g.Reach+room); err != nil {
			return f, err
		}
		if err := vram.ResetPeak(s.device); err != nil {
			return f, err
		}
		sums, _, err := g.Run(s.device)
		if err != nil {
			f.falseOOM++
			note("seed %d, %d goroutines: %w", seed, goroutines, err)
		} else if s.values && !slices.Equal(sums, g.Sums) {
			f.wrong++
			note("seed %d: checksums %v, want %v", seed, sums, g.Sums)
		}
		m, err := vram.Stats(s.device)
		if err != nil {
			return f, err
		}
		if m.Peak > m.Limit {
			f.beyond++
			note("seed %d: peak %d beyond the limit %d", seed, m.Peak, m.Limit)
		}
		if now, err := program.Settle(s.device, base); err != nil || now != base {
			f.leaked++
			note("seed %d: %d bytes live before, %d after (%v)", seed, base, now, err)
		}
		// Below, on one goroutine only: of several it would be chance which one reaches the limit.
		if goroutines == 1 && g.Reach > 8*int64(g.Programs[0].Unit) {
			if err := s.below(g, base, &f, note); err != nil {
				return f, err
			}
		}
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			s.say("%d of %d programs, %d false, %d wrong", f.programs, n, f.falseOOM, f.wrong)
		}
	}
	return f, nil
}

func (s settings) below(g *program.Group, base int64, f *programFigures, note func(string, ...any)) error {
	f.below++
	if err := limitAbove(s.device, g.Reach-g.Reach/10); err != nil {
		return err
	}
	_, took, err := g.Run(s.device)
	seed := g.Programs[0].Seed
	var oom *vram.OutOfMemoryError
	switch {
	case err == nil:
		f.missed++
		note("seed %d: a limit below what is needed was not noticed", seed)
	case !errors.As(err, &oom) || !errors.Is(err, tensor.ErrOutOfMemory):
		f.missed++
		note("seed %d: another error: %w", seed, err)
	}
	f.slowest = max(f.slowest, took)
	if took > 100*time.Millisecond {
		f.late++
		note("seed %d: the error took %v", seed, took)
	}
	y := tensor.Ones([]int{g.Programs[0].Unit}, s.device)
	if err := y.Err(); err != nil {
		f.unwell++
		note("seed %d: the next smaller step: %w", seed, err)
	}
	y.Release()
	if now, err := program.Settle(s.device, base); err != nil || now != base {
		f.leaked2++
		note("seed %d, below the limit: %d bytes live before, %d after (%v)", seed, base, now, err)
	}
	return nil
}

type shareFigures struct {
	share       float64 // share of all cores' time spent in sweeps
	sweeps      int64
	ratio       float64 // throughput relative to Off
	low, high   float64
	heap        uint64
	live, limit int64
}

// workingSet holds live bytes at 97 % of the limit, above the soft limit, and runs operators in scopes.
func workingSet(s settings, operators, rounds int, heapBytes int) (f shareFigures, err error) {
	defer unlimited(s.device)
	heap := pointers(heapBytes)
	limit := int64(512 << 20)
	if err := vram.SetLimit(s.device, vram.Bytes(limit)); err != nil {
		return f, err
	}
	if err := vram.SetSoftLimit(s.device, vram.Bytes(limit*8/10)); err != nil {
		return f, err
	}
	defer func() { _ = vram.SetSoftLimit(s.device, vram.Share(0.8)) }()
	now, err := program.Live(s.device)
	if err != nil {
		return f, err
	}
	var held []*tensor.Tensor
	for total := now; total < limit*97/100-(1<<20); total += 1 << 20 {
		t := tensor.Ones([]int{1 << 18}, s.device).Keep()
		if err := t.Err(); err != nil {
			return f, err
		}
		held = append(held, t)
	}
	defer func() {
		for _, t := range held {
			t.Release()
		}
	}()
	x := tensor.Ones([]int{16 << 10}, s.device)
	defer x.Release()
	once := func(p vram.Policy) (float64, error) {
		before := vram.SetPolicy(p)
		defer vram.SetPolicy(before)
		start := time.Now()
		for range operators / 64 {
			if err := tensor.WithScope(func() error {
				y := x
				for range 64 {
					y = y.Add(x)
				}
				return y.Err()
			}); err != nil {
				return 0, err
			}
		}
		return time.Since(start).Seconds(), nil
	}
	if _, err := once(vram.Off{}); err != nil {
		return f, err
	}
	var paced, ratios []float64
	var sweeping time.Duration
	for i := range rounds {
		var a, b float64
		for k := range 2 {
			if (i+k)%2 == 0 {
				c := vram.ReadCounts()
				if a, err = once(vram.Paced{}); err != nil {
					return f, err
				}
				d := vram.ReadCounts().Since(c)
				sweeping += d.Sweeping
				f.sweeps += d.Full + d.Deep
			} else if b, err = once(vram.Off{}); err != nil {
				return f, err
			}
		}
		paced, ratios = append(paced, a), append(ratios, b/a)
		s.say("working set, round %d: %.2f s paced, %.2f s off", i+1, a, b)
	}
	var all float64
	for _, t := range paced {
		all += t
	}
	f.share = sweeping.Seconds() / all
	f.ratio, f.low, f.high = stats.Median(ratios), slices.Min(ratios), slices.Max(ratios)
	m, err := vram.Stats(s.device)
	f.live, f.limit = m.Allocated, m.Limit
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	f.heap = mem.HeapInuse
	runtime.KeepAlive(heap)
	return f, err
}

// pointers returns a Go heap of the given size that the garbage collector has to scan.
func pointers(bytes int) (heap [][]*int) {
	for range bytes / (8 << 20) {
		block := make([]*int, 1<<20)
		for i := range block {
			if i%64 == 0 {
				block[i] = new(int)
			}
		}
		heap = append(heap, block)
	}
	return heap
}

type garbageFigures struct {
	took, sweeping, longest time.Duration
	sweeps                  int64
	peak, allocated         int64 // bytes
}

// garbage allocates about 100 MB a second, for the given time, in tensors that nobody releases, outside scopes.
func garbage(s settings, long time.Duration, heapBytes int) (f garbageFigures, err error) {
	heap := pointers(heapBytes)
	defer runtime.KeepAlive(heap)
	x := tensor.Rand([]int{1024, 1024}, s.device)
	defer x.Release()
	if err := errors.Join(vram.Collect(), vram.ResetPeak(s.device)); err != nil {
		return f, err
	}
	before := vram.ReadCounts()
	start, last := time.Now(), before
	for time.Since(start) < long {
		if err := x.MatMul(x).Err(); err != nil {
			return f, err
		}
		f.allocated += 4 << 20
		if now := vram.ReadCounts(); now.Full != last.Full {
			f.longest = max(f.longest, now.Since(last).Sweeping)
			last = now
		}
	}
	f.took = time.Since(start)
	c := vram.ReadCounts().Since(before)
	f.sweeping, f.sweeps = c.Sweeping, c.Full+c.Deep
	m, err := vram.Stats(s.device)
	f.peak = m.Peak
	return f, err
}

type waitFigures struct {
	events               int64         // allocations that waited
	median, p99, slowest time.Duration // of these
	rounds, timeouts     int64         // waits for a sweep, of which an allocation may need several, and those that took too long
	roundP99             time.Duration
	failed, ooms, hangs  int64         // failed: allocations that returned an error
	first                error         // the first of these errors
	took, sweep          time.Duration // all sweeps; one sweep on average
	sweeps               int64
}

// waited is the least time that an allocation takes if it counts as one that waited. One that does not wait takes a
// few microseconds. Waits that are shorter are left out of the quantiles, which they could only lower.
const waited = time.Millisecond

// patience is how long all waits may take together, or a goroutine to return at the end.
const patience = 20 * time.Second

// waits records what the allocations of a storm see.
type waits struct {
	mu     sync.Mutex
	times  []time.Duration // of those that waited
	failed int64           // allocations that returned an error
	first  error           // of these errors
}

// counts returns how many allocations waited, and how many failed.
func (w *waits) counts() (waited, failed int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(len(w.times)), w.failed
}

// allocate calls f and records how long it took and whether its tensor has an error.
func (w *waits) allocate(f func() *tensor.Tensor) {
	start := time.Now()
	y := f()
	took := time.Since(start)
	err := y.Err()
	if took < waited && err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if w.failed++; w.failed == 1 {
			w.first = err
		}
		return
	}
	w.times = append(w.times, took)
}

// quantiles returns the median, the 99th percentile and the longest of the times.
func (w *waits) quantiles() (median, p99, slowest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.times) == 0 {
		return 0, 0, 0
	}
	slices.Sort(w.times)
	at := func(share float64) time.Duration { return w.times[int(share*float64(len(w.times)-1))] }
	return at(0.5), at(0.99), at(1)
}

// returned reports whether wg's goroutines return within the given time.
func returned(wg *sync.WaitGroup, within time.Duration) bool {
	all := make(chan struct{})
	go func() { wg.Wait(); close(all) }()
	select {
	case <-all:
		return true
	case <-time.After(within):
		return false
	}
}

// storm makes goroutines reach the limit all the time while others collect, start goroutines, close scopes and
// exit.
func storm(s settings, events int64, heapBytes int) (f waitFigures, err error) {
	defer unlimited(s.device)
	heap := make([][]byte, heapBytes>>14)
	for i := range heap {
		heap[i] = make([]byte, 1<<14)
	}
	x := tensor.Ones([]int{16 << 10}, s.device) // 64 KiB
	defer x.Release()
	// Room for 48 blocks, requested by 64 goroutines: some goroutine always waits. Garbage of the figure before would be
	// more room.
	if err := vram.Collect(); err != nil {
		return f, err
	}
	if err := limitAbove(s.device, 48<<16); err != nil {
		return f, err
	}
	before := vram.ReadCounts()
	done := make(chan struct{})
	var w waits
	var wg sync.WaitGroup
	add := func() *tensor.Tensor { return x.Add(1) }
	worker := func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			// Unreleased, in a scope or not. Now and then another goroutine receives it and ends.
			_ = tensor.WithScope(func() error {
				w.allocate(add)
				w.allocate(add)
				return nil
			})
			w.allocate(add)
			if time.Now().UnixNano()%64 == 0 {
				wg.Go(func() { w.allocate(add) })
			}
		}
	}
	start := time.Now()
	for range s.goroutines {
		wg.Go(worker)
	}
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
				runtime.GC()
			}
		}
	})
	last := time.Now()
	stuck, lastEvents := time.Now(), int64(0)
	for {
		time.Sleep(20 * time.Millisecond)
		now, _ := w.counts()
		if now != lastEvents {
			lastEvents, stuck = now, time.Now()
		}
		if time.Since(stuck) > patience {
			f.hangs++
			err = fmt.Errorf("no allocation that waits has ended for %v: a hang, after %d", patience, now)
			break
		}
		if now >= events {
			break
		}
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			s.say("%d of %d waits", now, events)
		}
	}
	close(done)
	if f.hangs == 0 && !returned(&wg, patience) {
		f.hangs++
		err = fmt.Errorf("goroutines have not returned for %v: a hang", patience)
	}
	c := vram.ReadCounts().Since(before)
	f.took = time.Since(start)
	f.events, f.failed = w.counts()
	f.median, f.p99, f.slowest = w.quantiles()
	f.rounds, f.timeouts, f.ooms = c.Waits, c.Timeouts, c.OOMs
	_, f.roundP99, _ = c.WaitQuantiles()
	f.sweeps = c.Full + c.Deep
	f.sweep = c.Sweeping / time.Duration(max(1, f.sweeps))
	w.mu.Lock()
	f.first = w.first
	w.mu.Unlock()
	if f.hangs != 0 { // a goroutine that hangs does not return: print where
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
	}
	runtime.KeepAlive(heap)
	return f, err
}
