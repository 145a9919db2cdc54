// Package scorecard is what the checks of docs/reliability.md have in common: how much of the full count is asked for,
// the progress, and the last line, which tests/verify reads.
package scorecard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/term"
)

// Share is that share of a count, 1 at least.
func Share(count int64, share float64) int64 { return max(1, int64(float64(count)*share)) }

// Line prints what a row of the scorecard came to; nothing may be printed on stdout after it.
func Line(row, figures string, ok bool) {
	state := "ok"
	if !ok {
		state = "FAILED"
	}
	fmt.Printf("scorecard|%s|%s|%s\n", row, figures, state)
}

// ModuleRoot is the directory of the module that the check is run in.
func ModuleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(string(mod)), nil
}

// Progress shows on stderr what say gives, until the function that it returns is called: five times a second on a
// terminal, else a line every ten seconds.
func Progress(say func() string) (stop func()) {
	every, format, last := 10*time.Second, "%s\n", ""
	if term.IsTerminal(int(os.Stderr.Fd())) {
		every, format, last = 200*time.Millisecond, "\r%s\x1b[K", "\r\x1b[K"
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(os.Stderr, format, say())
			case <-end:
				fmt.Fprint(os.Stderr, last)
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}
