package vram

import (
	"cmp"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
)

// Reclaimer is something that can give native memory back: a loader's prefetched batches, a cache, pinned buffers, the
// open scopes. The cheapest, those of the lowest Rank, are asked first.
type Reclaimer struct {
	Name string
	Rank int
	// Prepare, where it is not nil, is called before the Go collector runs. Such a reclaimer takes part in every full
	// sweep, others only where an allocation does not fit.
	Prepare func()
	// Reclaim frees what it can; want is how many bytes an allocation waits for, 0 where none does. What it allocates
	// itself never waits for memory.
	Reclaim func(want int64)
}

// The ranks of Linstock's own reclaimers.
const (
	RankQueue  = 0   // frees that wait
	RankCache  = 100 // the allocators' caches
	RankLoader = 200 // prefetched batches
	RankScopes = 300 // tensors that nobody can reach
)

// Yield is what a reclaimer has given back.
type Yield struct {
	Name  string
	Calls int64
	Bytes int64 // on all devices
	Time  time.Duration
}

type registered struct {
	Reclaimer
	calls, bytes, ns atomic.Int64
}

var reclaimers struct {
	sync.Mutex
	list atomic.Pointer[[]*registered]
}

// Register adds a reclaimer and returns what takes it away again.
func Register(r Reclaimer) (unregister func()) {
	reg := &registered{Reclaimer: r}
	change := func(f func([]*registered) []*registered) {
		reclaimers.Lock()
		defer reclaimers.Unlock()
		list := f(slices.Clone(registrations()))
		reclaimers.list.Store(&list)
	}
	change(func(list []*registered) []*registered {
		list = append(list, reg)
		slices.SortStableFunc(list, func(a, b *registered) int { return cmp.Compare(a.Rank, b.Rank) })
		return list
	})
	return func() {
		change(func(list []*registered) []*registered {
			return slices.DeleteFunc(list, func(r *registered) bool { return r == reg })
		})
	}
}

func registrations() []*registered {
	if p := reclaimers.list.Load(); p != nil {
		return *p
	}
	return nil
}

func (r *registered) run(want int64) {
	if r.Reclaim == nil {
		return
	}
	start, before := time.Now(), liveEverywhere()
	func() {
		// A user's reclaimer that panics must not take the pacer, and with it the program, along.
		defer func() { _ = recover() }()
		r.Reclaim(want)
	}()
	r.gave(before-liveEverywhere(), start)
}

func (r *registered) gave(bytes int64, since time.Time) {
	r.calls.Add(1)
	r.bytes.Add(max(0, bytes))
	r.ns.Add(int64(time.Since(since)))
}

// caches are what the allocators keep, the cheapest to give back. No sweep asks for them: an allocator makes room in its
// own before an allocation waits. The pacer gives back half of the CPU's for each time that nobody allocates, and
// Relieve gives back a device's.
var caches = &registered{Reclaimer: Reclaimer{Name: "caches", Rank: RankCache}}

func init() { reclaimers.list.Store(&[]*registered{caches}) }

// sweeper holds what one sweep at a time may touch.
var sweeper sweeping

type sweeping struct {
	sync.Mutex
	begun time.Time // when the last full sweep began
	ended bool      // the last sweep was not cut short: what it has left tells what can be reached
	whole bool      // the last sweep has freed all that there was to free when it began

	gate sync.Mutex
	done chan struct{} // closed when who holds the sweeper lets go of it; nil: nobody waits
}

// letGo is closed when who holds the sweeper now lets go of it; the caller finds it held afterwards.
func (s *sweeping) letGo() <-chan struct{} {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
	}
	return s.done
}

func (s *sweeping) Unlock() {
	s.Mutex.Unlock()
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.done != nil {
		close(s.done)
		s.done = nil
	}
}

// patience is how long an operator waits before it begins: as long as an allocation past the line.
const patience = 250 * time.Millisecond

// waited waits for a sweep and says whether that took too long; it counts among the waits for memory.
func waited(done <-chan struct{}, until time.Time) (over bool) {
	counts.waits.Add(1)
	if beat := pulse.Load(); beat != nil { // after it was counted: the pacer looks
		beat.hurry(true)
	}
	start := time.Now()
	timer := time.NewTimer(until.Sub(start))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		over = true
		counts.overdue.Add(1)
	}
	took := time.Since(start)
	counts.waiting.Add(int64(took))
	class := int(math.Ceil(4 * math.Log2(max(1, float64(took)/1000))))
	counts.classes[min(class, len(counts.classes)-1)].Add(1)
	return over
}

