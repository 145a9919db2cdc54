package cshim

/*
#include <stdlib.h>
#include "table_gen.h"
*/
import "C"

import "unsafe"

// Store is an ls_store; 0 is none.
type Store uintptr

// TCPStore is ls_tcp_store.
type TCPStore struct {
	Host         string
	Port         int
	Server       bool // host the store
	Shared       bool // with Server: one server for all stores of the process with this port
	Workers      int  // without Server: announce this process to a server that counts its workers; 0: do not
	Milliseconds int64
}

// New connects to the store, or hosts it, and returns the port.
func (t TCPStore) New() (Store, int, error) {
	host := C.CString(t.Host)
	defer C.free(unsafe.Pointer(host))
	var s C.ls_store
	var port C.int32_t
	// In C's memory, because it contains a pointer.
	o := (*C.ls_tcp_store)(C.malloc(C.sizeof_ls_tcp_store))
	defer C.free(unsafe.Pointer(o))
	*o = C.ls_tcp_store{host: host, port: C.int32_t(t.Port), server: flag(t.Server), shared: flag(t.Shared),
		workers: C.int32_t(t.Workers), milliseconds: C.int64_t(t.Milliseconds)}
	err := takeError(C.lsc_store_tcp(o, &s, &port))
	return Store(s), int(port), err
}

// FileStoreNew makes a store in a file that processes share.
func FileStoreNew(path string, processes int) (Store, error) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var s C.ls_store
	err := takeError(C.lsc_store_file(p, C.int32_t(processes), &s))
	return Store(s), err
}

// HashStoreNew makes a store in the memory of this process.
func HashStoreNew() (Store, error) {
	var s C.ls_store
	err := takeError(C.lsc_store_hash(&s))
	return Store(s), err
}

// Prefix returns a store whose keys are those of s with a prefix.
func (s Store) Prefix(prefix string) (Store, error) {
	p := C.CString(prefix)
	defer C.free(unsafe.Pointer(p))
	var made C.ls_store
	err := takeError(C.lsc_store_prefix(C.ls_store(s), p, &made))
	return Store(made), err
}

// Free frees the store.
func (s Store) Free() { C.lsc_store_free(C.ls_store(s)) }

func (s Store) with(key string, f func(s C.ls_store, key *C.char) error) error {
	k := C.CString(key)
	defer C.free(unsafe.Pointer(k))
	return f(C.ls_store(s), k)
}

