// Crashhunt calls every operator that tensor.Call accepts with arguments that are meant to crash the process:
//
//	go run ./tests/crashhunt [-share F] [-seed S] [-jobs J] [-only REGEXP] [-unchecked]
//	go run ./tests/crashhunt -seed S -from N [-to M]    makes calls N to M in this process and prints each before it
//
// The arguments have all layouts (strided, overlapping, channels last, sparse, mkldnn, nested, quantized, meta), dtypes
// and sizes, and finite and other values. A third of them are random: they follow the schema's types and have few
// shapes, so that they often fit each other. The others are those of a valid call (calls.jsonl, which record.py writes)
// with up to three changes. The result of an operator is printed, cloned and differentiated. Each tensor has its own
// pages, next to one that cannot be accessed, so that a read or write beyond its memory also ends the process.
//
// Child processes make the calls. Each call depends only on the seed and its number. When a process dies (by a signal,
// an abort, an exit or a Go panic, because a call takes 20 s, or because it leaves memory that nothing refers to),
// crashhunt records the operator and its arguments. It then repeats the call alone and, if that survives, together with
// the fewest preceding calls that make it die again. Each call may use 256 MiB for tensors and a few GiB of address
// space, so that huge sizes are errors.
//
// With -unchecked it calls the operators that only tensor.CallUnchecked accepts. Those do crash.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

const (
	allCalls = 200_000
	perChild = 4000
	hang     = 20 * time.Second
)

type options struct {
	seed      uint64
	only      *regexp.Regexp
	unchecked bool
	dry       bool
}

func (o *options) args() []string {
	args := []string{"-seed", fmt.Sprint(o.seed)}
	if o.only.String() != "" {
		args = append(args, "-only", o.only.String())
	}
	if o.unchecked {
		args = append(args, "-unchecked")
	}
	return args
}

func main() {
	share := flag.Float64("share", 1, "share of 200,000 calls")
	jobs := flag.Int("jobs", runtime.NumCPU(), "number of child processes")
	most := flag.Int("most", 20, "number of deaths after which it stops")
	seed := flag.Uint64("seed", 1, "seed of the calls")
	only := flag.String("only", "", "call only operators whose names match")
	unchecked := flag.Bool("unchecked", false, "call the internal operators instead of those that tensor.Call accepts")
	from := flag.Int64("from", -1, "make this call in this process")
	to := flag.Int64("to", -1, "and the calls up to this one")
	dry := flag.Bool("dry", false, "print the arguments of -from to -to, and make no call")
	state := flag.String("state", "", "")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "crashhunt: -only:", err)
		os.Exit(2)
	}
	o := options{seed: *seed, only: pattern, unchecked: *unchecked, dry: *dry}
	if *from >= 0 {
		err = child(&o, *from, max(*to, *from+1), *state)
	} else {
		err = parent(&o, scorecard.Share(allCalls, *share), *jobs, *most)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crashhunt:", err)
		os.Exit(1)
	}
}

// tally holds the counts of a child in a file that outlives it.
type tally struct {
	At                        int64 // the current call
	Calls, Returned, Backward int64 // Returned: calls without an error
}

const tallyBytes = 4 * 8

func (t *tally) add(o tally) {
	t.Calls += o.Calls
	t.Returned += o.Returned
	t.Backward += o.Backward
}

func (t *tally) write(f *os.File) error {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, t)
	_, err := f.WriteAt(b.Bytes(), 0)
	return err
}

// missing returns an error unless n calls were made, a tenth of them returned, and a hundredth had a backward pass. Of
// the target's 200,000 calls 40 % return, and 7 % have a pass.
func (t *tally) missing(n int64) error {
	if t.Calls < n || t.Returned < n/10 || t.Backward < n/100 {
		return fmt.Errorf("of %d calls %d were made, %d returned values, and %d had a backward pass", n, t.Calls, t.Returned, t.Backward)
	}
	return nil
}

func readTally(path string) (t tally) {
	if b, err := os.ReadFile(path); err == nil {
		_, _ = binary.Decode(b, binary.LittleEndian, &t)
	}
	return t
}

// hunt is the state of the parent.
type hunt struct {
	*options
	dir    string
	most   int
	mu     sync.Mutex
	sum    tally
	next   int64
	n      int64
	deaths []string // names of the operators
}

