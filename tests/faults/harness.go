package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tests/fakecuda"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

const (
	childEnv = "LINSTOCK_FAULTS_CHILD" // ROW:SEED:CASE:FAULT:END: the cases from CASE to END
	hangs    = 60 * time.Second        // maximum time without output of a child
	mostBad  = 20                      // number of failures after which a row ends
)

// harness runs the cases of rows in child processes.
type harness struct {
	share float64
	seed  uint64

	fakeEnv []string
	dir     string
}

// batch is the cases of one process.
type batch struct {
	first, end int
	fault      int64 // of the first case
	env        []string
}

// tally counts what the processes of a row report.
type tally struct {
	target int64  // when it is reached, the file enough is created
	enough string // children check for it after each case

	mu           sync.Mutex
	faults       int64
	crashes, bad int
	processes    int
}

func (t *tally) add(faults int64, crashes, bad int) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults += faults
	t.crashes += crashes
	t.bad += bad
	return t.faults
}

func (t *tally) read() (faults int64, wrong int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.faults, t.crashes + t.bad
}

func (h *harness) enough() string { return filepath.Join(h.dir, "enough") }

func (h *harness) row(r *row) (string, bool, error) {
	dir, err := os.MkdirTemp(shm(), "linstock-faults")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(dir)
	h.dir = dir
	if r.fake {
		if err := h.makeFake(); err != nil {
			return "", false, err
		}
	}
	return r.run(h)
}

// shm returns a directory in memory, if there is one, because checkpoints are synced.
func shm() string {
	if s, err := os.Stat("/dev/shm"); err == nil && s.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// makeFake builds the fake CUDA runtime if it is missing, and its shim.
func (h *harness) makeFake() error {
	if h.fakeEnv != nil {
		return nil
	}
	var err error
	h.fakeEnv, err = fakecuda.Setup()
	return err
}

// each runs the batches that next returns until there are no more, several processes at a time, and displays progress.
func (h *harness) each(r string, target int64, t *tally, next func() (batch, bool)) {
	stop := scorecard.Progress(func() string {
		faults, wrong := t.read()
		return fmt.Sprintf("  %s: %d of %d faults, %d failures", r, faults, target, wrong)
	})
	var mu sync.Mutex
	var workers sync.WaitGroup
	// Run two for each processor: a step that is out of memory waits most of the time.
	for worker := range 2 * runtime.NumCPU() {
		workers.Go(func() {
			for {
				mu.Lock()
				b, ok := next()
				_, wrong := t.read()
				mu.Unlock()
				if !ok || wrong > mostBad {
					return
				}
				h.batch(r, worker, b, t)
			}
		})
	}
	workers.Wait()
	stop()
}

// batch runs a batch, and after each crash the rest of it.
func (h *harness) batch(r string, worker int, b batch, t *tally) {
	for b.first < b.end {
		p := h.process(r, worker, b, t, nil)
		t.mu.Lock()
		t.processes++
		t.mu.Unlock()
		if p.err == nil {
			return
		}
		t.add(0, 1, 0)
		h.complain(r, p, fmt.Sprintf("-seed %d -case %s:%d:%d", h.seed, r, p.number, p.fault))
		if _, wrong := t.read(); wrong > mostBad {
			return
		}
		b.first, b.fault = p.number, p.fault+1
		if r == "device-errors" { // a fault is a case
			b.first, b.fault = p.number+1, 0
		}
	}
}

type outcome struct {
	err    error // the process did not end normally
	last   string
	number int
	fault  int64
	said   []string
	tail   string
}

// process runs one child; its output also goes to out if that is not nil.
func (h *harness) process(r string, worker int, b batch, t *tally, out io.Writer) (o outcome) {
	self, err := os.Executable()
	if err != nil {
		o.err = err
		return o
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "GOMAXPROCS=1", "GOTRACEBACK=single", "LINSTOCK_FAULTS_DIR="+h.dir,
		fmt.Sprintf("%s=%s:%d:%d:%d:%d", childEnv, r, h.seed, b.first, b.fault, b.end))
	if rowOf(r).fake {
		control := filepath.Join(h.dir, fmt.Sprintf("control-%s-%d", r, worker))
		_ = os.Remove(control)
		cmd.Env = append(append(cmd.Env, h.fakeEnv...), "FAKECUDA_CONTROL="+control)
		c, err := fakecuda.Open(control, devicesOf(r), 1<<40)
		if err != nil {
			o.err = err
			return o
		}
		defer c.Close()
	}
	cmd.Env = append(cmd.Env, b.env...)
	o = follow(cmd, r, t, out)
	if o.last == "" {
		o.number, o.fault = b.first, b.fault
	}
	return o
}

// complain reports where a process ended that should not.
func (h *harness) complain(r string, o outcome, again string) {
	fmt.Fprintf(os.Stderr, "faults: %s: the process ended (%v) at %s\n%s\n", r, o.err, o.last, o.tail)
	if again != "" {
		fmt.Fprintln(os.Stderr, "  that one alone:", again)
	}
}

// follow runs a process and reads its output. It ends a process without output for too long, after it has printed the
// stacks of its goroutines.
func follow(cmd *exec.Cmd, r string, t *tally, out io.Writer) (o outcome) {
	var errs tail
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		o.err = err
		return o
	}
	watch := time.AfterFunc(hangs, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer watch.Stop()
	ended := false
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		watch.Reset(hangs)
		if out != nil {
			fmt.Fprintln(out, lines.Text())
		}
		kind, text, _ := strings.Cut(lines.Text(), " ")
		switch kind {
		case "at":
			o.last = text
			_, _ = fmt.Sscanf(text, "%d %d:", &o.number, &o.fault)
		case "n":
			n, _ := strconv.ParseInt(text, 10, 64)
			if faults := t.add(n, 0, 0); t.target > 0 && faults >= t.target {
				_ = os.WriteFile(t.enough, nil, 0o600)
			}
		case "bad":
			t.add(0, 0, 1)
			fmt.Fprintf(os.Stderr, "faults: %s: %s\n", r, text)
		case "say":
			o.said = append(o.said, text)
		case "end":
			ended = true
		}
	}
	o.err = cmd.Wait()
	if o.err == nil && !ended {
		o.err = errors.New("it ended before its cases did")
	}
	o.tail = errs.String()
	return o
}

