package fakecuda

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Setup runs setup.sh in the module at root, which makes what is not there yet, and gives what a program that runs over
// the fakes needs in its environment.
func Setup(root string) (env []string, err error) {
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
