package fakecuda

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

// Setup runs setup.sh, which builds what is missing, and returns the environment of a program that runs over
// the fakes.
func Setup() (env []string, err error) {
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return nil, err
	}
	var errs bytes.Buffer
	cmd := exec.Command(filepath.Join(root, "tests/fakecuda/setup.sh"))
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("setup.sh: %w\n%s", err, &errs)
	}
	for line := range strings.Lines(string(out)) {
		env = append(env, strings.TrimPrefix(strings.TrimSpace(line), "export "))
	}
	return env, nil
}

// Rerun restarts this program over the fakes with the same process ID and arguments. In the restarted program
// it returns the Control of one device of the given capacity, which the caller must close.
func Rerun(capacity int64) (*Control, error) {
	const started = "FAKECUDA_RERUN"
	if file := os.Getenv(started); file != "" {
		c, err := Open(file, 1, capacity)
		if err == nil {
			c.temporary = file
		}
		return c, err
	}
	env, err := Setup()
	if err != nil {
		return nil, err
	}
	words, err := os.CreateTemp("", "fakecuda")
	if err != nil {
		return nil, err
	}
	_ = words.Close()
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	env = append(env, started+"="+words.Name(), "FAKECUDA_CONTROL="+words.Name())
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	return nil, syscall.Exec(program, os.Args, os.Environ())
}
