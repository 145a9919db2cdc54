package vram

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// Reclaimer is memory of the program's that it can give back: prefetched batches, a cache, pinned buffers. It is called
// where an allocation does not fit below its device's limit, or the device has none left, and only after everything that
// is unreachable has been freed and there is still no room: the reclaimer of the lowest Rank first, until there is. A
// collection follows, which frees the tensors that reclaimers have dropped without releasing them.
//
// Each call runs on a goroutine of its own, one at a time, while the goroutine that allocates waits. It must not take a
// mutex that any goroutine holds while it allocates tensors or calls operators: that one waits for this call. TryLock is
// the way, and to do nothing where it fails (linstockvet reports a Lock). What the call itself allocates never waits.
//
// All calls of a sweep together, and the program's cleanup functions, get one second. Then the sweep goes on without
// them, and the allocation fails where there is no room. A call that has not returned goes on, the reclaimer is not called
// again until it has, and [BlockedCalls], [Report] and [OutOfMemoryError] name it. A call that panics has ended.
type Reclaimer struct {
	Name string
	Rank int
	// Prepare, where it is not nil, is called before that collection, and Reclaim after it: a cache turns its references
	// into weak pointers, and takes out of itself what has become unreachable.
	Prepare func()
	// Reclaim frees what it can; want is the number of bytes that an allocation waits for.
	Reclaim func(want int64)
}

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
	since            atomic.Int64 // when the call began that has not returned, in Unix nanoseconds; 0: none
}

// Linstock's own, which sweeps call themselves; see package internal/reclaim. Those that never wait are not in the list
// of the program's.
var (
	queue  = &registered{Reclaimer: Reclaimer{Name: "waiting frees"}}
	scopes = &registered{Reclaimer: Reclaimer{Name: "unreachable tensors"}}
	// caches are what the allocators keep. No sweep asks for them: an allocator makes room in its own before an allocation
	// waits. The pacer gives back half of the CPU's for each time that nobody allocates, and Relieve gives back a device's.
	caches = &registered{Reclaimer: Reclaimer{Name: "caches"}}
	own    = []*registered{queue, caches, scopes}
)

var reclaimers struct {
	sync.Mutex
	list atomic.Pointer[[]*registered]
}

// Register adds a reclaimer and returns a function that removes it.
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

// registrations are the program's reclaimers, in the order in which they are called.
func registrations() []*registered {
	if p := reclaimers.list.Load(); p != nil {
		return *p
	}
	return nil
}

// run calls a function of Linstock's own.
func (r *registered) run(f func()) {
	start, before := time.Now(), liveEverywhere()
	f()
	r.gave(before-liveEverywhere(), start)
}

// call calls a function of the program's and waits for it until then. It reports whether the function has returned; where
// an earlier call has not, it does not begin another.
func (r *registered) call(f func(), until time.Time) (returned bool) {
	start, before := time.Now(), liveEverywhere()
	if !r.since.CompareAndSwap(0, start.UnixNano()) {
		return false
	}
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		was := cshim.SweepingSet(true)
		defer func() {
			_ = recover() // a panic must not end the program: nobody knows of this goroutine
			cshim.SweepingSet(was)
			runtime.UnlockOSThread()
			r.gave(before-liveEverywhere(), start)
			r.since.Store(0)
			close(done)
		}()
		f()
	}()
	return ends(done, until)
}

// ends waits for done until then.
func ends(done <-chan struct{}, until time.Time) bool {
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
	r.calls.Add(1)
	r.bytes.Add(max(0, bytes))
	r.ns.Add(int64(time.Since(since)))
}

// othersTime is how long a sweep waits for code of the program's: reclaimers and cleanup functions.
const othersTime = time.Second

// BlockedCall is a call into the program that a sweep has waited for and that has not returned.
type BlockedCall struct {
	What string // `reclaimer "NAME"`, or "a function given to runtime.AddCleanup"
	For  time.Duration
}

func (b BlockedCall) String() string { return fmt.Sprintf("%s for %v", b.What, round(b.For)) }

// BlockedCalls are the calls into the program that have not returned, of reclaimers, and of cleanup functions that a
// sweep has given up. Most often they wait for a mutex; a goroutine profile tells which.
func BlockedCalls() []BlockedCall {
	var list []BlockedCall
	for _, r := range registrations() {
		if at := r.since.Load(); at != 0 {
			list = append(list, BlockedCall{fmt.Sprintf("reclaimer %q", r.Name), time.Since(time.Unix(0, at))})
		}
	}
	if since := cleanups.blocked(); !since.IsZero() {
		list = append(list, BlockedCall{"a function given to runtime.AddCleanup", time.Since(since)})
	}
	return list
}

// cleanups are the functions that the program, and libraries, have given to runtime.AddCleanup. None frees a tensor of
// Linstock's own accord, but one of the program's may.
var cleanups cleanupQueue

type cleanupQueue struct {
	mu   sync.Mutex
	late time.Time // since when one does not return that a sweep has given up; zero: there is none
	want uint64    // how many will have run when it has
}

// await waits until those have run that collections have queued so far, and reports whether they have. It does not wait
// where one that was given up has not returned.
func (q *cleanupQueue) await(until time.Time) bool {
	queued, executed := cleanupCounts()
	for start := time.Now(); executed < queued; _, executed = cleanupCounts() {
		now := time.Now()
		switch {
		case now.After(until) || !q.blocked().IsZero():
			return false
		case now.Sub(start) < 5*time.Millisecond:
			runtime.Gosched()
		default:
			cshim.Nap(100 * time.Microsecond)
		}
	}
	return true
}

// giveUp has no sweep wait until those have run that are queued now.
func (q *cleanupQueue) giveUp() {
	queued, _ := cleanupCounts()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.late.IsZero() {
		q.late, q.want = time.Now().Add(-othersTime), queued
	}
}

// blocked returns since when a cleanup that was given up has not returned; zero where there is none.
func (q *cleanupQueue) blocked() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.late.IsZero() {
		if _, executed := cleanupCounts(); executed >= q.want {
			q.late = time.Time{}
		}
	}
	return q.late
}

func cleanupCounts() (queued, executed uint64) {
	s := [2]metrics.Sample{{Name: "/gc/cleanups/queued:cleanups"}, {Name: "/gc/cleanups/executed:cleanups"}}
	metrics.Read(s[:])
	if s[0].Value.Kind() != metrics.KindUint64 || s[1].Value.Kind() != metrics.KindUint64 {
		return 0, 0
	}
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}
