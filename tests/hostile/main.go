// Hostile loads mutants of safetensors files and checkpoints, or with -format pytorch those of the files of torch.save and
// NumPy:
//
//	go run ./tests/hostile [-format pytorch] [-share F] [-seed S] [-jobs J]
//	go run ./tests/hostile [-format pytorch] -seed S -mutant N [-out FILE]    loads one of them in this process and writes it to FILE
//
// Package checkpoint opens, maps and reads each mutant completely. The result may be an error, or tensors: those of a
// safetensors file must have the bytes that its header says; those of other files are read, not compared. It must not
// be a crash, a hang or a leak, and for one mutant the Go heap and the native heap together must not allocate more
// than the file's size and 16 MiB. For Go this is the difference of /gc/heap/allocs:bytes, freed or not, which is an
// upper bound of its peak; for libtorch it is the peak that the shim counts. Child processes load the mutants, so that
// one that ends its process can be reported.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

// objectFormat is the value of -format for the files of torch.save and NumPy.
const objectFormat = "pytorch"

// allMutants is the number of mutants of a format.
const allMutants = 10_000_000

// rows are the names of the formats' rows in docs/reliability.md.
var rows = map[string]string{"safetensors": "hostile", objectFormat: "hostile-pytorch"}

const (
	perChild   = 500_000
	hang       = time.Minute
	mostFaults = 20
)

// tally holds the counts of a child in a file that outlives it.
type tally struct {
	At                                   int64 // the current mutant
	Mutants, Accepted, Trainings, Loaded int64 // Accepted: opened without an error; Loaded: training files loaded without an error
	Tensors, Excess                      int64 // Excess: the most allocated beyond a file's size
}

const tallyBytes = 7 * 8

func (t *tally) write(f *os.File) error {
	var b [tallyBytes]byte
	for i, n := range []int64{t.At, t.Mutants, t.Accepted, t.Trainings, t.Loaded, t.Tensors, t.Excess} {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
	}
	_, err := f.WriteAt(b[:], 0)
	return err
}

func (t *tally) add(o tally) {
	t.Mutants += o.Mutants
	t.Accepted += o.Accepted
	t.Trainings += o.Trainings
	t.Loaded += o.Loaded
	t.Tensors += o.Tensors
	t.Excess = max(t.Excess, o.Excess)
}

// missing returns an error unless n mutants were made, a 50th of them opened, and as many tensors were read; of
// safetensors files a thousandth must be training files that loaded. In the row's full count 13 % open, and 0.3 % are
// training files that load.
func (t *tally) missing(n int64, format string) error {
	trainings := n / 1000
	if format == objectFormat {
		trainings = 0 // it has none
	}
	if t.Mutants < n || t.Accepted < n/50 || t.Tensors < n/50 || t.Loaded < trainings {
		return fmt.Errorf("of %d mutants %d were made, %d opened, %d training files loaded, and %d tensors were read", n, t.Mutants, t.Accepted, t.Loaded, t.Tensors)
	}
	return nil
}

