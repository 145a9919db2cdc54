package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/worker"
)

// peerVar is set in rank 1 of a task of two ranks: the port of the job's store. Rank 0 is the arm, which starts rank 1 as a
// second arm and gives it the same task for each turn.
const peerVar = "LINSTOCK_BENCH_PEER"

// newDDP trains a model with DistributedDataParallel on two ranks. The arm's time is rank 0's.
func newDDP(name string) (*loop, error) {
	port, rank := os.Getenv(peerVar), 1
	var peer io.Writer
	if port == "" {
		var err error
		if port, err = launch.Port(); err != nil {
			return nil, err
		}
		cmd := exec.Command(os.Args[0], os.Args[1:]...)
		cmd.Env = append(os.Environ(), peerVar+"="+port)
		cmd.Stderr = os.Stderr
		p, err := worker.Start(cmd)
		if err != nil {
			return nil, err
		}
		go io.Copy(io.Discard, p.Out)
		if _, err := fmt.Fprintln(p.In, "ddp/"+name); err != nil {
			return nil, err
		}
		peer, rank = p.In, 0
	}
	g, err := dist.Init(context.Background(), dist.InitMethod("tcp://127.0.0.1:"+port), dist.Rank(rank), dist.WorldSize(2))
	if err != nil {
		return nil, err
	}
	step, err := newDDPStep(g, name)
	if err != nil {
		return nil, err
	}
	first := true // the task that the peer has got already
	return &loop{10, func(n int) error {
		if peer != nil && !first {
			if _, err := fmt.Fprintln(peer, "ddp/"+name); err != nil {
				return err
			}
		}
		first = false
		return repeat(step)(n)
	}}, nil
}

func newDDPStep(g *dist.Group, name string) (func() error, error) {
	var t *trainer
	var model any
	var forward func(d *dist.DDP) *tensor.Tensor
	var err error
	switch name {
	case "mlp":
		model = nn.NewSequential(nn.NewLinear(784, 1024), &nn.ReLU{}, nn.NewLinear(1024, 1024), &nn.ReLU{}, nn.NewLinear(1024, 10))
		x, y := tensor.Randn([]int{64, 784}), tensor.RandInt(0, 10, []int{64})
		forward = func(d *dist.DDP) *tensor.Tensor { return nn.CrossEntropy(d.Forward(x), y) }
		t = &trainer{}
		t.opt, err = optim.NewAdamW(nn.Parameters(model), 1e-3, optim.WeightDecay(0.01))
	case "gpt":
		if t, err = newTrainer(); err == nil {
			model = t.model
		}
		forward = func(d *dist.DDP) *tensor.Tensor {
			return d.Run(func() *tensor.Tensor { return t.model.Loss(t.x, t.y) })
		}
	default:
		err = fmt.Errorf("no task %q", "ddp/"+name)
	}
	if err != nil {
		return nil, err
	}
	d, err := dist.NewDDP(context.Background(), g, model, dist.GradientAsBucketView(true))
	if err != nil {
		return nil, err
	}
	return func() error { return t.stepOf(func() *tensor.Tensor { return forward(d) }) }, nil
}
