package main

import (
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

// runExceptions throws each kind of exception at the entry of each function of the C API, first one at a time in a C
// program, and then at every entry of training steps.
func runExceptions(h *harness) (string, bool, error) {
	if err := cshim.Load(); err != nil {
		return "", false, err
	}
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return "", false, err
	}
	program := filepath.Join(h.dir, "entries")
	dir, shim := filepath.Join(root, "tests/faults/entries"), filepath.Join(root, "cshim")
	cc := exec.Command("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", shim, "-I", dir, filepath.Join(dir, "entries.c"),
		filepath.Join(shim, "table_gen.c"), "-ldl", "-o", program)
	if out, err := cc.CombinedOutput(); err != nil {
		return "", false, fmt.Errorf("%v: %w\n%s", cc, err, out)
	}
	var entries tally
	for kind := range cshim.Throws {
		for first := 0; ; {
			cmd := exec.Command(program, cshim.Path(), fmt.Sprint(kind), fmt.Sprint(first))
			o := follow(cmd, "exceptions", &entries, nil)
			if o.err == nil {
				break
			}
			entries.add(0, 1, 0)
			h.complain("exceptions", o, "")
			if _, wrong := entries.read(); wrong > mostBad {
				return "", false, fmt.Errorf("%d processes ended", wrong)
			}
			first = o.number + 1
		}
	}
	figures, ok, err := h.sweepRow("exceptions", 14_000)
	return fmt.Sprintf("%s calls of all functions × %d exceptions: %d terminations, %d wrong; in training steps: %s",
		thousands(entries.faults), cshim.Throws, entries.crashes, entries.bad, figures), ok && entries.crashes+entries.bad == 0 && entries.faults > 0, err
}
