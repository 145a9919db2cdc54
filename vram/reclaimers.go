package vram

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// Reclaimer frees memory that the program can do without: prefetched batches, a cache, pinned buffers. Reclaimers are
// called when an allocation does not fit below its device's limit, or the device refuses it, and freeing the
// unreachable tensors has not made room. They are called by Rank, the lowest first, until there is room; all of them if
// an operator has failed because its device had no memory, or if a [Policy] decides on [Deep]. A collection follows,
// which frees tensors that reclaimers have dropped without releasing them.
//
// Each call runs on its own goroutine, one at a time, while the goroutine that allocates waits. A reclaimer must not lock
// a mutex that a goroutine may hold while it calls operators: that goroutine may be the one that waits. Use TryLock, and
// return if it fails; linstockvet reports a Lock. Allocations of a reclaimer never wait.
//
// All calls of a sweep together, and the program's cleanup functions, have one second. After that the sweep continues
// without them, and the allocation fails if there is no room. A reclaimer that has not returned keeps running and is not
// called again before it has returned. [BlockedCalls], [Report] and [OutOfMemoryError] name it. A panic in a reclaimer is
// recovered.
type Reclaimer struct {
	Name string
	Rank int
	// Prepare, if not nil, is called before the collection, and Reclaim after it instead of before. With the two a
	// cache can turn its references into weak pointers and then drop the entries that have become unreachable. Reclaim
	// follows every Prepare, also if there is room without it.
	Prepare func()
	// Reclaim frees memory. want is the number of bytes that allocations wait for; 0: none waits, because there is room
	// since Prepare, or because a Policy has decided on Deep before an operator. It is 1<<62 if an operator has failed
	// and it is unknown how many bytes it lacked.
	Reclaim func(want int64)
}

// Yield is what a reclaimer has freed since the start. The tensors that it drops without releasing them are not in
// Bytes: the collection that follows frees them, for "waiting frees" or "unreachable tensors".
type Yield struct {
	Name  string
	Calls int64
	Bytes int64 // on all devices
	Time  time.Duration
}

type registered struct {
	Reclaimer
	tally
	named *tally       // of the metrics: of all reclaimers so far with the name
	since atomic.Int64 // when the call that is running began, in Unix nanoseconds; 0: none runs
}

// tally is what calls of reclaimers have freed.
type tally struct{ calls, bytes, ns atomic.Int64 }

func (t *tally) add(bytes int64, d time.Duration) {
	t.calls.Add(1)
	t.bytes.Add(bytes)
	t.ns.Add(int64(d))
}

// tallies are those of the metrics, by the path element of the name.
var tallies = struct {
	sync.Mutex
	named map[string]*tally
}{named: map[string]*tally{}}

func newRegistered(r Reclaimer) *registered {
	tallies.Lock()
	defer tallies.Unlock()
	name := slug(r.Name)
	t := tallies.named[name]
	if t == nil {
		t = &tally{}
		tallies.named[name] = t
	}
	return &registered{Reclaimer: r, named: t}
}

// Linstock's own, for [Yields]. They are not in the list of the program's reclaimers.
var (
	queue  = newRegistered(Reclaimer{Name: "waiting frees"})
	scopes = newRegistered(Reclaimer{Name: "unreachable tensors"})
	// caches are the caches of the allocators. Sweeps leave them alone, because an allocator shrinks its own cache before an
	// allocation waits. The pacer shrinks the CPU's cache (idleCache), and relieve empties a device's.
	caches = newRegistered(Reclaimer{Name: "caches"})
	// casts are those that autocast keeps. The cast of a leaf keeps the leaf, whose handle may have been freed.
	casts = newRegistered(Reclaimer{Name: "casts of autocast"})
	own   = []*registered{queue, caches, casts, scopes}
)

// reclaimers are the program's, in the order of their calls.
var reclaimers struct {
	sync.Mutex
	list []*registered
}

// Register adds a reclaimer. The function that it returns removes the reclaimer, but its metrics stay: use a fixed set
// of names.
func Register(r Reclaimer) (unregister func()) {
	reg := newRegistered(r)
	reclaimers.Lock()
	defer reclaimers.Unlock()
	reclaimers.list = append(reclaimers.list, reg)
	slices.SortStableFunc(reclaimers.list, func(a, b *registered) int { return cmp.Compare(a.Rank, b.Rank) })
	return func() {
		reclaimers.Lock()
		defer reclaimers.Unlock()
		reclaimers.list = slices.DeleteFunc(reclaimers.list, func(r *registered) bool { return r == reg })
	}
}

// registrations returns the program's reclaimers in the order of their calls.
func registrations() []*registered {
	reclaimers.Lock()
	defer reclaimers.Unlock()
	return slices.Clone(reclaimers.list)
}

// run calls f and counts what it frees, for a reclaimer of Linstock's own.
func (r *registered) run(f func()) {
	start, before := time.Now(), liveEverywhere()
	f()
	r.gave(before-liveEverywhere(), start)
}

// call calls f, a function of the program, on a goroutine and waits for it, until `until` at most. It does not call f
// while an earlier call is running.
func (r *registered) call(f func(), until time.Time) {
	if done := r.start(f); done != nil {
		returnedBy(done, until)
	}
}

