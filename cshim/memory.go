package cshim

/*
#cgo noescape lsc_memory_stats
#cgo nocallback lsc_memory_stats
#cgo noescape lsc_memory_pace
#cgo nocallback lsc_memory_pace
#cgo noescape lsc_memory_trim
#cgo nocallback lsc_memory_trim
#cgo noescape lsc_memory_capacity
#cgo nocallback lsc_memory_capacity
#cgo noescape lsc_pressure_stats
#cgo nocallback lsc_pressure_stats
#cgo noescape lsc_samples_attach
#cgo nocallback lsc_samples_attach
#include <stdlib.h>
#include <time.h>
#include "table_gen.h"

// One call from Go: between two the goroutine would queue for a processor behind the goroutines that were just woken.
static int32_t pressure_next(ls_pressure *p, int64_t timeout_ms) {
	if (p->round != 0) {
		lsc_pressure_done(p);
		p->round = 0;
	}
	return lsc_pressure_wait(p, timeout_ms);
}

static void nap(long ns) {
	struct timespec t = {0, ns};
	nanosleep(&t, NULL);
}
*/
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/linstock-ml/linstock/internal/cgroup"
)

// Memory is ls_memory.
type Memory struct {
	Allocated, Peak, Requested, Reserved, Cached, Active, LargestFree int64
	Allocations, Frees, Total, Limit                                  int64
	Handles, Created, MostHandles                                     int64
}

var _ [unsafe.Sizeof(C.ls_memory{})]byte = [unsafe.Sizeof(Memory{})]byte{}

// MemoryStats returns the counters of a device's allocator.
func MemoryStats(device int32) (Memory, error) {
	var m Memory
	err := takeError(C.lsc_memory_stats(C.int32_t(device), (*C.ls_memory)(unsafe.Pointer(&m))))
	return m, err
}

// Pace is ls_pace.
type Pace struct{ Live, Reserved, Limit, Total, Freed, Low int64 }

var _ [unsafe.Sizeof(C.ls_pace{})]byte = [unsafe.Sizeof(Pace{})]byte{}

// MemoryPace returns the counters that a pacer reads. It takes no lock.
func MemoryPace(device int32) (p Pace, err error) {
	err = takeError(C.lsc_memory_pace(C.int32_t(device), (*C.ls_pace)(unsafe.Pointer(&p))))
	return p, err
}

// MemoryResetPeak sets the peak to the bytes live now.
func MemoryResetPeak(device int32) error {
	return takeError(C.lsc_memory_reset_peak(C.int32_t(device)))
}

// MemoryExactPeak makes the CPU's peak exact until as many calls with false follow; see ls_memory_exact_peak.
func MemoryExactPeak(on bool) {
	var n C.int32_t
	if on {
		n = 1
	}
	C.lsc_memory_exact_peak(n)
}

// MemoryEmptyCache returns the allocator's cached blocks to the system.
func MemoryEmptyCache(device int32) error {
	return takeError(C.lsc_memory_empty_cache(C.int32_t(device)))
}

// MemoryTrim returns cached blocks of the CPU's allocator to the system until at most keep bytes are left.
func MemoryTrim(device int32, keep int64) (freed int64, err error) {
	err = takeError(C.lsc_memory_trim(C.int32_t(device), C.int64_t(keep), (*C.int64_t)(&freed)))
	return freed, err
}

// MemoryCapacity returns the bytes that a CUDA device has and the bytes that are free. It makes a CUDA context on the
// device.
func MemoryCapacity(device int32) (free, total int64, err error) {
	err = takeError(C.lsc_memory_capacity(C.int32_t(device), (*C.int64_t)(&free), (*C.int64_t)(&total)))
	return free, total, err
}

// MemoryTotal returns the bytes that a CUDA device has. It makes no CUDA context.
func MemoryTotal(device int32) (total int64, err error) {
	err = takeError(C.lsc_memory_capacity(C.int32_t(device), nil, (*C.int64_t)(&total)))
	return total, err
}

// MemorySetLimit sets the hard limit of a device; 0: none.
func MemorySetLimit(device int32, bytes int64) error {
	return takeError(C.lsc_memory_set_limit(C.int32_t(device), C.int64_t(bytes)))
}

// MemoryFollowCGroups makes the CPU's limit follow the room in the groups, up to most bytes and that share of their
// lowest limit, until MemorySetLimit is called. caller is the number of bytes that Go's runtime has.
func MemoryFollowCGroups(groups []cgroup.Group, most int64, share float64, caller int64) error {
	var list []C.ls_cgroup
	for _, g := range groups {
		dir := C.CString(g.Dir)
		defer C.free(unsafe.Pointer(dir))
		list = append(list, C.ls_cgroup{dir: dir, version: C.int32_t(g.Version)})
	}
	return takeError(C.lsc_memory_follow_cgroups(unsafe.SliceData(list), C.uint64_t(len(list)), C.int64_t(most), C.double(share), C.int64_t(caller)))
}

