// Ranks checks that a job of several processes survives the loss of one. Four ranks train with dist.DDP and save together,
// with package dcp, after each step; at a random moment, also of a save, one of them is killed or stopped, is cut off the
// network, is too slow, or cannot write. The others must end with an error that names it, within two seconds, or within
// two seconds of the group's timeout if the process still exists. Then all are started again and continue from the
// checkpoint. At the end of each job the weights must be those of a job without faults. Ranks that are cut off run in
// network namespaces, which only root may make; other users skip them.
//
//	go run ./tests/ranks [-faults 1000] [-seed S] [-share F] [-only KIND]
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

func main() {
	child := flag.String("child", "", "run as a rank that trains in this directory")
	steps := flag.Int("steps", 6, "steps of a job")
	plan := flag.String("fault", "", "of a rank: what fails, as KIND:PHASE:STEP:WAIT")
	faults := flag.Int64("faults", 1000, "number of faults")
	seed := flag.Uint64("seed", 1, "seed of the faults")
	share := flag.Float64("share", 1, "share of the faults")
	only := flag.String("only", "", "kind of the faults: kill, stop, cut, slow or disk; by default all")
	flag.Parse()
	if *child != "" {
		os.Exit(rank(*child, *steps, *plan))
	}
	if *only != "" && !slices.Contains([]string{"kill", "stop", "cut", "slow", "disk"}, *only) {
		fmt.Fprintf(os.Stderr, "ranks: there is no fault %q\n", *only)
		os.Exit(2)
	}
	p := &parent{steps: *steps, only: *only, random: rand.New(rand.NewPCG(*seed, 0))}
	total := scorecard.Share(*faults, *share)
	stop := scorecard.Progress(func() string {
		return fmt.Sprintf("ranks: %d of %d faults, the longest until the last error %v", p.done.Load(), total, p.longest())
	})
	err := p.run(total)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ranks:", err)
	}
	if p.network == nil {
		fmt.Println("ranks: no rank was cut off:", p.noNetwork)
	}
	scorecard.Line("ranks", fmt.Sprintf("%d faults (%d killed, %d stopped, %d cut off, %d slow, %d without a disk) in %d jobs: each survivor named the rank, the last after %v; the same weights at the end",
		p.done.Load(), p.kinds["kill"], p.kinds["stop"], p.kinds["cut"], p.kinds["slow"], p.kinds["disk"], p.jobs, p.longest()), err == nil)
	if err != nil {
		os.Exit(1)
	}
}

// parent starts the ranks.
type parent struct {
	steps  int
	random *rand.Rand
	done   atomic.Int64
	most   atomic.Int64 // nanoseconds
	kinds  map[string]int
	jobs   int
	only   string // kind of the faults; empty: all

	network   *network // nil if noNetwork
	noNetwork error
}
