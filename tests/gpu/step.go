package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// logLimit is the number of bytes of a step's output that log.txt keeps, half from its beginning and half from
// its end.
const logLimit = 128 << 10

// step runs a step. It reports whether the step ended by itself or reached its limit; false if a signal stopped
// it.
func (r *runner) step(ctx context.Context, p part, s step) (res stepResult, finished bool) {
	res = stepResult{Part: p.name, Step: s.name, State: stateOK, Kit: r.results.Kit.Commit, Began: time.Now().UTC().Format(time.RFC3339)}
	limited, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	dry := ""
	if r.dry {
		dry = s.dry
	}
	words := strings.Fields(strings.ReplaceAll(s.argv, "{dry}", dry))
	for i, w := range words {
		words[i] = r.expand(w)
	}
	cmd := exec.CommandContext(limited, words[0], words[1:]...)
	cmd.Dir = filepath.Join(r.work, "repo", s.dir)
	cmd.Env = os.Environ()
	for _, e := range s.env {
		cmd.Env = append(cmd.Env, r.expand(e))
	}
	if r.dry {
		cmd.Env = append(cmd.Env, "LINSTOCK_GPU_DRY=1")
		for _, e := range s.dryEnv {
			cmd.Env = append(cmd.Env, r.expand(e))
		}
	}
	// The step gets its own process group, so that the processes it starts end with it. A Go program prints its
	// goroutines on SIGQUIT.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT) }
	cmd.WaitDelay = 5 * time.Second
	var stdout bytes.Buffer
	log := &shared{}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, log), log
	start := time.Now()
	err := cmd.Run()
	res.Seconds = float64(time.Since(start).Milliseconds()) / 1000
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	logErr := r.log(p, s, words, log.buffer.Bytes(), err)
	if ctx.Err() != nil {
		return res, false
	}
	read := s.read
	if read == nil {
		read = readRows
	}
	readErr := read(stdout.Bytes(), log.buffer.Bytes(), &res)
	var exit *exec.ExitError
	switch {
	case limited.Err() != nil:
		res.fail(fmt.Sprintf("stopped after its limit of %v", s.limit))
	case errors.As(err, &exit) && res.State != stateOK: // the rows contain the reason
	case err != nil:
		res.fail(fmt.Sprintf("%v: %s", err, lastLine(log.buffer.Bytes())))
	case readErr != nil:
		res.fail(readErr.Error())
	case logErr != nil:
		res.fail(logErr.Error())
	}
	return res, true
}

// expand replaces {kit}, {bin}, {repo}, {work}, {out}, {python}, {kernels}, {share} and {short} in a word of a
// command. {short} becomes go test's -short flag if the share is below 1.
func (r *runner) expand(word string) string {
	if word == "{short}" {
		return fmt.Sprintf("-test.short=%v", r.share < 1)
	}
	return strings.NewReplacer("{kit}", r.kit, "{bin}", filepath.Join(r.work, "bin"), "{repo}", filepath.Join(r.work, "repo"),
		"{work}", r.work, "{out}", r.out, "{python}", r.python, "{kernels}", os.Getenv("LINSTOCK_GPU_KERNELS"), "{share}", strconv.FormatFloat(r.share, 'g', -1, 64)).Replace(word)
}

// log appends a step's output to log.txt.
func (r *runner) log(p part, s step, words []string, said []byte, end error) error {
	f, err := os.OpenFile(filepath.Join(r.out, "log.txt"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if len(said) > logLimit {
		half := logLimit / 2
		said = fmt.Appendf(said[:half:half], "\n… %d bytes left out …\n%s", len(said)-logLimit, said[len(said)-half:])
	}
	_, err = fmt.Fprintf(f, "== %s/%s %s: %s\n%s\n-- %v\n\n", p.name, s.name, time.Now().UTC().Format(time.RFC3339), strings.Join(words, " "), bytes.TrimRight(said, "\n"), end)
	return err
}

// shared is a buffer that stdout and stderr both write to.
type shared struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.Write(b)
}

func lastLine(b []byte) string {
	b = bytes.TrimSpace(b)
	line := string(b[bytes.LastIndexByte(b, '\n')+1:])
	if len(line) > 300 {
		line = line[:300]
	}
	return line
}