// MemorySetTriggers sets the live bytes, and the bytes ever allocated, above which Due is set, and the live
// bytes above which allocations wait for a round.
func MemorySetTriggers(device int32, live, total, wait int64) error {
	return takeError(C.lsc_memory_set_triggers(C.int32_t(device), C.int64_t(live), C.int64_t(total), C.int64_t(wait)))
}

// notDue is read until the shim is loaded.
var notDue uint32

var due atomic.Pointer[uint32]

func init() { due.Store(&notDue) }

// Due reports whether a device has passed a trigger, or an allocation waits. It costs two loads.
func Due() bool { return atomic.LoadUint32(due.Load()) != 0 }

// SetDue sets or clears Due and returns the value before.
func SetDue(on bool) bool {
	var v uint32
	if on {
		v = 1
	}
	return atomic.SwapUint32(due.Load(), v) != 0
}

func readBoard() {
	due.Store((*uint32)(unsafe.Pointer(&C.lsc_memory_board().due)))
	seen.Store((*uint64)(unsafe.Pointer(C.lsc_samples_seen())))
}

// Waiters are the allocations that wait on one device: ls_waiters.
type Waiters struct {
	Bytes   int64 // their sum
	Largest int64
	Device  int32
	Reason  int32 // the highest of WaitTarget, WaitLimit and WaitSystem among them
	Verdict int32 // VerdictAdmit, VerdictExhausted; set before the next PressureNext
	Exhaust int32 // 1: one of them has waited for rounds that were not exhausted; this one should be
}

// Why allocations wait, and the result of a round: ls_wait_reason and ls_verdict.
const (
	WaitTarget = C.LS_WAIT_TARGET
	WaitLimit  = C.LS_WAIT_LIMIT
	WaitSystem = C.LS_WAIT_SYSTEM

	VerdictAdmit     = C.LS_VERDICT_ADMIT
	VerdictExhausted = C.LS_VERDICT_EXHAUSTED
)

// Pressure is ls_pressure.
type Pressure struct {
	round   uint64
	count   int32
	_       int32
	waiters [C.LS_PRESSURE_DEVICES]Waiters
}

var (
	_ [unsafe.Sizeof(C.ls_waiters{})]byte  = [unsafe.Sizeof(Waiters{})]byte{}
	_ [unsafe.Sizeof(C.ls_pressure{})]byte = [unsafe.Sizeof(Pressure{})]byte{}
)

// Waiters returns the waiting allocations, one entry for each device. The caller sets their verdicts.
func (p *Pressure) Waiters() []Waiters { return p.waiters[:p.count] }

// PressureAttach attaches the caller as the pacer. It returns false if one is attached already.
func PressureAttach() bool { return C.lsc_pressure_attach() != 0 }

// PressureNext ends the round in p, if there is one, and blocks this thread until another round is requested
// (1), the time is over (0), or ls_pressure_stop was called (-1). If the time is less than a millisecond, it returns 0 at
// once.
func PressureNext(p *Pressure, timeout time.Duration) int {
	return int(C.pressure_next((*C.ls_pressure)(unsafe.Pointer(p)), C.int64_t(timeout.Milliseconds())))
}

// Nap blocks the thread for less than a second. For a few microseconds it is more exact than time.Sleep.
func Nap(d time.Duration) { C.nap(C.long(min(max(d, 0), time.Second-1))) }

// SweepingSet sets whether allocations of this thread never wait, and returns the value before.
func SweepingSet(on bool) bool { return C.lsc_sweeping_set(flag(on)) != 0 }

// Sweeping reports whether allocations of this thread never wait.
func Sweeping() bool { return C.lsc_sweeping_set(-1) != 0 }

// PressureCounts is ls_pressure_counts.
type PressureCounts struct {
	Waits, WaitNS, Timeouts, Retries, OOMs int64
	Histogram                              [C.LS_WAIT_BUCKETS]int64
}

var _ [unsafe.Sizeof(C.ls_pressure_counts{})]byte = [unsafe.Sizeof(PressureCounts{})]byte{}

// TargetWait is the longest wait for memory below the hard limit.
const TargetWait = C.LS_WAIT_TARGET_MS * time.Millisecond

// PressureWaited counts a wait for memory outside the shim.
func PressureWaited(took time.Duration, timedOut bool) {
	C.lsc_pressure_waited(C.int64_t(took), flag(timedOut))
}

