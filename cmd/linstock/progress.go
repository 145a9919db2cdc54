package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/linstock-ml/linstock/internal/libtorch"
)

// newProgress draws bars on a terminal. Elsewhere, such as in the log of a CI job, it prints a line every few seconds.
func newProgress(w *os.File) libtorch.Progress {
	if term.IsTerminal(int(w.Fd())) {
		return &bars{w: w}
	}
	return &lines{w: w, every: 5 * time.Second}
}

type bars struct{ w io.Writer }

func (b *bars) Note(format string, args ...any) { fmt.Fprintf(b.w, format+"\n", args...) }

func (b *bars) Start(what string, total int64, unit libtorch.Unit) libtorch.Task {
	if total == 0 {
		total = -1 // a spinner, until SetTotal
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(b.w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(24),
		progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionSpinnerType(14),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
	}
	if unit == libtorch.Bytes {
		options = append(options, progressbar.OptionShowBytes(true), progressbar.OptionShowTotalBytes(true))
	}
	return &bar{w: b.w, what: what, begun: time.Now(), bar: progressbar.NewOptions64(total, options...)}
}

type bar struct {
	w     io.Writer
	what  string
	begun time.Time

	mu  sync.Mutex
	bar *progressbar.ProgressBar
}

// Errors of the bar are errors of writing to the terminal; ignore them.

func (b *bar) SetTotal(total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar.ChangeMax64(total)
}

func (b *bar) Set(done int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// At its maximum the bar would disappear; End does that.
	if done < b.bar.GetMax64() {
		_ = b.bar.Set64(done)
	}
}

func (b *bar) End(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.bar.Exit()
	_ = b.bar.Clear()
	fmt.Fprintln(b.w, ended(b.what, b.begun, err))
}

func ended(what string, begun time.Time, err error) string {
	if errors.Is(err, errInterrupted) {
		return what + ": stopped"
	}
	if err != nil {
		return what + ": failed"
	}
	return fmt.Sprintf("%s: done in %.1f s", what, time.Since(begun).Seconds())
}

type lines struct {
	w     io.Writer
	every time.Duration
	mu    sync.Mutex
}

func (l *lines) Note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

func (l *lines) Start(what string, total int64, unit libtorch.Unit) libtorch.Task {
	l.Note("%s …", what)
	return &line{lines: l, what: what, unit: unit, begun: time.Now(), last: time.Now(), total: total}
}

type line struct {
	lines *lines
	what  string
	unit  libtorch.Unit
	begun time.Time

	mu    sync.Mutex
	last  time.Time
	total int64
}

func (l *line) SetTotal(total int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total = total
}

func (l *line) Set(done int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < l.lines.every {
		return
	}
	l.last = time.Now()
	show := func(n int64) string {
		if l.unit == libtorch.Bytes {
			return fmt.Sprintf("%d MB", n/1e6)
		}
		return fmt.Sprint(n)
	}
	if l.total > 0 {
		l.lines.Note("%s: %s of %s (%d%%)", l.what, show(done), show(l.total), 100*done/l.total)
		return
	}
	l.lines.Note("%s: %s", l.what, show(done))
}

func (l *line) End(err error) { l.lines.Note("%s", ended(l.what, l.begun, err)) }