// memory returns the address of a slice for C, which does not keep it.
func memory(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// Set sets a key.
func (s Store) Set(key string, value []byte) error {
	return s.with(key, func(s C.ls_store, k *C.char) error {
		return takeError(C.lsc_store_set(s, k, memory(value), C.uint64_t(len(value))))
	})
}

// Get waits for a key and returns its value. A value other than 0 in cancel ends the wait.
func (s Store) Get(key string, milliseconds int64, cancel *int32) (value []byte, err error) {
	err = s.with(key, func(s C.ls_store, k *C.char) (err error) {
		value, err = data(C.lsc_store_get(s, k, C.int64_t(milliseconds), (*C.int32_t)(cancel), nil, 0))
		return err
	})
	return value, err
}

func data(r C.ls_results) ([]byte, error) {
	s, err := text(r, nil)
	return []byte(s), err
}

// Wait waits for a key. A value other than 0 in cancel ends the wait.
func (s Store) Wait(key string, milliseconds int64, cancel *int32) error {
	return s.with(key, func(s C.ls_store, k *C.char) error {
		return takeError(C.lsc_store_wait(s, k, C.int64_t(milliseconds), (*C.int32_t)(cancel)))
	})
}

// Check reports whether a key is set.
func (s Store) Check(key string) (bool, error) {
	var there C.int32_t
	err := s.with(key, func(s C.ls_store, k *C.char) error { return takeError(C.lsc_store_check(s, k, &there)) })
	return there != 0, err
}

// Add adds n to the number in a key.
func (s Store) Add(key string, n int64) (int64, error) {
	var sum C.int64_t
	err := s.with(key, func(s C.ls_store, k *C.char) error { return takeError(C.lsc_store_add(s, k, C.int64_t(n), &sum)) })
	return int64(sum), err
}

// CompareSet sets a key to desired if its value is expected, and returns its value then.
func (s Store) CompareSet(key string, expected, desired []byte) (value []byte, err error) {
	err = s.with(key, func(s C.ls_store, k *C.char) (err error) {
		value, err = data(C.lsc_store_compare_set(s, k, memory(expected), C.uint64_t(len(expected)), memory(desired), C.uint64_t(len(desired)), nil, 0))
		return err
	})
	return value, err
}

// Delete deletes a key and reports whether it was set.
func (s Store) Delete(key string) (bool, error) {
	var deleted C.int32_t
	err := s.with(key, func(s C.ls_store, k *C.char) error { return takeError(C.lsc_store_delete(s, k, &deleted)) })
	return deleted != 0, err
}

// NumKeys returns the number of keys.
func (s Store) NumKeys() (int64, error) {
	var n C.int64_t
	err := takeError(C.lsc_store_num_keys(C.ls_store(s), &n))
	return int64(n), err
}

// Group is an ls_group; 0 is none.
type Group uintptr

// Backends is a set of backends.
type Backends int32

// The backends, as in enum ls_backend.
const (
	Gloo Backends = C.LS_BACKEND_GLOO
	NCCL Backends = C.LS_BACKEND_NCCL
)

// GroupNew connects this process to the others of a group within so many milliseconds; the other number is the timeout of
// collectives. A value other than 0 in cancel ends the wait for the others. Unless checked, the group's name in Python, is
// empty, the ranks compare their collectives.
func GroupNew(s Store, rank, size int, backends Backends, milliseconds, within int64, checked string, cancel *int32) (Group, error) {
	var g C.ls_group
	var name *C.char
	if checked != "" {
		name = C.CString(checked)
		defer C.free(unsafe.Pointer(name))
	}
	err := takeError(C.lsc_group_new(C.ls_store(s), C.int32_t(rank), C.int32_t(size), C.int32_t(backends), C.int64_t(milliseconds), C.int64_t(within), name, (*C.int32_t)(cancel), &g))
	return Group(g), err
}

// Abort makes the group's collectives fail.
func (g Group) Abort() error { return takeError(C.lsc_group_abort(C.ls_group(g))) }

// Free frees the group; collectives in flight are aborted.
func (g Group) Free() { C.lsc_group_free(C.ls_group(g)) }

// Settle waits until the collectives on a device are complete that a reducer has started.
func (g Group) Settle() error { return takeError(C.lsc_group_settle(C.ls_group(g))) }

// MonitoredBarrier waits until all ranks have called it.
func (g Group) MonitoredBarrier(milliseconds int64) error {
	return takeError(C.lsc_group_monitored_barrier(C.ls_group(g), C.int64_t(milliseconds)))
}

// CollectiveKind is the kind of a collective.
type CollectiveKind int32

// The kinds, as in enum ls_collective_kind.
const (
	Broadcast          CollectiveKind = C.LS_BROADCAST
	AllReduce          CollectiveKind = C.LS_ALL_REDUCE
	AllReduceCoalesced CollectiveKind = C.LS_ALL_REDUCE_COALESCED
	Reduce             CollectiveKind = C.LS_REDUCE
	AllGather          CollectiveKind = C.LS_ALL_GATHER
	AllGatherOne       CollectiveKind = C.LS_ALL_GATHER_ONE
	Gather             CollectiveKind = C.LS_GATHER
	Scatter            CollectiveKind = C.LS_SCATTER
	ReduceScatter      CollectiveKind = C.LS_REDUCE_SCATTER
	ReduceScatterOne   CollectiveKind = C.LS_REDUCE_SCATTER_ONE
	AllToAllOne        CollectiveKind = C.LS_ALL_TO_ALL_ONE
	Send               CollectiveKind = C.LS_SEND
	Receive            CollectiveKind = C.LS_RECEIVE
	Barrier            CollectiveKind = C.LS_BARRIER
	Exchange           CollectiveKind = C.LS_EXCHANGE
)

// Collective is ls_collective.
type Collective struct {
	Kind   CollectiveKind
	Reduce int32 // c10d::ReduceOp
	Peer   int32
	Tag    int32
}

var _ [unsafe.Sizeof(C.ls_collective{})]byte = [unsafe.Sizeof(Collective{})]byte{}

// Work is an ls_work; 0 is none.
type Work uintptr

// Start starts a collective.
func (g Group) Start(c Collective, out, in []Handle, outSizes, inSizes []int) (Work, error) {
	reading()
	named := enter()
	defer named.leave()
	var w C.ls_work
	err := takeError(C.lsc_group_start(C.ls_group(g), (*C.ls_collective)(unsafe.Pointer(&c)), outs(out), C.uint64_t(len(out)),
		outs(in), C.uint64_t(len(in)), dims(outSizes), C.uint64_t(len(outSizes)), dims(inSizes), C.uint64_t(len(inSizes)), &w))
	return Work(w), err
}

// Wait waits until the work is complete or interrupted and reports whether it is complete.
func (w Work) Wait() (bool, error) {
	var done C.int32_t
	err := takeError(C.lsc_work_wait(C.ls_work(w), &done))
	return done != 0, err
}

// Interrupt ends the wait of another thread, or the next one.
func (w Work) Interrupt() { C.lsc_work_interrupt(C.ls_work(w)) }

// Done reports whether the work is complete; false for a send or receive.
func (w Work) Done() bool { return C.lsc_work_done(C.ls_work(w)) != 0 }

// Source returns the rank from which a complete receive has received.
func (w Work) Source() int { return int(C.lsc_work_source(C.ls_work(w))) }

// Free frees the work.
func (w Work) Free() { C.lsc_work_free(C.ls_work(w)) }

// Compression is how a reducer makes gradients smaller that it sends.
type Compression int32

// The compressions, as in enum ls_gradient_compression.
const (
	CompressNone     Compression = C.LS_COMPRESS_NONE
	CompressFP16     Compression = C.LS_COMPRESS_FP16
	CompressBF16     Compression = C.LS_COMPRESS_BF16
	CompressPowerSGD Compression = C.LS_COMPRESS_POWER_SGD
)

// ReducerOptions is ls_reducer_options.
type ReducerOptions struct {
	BucketBytes, FirstBucketBytes       int64
	FindUnused, StaticGraph, BucketView bool
	Compression                         Compression
	PowerRank, PowerStart               int
	PowerMinRate, PowerEpsilon          float64
}

// Reducer is an ls_reducer; 0 is none.
type Reducer uintptr

// Reducer makes a reducer. sparse has 1 for each parameter whose gradient is sparse, and names has a line for each
// parameter.
func (g Group) Reducer(parameters []Handle, sparse []uint8, names string, o ReducerOptions) (Reducer, error) {
	defer enter().leave()
	reading()
	text := C.CString(names)
	defer C.free(unsafe.Pointer(text))
	var r C.ls_reducer
	options := C.ls_reducer_options{bucket_bytes: C.int64_t(o.BucketBytes), first_bucket_bytes: C.int64_t(o.FirstBucketBytes),
		find_unused: flag(o.FindUnused), static_graph: flag(o.StaticGraph), bucket_view: flag(o.BucketView), compression: C.int32_t(o.Compression),
		power_rank: C.int32_t(o.PowerRank), power_start: C.int64_t(o.PowerStart), power_min_rate: C.double(o.PowerMinRate), power_epsilon: C.double(o.PowerEpsilon)}
	err := takeError(C.lsc_reducer_new(C.ls_group(g), outs(parameters), C.uint64_t(len(parameters)), (*C.uint8_t)(unsafe.SliceData(sparse)), text, &options, &r))
	return Reducer(r), err
}

// BroadcastCoalesced copies the tensors of the rank root to those of the others.
func (g Group) BroadcastCoalesced(ts []Handle, root int) error {
	defer enter().leave()
	reading()
	return takeError(C.lsc_group_broadcast_coalesced(C.ls_group(g), outs(ts), C.uint64_t(len(ts)), C.int32_t(root)))
}

// BeforeForward precedes a forward pass; join is 0, or an all-reduce that counts the ranks that have inputs.
func (r Reducer) BeforeForward(sync bool, join Work, divideBySize bool) error {
	defer enter().leave()
	return takeError(C.lsc_reducer_before_forward(C.ls_reducer(r), flag(sync), C.ls_work(join), flag(divideBySize)))
}

// AfterForward follows a forward pass with its outputs.
func (r Reducer) AfterForward(sync bool, outputs []Handle) error {
	defer enter().leave()
	reading()
	return takeError(C.lsc_reducer_after_forward(C.ls_reducer(r), flag(sync), outs(outputs), C.uint64_t(len(outputs))))
}

// JoinForward takes the place of a forward pass on a rank without inputs.
func (r Reducer) JoinForward() error {
	defer enter().leave()
	return takeError(C.lsc_reducer_join_forward(C.ls_reducer(r)))
}

// JoinBackward takes the place of a backward pass on a rank without inputs.
func (r Reducer) JoinBackward() error {
	defer enter().leave()
	return takeError(C.lsc_reducer_join_backward(C.ls_reducer(r)))
}

// Times returns the reducer's mean times in nanoseconds.
func (r Reducer) Times() (times [4]int64, err error) {
	err = takeError(C.lsc_reducer_times(C.ls_reducer(r), (*C.int64_t)(unsafe.Pointer(&times))))
	return times, err
}

// Free frees the reducer.
func (r Reducer) Free() { C.lsc_reducer_free(C.ls_reducer(r)) }