// PressureStats returns the counts since the start.
func PressureStats() (c PressureCounts) {
	C.lsc_pressure_stats((*C.ls_pressure_counts)(unsafe.Pointer(&c)))
	return c
}

// Flags in the scope word of a result.
const (
	ScopeSampled = C.LS_SCOPE_SAMPLED // the thread has samples without a site
	ScopeYield   = C.LS_SCOPE_YIELD   // the goroutine should yield: its thread has not for 8 ms
	ScopeFlags   = ScopeSampled | ScopeYield
)

// ScopeMain is what ScopeSet returns on the main thread if there was no scope word.
const ScopeMain = C.LS_SCOPE_MAIN

// SamplesSetRate sets the average number of bytes between samples; 0: no samples; 1: every block.
func SamplesSetRate(bytes int64) { C.lsc_samples_set_rate(C.int64_t(bytes)) }

// SamplesAttach sets the site of the calling thread's new samples and of result's block; result may be 0.
func SamplesAttach(site uint32, result Handle) {
	C.lsc_samples_attach(C.uint32_t(site), native(result))
}

// NoSite is the site of blocks that were not attributed.
const NoSite = C.LS_NO_SITE

var seen atomic.Pointer[uint64]

func init() { seen.Store(new(uint64)) }

// SamplesSeen returns the number of blocks that have been sampled. It costs two loads.
func SamplesSeen() uint64 { return atomic.LoadUint64(seen.Load()) }

// Site is ls_site.
type Site struct {
	Site                                         uint32
	Device                                       int32
	LiveBytes, LiveCount, TotalBytes, TotalCount int64
}

var _ [unsafe.Sizeof(C.ls_site{})]byte = [unsafe.Sizeof(Site{})]byte{}

// Event is ls_event.
type Event struct {
	TimeNS  int64
	Address uint64
	Bytes   int64
	Asked   int64
	Stream  uint64
	Site    uint32
	Device  int32
	Kind    EventKind
	Thread  uint32
}

// EventKind is ls_event_kind.
type EventKind int32

// The event kinds.
const (
	Allocated        EventKind = C.LS_EVENT_ALLOCATED
	Freed            EventKind = C.LS_EVENT_FREED
	FreeRequested    EventKind = C.LS_EVENT_FREE_REQUESTED
	SegmentAllocated EventKind = C.LS_EVENT_SEGMENT_ALLOCATED
	SegmentFreed     EventKind = C.LS_EVENT_SEGMENT_FREED
	SegmentMapped    EventKind = C.LS_EVENT_SEGMENT_MAPPED
	SegmentUnmapped  EventKind = C.LS_EVENT_SEGMENT_UNMAPPED
	SnapshotTaken    EventKind = C.LS_EVENT_SNAPSHOT
	NoMemory         EventKind = C.LS_EVENT_OUT_OF_MEMORY
)

var _ [unsafe.Sizeof(C.ls_event{})]byte = [unsafe.Sizeof(Event{})]byte{}

// all grows the slice until every element fits.
func all[T any](f func(out *T, n uint64) uint64) []T {
	var out []T
	for {
		n := int(f(unsafe.SliceData(out), uint64(len(out))))
		if n <= len(out) {
			return out[:n]
		}
		out = make([]T, n+n/8+16)
	}
}

// SampledSites returns the sites with the bytes and blocks that are live and were allocated there.
func SampledSites() []Site {
	return all(func(out *Site, n uint64) uint64 {
		return uint64(C.lsc_samples_sites((*C.ls_site)(unsafe.Pointer(out)), C.uint64_t(n)))
	})
}

// HistorySet keeps the last n events of each device; 0: none.
func HistorySet(n uint64) error { return takeError(C.lsc_history_set(C.uint64_t(n))) }

// HistoryEvents returns the recorded events, each device's oldest first.
func HistoryEvents() []Event {
	return all(func(out *Event, n uint64) uint64 {
		return uint64(C.lsc_history_events((*C.ls_event)(unsafe.Pointer(out)), C.uint64_t(n)))
	})
}

// HistoryOutOfMemory adds an event of kind NoMemory to a device's history: an operator called at site has
// failed to allocate this many bytes while free bytes were free. Without a history it does nothing.
func HistoryOutOfMemory(device int32, bytes, free int64, site uint32) error {
	return takeError(C.lsc_history_out_of_memory(C.int32_t(device), C.int64_t(bytes), C.int64_t(free), C.uint32_t(site)))
}

// HistoryLive returns the live sampled blocks.
func HistoryLive() []Event {
	return all(func(out *Event, n uint64) uint64 {
		return uint64(C.lsc_history_live((*C.ls_event)(unsafe.Pointer(out)), C.uint64_t(n)))
	})
}
