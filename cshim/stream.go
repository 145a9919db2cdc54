package cshim

/*
#include "table_gen.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

// Stream names a stream by its device's word and libtorch's number; 0 is the device's default stream.
type Stream struct {
	Device int32
	ID     int64
}

func (s Stream) words() (C.int32_t, C.int64_t) { return C.int32_t(s.Device), C.int64_t(s.ID) }

// The streams of a device that StreamNew never returns: graphs are captured on one, and warmed up on the other.
var reserved struct {
	sync.Mutex
	of map[int32][2]Stream
}

// CaptureStreams returns the streams of the device on which graphs are captured and warmed up, which StreamNew never
// returns. They are two, because a stream that is captured must have done no other work: libtorch records an event on
// each stream that has used a freed block, which ends the capture if another thread frees the block meanwhile.
func CaptureStreams(device int32) (capture, warmup Stream, err error) {
	reserved.Lock()
	defer reserved.Unlock()
	if s, made := reserved.of[device]; made {
		return s[0], s[1], nil
	}
	for _, s := range []*Stream{&capture, &warmup} {
		if *s, err = streamOfPool(device, 0); err != nil {
			return Stream{}, Stream{}, err
		}
	}
	if reserved.of == nil {
		reserved.of = map[int32][2]Stream{}
	}
	reserved.of[device] = [2]Stream{capture, warmup}
	return capture, warmup, nil
}

// StreamNew returns a stream of libtorch's pool for the device.
func StreamNew(device int32, priority int) (Stream, error) {
	capture, warmup, err := CaptureStreams(device) // before the pool has returned each of its streams
	if err != nil {
		return Stream{}, err
	}
	for {
		s, err := streamOfPool(device, priority)
		if err != nil || s != capture && s != warmup {
			return s, err
		}
	}
}

func streamOfPool(device int32, priority int) (Stream, error) {
	var id C.int64_t
	err := takeError(C.lsc_stream_new(C.int32_t(device), C.int32_t(priority), &id))
	return Stream{device, int64(id)}, err
}

// StreamCurrent returns the calling thread's current stream of the device.
func StreamCurrent(device int32) (Stream, error) {
	var id C.int64_t
	err := takeError(C.lsc_stream_current(C.int32_t(device), &id))
	return Stream{device, int64(id)}, err
}

// CurrentStreams returns the calling thread's current streams of the devices that this process has used and that are not
// lost. A device that it has not used has no other current stream than the default one.
func CurrentStreams() (streams []Stream, err error) {
	if Path() == "" || cudaDevices == 0 {
		return nil, nil
	}
	for _, t := range DeviceTypes {
		for _, i := range t.Used() {
			s, err := StreamCurrent(t.Word(i))
			if err != nil {
				return nil, err
			}
			streams = append(streams, s)
		}
	}
	return streams, nil
}

// Query reports whether the stream's work is done.
func (s Stream) Query() (bool, error) {
	device, id := s.words()
	var done C.int32_t
	err := takeError(C.lsc_stream_query(device, id, &done))
	return done != 0, err
}

// Synchronize waits for the stream's work.
func (s Stream) Synchronize() error {
	device, id := s.words()
	return takeError(C.lsc_stream_synchronize(device, id))
}

// WaitFor lets later work of s wait for the work that t has.
func (s Stream) WaitFor(t Stream) error {
	e, err := EventNew(t.Device, false)
	if err != nil {
		return err
	}
	defer e.Free()
	if err := e.Record(t); err != nil {
		return err
	}
	return e.Wait(s)
}

// Record records that the stream uses a tensor's memory.
func (s Stream) Record(t Handle) error {
	device, id := s.words()
	return takeError(C.lsc_stream_record(native(t), device, id))
}

// Copy gives a copy of from to s, which is of to's device. Before to is freed, the stream that it was made on must wait for
// the copy.
func (s Stream) Copy(to, from Handle) error {
	defer enter().leave()
	device, id := s.words()
	return takeError(C.lsc_stream_copy(native(to), native(from), device, id))
}

// StreamEvent is an ls_stream_event; 0 is none.
type StreamEvent uintptr

// EventNew makes an event for devices of the type of a device.
func EventNew(device int32, timing bool) (StreamEvent, error) {
	var e C.ls_stream_event
	err := takeError(C.lsc_event_new(C.int32_t(device), flag(timing), &e))
	return StreamEvent(e), err
}

// Free frees the event.
func (e StreamEvent) Free() { C.lsc_event_free(C.ls_stream_event(e)) }

// Record records the event on s.
func (e StreamEvent) Record(s Stream) error {
	device, id := s.words()
	return takeError(C.lsc_event_record(C.ls_stream_event(e), device, id))
}

// Wait lets later work of s wait for the event.
func (e StreamEvent) Wait(s Stream) error {
	device, id := s.words()
	return takeError(C.lsc_event_wait(C.ls_stream_event(e), device, id))
}

// Query reports whether the work before the event is done.
func (e StreamEvent) Query() (bool, error) {
	var done C.int32_t
	err := takeError(C.lsc_event_query(C.ls_stream_event(e), &done))
	return done != 0, err
}

// Synchronize waits for the work before the event.
func (e StreamEvent) Synchronize() error {
	return takeError(C.lsc_event_synchronize(C.ls_stream_event(e)))
}

// Elapsed returns the milliseconds between two events.
func (e StreamEvent) Elapsed(end StreamEvent) (float64, error) {
	var ms C.double
	err := takeError(C.lsc_event_elapsed(C.ls_stream_event(e), C.ls_stream_event(end), &ms))
	return float64(ms), err
}

// Pool is ls_pool, a memory pool of graphs.
type Pool struct{ First, Second uint64 }

var _ [unsafe.Sizeof(C.ls_pool{})]byte = [unsafe.Sizeof(Pool{})]byte{}

// Graph is an ls_graph; 0 is none.
type Graph uintptr

// GraphBegin begins to capture the calling thread's current stream of the device.
func GraphBegin(device int32, pool Pool) (Graph, error) {
	var g C.ls_graph
	err := takeError(C.lsc_graph_begin(C.int32_t(device), (*C.ls_pool)(unsafe.Pointer(&pool)), &g))
	return Graph(g), err
}

// GraphRefuse makes the capture of the calling thread fail when it ends, after a call that Go has refused.
func GraphRefuse() { _, _ = GraphBegin(DeviceTypes[0].Word(0), Pool{}) } // a capture in a capture is refused

// End ends the capture and returns the graph's pool. After an error the graph must be abandoned and freed.
func (g Graph) End() (pool Pool, err error) {
	err = takeError(C.lsc_graph_end(C.ls_graph(g), (*C.ls_pool)(unsafe.Pointer(&pool))))
	return pool, err
}

// Abandon ends the capture of a graph that is not wanted.
func (g Graph) Abandon() { C.lsc_graph_abandon(C.ls_graph(g)) }

// Replay runs the graph on the calling thread's current stream.
func (g Graph) Replay() error { return takeError(C.lsc_graph_replay(C.ls_graph(g))) }

// Free frees the graph.
func (g Graph) Free() { C.lsc_graph_free(C.ls_graph(g)) }

// GraphCapturing reports whether the calling thread is capturing a graph, or autograd runs a part of a captured backward
// pass on it.
func GraphCapturing() bool { return cudaDevices != 0 && C.lsc_graph_capturing() != 0 }
