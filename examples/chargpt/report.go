package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/linstock-ml/linstock/vram"
)

// report displays the progress of training: a bar on a terminal, and lines elsewhere.
type report struct {
	run     *run
	bar     *progressbar.ProgressBar // nil without a terminal
	begun   time.Time
	first   int // number of steps before the first
	smooth  float64
	spoken  time.Time
	linesAt int
}

func newReport(r *run) *report {
	p := &report{run: r, begun: time.Now(), first: r.step, linesAt: max(1, r.options.steps/20)}
	fmt.Printf("first step after %.2f s\n", time.Since(started).Seconds())
	if term.IsTerminal(int(os.Stderr.Fd())) {
		p.bar = progressbar.NewOptions(r.options.steps, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(20))
		_ = p.bar.Set(r.step)
	}
	return p
}

// stepped is called after each step.
func (p *report) stepped(loss float64) {
	n := p.run.step - p.first
	if n == 1 {
		p.smooth = loss
	}
	p.smooth += (loss - p.smooth) * max(0.05, 1/float64(n))
	if p.bar != nil {
		if now := time.Now(); now.Sub(p.spoken) > 200*time.Millisecond {
			p.spoken = now
			p.bar.Describe(p.figures(n))
		}
		_ = p.bar.Set(p.run.step)
		return
	}
	if n == 1 || p.run.step%p.linesAt == 0 || p.run.step == p.run.options.steps {
		left := time.Since(p.begun) / time.Duration(n) * time.Duration(p.run.options.steps-p.run.step)
		fmt.Printf("step %5d/%d  %s  ETA %v\n", p.run.step, p.run.options.steps, p.figures(n), left.Round(time.Second))
	}
}

func (p *report) figures(n int) string {
	tokens := float64(n * p.run.Batch * p.run.Model.Context)
	s := fmt.Sprintf("loss %.3f  %.0f tokens/s", p.smooth, tokens/time.Since(p.begun).Seconds())
	if stats, err := vram.Stats(vram.CPU); err == nil {
		s += fmt.Sprintf("  native %.1f MB (peak %.1f)", mega(stats.Allocated), mega(stats.Peak))
	}
	if rss := residentBytes(); rss > 0 {
		s += fmt.Sprintf("  RSS %.0f MB", mega(rss))
	}
	return s
}

func (p *report) close() {
	if p.bar != nil {
		fmt.Fprintln(os.Stderr)
	}
	if n := p.run.step - p.first; n > 0 {
		fmt.Printf("%d steps in %.1f s\n", n, time.Since(p.begun).Seconds())
	}
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
