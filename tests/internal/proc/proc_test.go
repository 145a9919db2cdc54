package proc_test

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/linstock-ml/linstock/tests/internal/proc"
)

// TestStatus tests that the sizes of this process are in bytes, and the errors.
func TestStatus(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux's /proc")
	}
	before, err := proc.Status("self", "VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	held := make([]byte, 64<<20)
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = 1
	}
	after, err := proc.Status(strconv.Itoa(os.Getpid()), "VmRSS")
	if more := after - before; err != nil || more < 48<<20 || more > 256<<20 {
		t.Errorf("%d bytes more, %v; want about %d", more, err, len(held))
	}
	runtime.KeepAlive(held)
	if _, err := proc.Status("self", "Name"); err == nil {
		t.Error("no error for a line that is not a size")
	}
	if _, err := proc.Status("0", "VmRSS"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}
