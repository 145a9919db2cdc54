package cshim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/linstock-ml/linstock/internal/intact"
)

// spaceForThreads is the address space that libtorch uses, besides its libraries, before the first tensor is
// made: threads, thread-local data, malloc's arenas. Each of 50 runs with limits of 1.8 to 2.4 GB either
// computed or returned the error below. Without the check, limits under 2 GB made the loader fail, or glibc or
// an uncaught std::bad_alloc end the process.
const spaceForThreads = 64 << 20

// addressSpace returns an error if a limit (ulimit -v) leaves too little address space for libtorch. Without
// the check some limits make the loader fail with "failed to map segment", and others end the process.
func addressSpace(shim string) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &limit); err != nil || limit.Cur == ^uint64(0) {
		return nil
	}
	// The first number is the size of the address space in pages.
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return nil
	}
	pages, _, _ := strings.Cut(string(text), " ")
	used, err := strconv.ParseUint(pages, 10, 64)
	if err != nil {
		return nil
	}
	used *= uint64(os.Getpagesize())
	need := uint64(spaceForThreads)
	for _, lib := range append(intact.Closure(shim), shim) {
		if info, err := os.Stat(lib); err == nil {
			need += uint64(info.Size())
		}
	}
	if used+need <= limit.Cur {
		return nil
	}
	return fmt.Errorf("the address space of this process is limited to %d MB (ulimit -v %d): %d MB are in use, and libtorch needs %d MB more; raise the limit: ulimit -v unlimited",
		limit.Cur/1e6, limit.Cur>>10, used/1e6, need/1e6)
}
