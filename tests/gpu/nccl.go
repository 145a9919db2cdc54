package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

func init() { programs["beside"] = beside }

var ncclSteps = []step{
	{name: "ranks", shows: "Python's NCCL with one rank, and with two on one device; a Go process trains meanwhile", limit: 5 * time.Minute,
		argv: "{bin}/gpu beside {python} tests/gpu/nccl.py"},
	{name: "groups", shows: "process groups of two ranks over NCCL: collectives, training, failures", limit: 4 * time.Minute,
		argv: "{repo}/tests/fakecuda/fakecuda.test -test.v -test.parallel 4 -test.run ^(" + ncclTests + ")$", dir: "tests/fakecuda", read: readGoTest,
		env: append([]string{"LINSTOCK_TEST_FAKECUDA=here", "FAKECUDA_TEST_REAL=1"}, exact...), dryEnv: kernels},
}

// ncclTests are the tests of tests/fakecuda that need two ranks and no fake errors.
const ncclTests = "TestCollectives|TestCheckedCollectives|TestNCCLAlone|TestAsynchronous|TestDataParallel|TestSharded|TestTensorParallel|" +
	"TestPipeline|TestMixedStages|TestDividedOptimizer|TestKilledRank|TestStoppedRank|TestAbort|TestCancel|TestClose"

// beside runs a command while a child trains on the same device. The child continues to train after the command
// has ended.
func beside(argv []string) error {
	c, err := start(nil, "busy-child", "0.1")
	if err != nil {
		return err
	}
	defer c.cmd.Process.Kill() //nolint:errcheck // the process may have ended
	if _, err := c.report("ready"); err != nil {
		return err
	}
	type answer struct {
		steps int
		err   error
	}
	stop, done := make(chan struct{}), make(chan answer)
	go func() {
		var a answer
		for a.err == nil {
			select {
			case <-stop:
				done <- a
				return
			default:
				_, a.err = c.ask("train", "trained")
				a.steps += 200
			}
		}
		<-stop
		done <- a
	}()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	close(stop)
	a := <-done
	_ = c.in.Close()
	end := errors.Join(a.err, c.cmd.Wait())
	row(struct {
		Row  string `json:"row"`
		OK   bool   `json:"ok"`
		Note string `json:"note,omitempty"`
	}{fmt.Sprintf("the Go process beside them: %d training steps", a.steps), end == nil, text(end)})
	return err
}
