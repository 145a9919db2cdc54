// Faults injects failures into training steps, each at every place where it can happen. It checks that each results in
// an error, that nothing leaks, and that the program continues:
//
//	go run ./tests/faults [-share F] [-rows oom-device,oom-host,device-errors,exceptions] [-seed S]
//
// Every row runs its cases in child processes, so that a crash is distinguished from a failure. A report names the case
// and the fault; -case ROW:CASE:FAULT runs it alone. The rows for devices use the fake CUDA runtime (tests/fakecuda),
// which is built first if it is missing.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

type row struct {
	name  string
	fake  bool // over the fake CUDA runtime
	run   func(h *harness) (figures string, ok bool, err error)
	child func(c child) error
}

var rows []row

func init() {
	rows = []row{
		{"oom-device", true, runDeviceMemory, func(c child) error { return c.cases(oomDevice) }},
		{"oom-host", false, runHostMemory, func(c child) error { return c.cases(oomHost) }},
		{"device-errors", true, runDeviceErrors, loseDevices},
		{"exceptions", false, runExceptions, func(c child) error { return c.cases(throws) }},
	}
}

func main() {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(childMain(spec))
	}
	h := &harness{}
	names := flag.String("rows", "oom-device,oom-host,device-errors,exceptions", "rows to run, separated by commas")
	device := flag.String("device", "", "cpu or fake: run only the rows of that device")
	one := flag.String("case", "", "ROW:CASE:FAULT, as a failure names it: run only that one, in this process")
	flag.Float64Var(&h.share, "share", 1, "share of the full number of faults")
	flag.Uint64Var(&h.seed, "seed", 1, "seed of the models")
	flag.Parse()
	if *one != "" {
		if err := h.one(*one); err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err)
			os.Exit(1)
		}
		return
	}
	failed := false
	for _, name := range strings.Split(*names, ",") {
		r := rowOf(name)
		if r == nil {
			fmt.Fprintf(os.Stderr, "faults: unknown row %q\n", name)
			os.Exit(2)
		}
		if *device != "" && r.fake != (*device == "fake") {
			continue
		}
		figures, ok, err := h.row(r)
		if err != nil {
			fmt.Fprintf(os.Stderr, "faults: %s: %v\n", name, err)
			ok = false
		}
		failed = failed || !ok
		scorecard.Line(name, figures, ok)
	}
	if failed {
		os.Exit(1)
	}
}

func rowOf(name string) *row {
	for i := range rows {
		if rows[i].name == name {
			return &rows[i]
		}
	}
	return nil
}
