package cshim

/*
#cgo noescape lsc_mode_get
#cgo nocallback lsc_mode_get
#cgo noescape lsc_mode_push
#cgo nocallback lsc_mode_push
#cgo noescape lsc_mode_pop
#cgo nocallback lsc_mode_pop
#cgo noescape lsc_casts_clear
#cgo nocallback lsc_casts_clear
#cgo noescape lsc_scope_set
#cgo nocallback lsc_scope_set
#cgo noescape lsc_scope_get
#cgo nocallback lsc_scope_get
#cgo noescape lsc_scope_leave
#cgo nocallback lsc_scope_leave
#cgo noescape lsc_scope_orphans
#cgo nocallback lsc_scope_orphans
#cgo noescape lsc_yield_due
#cgo nocallback lsc_yield_due
#cgo noescape lsc_generator_new
#cgo nocallback lsc_generator_new
#cgo noescape lsc_generator_free
#cgo nocallback lsc_generator_free
#cgo noescape lsc_generator_seed
#cgo nocallback lsc_generator_seed
#cgo noescape lsc_generator_seed_random
#cgo nocallback lsc_generator_seed_random
#cgo noescape lsc_generator_current_seed
#cgo nocallback lsc_generator_current_seed
#cgo noescape lsc_generator_state
#cgo nocallback lsc_generator_state
#cgo noescape lsc_generator_set_state
#cgo nocallback lsc_generator_set_state
#cgo noescape lsc_sdpa_get
#cgo nocallback lsc_sdpa_get
#cgo noescape lsc_sdpa_set
#cgo nocallback lsc_sdpa_set
#cgo noescape lsc_rng_state
#cgo nocallback lsc_rng_state
#include "table_gen.h"
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// ModeKind is the kind of a [Mode].
type ModeKind int32

// The kinds, as in enum ls_mode_kind.
const (
	ModeGrad      ModeKind = C.LS_MODE_GRAD
	ModeInference ModeKind = C.LS_MODE_INFERENCE
	ModeAutocast  ModeKind = C.LS_MODE_AUTOCAST
	ModeStream    ModeKind = C.LS_MODE_STREAM
	ModeAnomaly   ModeKind = C.LS_MODE_ANOMALY
	ModeForward   ModeKind = C.LS_MODE_FORWARD
)

// Mode is ls_mode: a mode of the calling thread, with its arguments.
type Mode struct {
	Kind   ModeKind
	On     bool  // of ModeAnomaly: NaN is an error; not read for ModeStream and ModeForward
	Device int32 // of ModeAutocast: a device type; of ModeStream: a device's word
	DType  int32 // of ModeAutocast, if on
	Stream int64 // of ModeStream: the stream's number
}

// ModeGet returns the mode of a kind other than ModeStream and ModeAnomaly that is in force. deviceType is read for ModeAutocast.
func ModeGet(kind ModeKind, deviceType int32) Mode {
	m := C.lsc_mode_get(C.int32_t(kind), C.int32_t(deviceType))
	return Mode{Kind: ModeKind(m.kind), On: m.on != 0, Device: int32(m.device), DType: int32(m.dtype)}
}

// ModePush sets a mode on the calling thread. ModePop restores the mode before.
func ModePush(m Mode) error {
	return takeError(C.lsc_mode_push(C.ls_mode{
		kind: C.int32_t(m.Kind), on: flag(m.On), device: C.int32_t(m.Device), dtype: C.int32_t(m.DType),
		stream: C.int64_t(m.Stream),
	}))
}

// ModePop undoes the last ModePush of the calling thread.
func ModePop() { C.lsc_mode_pop() }

// ClearCasts forgets the casts that autocast keeps: if everywhere, and otherwise if the calling thread is in a region
// that may have kept some, or in a backward pass, which a thread in such a region may wait for.
func ClearCasts(everywhere bool) { C.lsc_casts_clear(flag(everywhere)) }

// ScopeSet sets the calling thread's scope word and returns the one before. If there was none, it returns ScopeMain on
// the main thread.
func ScopeSet(word uint64) uint64 { return uint64(C.lsc_scope_set(C.uint64_t(word))) }

// ScopeGet returns the calling thread's scope word.
func ScopeGet() uint64 { return uint64(C.lsc_scope_get()) }

// ScopeLeave sets the calling thread's scope word to parent if it is word, and returns the one before. If the goroutine
// should yield now, having left its outermost scope, that has ScopeYield.
func ScopeLeave(word, parent uint64) uint64 {
	return uint64(C.lsc_scope_leave(C.uint64_t(word), C.uint64_t(parent)))
}

// Yield yields if the goroutine has not for 8 ms on this thread and operators may use several threads. It is for calls whose
// result has no scope word.
func Yield() {
	if C.lsc_yield_due(0) != 0 {
		runtime.Gosched()
	}
}

// ScopeOrphans fills words with the scope words of threads that ended with one set and returns their number.
func ScopeOrphans(words []uint64) int {
	return int(C.lsc_scope_orphans((*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(words))), C.uint64_t(len(words))))
}

// ManualSeed seeds all generators.
func ManualSeed(seed uint64) error { return takeError(C.lsc_rng_seed(C.uint64_t(seed))) }

// RNGState returns the state of a device's generator, a uint8 tensor.
func RNGState(device int32) Result {
	defer enter().leave()
	return result(C.lsc_rng_state(C.int32_t(device)))
}

// SetRNGState sets the state of a device's generator.
func SetRNGState(device int32, state Handle) ErrorRef {
	defer enter().leave()
	return C.lsc_rng_set_state(C.int32_t(device), native(state))
}

// Generator is one owned reference to a random number generator; 0 is none.
type Generator uintptr

// NewGenerator makes a generator of a device.
func NewGenerator(device int32) (Generator, error) {
	var g C.ls_generator
	err := takeError(C.lsc_generator_new(C.int32_t(device), &g))
	return Generator(g), err
}

// Free frees a generator.
func (g Generator) Free() { C.lsc_generator_free(C.ls_generator(g)) }

// Seed sets the seed.
func (g Generator) Seed(seed uint64) error {
	return takeError(C.lsc_generator_seed(C.ls_generator(g), C.uint64_t(seed)))
}

// SeedRandom sets a seed from the system and returns it.
func (g Generator) SeedRandom() (uint64, error) {
	var seed C.uint64_t
	err := takeError(C.lsc_generator_seed_random(C.ls_generator(g), &seed))
	return uint64(seed), err
}

// CurrentSeed returns the last seed.
func (g Generator) CurrentSeed() (uint64, error) {
	var seed C.uint64_t
	err := takeError(C.lsc_generator_current_seed(C.ls_generator(g), &seed))
	return uint64(seed), err
}

// State returns the state, a uint8 tensor.
func (g Generator) State() Result {
	defer enter().leave()
	return result(C.lsc_generator_state(C.ls_generator(g)))
}

// SetState sets the state.
func (g Generator) SetState(state Handle) ErrorRef {
	defer enter().leave()
	return C.lsc_generator_set_state(C.ls_generator(g), native(state))
}

// AttentionBackends returns the backends of scaled_dot_product_attention that are allowed, in order of priority.
func AttentionBackends() []int32 {
	var out [16]C.int32_t
	n := int(C.lsc_sdpa_get(&out[0], C.uint64_t(len(out))))
	backends := make([]int32, n)
	for i := range backends {
		backends[i] = int32(out[i])
	}
	return backends
}

// SetAttentionBackends sets what AttentionBackends returns.
func SetAttentionBackends(backends []int32) error {
	return takeError(C.lsc_sdpa_set((*C.int32_t)(unsafe.Pointer(unsafe.SliceData(backends))), C.uint64_t(len(backends))))
}

// SetNumThreads sets the number of threads of an operator, for all threads.
func SetNumThreads(n int) error {
	if n > 1<<20 {
		n = 1 << 20
	}
	return takeError(C.lsc_threads_set(C.int32_t(n)))
}

// NumThreads returns the number of threads that an operator may use.
func NumThreads() int { return int(C.lsc_threads_get()) }

// SetDeterministic calls use_deterministic_algorithms.
func SetDeterministic(on, warnOnly bool) error {
	return takeError(C.lsc_deterministic_set(flag(on), flag(warnOnly)))
}

// Deterministic reports whether deterministic algorithms are used.
func Deterministic() bool { return C.lsc_deterministic_get() != 0 }

// SetMatMulPrecision sets the precision of products: 0 highest, 1 high, 2 medium.
func SetMatMulPrecision(p int) error { return takeError(C.lsc_matmul_precision_set(C.int32_t(p))) }

// MatMulPrecision returns the precision of products.
func MatMulPrecision() int { return int(C.lsc_matmul_precision_get()) }

// SetDefaultDType calls set_default_dtype.
func SetDefaultDType(dtype int32) error { return takeError(C.lsc_default_dtype_set(C.int32_t(dtype))) }

// DefaultDType calls get_default_dtype.
func DefaultDType() int32 { return int32(C.lsc_default_dtype_get()) }

// DeviceCount returns the number of devices of a type that can be used.
func DeviceCount(deviceType int32) int { return int(C.lsc_device_count(C.int32_t(deviceType))) }

// Synchronize waits until a device has completed its work.
func Synchronize(device int32) error { return takeError(C.lsc_device_synchronize(C.int32_t(device))) }