func parent(o *options, n int64, jobs, most int) error {
	operators, err := o.operators()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "crashhunt")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	h := &hunt{options: o, dir: dir, most: most, n: n}
	start := time.Now()
	stop := scorecard.Progress(func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return fmt.Sprintf("%d of %d calls, %d returned, %d backward, %d deaths, %v", h.sum.Calls, n, h.sum.Returned, h.sum.Backward, len(h.deaths), time.Since(start).Round(time.Second))
	})
	var wg sync.WaitGroup
	for j := range jobs {
		wg.Go(func() {
			for {
				from, to := h.chunk()
				for from < to {
					from = h.run(j, from, to)
				}
				if from == n {
					return
				}
			}
		})
	}
	wg.Wait()
	stop()
	slices.Sort(h.deaths)
	if len(h.deaths) > 0 {
		fmt.Fprintln(os.Stderr, "died:", strings.Join(slices.Compact(slices.Clone(h.deaths)), " "))
	}
	switch {
	case len(h.deaths) > 0:
		err = fmt.Errorf("%d deaths", len(h.deaths))
	case o.only.String() == "": // of chosen operators all calls may fail
		err = h.sum.missing(n)
	}
	scorecard.Line("crashhunt", fmt.Sprintf("%d calls of %d operators (%d returned values, %d backward passes): %d deaths",
		h.sum.Calls, len(operators), h.sum.Returned, h.sum.Backward, len(h.deaths)), err == nil)
	return err
}

// chunk returns the next calls to make, or an empty range at the end.
func (h *hunt) chunk() (from, to int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.deaths) >= h.most {
		return h.n, h.n
	}
	from = h.next
	h.next = min(h.next+perChild, h.n)
	return from, h.next
}

// run lets a child make the calls [from, to). It returns where to continue: at to, or after the call that ended the
// child.
func (h *hunt) run(j int, from, to int64) int64 {
	state := filepath.Join(h.dir, fmt.Sprint(j))
	end, how, _ := h.attempt(state, from, to, "-state", state)
	h.mu.Lock()
	h.sum.add(end)
	h.mu.Unlock()
	if how == "" {
		return to
	}
	_, _, text := h.attempt(state, end.At, end.At+1, "-dry")
	text = strings.TrimSpace(text)
	// Find the shortest range up to the call that makes the process die again.
	for n := int64(1); ; n *= 4 {
		first := max(from, end.At+1-n)
		_, again, _ := h.attempt(state, first, end.At+1, "-state", state)
		if again != "" {
			how = again
			text += fmt.Sprintf("\n  again: go run ./tests/crashhunt %s -from %d -to %d", strings.Join(h.args(), " "), first, end.At+1)
			break
		}
		if first == from {
			text += fmt.Sprintf("\n  not again by calls %d to %d", from, end.At+1)
			break
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	name, _, _ := strings.Cut(text, "(")
	h.deaths = append(h.deaths, name)
	fmt.Fprintf(os.Stderr, "DEATH: call %d: %s: %s\n", end.At, how, text)
	if len(h.deaths) >= h.most {
		return to
	}
	return end.At + 1
}

// attempt runs a child until it ends. It returns what the child counted, how it died ("" if it did not), and its
// output.
func (h *hunt) attempt(state string, from, to int64, more ...string) (tally, string, string) {
	if err := os.WriteFile(state, make([]byte, tallyBytes), 0o600); err != nil {
		return tally{At: from}, err.Error(), ""
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	args := append(append(h.args(), "-from", fmt.Sprint(from), "-to", fmt.Sprint(to)), more...)
	program, err := os.Executable()
	if err != nil {
		return tally{At: from}, err.Error(), ""
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = h.dir // aten::from_file creates files
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "OMP_NUM_THREADS=1", "GOTRACEBACK=single")
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Start(); err != nil {
		return tally{At: from}, err.Error(), ""
	}
	slow := errors.New("a call took longer than " + hang.String())
	go func() {
		last, moved := int64(-1), time.Now()
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			if at := readTally(state).At; at != last {
				last, moved = at, time.Now()
			} else if time.Since(moved) > hang {
				cancel(slow)
			}
		}
	}()
	err = cmd.Wait()
	end := readTally(state)
	end.At = max(end.At, from) // it may have ended before its first call
	if err == nil && end.At != to {
		return end, "an exit before the last call", out.String()
	}
	if err == nil {
		return end, "", out.String()
	}
	if cause := context.Cause(ctx); cause != nil {
		return end, cause.Error(), out.String()
	}
	return end, cause(err, text.String()), out.String()
}

var causes = regexp.MustCompile(`(?m)^(SIG[A-Z]+|fatal error: .*|panic: .*|unexpected fault.*|terminate called.*|crashhunt: .*|.*corrupted.*|free\(\).*|malloc.*)`)

// cause returns the first informative line.
func cause(err error, text string) string {
	if found := causes.FindString(text); found != "" {
		return found
	}
	return fmt.Sprintf("%v: %s", err, text[max(0, len(text)-500):])
}
