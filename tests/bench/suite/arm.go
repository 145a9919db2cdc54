package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/proc"
)

// warmUp is how long steps run before they are timed. In Go the runtime's monitor thread polls for this long after a pause.
const warmUp = 20 * time.Millisecond

// runArm is the Go arm: one workload in this process. It answers the lines of standard input as cpp/main.cpp and
// py/main.py do:
//
//	steps N    the losses of N steps
//	time N     nanoseconds a step, over N steps after those of 20 ms, in which threads wake and caches fill
//	memory     the resident set in KiB with the library loaded, and its peak
//
// A second word after N names the optimizer, of which only Python has several.
func runArm(name string, threads int) error {
	w, err := find(name)
	if err != nil {
		return err
	}
	if err := tensor.SetNumThreads(threads); err != nil {
		return err
	}
	library, err := proc.Status("self", "VmRSS")
	if err != nil {
		return err
	}
	f, err := w.make(new(numbers))
	if err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := append(strings.Fields(in.Text()), "", "")
		count, _ := strconv.Atoi(words[1])
		switch words[0] {
		case "steps":
			for i := range count {
				v, err := f.loss()
				if err != nil {
					return err
				}
				if i > 0 {
					fmt.Print(" ")
				}
				fmt.Printf("%.9g", v)
			}
			fmt.Println()
		case "time":
			start := time.Now()
			for time.Since(start) < warmUp {
				if err := f.repeat(1); err != nil {
					return err
				}
			}
			start = time.Now()
			if err := f.repeat(count); err != nil {
				return err
			}
			fmt.Printf("%.1f\n", float64(time.Since(start).Nanoseconds())/float64(count))
		case "memory":
			most, err := proc.Status("self", "VmHWM")
			if err != nil {
				return err
			}
			fmt.Println(library>>10, most>>10)
		default:
			return fmt.Errorf("no command %q", words[0])
		}
	}
	return nil
}

// loss runs a step and returns its loss.
func (f step) loss() (v float64, err error) {
	err = tensor.WithScope(func() error {
		v, err = f(true)
		return err
	})
	return v, err
}

// repeat runs a step n times.
func (f step) repeat(n int) error {
	for range n {
		if err := tensor.WithScope(func() error {
			_, err := f(false)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