func main() {
	format := flag.String("format", "safetensors", "safetensors or pytorch")
	share := flag.Float64("share", 1, "share of the 10,000,000 mutants")
	seed := flag.Uint64("seed", 1, "seed of the mutants")
	jobs := flag.Int("jobs", runtime.NumCPU(), "number of child processes")
	one := flag.Int64("mutant", -1, "load only this mutant")
	out := flag.String("out", "", "file for the mutant")
	work := flag.String("child", "", "")
	from := flag.Int64("from", 0, "")
	to := flag.Int64("to", 0, "")
	flag.Parse()
	var err error
	switch {
	case rows[*format] == "":
		err = fmt.Errorf("unknown format %q", *format)
	case *one >= 0:
		err = single(*format, *seed, *one, *out)
	case *work != "":
		err = child(*work, *format, *seed, *from, *to)
	default:
		err = parent(*format, *seed, scorecard.Share(allMutants, *share), *jobs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

// run is the state of the parent.
type run struct {
	format string
	seed   uint64
	n      int64
	mu     sync.Mutex
	next   int64
	sum    tally
	live   map[string]*tally // of the running children
	faults []string
}

func parent(format string, seed uint64, n int64, jobs int) error {
	dir, err := os.MkdirTemp(memory(), "hostile")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := seedsOf(format, dir); err != nil {
		return err
	}
	r := &run{format: format, seed: seed, n: n, live: map[string]*tally{}}
	start := time.Now()
	stop := scorecard.Progress(func() string { return r.progress(start) })
	var wg sync.WaitGroup
	for j := range jobs {
		wg.Go(func() {
			work := filepath.Join(dir, fmt.Sprint(j))
			for r.more() {
				from, to := r.chunk()
				for from < to {
					from = r.child(work, from, to)
				}
			}
		})
	}
	wg.Wait()
	stop()
	trainings := ""
	if r.sum.Trainings > 0 {
		trainings = fmt.Sprintf("; %d of %d training files loaded", r.sum.Loaded, r.sum.Trainings)
	}
	read, faults := "compared with the file", "hangs, leaks or wrong answers"
	if format == objectFormat {
		read, faults = "read", "hangs or leaks"
	}
	if len(r.faults) > 0 {
		err = fmt.Errorf("%d faults", len(r.faults))
	} else {
		err = r.sum.missing(n, format)
	}
	scorecard.Line(rows[format], fmt.Sprintf("%d mutants (%d opened, %d tensors %s%s); %d crashes, %s; at most %.1f MiB allocated beyond the file's size",
		r.sum.Mutants, r.sum.Accepted, r.sum.Tensors, read, trainings, len(r.faults), faults, float64(r.sum.Excess)/(1<<20)), err == nil)
	return err
}

func seedsOf(format, dir string) error {
	if format == objectFormat {
		return makeObjectSeeds(dir)
	}
	return makeSeeds(dir)
}

// memory returns a directory in memory, if there is one.
func memory() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

func (r *run) more() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next < r.n && len(r.faults) < mostFaults
}

func (r *run) chunk() (from, to int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from = r.next
	// Ranges are small near the end, so that all processes end together.
	r.next += min(perChild, max(20_000, (r.n-r.next)/4))
	r.next = min(r.next, r.n)
	return from, r.next
}

// child runs a child over [from, to). It returns where to continue: at to, or after the mutant that ended it.
func (r *run) child(work string, from, to int64) int64 {
	state := work + ".state"
	if err := os.WriteFile(state, make([]byte, tallyBytes), 0o600); err != nil {
		return r.fault(from, err.Error(), to)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-format", r.format, "-child", work, "-seed", fmt.Sprint(r.seed), "-from", fmt.Sprint(from), "-to", fmt.Sprint(to))
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "OMP_NUM_THREADS=1", "GOGC=800")
	var text bytes.Buffer
	cmd.Stderr = &text
	done := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return r.fault(from, err.Error(), to)
	}
	go func() { done <- cmd.Wait() }()
	var last tally
	moved, hangs := time.Now(), false
	for {
		var err error
		select {
		case err = <-done:
		case <-time.After(200 * time.Millisecond):
			now := readTally(state)
			if now.At != last.At {
				moved = time.Now()
			} else if time.Since(moved) > hang && !hangs {
				hangs = true
				cancel()
			}
			last = now
			r.mu.Lock()
			r.live[work] = &now
			r.mu.Unlock()
			continue
		}
		end := readTally(state)
		r.mu.Lock()
		delete(r.live, work)
		r.sum.add(end)
		r.mu.Unlock()
		end.At = max(end.At, from) // it may have ended before its first mutant
		if err == nil && end.At == to {
			return to
		}
		what := fmt.Sprintf("%v\n%s", err, tail(text.Bytes()))
		switch {
		case err == nil:
			what = "an exit before the last mutant"
		case hangs:
			what = "no end within " + hang.String()
		}
		return r.fault(end.At, what, end.At+1)
	}
}

func (r *run) fault(at int64, what string, goOn int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, what)
	fmt.Fprintf(os.Stderr, "mutant %d: %s\nagain with: go run ./tests/hostile -format %s -seed %d -mutant %d\n", at, what, r.format, r.seed, at)
	if len(r.faults) >= mostFaults {
		return r.n
	}
	return goOn
}

func (r *run) progress(start time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := r.sum
	for _, t := range r.live {
		sum.add(*t)
	}
	return fmt.Sprintf("%d of %d mutants, %d opened, %d faults, %v", sum.Mutants, r.n, sum.Accepted, len(r.faults), time.Since(start).Round(time.Second))
}

func readTally(path string) (t tally) {
	if b, err := os.ReadFile(path); err == nil {
		_, _ = binary.Decode(b, binary.LittleEndian, &t)
	}
	return t
}

func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }

// single loads one mutant and prints the result.
func single(format string, seed uint64, n int64, out string) error {
	dir, err := os.MkdirTemp(memory(), "hostile")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := seedsOf(format, dir); err != nil {
		return err
	}
	v, err := newVictim(filepath.Join(dir, "0"), format)
	if err != nil {
		return err
	}
	m := v.mutators.mutant(seed, n)
	if out != "" {
		if err := os.WriteFile(out, m.bytes, 0o666); err != nil {
			return err
		}
	}
	fault := v.feed(m)
	text, _ := json.Marshal(v.tally)
	fmt.Printf("mutant %d (%s): %d bytes: %v; %s\n", n, m.how, len(m.bytes), v.outcome, text)
	return errors.Join(fault, v.settled())
}
