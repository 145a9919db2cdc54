// Package cgroup_test runs programs in memory cgroups that are too small for what they allocate: each must get an
// error, and none may be killed. The cgroups are made below the cgroup of the test, or at the root of the mount. If
// neither is allowed, the tests are skipped with a message.
package cgroup_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/cgroup"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

const (
	mib     = 1 << 20
	program = "LINSTOCK_TEST_CGROUP_PROGRAM"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(program); name != "" {
		if err := run(name); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// run runs a program of a child process. Its last line of output is the number of bytes that it kept, or "ended".
func run(name string) error {
	// keep keeps tensors of the given number of elements until an error occurs.
	keep := func(elements int, make func([]int, ...tensor.Option) *tensor.Tensor, each func()) error {
		var kept []*tensor.Tensor
		for {
			x := make([]int{elements})
			if err := x.Err(); errors.Is(err, tensor.ErrOutOfMemory) {
				fmt.Println("kept", len(kept)*elements*4)
				return nil
			} else if err != nil {
				return err
			}
			kept = append(kept, x)
			each()
		}
	}
	var heap [][]byte
	grow := func() {
		if len(heap) == 100 {
			return
		}
		b := make([]byte, mib)
		for i := range b {
			b[i] = 1
		}
		heap = append(heap, b)
	}
	switch name {
	case "large":
		return keep(2*mib, tensor.Ones, func() {})
	case "small":
		return keep(16<<10, tensor.Ones, func() {})
	case "tiny":
		return keep(1<<10, tensor.Ones, func() {})
	case "unwritten":
		return keep(2*mib, tensor.Empty, func() {})
	case "beside a Go heap":
		return keep(2*mib, tensor.Ones, func() {
			for range 10 {
				grow()
			}
		})
	case "after a Go heap":
		debug.SetGCPercent(-1)
		for range 100 {
			grow()
		}
		heap = nil
		return keep(2*mib, tensor.Ones, func() {})
	case "unreachable":
		for range 500 {
			if err := tensor.Ones([]int{2 * mib}).Err(); err != nil {
				return err
			}
		}
		fmt.Println("ended")
	case "holds memory": // until its input ends
		for range 100 {
			grow()
		}
		fmt.Println("ended")
		_, err := bufio.NewReader(os.Stdin).ReadByte()
		_ = err
		fmt.Fprint(os.Stderr, len(heap))
	default:
		return fmt.Errorf("unknown program %q", name)
	}
	return nil
}

// A group is a cgroup that the test made.
type group struct{ cgroup.Group }

// newGroup makes a cgroup with a limit and removes it when the test ends.
func newGroup(t *testing.T, below string, limit int64) group {
	t.Helper()
	var reasons []string
	for _, parent := range parents(below) {
		dir, err := os.MkdirTemp(parent.Dir, "linstock-test-")
		if err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		g := group{cgroup.Group{Version: parent.Version, Dir: dir}}
		if err := g.set(limit); err != nil {
			reasons = append(reasons, err.Error())
			_ = os.Remove(dir)
			continue
		}
		t.Cleanup(func() {
			var err error
			for range 100 { // the kernel may still be busy with the last process
				if err = os.Remove(dir); err == nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
			t.Error(err)
		})
		return g
	}
	reason := "no memory cgroup can be made here: " + strings.Join(reasons, "; ")
	if len(reasons) == 0 {
		reason = "no memory cgroup is mounted here"
	}
	fmt.Fprintln(os.Stderr, "NOT TESTED: limits in memory cgroups:", reason)
	t.Skip(reason)
	return group{}
}

// parents returns the cgroups below which the test may make one.
func parents(below string) []cgroup.Group {
	all := cgroup.Of("/proc/self")
	if below == "" {
		return all
	}
	for _, g := range all {
		if strings.HasPrefix(below, g.Dir) {
			return []cgroup.Group{{Version: g.Version, Dir: below}}
		}
	}
	return nil
}

func (g group) set(limit int64) error {
	name := "memory.limit_in_bytes"
	if g.Version == 2 {
		name = "memory.max"
		// The controller may have to be enabled first, which the kernel allows if no process is in the parent.
		if _, err := os.Stat(filepath.Join(g.Dir, name)); err != nil {
			if err := os.WriteFile(filepath.Join(filepath.Dir(g.Dir), "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
				return err
			}
		}
		// Memory beyond the limit must not be swapped.
		_ = os.WriteFile(filepath.Join(g.Dir, "memory.swap.max"), []byte("0"), 0)
	}
	if limit == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(g.Dir, name), []byte(strconv.FormatInt(limit, 10)), 0)
}

// start starts a program in the group: a shell joins the group and then executes the program.
func (g group) start(t *testing.T, name string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo $$ > "$1/cgroup.procs" && exec "$2"`, "sh", g.Dir, os.Args[0])
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LINSTOCK_LIMIT=") && !strings.HasPrefix(v, "GOMEMLIMIT=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, program+"="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// kept runs a program and returns how many bytes it kept, or -1 if it ended by itself.
func (g group) kept(t *testing.T, name string) int64 {
	t.Helper()
	cmd, out := g.start(t, name)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v (killed by the kernel is \"signal: killed\"); it printed %q", err, out)
	}
	last := strings.TrimSpace(out.String())
	last = last[strings.LastIndexByte(last, '\n')+1:]
	if last == "ended" {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(last, "kept "), 10, 64)
	if err != nil {
		t.Fatalf("it printed %q", out)
	}
	return n
}

// elsewhere returns the most memory, besides tensors, that a program needs and leaves free: sizes that are smaller than
// the limit by more than that certainly fit.
func elsewhere(limit int64) int64 { return 130*mib + limit/10 }

func TestErrorNotKill(t *testing.T) {
	leak.Check(t)
	for _, limit := range []int64{250 * mib, 300 * mib, 400 * mib, 700 * mib, 1024 * mib} {
		for name, besides := range map[string]int64{"large": 0, "small": 0, "beside a Go heap": 200 * mib, "unreachable": 0} {
			t.Run(fmt.Sprintf("%s in %d MiB", name, limit/mib), func(t *testing.T) {
				g := newGroup(t, "", limit)
				kept := g.kept(t, name)
				least := max(24*mib, limit-elsewhere(limit)-besides)
				if name == "unreachable" {
					if kept != -1 {
						t.Errorf("it kept %d bytes", kept)
					}
				} else if kept < least || kept > limit {
					t.Errorf("it kept %d MiB of tensors before the error, want at least %d", kept/mib, least/mib)
				}
			})
		}
	}
}

func TestErrorNotKillOtherPrograms(t *testing.T) {
	leak.Check(t)
	const limit = 400 * mib
	for name, besides := range map[string]int64{"tiny": 60 * mib, "unwritten": 0, "after a Go heap": 0} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, "", limit)
			if kept := g.kept(t, name); kept < limit-elsewhere(limit)-besides || kept > limit {
				t.Errorf("it kept %d MiB of tensors before the error", kept/mib)
			}
		})
	}
}

// TestLimitOfAncestor tests that the limit may be set on a cgroup above the process's own.
func TestLimitOfAncestor(t *testing.T) {
	leak.Check(t)
	const limit = 400 * mib
	above := newGroup(t, "", limit)
	g := newGroup(t, above.Dir, 0)
	if kept := g.kept(t, "large"); kept < limit-elsewhere(limit) || kept > limit {
		t.Errorf("it kept %d MiB of tensors before the error", kept/mib)
	}
}

// TestOtherProcessInGroup tests that memory that other processes of the cgroup use is not available for tensors.
func TestOtherProcessInGroup(t *testing.T) {
	leak.Check(t)
	const limit = 500 * mib
	g := newGroup(t, "", limit)
	alone := g.kept(t, "large")
	other, out := g.start(t, "holds memory")
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	other.Stdout = nil
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ended\n" {
		t.Errorf("%q, %v", line, err)
	}
	beside := g.kept(t, "large")
	_ = stdin.Close()
	if err := other.Wait(); err != nil {
		t.Errorf("the other process: %v, %s", err, out)
	}
	if beside < 24*mib || beside > alone-80*mib || beside < alone-160*mib {
		t.Errorf("%d MiB of tensors beside a process with 100 MiB, and %d MiB alone", beside/mib, alone/mib)
	}
}

// TestSetLimitIsKept tests that a limit set by the user is not changed.
func TestSetLimitIsKept(t *testing.T) {
	leak.Check(t)
	before, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = vram.SetLimit(tensor.CPU, vram.Bytes(before.Limit)) }()
	follow(t, 1, 500*mib, 100*mib, "")
	if err := vram.SetLimit(tensor.CPU, vram.Bytes(800*mib)); err != nil {
		t.Fatal(err)
	}
	give(t, 200*mib)
	if got := limit(t); got != 800*mib {
		t.Errorf("a limit of %d bytes, want 800 MiB", got)
	}
}
