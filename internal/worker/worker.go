// Package worker runs programs that are spoken to by lines: they read their standard input, and answer on their standard
// output.
package worker

import (
	"bufio"
	"io"
	"os/exec"
)

// Process is one that runs.
type Process struct {
	*exec.Cmd
	In  io.WriteCloser
	Out *bufio.Reader
}

// Start starts the command, whose standard error is the caller's to set.
func Start(cmd *exec.Cmd) (*Process, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &Process{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

// End waits for the process, which is told that nothing more is asked of it; what it still writes is lost.
func (p *Process) End() error {
	_ = p.In.Close()
	_, _ = io.Copy(io.Discard, p.Out)
	return p.Wait()
}