// tail keeps the end of what was written.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - 4000; over > 0 {
		t.buf = t.buf[over:]
	}
	return len(p), nil
}
func (t *tail) String() string { return string(t.buf) }

// one runs a single fault, named as in the message of a failure.
func (h *harness) one(spec string) error {
	parts := strings.Split(spec, ":")
	r := rowOf(parts[0])
	if len(parts) != 3 || r == nil {
		return fmt.Errorf("-case wants ROW:CASE:FAULT, got %q", spec)
	}
	number, err := strconv.Atoi(parts[1])
	if err != nil {
		return err
	}
	k, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return err
	}
	if h.dir, err = os.MkdirTemp(shm(), "linstock-faults"); err != nil {
		return err
	}
	defer os.RemoveAll(h.dir)
	if r.fake {
		if err := h.makeFake(); err != nil {
			return err
		}
	}
	b := batch{first: number, end: number + 1, fault: k, env: append(envOf(r.name, number), "LINSTOCK_FAULTS_ONE=1")}
	var t tally
	if o := h.process(r.name, 0, b, &t, os.Stdout); o.err != nil || t.bad != 0 {
		return fmt.Errorf("%d failures; %v\n%s", t.bad, o.err, o.tail)
	}
	return nil
}

// reporter sends reports from a child to its parent.
type reporter struct{ out *os.File }

func (r *reporter) at(format string, args ...any) { fmt.Fprintf(r.out, "at "+format+"\n", args...) }
func (r *reporter) bad(format string, args ...any) {
	fmt.Fprintln(r.out, "bad", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | "))
}
func (r *reporter) count(n int)                    { fmt.Fprintln(r.out, "n", n) }
func (r *reporter) say(format string, args ...any) { fmt.Fprintf(r.out, "say "+format+"\n", args...) }

// child is the work of one process.
type child struct {
	seed       uint64
	first, end int
	fault      int64
	report     *reporter
	dir        string
}

func childMain(spec string) int {
	parts := strings.Split(spec, ":")
	c := child{report: &reporter{os.Stdout}, dir: os.Getenv("LINSTOCK_FAULTS_DIR")}
	if _, err := fmt.Sscanf(strings.Join(parts[1:], " "), "%d %d %d %d", &c.seed, &c.first, &c.fault, &c.end); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := cshim.Load(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := rowOf(parts[0]).child(c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("end")
	return 0
}

// cases runs the cases of a sweep one after the other.
func (c child) cases(f func(number int, seed uint64, from int64, report *reporter, dir string) error) error {
	for number := c.first; number < c.end; number++ {
		if _, err := os.Stat(filepath.Join(c.dir, "enough")); err == nil {
			return nil
		}
		if err := f(number, c.seed, c.fault, c.report, c.dir); err != nil {
			c.report.bad("%d %d: %v", number, c.fault, err)
		}
		c.fault = 0
	}
	return nil
}
