// Package worker runs programs that are controlled by lines: they read requests from their standard input and write
// answers to their standard output.
package worker

import (
	"bufio"
	"io"
	"os/exec"
)

// Process is a running worker.
type Process struct {
	*exec.Cmd
	In  io.WriteCloser
	Out *bufio.Reader
}

// Start starts the command. The caller sets its standard error.
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

// End closes the process's standard input and waits for it to end. Output that it still writes is lost.
func (p *Process) End() error {
	_ = p.In.Close()
	_, _ = io.Copy(io.Discard, p.Out)
	return p.Wait()
}
