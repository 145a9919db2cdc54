package cshim

/*
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unsafe"
)

// openMPSettings are the variables whose bad values make LLVM's runtime crash, hang or take all memory, while libgomp
// prints a warning and computes. refuse returns what is wrong with a value, or "". The runtime itself reports other
// values that it cannot read, and ignores them.
var openMPSettings = []struct {
	name   string
	refuse func(value string) string
}{
	{"OMP_NUM_THREADS", refuseThreads},
	{"KMP_ALL_THREADS", refuseThreadLimit},
	{"KMP_DEVICE_THREAD_LIMIT", refuseThreadLimit},
	{"OMP_STACKSIZE", refuseStack(1 << 10)},
	{"KMP_STACKSIZE", refuseStack(1)},
}

// refuseThreads takes what libgomp takes: a number of threads for each level of nesting.
func refuseThreads(value string) string {
	const most = 1 << 16
	for part := range strings.SplitSeq(value, ",") {
		if n, err := strconv.ParseUint(strings.Trim(part, spaces), 10, 64); err != nil || n < 1 || n > most {
			return fmt.Sprintf("want a number of threads from 1 to %d, or several with commas", most)
		}
	}
	return ""
}

// refuseThreadLimit refuses a limit that the runtime's own threads exceed, whatever the number of threads of operators.
func refuseThreadLimit(value string) string {
	const least = 3
	if n, err := strconv.ParseInt(strings.Trim(value, spaces), 10, 64); err == nil && n < least {
		return fmt.Sprintf("want a limit of %d threads at least (OMP_NUM_THREADS sets those of an operator)", least)
	}
	return ""
}

var stackSize = regexp.MustCompile(`^(\d+)[` + spaces + `]*([bkmgt]?)b?$`)

// refuseStack returns a function that refuses a stack size that the system does not give a thread. unit is the number
// of bytes that a number without a letter stands for.
func refuseStack(unit float64) func(value string) string {
	return func(value string) string {
		m := stackSize.FindStringSubmatch(strings.ToLower(strings.Trim(value, spaces)))
		if m == nil {
			return ""
		}
		of := map[string]float64{"": unit, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}[m[2]]
		if n, err := strconv.ParseFloat(m[1], 64); err != nil || n*of > 1<<30 {
			return "want 1G at most"
		}
		return ""
	}
}

const spaces = " \t\n\v\f\r" // of isspace

// dropOpenMPSettings removes the refused settings from C's environment, which the runtime reads, and reports each on
// standard error: the program computes without them. os.Getenv and processes that the program starts still have them.
func dropOpenMPSettings() {
	for _, s := range openMPSettings {
		name := C.CString(s.name)
		if v := C.getenv(name); v != nil {
			value := C.GoString(v)
			if why := s.refuse(value); why != "" {
				fmt.Fprintf(os.Stderr, "linstock: %s is ignored: invalid value %q: %s\n", s.name, value, why)
				C.unsetenv(name)
			}
		}
		C.free(unsafe.Pointer(name))
	}
}
