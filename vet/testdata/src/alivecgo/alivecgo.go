// Package alivecgo holds C memory with a cleanup.
package alivecgo

/*
#include <stdint.h>
typedef struct ev { int x; } ev;
static void rec(uintptr_t e, int s) {}
static void recp(ev *e, int s) {}
static void recv(void *e, int s) {}
static ev *mk(void) { return 0; }
static void del(ev *e) {}
*/
import "C"

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
)

var _ = cshim.Neg

type event struct {
	h uintptr
	p *C.ev
	v unsafe.Pointer

	mu sync.Mutex
}

func del(p *C.ev) { C.del(p) }

func newEvent() *event {
	e := &event{p: C.mk()}
	runtime.AddCleanup(e, del, e.p)
	return e
}

func (e *event) bad1() { C.rec(C.uintptr_t(e.h), 1) } // want `the cleanup of e can run during this call`
func (e *event) bad2() { C.recp(e.p, 1) }             // want `the cleanup of e can run during this call`
func (e *event) bad3() { C.recv(e.v, 1) }             // want `the cleanup of e can run during this call`

func (e *event) good1() { C.rec(C.uintptr_t(e.h), 1); runtime.KeepAlive(e) }
func (e *event) good2() { C.recp(e.p, 1); runtime.KeepAlive(e) }
func (e *event) good3() { C.recv(e.v, 1); runtime.KeepAlive(e) }
func (e *event) good4() { defer runtime.KeepAlive(e); C.recp(e.p, 1); C.recv(e.v, 1) }
func (e *event) good5() { e.mu.Lock(); defer e.mu.Unlock(); C.recp(e.p, 1) }

var global = newEvent()

func good6() { C.recp(global.p, 1) }
