package cshim

//#include "table_gen.h"
import "C"

// GuardPages is where the memory of CPU tensors has a page that cannot be accessed. Only tests use it.
type GuardPages int32

// The places of guard pages, as in enum ls_guard.
const (
	NoGuardPages     GuardPages = C.LS_GUARD_OFF
	GuardPageAtEnd   GuardPages = C.LS_GUARD_END
	GuardPageAtStart GuardPages = C.LS_GUARD_START
)

// Set gives guard pages to the CPU tensors that are made from now on. An access beyond one then ends the process.
func (g GuardPages) Set() error {
	if err := Load(); err != nil {
		return err
	}
	return takeError(C.lsc_guard_pages_set(C.int32_t(g)))
}
