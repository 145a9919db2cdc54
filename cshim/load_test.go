package cshim_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/locate"
)

// The first calls of a program may come from many goroutines. The figures can be read after them only.
func TestLoadOnManyGoroutines(t *testing.T) {
	loadOnManyGoroutines(t)
	leak.Check(t)
	loadOnManyGoroutines(t)
}

func loadOnManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := cshim.Load(); err != nil {
				t.Error(err)
			}
			if cshim.Path() == "" {
				t.Error("loaded, but from nowhere")
			}
		})
	}
	wg.Wait()
}

// Of many who load at once one does. In a process that has loaded nothing yet.
func TestOneLoads(t *testing.T) {
	if elsewhere.Process(t) {
		if n := cshim.LoadAtOnce(); n != 1 {
			t.Errorf("%d have loaded", n)
		}
	}
	leak.Check(t)
}

// Who has waited while another loaded does not load again.
func TestLoadOnce(t *testing.T) {
	leak.Check(t)
	if ran, err := cshim.LoadAgain(); err != nil || ran {
		t.Errorf("loaded again: %v, %v", ran, err)
	}
}

// A shim that was built with other headers, as beside an older program of somebody's, is not loaded: it has other structs.
// What can be loaded later, is.
func TestAShimOfOtherHeadersIsRefused(t *testing.T) {
	if elsewhere.Process(t) {
		stub := t.TempDir() + "/" + locate.LibName()
		var code strings.Builder
		headers, err := fs.Glob(cshim.Sources, "include/linstock/*.h")
		if err != nil {
			t.Fatal(err)
		}
		for _, header := range headers {
			text, err := fs.ReadFile(cshim.Sources, header)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^LS_API [^;]*?\b(ls_\w+)\(`).FindAllSubmatch(text, -1) {
				fmt.Fprintf(&code, "void *%s(void) { return 0; }\n", m[1])
			}
		}
		cc := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-", "-o", stub)
		cc.Stdin = strings.NewReader(code.String())
		if out, err := cc.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		before := os.Getenv(locate.EnvLib)
		_ = os.Setenv(locate.EnvLib, stub)
		if err := cshim.Load(); err == nil || !strings.Contains(err.Error(), "it was built from other sources: their headers are 0x0") {
			t.Errorf("got %v", err)
		}
		_ = os.Setenv(locate.EnvLib, before)
	}
	leak.Check(t)
}