// prepare is call for Prepare. It reports whether Prepare has returned. If it returns later, Reclaim follows at once.
func (r *registered) prepare(until time.Time) (returned bool) {
	var over atomic.Bool // Prepare or the wait
	done := r.start(func() {
		defer func() {
			if over.Swap(true) && r.Reclaim != nil {
				r.Reclaim(0)
			}
		}()
		r.Prepare()
	})
	if done == nil {
		return false
	}
	returnedBy(done, until)
	if returned = over.Swap(true); returned {
		<-done
	}
	return returned
}

// start calls f on a goroutine. done is closed when f has returned. It does not call f while an earlier call is
// running, and then returns nil.
func (r *registered) start(f func()) (done chan struct{}) {
	start, before := time.Now(), liveEverywhere()
	if !r.since.CompareAndSwap(0, start.UnixNano()) {
		return nil
	}
	done = make(chan struct{})
	go func() {
		handle.LockThread()
		was := cshim.SweepingSet(true)
		defer func() {
			_ = recover() // the program cannot recover a panic on this goroutine
			cshim.SweepingSet(was)
			runtime.UnlockOSThread()
			r.gave(before-liveEverywhere(), start)
			r.since.Store(0)
			close(done)
		}()
		f()
	}()
	return done
}

// returnedBy waits until done is closed or the time is over, and reports whether it was closed.
func returnedBy(done <-chan struct{}, until time.Time) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func (r *registered) gave(bytes int64, since time.Time) {
	d := time.Since(since)
	r.add(max(0, bytes), d)
	r.named.add(max(0, bytes), d)
}

// othersTime is how long a sweep waits for code of the program: reclaimers, cleanup functions and those of tensor.FromMapped.
const othersTime = time.Second

// BlockedCall is a call of a function of the program that a sweep has waited for and that has not returned.
type BlockedCall struct {
	What string // `reclaimer "NAME"`, or "a function given to runtime.AddCleanup or SetFinalizer"
	For  time.Duration
}

// String returns what has not returned, and for how long.
func (b BlockedCall) String() string { return fmt.Sprintf("%s for %v", b.What, round(b.For)) }

// BlockedCalls returns the calls of reclaimers, cleanup functions (runtime.AddCleanup) and finalizers that a sweep has waited
// for and that have not returned. Most often such a call waits for a mutex; a goroutine profile shows which.
func BlockedCalls() []BlockedCall {
	var list []BlockedCall
	for _, r := range registrations() {
		if at := r.since.Load(); at != 0 {
			list = append(list, BlockedCall{fmt.Sprintf("reclaimer %q", r.Name), time.Since(time.Unix(0, at))})
		}
	}
	if since := cleanups.blocked(); !since.IsZero() {
		list = append(list, BlockedCall{"a function given to runtime.AddCleanup or SetFinalizer", time.Since(since)})
	}
	return list
}

// cleanups are the functions that the program and its libraries have passed to runtime.AddCleanup and SetFinalizer.
// Linstock frees no tensor in one, but a program's function may, and what they refer to becomes unreachable when they
// have run.
var cleanups cleanupQueue

type cleanupQueue struct {
	mu   sync.Mutex
	late time.Time // when the function began that a sweep no longer waits for; zero: there is none
	left uint64    // number of functions that had not run then; fewer are left once that one has returned
}

// await waits until all functions that collections have queued have run, and returns 0, or until `until`, and returns
// the smallest number that were queued or running at any time. It does not wait while a function that a sweep has given
// up on is running.
func (q *cleanupQueue) await(until time.Time) (left uint64) {
	left = math.MaxUint64
	for start := time.Now(); ; {
		// Functions that another collection queues meanwhile may run before the others.
		if queued, executed := cleanupCounts(); executed < queued {
			left = min(left, queued-executed)
		} else {
			return 0
		}
		now := time.Now()
		switch {
		case now.After(until) || !q.blocked().IsZero():
			return left
		case now.Sub(start) < 5*time.Millisecond:
			runtime.Gosched()
		default:
			cshim.Nap(100 * time.Microsecond)
		}
	}
}

// giveUp makes sweeps stop waiting until one of the given number of functions that are queued now has run.
func (q *cleanupQueue) giveUp(left uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.late.IsZero() {
		q.late, q.left = time.Now().Add(-othersTime), left
	}
}

// blocked returns when the function began that a sweep has given up on; zero if there is none.
func (q *cleanupQueue) blocked() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.late.IsZero() {
		if queued, executed := cleanupCounts(); queued-executed < q.left {
			q.late = time.Time{}
		}
	}
	return q.late
}

// programCleanups returns the number of cleanup functions that have run, without those of package tensor that each
// collection queues.
func programCleanups() uint64 {
	own := reclaim.Sentinels.Load()
	_, executed := cleanupCounts()
	return executed - own
}

func cleanupCounts() (queued, executed uint64) {
	s := [4]metrics.Sample{{Name: "/gc/cleanups/queued:cleanups"}, {Name: "/gc/finalizers/queued:finalizers"},
		{Name: "/gc/cleanups/executed:cleanups"}, {Name: "/gc/finalizers/executed:finalizers"}}
	metrics.Read(s[:])
	for i := range s {
		if s[i].Value.Kind() != metrics.KindUint64 {
			return 0, 0
		}
	}
	return s[0].Value.Uint64() + s[1].Value.Uint64(), s[2].Value.Uint64() + s[3].Value.Uint64()
}
