// Package alive has types with a native value and a cleanup.
package alive

import (
	"runtime"

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
