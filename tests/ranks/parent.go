package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	ranks = 4
	// within is how long after a fault, and after the timeout if the process still exists, all others must have ended.
	within = 2 * time.Second
)

func (p *parent) longest() time.Duration {
	return time.Duration(p.most.Load()).Round(time.Millisecond)
}

// run runs jobs until the given number of faults has happened.
func (p *parent) run(total int64) error {
	p.kinds = map[string]int{}
	dir, err := os.MkdirTemp("", "ranks")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if p.network, p.noNetwork = newNetwork(); p.noNetwork == nil {
		defer p.network.close()
	} else if p.only == "cut" {
		return p.noNetwork
	}
	undisturbed := filepath.Join(dir, "undisturbed")
	if err := p.attempt(undisturbed, -1, fault{}); err != nil {
		return err
	}
	for p.done.Load() < total {
		p.jobs++
		job := filepath.Join(dir, strconv.Itoa(p.jobs))
		for {
			step, err := position(job)
			if err != nil {
				return err
			}
			// A fault before the save of the last step would leave it the last step.
			if step >= p.steps-1 || p.done.Load() >= total {
				break
			}
			f := p.next(step)
			for p.only != "" && f.kind != p.only {
				f = p.next(step)
			}
			r := p.random.IntN(ranks)
			if err := p.attempt(job, r, f); err != nil {
				return fmt.Errorf("fault %d of job %d, %v of rank %d: %w", p.done.Load()+1, p.jobs, f, r, err)
			}
			after, err := position(job)
			if err == nil && !f.leaves(after) {
				err = fmt.Errorf("the checkpoint is of step %d", after)
			}
			if err != nil {
				return fmt.Errorf("after fault %d of job %d, %v of rank %d: %w", p.done.Load()+1, p.jobs, f, r, err)
			}
			p.kinds[f.kind]++
			p.done.Add(1)
		}
		if err := p.attempt(job, -1, fault{}); err != nil {
			return err
		}
		if d, err := difference(undisturbed, job); err != nil || !(d <= 1e-5) {
			return fmt.Errorf("job %d: weights differ by %v from those without faults, %v", p.jobs, d, err)
		}
		if err := os.RemoveAll(job); err != nil {
			return err
		}
	}
	return nil
}

// difference returns the largest difference between the weights of two jobs. They differ in the last bits, because a DDP
// sums its first gradients in other buckets than later ones, in PyTorch, too.
func difference(job, other string) (most float64, err error) {
	err = tensor.WithScope(func() error {
		var flat [2]*tensor.Tensor
		for i, dir := range []string{job, other} {
			model := newModel()
			if err := dcp.Load(context.Background(), nil, filepath.Join(dir, saved), dcp.State{Shards: dcp.Model("model.", model)}); err != nil {
				return err
			}
			var all []*tensor.Tensor
			for _, p := range nn.Parameters(model) {
				all = append(all, p.Detach().Flatten())
			}
			flat[i] = tensor.Cat(all)
			nn.Release(model)
		}
		most, err = flat[0].Sub(flat[1]).Abs().Max().Item()
		return err
	})
	return most, err
}

// position returns the step of the job's checkpoint, 0 if there is none.
func position(job string) (step int, err error) {
	parts := []checkpoint.Part{checkpoint.Value("step", &step)}
	err = dcp.Load(context.Background(), nil, filepath.Join(job, saved), dcp.State{Parts: parts})
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return step, err
}

// next returns a random fault of a job that is at the given step. One in ten waits for the timeout.
func (p *parent) next(step int) fault {
	f := fault{kind: "kill", phase: phases[p.random.IntN(len(phases))], step: step + p.random.IntN(min(2, p.steps-step))}
	switch p.random.IntN(20) {
	case 0:
		f.kind = "stop"
	case 1:
		f.kind = "slow"
	case 4:
		if p.network != nil {
			f.kind = "cut"
		}
	case 2, 3:
		f.kind, f.phase = "disk", "save"
	}
	if f.during() {
		f.wait = time.Duration(p.random.IntN(int(10 * time.Millisecond)))
	}
	return f
}

// attempt runs the ranks of a job. The given one has a fault, -1 for none, and all others must name it.
func (p *parent) attempt(dir string, faulty int, f fault) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	port, err := launch.Port()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all [ranks]*exec.Cmd
	var outs [ranks]bytes.Buffer
	happened := make(chan time.Time, 1)
	cut := make(chan error, 1)
	for r := range all {
		cmd := exec.CommandContext(ctx, os.Args[0], "-child", dir, "-steps", strconv.Itoa(p.steps))
		cmd.Env = launch.Environ(r, ranks, port)
		cmd.Stdout, cmd.Stderr = &outs[r], &outs[r]
		if r == faulty {
			cmd.Args = append(cmd.Args, "-fault", f.String())
			cmd.Stdout = nil
			out, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			go func() {
				for lines := bufio.NewScanner(out); lines.Scan(); {
					if lines.Text() == "fault" {
						happened <- time.Now()
						if f.kind == "cut" {
							cut <- p.network.cut(faulty)
						}
					}
				}
			}()
		}
		if f.kind == "cut" {
			p.network.inside(r, cmd)
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		all[r] = cmd
	}
	var errs []error
	for r, cmd := range all {
		if r == faulty {
			continue
		}
		err := cmd.Wait()
		want := trained
		if faulty >= 0 {
			want = peerFailed
		}
		if code := cmd.ProcessState.ExitCode(); code != want || faulty >= 0 && !strings.Contains(outs[r].String(), fmt.Sprintf("peer [%d] ", faulty)) {
			errs = append(errs, fmt.Errorf("rank %d: %v\n%s", r, err, outs[r].String()))
		}
	}
	if faulty < 0 || len(errs) != 0 {
		return errors.Join(errs...)
	}
	select {
	case at := <-happened:
		took := time.Since(at)
		if f.kind == "stop" || f.kind == "slow" || f.kind == "cut" {
			took -= timeout
		}
		p.most.Store(max(p.most.Load(), int64(took)))
		if took > within {
			return fmt.Errorf("the last error came %v late", took)
		}
	default:
		return errors.New("the fault did not happen")
	}
	_ = all[faulty].Process.Signal(syscall.SIGCONT)
	if f.kind == "cut" {
		return errors.Join(<-cut, p.network.connect(faulty))
	}
	return nil
}
