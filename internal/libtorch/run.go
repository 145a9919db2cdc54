package libtorch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// run executes a command, and kills it and all that it started when ctx ends. If out is not nil, it also receives the
// output. The error contains part of the output.
func run(ctx context.Context, out io.Writer, env []string, dir, name string, args ...string) error {
	cmd := command(ctx, name, args...)
	cmd.Dir = dir
	if env != nil {
		cmd.Env = env
	}
	var all bytes.Buffer
	cmd.Stdout = &all
	if out != nil {
		cmd.Stdout = io.MultiWriter(&all, out)
	}
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	if err := interrupted(ctx, cmd); err != nil {
		return err
	}
	if err != nil {
		return &RunError{Command: name + " " + strings.Join(args, " "), Err: err, Output: all.String()}
	}
	return nil
}

// command returns a command in a process group of its own, which the end of ctx terminates.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	// A child that ignores SIGTERM is killed after this time.
	cmd.WaitDelay = 5 * time.Second
	ownGroup(cmd)
	return cmd
}

// interrupted returns the cause of the end of ctx, or nil. It kills what is left of the command's group.
func interrupted(ctx context.Context, cmd *exec.Cmd) error {
	if ctx.Err() == nil {
		return nil
	}
	if cmd.Process != nil {
		killGroup(cmd)
	}
	return context.Cause(ctx)
}

// Output runs a command and returns what it prints, or the cause of the end of ctx. Any other error ends with what the
// command prints as errors, on one line.
func Output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := command(ctx, name, args...)
	out, err := cmd.Output()
	if err := interrupted(ctx, cmd); err != nil {
		return nil, err
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.Join(strings.Fields(string(exit.Stderr)), " "))
	}
	return out, err
}

// A RunError is the failure of a command.
type RunError struct {
	Command string
	Err     error
	Output  string
}

func (e *RunError) Error() string {
	return fmt.Sprintf("%s: %v\n%s", e.Command, e.Err, excerpt(e.Output, 24))
}

func (e *RunError) Unwrap() error { return e.Err }

// excerpt returns the part of a command's output to display: n lines from the first that mentions an error, or
// otherwise the last n lines.
func excerpt(output string, n int) string {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	from := slices.IndexFunc(lines, func(line string) bool {
		lower := strings.ToLower(line)
		return strings.Contains(lower, "error:") || strings.Contains(lower, "cmake error")
	})
	if from < 0 {
		from = max(0, len(lines)-n)
	}
	return "    " + strings.Join(lines[from:min(len(lines), from+n)], "\n    ")
}
