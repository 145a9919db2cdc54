package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/linstock-ml/linstock/tests/internal/worker"
)

// A program computes a workload in a language. It answers lines as runArm says.
type program struct {
	argv []string // WORKLOAD and THREADS stand for themselves
	env  []string
}

// An arm is a column of the tables: a program, and how it runs an optimizer.
type arm struct {
	name      string
	program   string
	optimizer string
}

var columns = []arm{
	{"Go", "go", ""},
	{"C++ here", "c++ here", ""}, // with the shim's allocator in its process
	{"C++", "c++", ""},           // with its own
	{"Python", "python", "default"},
	{"Python fused", "python", "fused"},
	{"Python foreach", "python", "foreach"},
}

// arms are the programs that are there.
type arms map[string]program

func findArms() (arms, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	native := filepath.Join(filepath.Dir(self), "cpp", "suite")
	if _, err := os.Stat(native); err != nil {
		return nil, errors.New("the C++ arm is not built: run make bench-suite")
	}
	a := arms{
		"go":       {[]string{self, "-arm", "WORKLOAD", "-threads", "THREADS"}, nil},
		"c++ here": {[]string{native, "WORKLOAD", "THREADS"}, nil},
		"c++":      {[]string{native, "WORKLOAD", "THREADS"}, []string{"BENCH_ALLOCATOR=libtorch"}},
	}
	python := "build/pytorch/bin/python"
	if p := os.Getenv("LINSTOCK_BENCH_PYTHON"); p != "" {
		python = p
	}
	if _, err := os.Stat(python); err == nil {
		a["python"] = program{[]string{python, "tests/bench/suite/py/main.py", "WORKLOAD", "THREADS"}, nil}
	} else {
		fmt.Println("Python's PyTorch is not installed (make bench-setup): compared with C++ alone")
	}
	return a, nil
}

// of returns the columns that a workload has.
func (a arms) of(w workload) (list []arm) {
	for _, c := range columns {
		if _, ok := a[c.program]; ok && (w.train || c.optimizer == "" || c.optimizer == "default") {
			list = append(list, c)
		}
	}
	return list
}

// A process is a program that runs.
type process struct{ *worker.Process }

func (p program) start(ctx context.Context, w workload, threads int) (process, error) {
	words := make([]string, len(p.argv))
	for i, word := range p.argv {
		words[i] = strings.NewReplacer("WORKLOAD", w.name, "THREADS", strconv.Itoa(threads)).Replace(word)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stderr = os.Stderr
	// An interrupt from the terminal reaches the runner alone, which ends the arms.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c, err := worker.Start(cmd)
	return process{c}, err
}

// ask sends a line and returns the numbers of the answer.
func (p process) ask(command string, count int, optimizer string) ([]float64, error) {
	failed := func(err error) error {
		return fmt.Errorf("%s, %s: %w", strings.Join(p.Args, " "), command, err)
	}
	if _, err := fmt.Fprintln(p.In, command, count, optimizer); err != nil {
		return nil, failed(err)
	}
	line, err := p.Out.ReadString('\n')
	if err != nil {
		return nil, failed(err)
	}
	var v []float64
	for _, word := range strings.Fields(line) {
		x, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, failed(err)
		}
		v = append(v, x)
	}
	return v, nil
}
