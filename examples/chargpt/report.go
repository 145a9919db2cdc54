package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/examples/internal/progress"
	"github.com/linstock-ml/linstock/vram"
)

// report displays the progress of training, with the speed and the memory.
type report struct {
	*progress.Report
	run   *run
	first int // number of steps before the first
	loss  progress.Mean
}

func newReport(r *run) *report {
	fmt.Printf("first step after %.2f s\n", time.Since(started).Seconds())
	return &report{Report: progress.Start(r.step, r.options.steps), run: r, first: r.step}
}

// stepped is called after each step.
func (p *report) stepped(loss float64) {
	p.loss.Add(loss)
	p.Stepped(p.run.step, p.figures)
}

func (p *report) figures() string {
	tokens := float64((p.run.step - p.first) * p.run.Batch * p.run.Model.Context)
	s := fmt.Sprintf("loss %.3f  %.0f tokens/s", p.loss.Value(), tokens/p.Elapsed().Seconds())
	if stats, err := vram.Stats(p.run.options.device); err == nil {
		s += fmt.Sprintf("  native %.1f MB (peak %.1f)", mega(stats.Allocated), mega(stats.Peak))
	}
	if rss := residentBytes(); rss > 0 {
		s += fmt.Sprintf("  RSS %.0f MB", mega(rss))
	}
	return s
}

func mega(bytes int64) float64 { return float64(bytes) / 1e6 }

// residentBytes returns the resident memory of the process, or 0 without Linux's /proc.
func residentBytes() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kilo int64
	if _, err := fmt.Sscan(rest, &kilo); err != nil {
		return 0
	}
	return kilo * 1024
}
