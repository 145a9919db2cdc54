// Forcedgc runs the tests of the library with the build tag linstock_gc: a sweep, with a collection in it, wherever a
// handle goes to C (see tensor/collect_gc.go). A tensor that only the operator itself keeps alive there is freed under
// it if a pin is missing.
//
//	go run ./tests/forcedgc              every call site sweeps at its first 200 reads, then at one in 1,000
//	go run ./tests/forcedgc -share 0.1   at its first 2; the short tests only, without those of vram
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/internal/scorecard"
)

var packages = []string{"./tensor", "./autograd", "./nn", "./optim", "./data", "./checkpoint", "./vram"}

func main() {
	share := flag.Float64("share", 1, "share of the full size")
	flag.Parse()
	tests, sweeps, err := run(*share)
	if err != nil {
		fmt.Fprintln(os.Stderr, "forcedgc:", err)
	}
	scorecard.Line("forced-gc", fmt.Sprintf("%d tests pass with %d collections forced inside reads of handles", tests, sweeps), err == nil)
	if err != nil {
		os.Exit(1)
	}
}

func run(share float64) (passed, sweeps int, err error) {
	counts, err := os.MkdirTemp("", "forcedgc")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(counts)
	args := []string{"test", "-json", "-count=1", "-tags", "linstock_gc", "-timeout", "15m"}
	tested := packages
	if share < 1 {
		args = append(args, "-short")
		tested = tested[:len(tested)-1]
	}
	cmd := exec.Command("go", append(args, tested...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("LINSTOCK_GC_READS=%d", int(math.Ceil(200*share*share))), "LINSTOCK_GC_COUNT="+counts)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	last := start
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	output := map[string]*strings.Builder{}
	for lines.Scan() {
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(os.Stderr, lines.Text())
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			if output[key] == nil {
				output[key] = &strings.Builder{}
			}
			output[key].WriteString(e.Output)
		case "pass":
			if e.Test != "" {
				passed++
			}
			delete(output, key)
		case "fail":
			fmt.Fprintf(os.Stderr, "%s\n%v", key, output[key])
		}
		if time.Since(last) > 10*time.Second {
			last = time.Now()
			fmt.Fprintf(os.Stderr, "%4.0f s  %d tests passed, now %s\n", time.Since(start).Seconds(), passed, key)
		}
	}
	err = cmd.Wait()
	files, _ := filepath.Glob(filepath.Join(counts, "*"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		n, _ := strconv.Atoi(string(text))
		sweeps += n
	}
	if err == nil && sweeps == 0 {
		err = fmt.Errorf("nothing was forced")
	}
	return passed, sweeps, err
}
