// Package scorecard holds what the checks of docs/reliability.md share: the share of the full count to run, the display
// of progress, and the last line, which tests/verify reads.
package scorecard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/term"
)

// Share returns the given share of a count, at least 1.
func Share(count int64, share float64) int64 { return max(1, int64(float64(count)*share)) }

// Line prints the result of a row of the scorecard. Nothing may be printed on stdout after it.
func Line(row, figures string, ok bool) {
	state := "ok"
	if !ok {
		state = "FAILED"
	}
	fmt.Printf("scorecard|%s|%s|%s\n", row, figures, state)
}

// ModuleRoot returns the directory of the module in which the check runs.
func ModuleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(string(mod)), nil
}

// Progress prints what say returns on stderr until the returned function is called: five times a second on a terminal,
// and otherwise a line every ten seconds.
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
