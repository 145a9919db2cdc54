// Package alive has types with a native value and a cleanup.
package alive

import (
	"runtime"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
)

type event struct{ e uintptr }

func newEvent(e uintptr) *event {
	v := &event{e}
	runtime.AddCleanup(v, cshim.EventDestroy, e)
	return v
}

func record(v *event, stream int) {
	cshim.EventRecord(v.e, stream) // want `the cleanup of v can run during this call`
}

func recordKept(v *event, stream int) {
	cshim.EventRecord(v.e, stream)
	runtime.KeepAlive(v)
}

func recordDeferred(v *event, stream int) {
	defer runtime.KeepAlive(v)
	cshim.EventRecord(v.e, stream)
}

func recordSometimes(v *event, stream int) {
	cshim.EventRecord(v.e, stream) // want `the cleanup of v can run during this call`
	if stream == 0 {
		runtime.KeepAlive(v)
	}
}

type pool struct{ ready *event }

// The pool refers to it, but nothing keeps the pool alive.
func (p *pool) record() {
	cshim.EventRecord(p.ready.e, 0) // want `the cleanup of p.ready can run during this call`
}

type plain struct{ e uintptr }

func recordPlain(p *plain) { cshim.EventRecord(p.e, 0) }

func recordNew() {
	cshim.EventRecord(newEvent(0).e, 0) // want `the cleanup of the event can run during this call`
}

var current = newEvent(0)

var all struct{ last *event }

// Package variables keep what they hold.
func recordCurrent() {
	cshim.EventRecord(current.e, 0)
	cshim.EventRecord(all.last.e, 0)
}

type guarded struct {
	mu sync.Mutex
	e  uintptr
}

func newGuarded(e uintptr) *guarded {
	g := &guarded{e: e}
	runtime.AddCleanup(g, cshim.EventDestroy, e)
	return g
}

// A deferred call keeps its arguments, and so what they point into.
func recordLocked(g *guarded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cshim.EventRecord(g.e, 0)
}

func recordUnlocked(g *guarded) {
	g.mu.Lock()
	unlock := g.mu.Unlock
	cshim.EventRecord(g.e, 0)
	unlock()
}

func recordCaptured(v *event) {
	defer func() { runtime.KeepAlive(v) }()
	cshim.EventRecord(v.e, 0)
}

func recordOther(g *guarded) {
	defer cshim.EventDestroy(g.e)
	cshim.EventRecord(g.e, 0) // want `the cleanup of g can run during this call`
}