// sweep frees what it can; the caller holds the sweeper. It returns the time that it took. Where enough says so it ends
// before it has freed all that there is, as sweeper.whole tells.
func sweep(depth Depth, want int64, enough func() bool) time.Duration {
	if depth == None {
		return 0
	}
	// What is allocated here must not wait for the one who sweeps.
	runtime.LockOSThread()
	was := cshim.SweepingSet(true)
	defer func() {
		cshim.SweepingSet(was)
		runtime.UnlockOSThread()
	}()
	start := time.Now()
	sweeper.whole, sweeper.ended = false, false
	before := liveEverywhere()
	list := registrations()
	if depth == Deep {
		for _, r := range list {
			if r.Prepare == nil {
				r.run(want)
				if enough != nil && enough() {
					counts.sweeps[Light].Add(1)
					counts.freed.Add(max(0, before-liveEverywhere()))
					return 0
				}
			}
		}
	} else {
		for _, r := range list {
			if r.Prepare == nil && r.Rank <= RankQueue {
				r.run(want)
			}
		}
	}
	var collection time.Duration
	if depth >= Full {
		sweeper.begun = start
		for _, r := range list {
			if r.Prepare != nil {
				r.Prepare()
			}
		}
		reclaim := func(all bool) {
			for _, r := range list {
				if r.Prepare != nil && all || r.Rank <= RankQueue {
					r.run(want)
				}
			}
		}
		for _, a := range known() {
			if m, err := cshim.MemoryPace(a.word); err == nil {
				a.mu.Lock()
				a.begun, a.met = m.Total, m.Live
				a.mu.Unlock()
			}
		}
		gc, whole, asked := time.Now(), true, false
		if enough == nil {
			runtime.GC()
		} else {
			whole = collectUntil(func() bool {
				reclaim(!asked)
				asked = true
				return enough()
			})
		}
		collection = time.Since(gc)
		if whole {
			cleaned := awaitCleanups(10 * time.Millisecond)
			reclaim(!asked)
			sweeper.ended = cleaned && awaitFrees(10*time.Millisecond)
			if enough != nil && !enough() { // an error may rest on it
				cleaned = cleaned || awaitCleanups(time.Second)
				ended := awaitFrees(time.Second)
				reclaim(false)
				sweeper.whole = cleaned && ended && depth == Deep
			}
		}
	}
	counts.sweeps[depth].Add(1)
	counts.freed.Add(max(0, before-liveEverywhere()))
	counts.collecting.Add(int64(collection))
	took := time.Since(start)
	counts.sweeping.Add(int64(took))
	return took
}

// collectUntil runs the Go collector, and asks done whether that is enough: as soon as the collector knows what can be
// reached, and then again and again while it goes over the heap, which takes longer where that is large, and frees what
// is outside of scopes. Where done is content the collector goes on alone, and false is returned.
func collectUntil(done func() bool) (whole bool) {
	proofs := newProofs()
	cycles := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(cycles)
	seen := cycles[0].Value.Uint64()
	begun, finished := make(chan struct{}), make(chan struct{})
	go func() {
		close(begun)
		// The collector yields after every page that it goes over. A goroutine that is locked to its thread is away for
		// longer each time, and leaves the work to the runtime's own, which does not yield.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(finished)
		runtime.GC()
	}()
	<-begun // a nap right away would keep the processor that the other waits for
	for marked := false; ; cshim.Nap(20 * time.Microsecond) {
		select {
		case <-finished:
			return true
		default:
		}
		if metrics.Read(cycles); !marked && cycles[0].Value.Uint64() != seen && len(proofs) > 0 {
			seen = cycles[0].Value.Uint64()
			marked = proofs[0].Value() == nil
			proofs = proofs[1:]
		}
		if marked && done() {
			return false
		}
	}
}

// A proof is an object that nobody can reach. A collection that frees it has begun after it was made: a collection that
// was under way then, of somebody else's, would have kept it. To look at one keeps it, too; hence several.
type proof struct {
	_ *proof
	_ [7]uint64 // so that it shares its place with nothing
}

//go:noinline
func newProofs() []weak.Pointer[proof] {
	ps := make([]weak.Pointer[proof], 4)
	for i := range ps {
		ps[i] = weak.Make(new(proof))
	}
	return ps
}

// awaitCleanups waits, for so long at most, until the cleanups that the collection has queued have run: they name the
// tensors outside scopes that nobody can reach. They run at once, but where others want the processors, too, one of the
// runtime's goroutines may have to wait for its turn. It says whether they have.
func awaitCleanups(patience time.Duration) (all bool) {
	var s [2]metrics.Sample
	s[0].Name, s[1].Name = "/gc/cleanups/queued:cleanups", "/gc/cleanups/executed:cleanups"
	metrics.Read(s[:])
	queued := s[0].Value
	if queued.Kind() != metrics.KindUint64 {
		return true
	}
	want := queued.Uint64()
	for start := time.Now(); s[1].Value.Uint64() < want; metrics.Read(s[1:]) {
		switch waited := time.Since(start); {
		case waited > patience:
			return false
		case waited < 5*time.Millisecond:
			runtime.Gosched()
		default:
			cshim.Nap(100 * time.Microsecond)
		}
	}
	return true
}

// Collect sweeps now: the Go collector runs and what nobody can reach is freed. It is what gc.collect() is in Python;
// programs need it only before they read the figures.
func Collect() error {
	if err := cshim.Load(); err != nil {
		return err
	}
	sweeper.Lock()
	defer sweeper.Unlock()
	cost := sweep(Full, 0, nil)
	swept(cost)
	return nil
}

func liveEverywhere() int64 {
	var sum int64
	for _, a := range known() {
		if m, err := cshim.MemoryPace(a.word); err == nil {
			sum += m.Live
		}
	}
	return sum
}
