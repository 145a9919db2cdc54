//go:build race && linux

package cshim

/*
#include <stdlib.h>
#include <unistd.h>

static void leave(int status, void *unused) { _exit(status); }
static void leave_at_exit(void) { on_exit(leave, NULL); }
*/
import "C"

// A Go program ends without C's exit, except under the race detector: exit would run the destructors of libtorch's global
// objects while other goroutines compute with them.
func init() { atLoad = func() { C.leave_at_exit() } }
