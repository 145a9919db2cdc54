// Package progress shows how far an example's training is, and plots its losses. It is meant to be copied with the example.
package progress

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Report shows the progress of a run: a bar on a terminal, and about 20 lines elsewhere.
type Report struct {
	bar         *progressbar.ProgressBar // nil without a terminal
	begun       time.Time
	described   time.Time
	first, done int // steps before the run, and by now
	total       int
	linesAt     int
}

// Start begins a report on the steps from done to total.
func Start(done, total int) *Report {
	r := &Report{begun: time.Now(), first: done, done: done, total: total, linesAt: max(1, total/20)}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		r.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(20))
		_ = r.bar.Set(done)
	}
	return r
}

// Stepped is called after each step with the number of steps by now. It calls figures, which describes the run, when it
// shows them.
func (r *Report) Stepped(done int, figures func() string) {
	r.done = done
	if r.bar != nil {
		if now := time.Now(); now.Sub(r.described) > 200*time.Millisecond {
			r.described = now
			r.bar.Describe(figures())
		}
		_ = r.bar.Set(done)
		return
	}
	n := done - r.first
	if n == 1 || done%r.linesAt == 0 || done == r.total {
		left := r.Elapsed() / time.Duration(max(1, n)) * time.Duration(r.total-done)
		fmt.Printf("step %5d/%d  %s  ETA %v\n", done, r.total, figures(), left.Round(time.Second))
	}
}

// Elapsed returns the time since Start.
func (r *Report) Elapsed() time.Duration { return time.Since(r.begun) }

// Close ends the report with the time that the steps took.
func (r *Report) Close() {
	if r.bar != nil {
		fmt.Fprintln(os.Stderr)
	}
	if n := r.done - r.first; n > 0 {
		fmt.Printf("%d steps in %.1f s\n", n, r.Elapsed().Seconds())
	}
}

// Mean is the moving average of a figure. Its zero value has no numbers yet.
type Mean struct {
	value float64
	n     int
}

// Add adds the figure of a step.
func (m *Mean) Add(v float64) {
	m.n++
	m.value += (v - m.value) * max(0.05, 1/float64(m.n))
}

// Value returns the average, in which the last 20 steps weigh most.
func (m *Mean) Value() float64 { return m.value }
