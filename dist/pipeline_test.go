package dist_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestPipeline compares three stages with the whole model, in both schedules and with fewer microbatches than stages.
func TestPipeline(t *testing.T) {
	leak.Check(t)
	mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
	stage := func(i int) nn.Layer {
		s := nn.NewSequential(nn.NewLinear(6, 6, nn.DType(tensor.Float64)), &nn.Tanh{})
		for k, p := range nn.Parameters(s) {
			p.Detach().Copy_(wave(p.Shape(), 10*i+k))
		}
		return s
	}
	for _, gpipe := range []bool{false, true} {
		for _, microbatches := range []int{1, 2, 4, 8} {
			ranks(t, 3, func(g *dist.Group) error {
				x, target := wave([]int{8, 6}, 1).To(tensor.Float64), wave([]int{8, 6}, 2).To(tensor.Float64)
				whole := nn.NewSequential(stage(0), stage(1), stage(2))
				loss := mse(whole.Forward(x), target)
				want, err := loss.Item()
				if err := errors.Join(err, loss.Backward()); err != nil {
					return err
				}
				mine := stage(g.Rank())
				p, err := dist.NewPipeline(g, mine, mse, microbatches, dist.GPipe(gpipe))
				if err != nil {
					return err
				}
				for n := range 2 { // gradients of the second step add up
					got, err := p.Step(ctx, x, target)
					if err != nil {
						return err
					}
					if !(math.Abs(got-want) <= 1e-6) {
						return fmt.Errorf("loss %v, want %v", got, want)
					}
					for i, p := range nn.Parameters(mine) {
						all := nn.Parameters(whole)
						if d, err := p.Grad().Sub(all[2*g.Rank()+i].Grad().Mul(n + 1)).Abs().Max().Item(); err != nil || !(d <= 1e-12) {
							return fmt.Errorf("%d microbatches, rank %d: gradient %d differs by %v, %v", microbatches, g.Rank(), i, d, err)
						}
					}
				}
				return nil
			})
		}
	}
}

// scaled is a stage that takes and returns a row of the size of Scale, and notes the most memory during its forward passes.
type scaled struct {
	Scale *tensor.Tensor
	slow  time.Duration
	most  int64
}

func (w *scaled) Forward(x *tensor.Tensor) *tensor.Tensor {
	time.Sleep(w.slow)
	if s, err := vram.Stats(vram.CPU); err == nil {
		w.most = max(w.most, s.Requested)
	}
	return x.Mul(w.Scale)
}

// TestPipelineMemory tests that 1F1B keeps the tensors of a few microbatches, also of those that it has sent to a slow stage, and
// that no gradient acknowledges: in Eval, and where the first stages have nothing to train.
func TestPipelineMemory(t *testing.T) {
	leak.Check(t)
	const elements, microbatches = 1 << 18, 32 // a megabyte each
	for _, c := range []struct {
		name   string
		frozen bool
		call   func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error)
		most   int64 // megabytes
		opts   []dist.PipelineOption
	}{
		{"trained", false, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Step(ctx, x, target) }, 40, nil},
		{"frozen", true, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Step(ctx, x, target) }, 25, nil},
		{"eval", false, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Eval(ctx, x, target) }, 25, nil},
		{"eval, GPipe", false, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Eval(ctx, x, target) }, 25,
			[]dist.PipelineOption{dist.GPipe()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			leak.Check(t)
			ranks(t, 3, func(g *dist.Group) error {
				w := &scaled{Scale: tensor.Ones([]int{elements}).RequiresGrad_()}
				switch {
				case g.Rank() == 2:
					w.slow = 5 * time.Millisecond
				case c.frozen:
					w.Scale.RequiresGrad_(false)
				}
				mse := func(y, target *tensor.Tensor) *tensor.Tensor { return y.Sub(target).Square().Mean() }
				p, err := dist.NewPipeline(g, w, mse, microbatches, c.opts...)
				if err != nil {
					return err
				}
				x, target := tensor.Ones([]int{1, 1}).Expand(microbatches, elements), tensor.Ones([]int{microbatches, 1})
				before, err := vram.Stats(vram.CPU)
				if err := errors.Join(err, g.Barrier(ctx), second(c.call(p, x, target))); err != nil {
					return err
				}
				got := (w.most - before.Requested) / (4 * elements)
				if got > c.most {
					t.Errorf("rank %d: %d MB", g.Rank(), got)
				}
				return nil
			})
		})
	}
}

// TestPipelineErrors tests that an error of a stage is an error of all ranks.
func TestPipelineErrors(t *testing.T) {
	leak.Check(t)
	mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
	ranks(t, 2, func(g *dist.Group) error {
		l := nn.NewLinear(3, 3)
		for name, f := range map[string]func() (*dist.Pipeline, error){
			"nil group":       func() (*dist.Pipeline, error) { return dist.NewPipeline(nil, l, mse, 1) },
			"nil stage":       func() (*dist.Pipeline, error) { return dist.NewPipeline(g, nil, mse, 1) },
			"no microbatches": func() (*dist.Pipeline, error) { return dist.NewPipeline(g, l, mse, 0) },
			"a nil option":    func() (*dist.Pipeline, error) { return dist.NewPipeline(g, l, mse, 1, nil) },
			"a failed stage":  func() (*dist.Pipeline, error) { return dist.NewPipeline(g, nn.NewLinear(-1, 3), mse, 1) },
		} {
			if p, err := f(); err == nil || p != nil {
				t.Errorf("%s: %v, %v", name, p, err)
			}
		}
		var none *dist.Pipeline
		if _, err := none.Step(ctx, nil, nil); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil pipeline: %v", err)
		}
		p, err := dist.NewPipeline(g, l, mse, 2)
		if err == nil {
			err = g.Barrier(ctx) // neither rank leaves while the other still connects
		}
		if err != nil {
			return err
		}
		_, err = p.Step(ctx, tensor.Ones([]int{4, 3}), tensor.Ones([]int{3, 3})) // the last rank's cannot be divided
		if err == nil || g.Rank() == 1 && !errors.Is(err, tensor.ErrArgument) {
			return fmt.Errorf("rank %d: %v", g.Rank(), err)
		}
		return nil
	})
}

// A function is a stage without parameters.
type function func(x *tensor.Tensor) *tensor.Tensor

func (f function) Forward(x *tensor.Tensor) *tensor.Tensor { return f(x) }

// TestPipelineFrozen compares pipelines whose first stages have nothing to train with the whole model.
func TestPipelineFrozen(t *testing.T) {
	leak.Check(t)
	frozen := func() nn.Layer {
		l := nn.NewLinear(4, 4)
		for i, p := range nn.Parameters(l) {
			p.Detach().Copy_(wave(p.Shape(), i))
			p.RequiresGrad_(false)
		}
		return l
	}
	trained := func() nn.Layer {
		l := nn.NewLinear(4, 4)
		for i, p := range nn.Parameters(l) {
			p.Detach().Copy_(wave(p.Shape(), 5+i))
		}
		return l
	}
	scale := function(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(2) })
	toInt := function(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(3).To(tensor.Int64) })
	toFloat := function(func(x *tensor.Tensor) *tensor.Tensor { return x.To(tensor.Float32) })
	for name, stages := range map[string]func() []nn.Layer{
		"frozen":     func() []nn.Layer { return []nn.Layer{frozen(), frozen(), trained()} },
		"a function": func() []nn.Layer { return []nn.Layer{scale, trained(), frozen()} },
		"integers":   func() []nn.Layer { return []nn.Layer{toInt, toFloat, trained()} },
	} {
		t.Run(name, func(t *testing.T) {
			for _, gpipe := range []bool{false, true} {
				ranks(t, 3, func(g *dist.Group) error {
					x, target := wave([]int{8, 4}, 1), wave([]int{8, 4}, 2)
					all := stages()
					whole := nn.NewSequential(all...)
					loss := nn.MSELoss(whole.Forward(x), target)
					want, err := loss.Item()
					if err := errors.Join(err, loss.Backward()); err != nil {
						return err
					}
					mine := stages()[g.Rank()]
					mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
					p, err := dist.NewPipeline(g, mine, mse, 4, dist.GPipe(gpipe))
					if err != nil {
						return err
					}
					if got, err := p.Step(ctx, x, target); err != nil || !(math.Abs(got-want) <= 1e-5) {
						return fmt.Errorf("rank %d: loss %v, want %v, %w", g.Rank(), got, want, err)
					}
					expected := nn.Parameters(all[g.Rank()])
					for i, p := range nn.Parameters(mine) {
						a, b := p.Grad(), expected[i].Grad()
						if (a == nil) != (b == nil) {
							return fmt.Errorf("rank %d: gradient %d is %v, want %v", g.Rank(), i, a, b)
						}
						if a == nil {
							continue
						}
						if d, err := a.Sub(b).Abs().Max().Item(); err != nil || !(d <= 1e-5) {
							return fmt.Errorf("rank %d: gradient %d differs by %v, %v", g.Rank(), i, d, err)
						}
					}
					return nil
				})
			}
		})
	}
}

// skipping is a stage that leaves out a layer in some forward passes.
type skipping struct {
	First, Second *nn.Linear
	every, passes int // in each of this number; 0: in none
}

func (s *skipping) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = s.First.Forward(x).Tanh()
	if s.passes++; s.every != 0 && s.passes%s.every == 0 {
		return x
	}
	return s.Second.Forward(x)
}

// TestPipelineDDP tests that the stages of two pipelines have the averages of the gradients of all microbatches, except in
// NoSync, also after the first step, in which a DDP arranges its buckets, and after an Eval.
func TestPipelineDDP(t *testing.T) {
	leak.Check(t)
	mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
	stage := func(i, every int) nn.Layer {
		s := &skipping{nn.NewLinear(6, 6, f64), nn.NewLinear(6, 6, f64), every, 0}
		for k, p := range nn.Parameters(s) {
			p.Detach().Copy_(wave(p.Shape(), 10*i+k))
		}
		return s
	}
	data := func(replica int) (x, target *tensor.Tensor) {
		return wave([]int{8, 6}, replica).To(tensor.Float64), wave([]int{8, 6}, 2+replica).To(tensor.Float64)
	}
	for name, c := range map[string]struct {
		gpipe        bool
		microbatches int
		every        int
		opts         []dist.DDPOption
	}{
		"1F1B":            {false, 4, 0, nil},
		"GPipe":           {true, 4, 0, nil},
		"one microbatch":  {false, 1, 0, nil},
		"several buckets": {false, 2, 0, []dist.DDPOption{dist.BucketCapMB(1e-5)}},
		// The last microbatch leaves out parameters.
		"unused": {false, 4, 4, []dist.DDPOption{dist.FindUnusedParameters()}},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			ranks(t, 4, func(g *dist.Group) error {
				mesh, err := dist.NewDeviceMesh(ctx, g, []int{2, 2}, "dp", "pp")
				if err != nil {
					return err
				}
				defer mesh.Close()
				replica, i := mesh.Coordinate()[0], mesh.Coordinate()[1]
				var wants [2][]*tensor.Tensor // of the replicas
				for r := range wants {
					x, target := data(r)
					whole := []nn.Layer{stage(0, c.every), stage(1, c.every)}
					n := 8 / c.microbatches
					for at := 0; at < 8; at += n {
						y := nn.NewSequential(whole...).Forward(x.Narrow(0, at, n))
						if err := mse(y, target.Narrow(0, at, n)).Div(c.microbatches).Backward(); err != nil {
							return err
						}
					}
					for _, p := range nn.Parameters(whole[i]) {
						wants[r] = append(wants[r], p.Grad())
					}
				}
				mine := stage(i, c.every)
				ddp, err := dist.NewDDP(ctx, mesh.Group("dp"), mine, c.opts...)
				if err != nil {
					return err
				}
				defer ddp.Close()
				p, err := dist.NewPipeline(mesh.Group("pp"), ddp, mse, c.microbatches, dist.GPipe(c.gpipe))
				if err != nil {
					return err
				}
				x, target := data(replica)
				check := func(what string, local, averaged float64) error { // parts of the gradients of this replica, and of their mean
					for k, p := range nn.Parameters(mine) {
						want := wants[replica][k].Mul(local).Add(wants[0][k].Add(wants[1][k]).Mul(averaged / 2))
						if err := same(fmt.Sprintf("%s, stage %d, replica %d: gradient %d", what, i, replica, k), p.Grad(), want); err != nil {
							return err
						}
					}
					return nil
				}
				step := func() error { return second(p.Step(ctx, x, target)) }
				for n := range 3 {
					if err := errors.Join(tensor.ZeroGrads(nn.Parameters(mine), true), step(), check(fmt.Sprint("step ", n), 0, 1)); err != nil {
						return err
					}
				}
				return errors.Join(tensor.ZeroGrads(nn.Parameters(mine), true), ddp.NoSync(step), check("NoSync", 1, 0),
					second(p.Eval(ctx, x, target)), step(), check("the step after NoSync", 0, 2))
			})
		})
	}
}

// replicated calls f with a DDP over g of a model with a buffer, and with a group of this rank alone for its pipeline.
func replicated(g *dist.Group, opts []dist.DDPOption, f func(alone *dist.Group, m *counted, ddp *dist.DDP) error) error {
	alone, err := g.NewGroup(ctx, []int{g.Rank()})
	if err != nil {
		return err
	}
	defer alone.Close()
	m := &counted{nn.NewLinear(3, 1), tensor.Zeros([]int{1}, tensor.Float32).Keep()}
	defer nn.Release(m)
	ddp, err := dist.NewDDP(ctx, g, m, opts...)
	if err != nil {
		return err
	}
	defer ddp.Close()
	return f(alone, m, ddp)
}

// TestPipelineDDPBuffers tests that the buffers of rank 0 are copied to the other replicas before the first forward
// pass alone, and that a replica can run an Eval of its own.
func TestPipelineDDPBuffers(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		return replicated(g, nil, func(alone *dist.Group, m *counted, ddp *dist.DDP) error {
			loss := func(y, target *tensor.Tensor) *tensor.Tensor { return y.Sub(target).Square().Mean() }
			p, err := dist.NewPipeline(alone, ddp, loss, 2)
			if err != nil {
				return err
			}
			x, target := tensor.Ones([]int{4, 3}), tensor.Ones([]int{4, 1})
			add := func() error { return m.Count.Add_(5 * g.Rank()).Err() }
			step := func() error { return second(p.Step(ctx, x, target)) }
			if err := errors.Join(add(), step(), want("step 0", m.Count, 2), add(), step(), want("step 1", m.Count, float32(4+5*g.Rank()))); err != nil {
				return err
			}
			if g.Rank() == 0 {
				return nil
			}
			return errors.Join(second(p.Eval(ctx, x, target)), want("Eval", m.Count, 11))
		})
	}, dist.Timeout(20*time.Second))
}

// TestPipelineDDPMode tests that a DDP that is a stage has the device and the mode of its model.
func TestPipelineDDPMode(t *testing.T) {
	leak.Check(t)
	ranks(t, 1, func(g *dist.Group) error {
		l := nn.NewLinear(3, 3)
		ddp, err := dist.NewDDP(ctx, g, nn.NewSequential(l, nn.NewDropout(0.5)))
		if err != nil {
			return err
		}
		defer ddp.Close()
		loss := func(y, _ *tensor.Tensor) *tensor.Tensor { return y.Eq(0).To(tensor.Float32).Mean() }
		p, err := dist.NewPipeline(g, ddp, loss, 1)
		if err != nil {
			return err
		}
		x := tensor.Ones([]int{64, 3})
		for _, training := range []bool{false, true} {
			if training {
				nn.Train(ddp)
			} else {
				nn.Eval(ddp)
			}
			if zeros, err := p.Eval(ctx, x, x); err != nil || (zeros != 0) != training {
				t.Errorf("training %v: %v of the outputs are zero, %v", training, zeros, err)
			}
		}
		var none *dist.DDP
		none.SetTraining(true)
		if _, err := dist.NewPipeline(g, none, loss, 1); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil DDP: %v", err)
		}
		return nil
	})
}

// TestPipelineDDPContext tests that a context that ends also ends a Step that waits for other replicas.
func TestPipelineDDPContext(t *testing.T) {
	leak.Check(t)
	for name, opts := range map[string][]dist.DDPOption{"forward pass": nil, "backward pass": {dist.BroadcastBuffers(false)}} {
		done := make(chan struct{})
		ranks(t, 2, func(g *dist.Group) error {
			return replicated(g, opts, func(alone *dist.Group, _ *counted, ddp *dist.DDP) error {
				if g.Rank() == 1 {
					<-done
					return blames(g.Barrier(ctx), "Barrier", nil, 0)
				}
				defer close(done)
				p, err := dist.NewPipeline(alone, nn.Func(ddp.Forward), func(y, _ *tensor.Tensor) *tensor.Tensor { return y.Mean() }, 2)
				if err != nil {
					return err
				}
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				x := tensor.Ones([]int{4, 3})
				if err := second(p.Step(short, x, x)); !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("%s: %w", name, err)
				}
				if err := g.Barrier(ctx); !errors.Is(err, dist.ErrAborted) {
					return fmt.Errorf("%s, a collective after it: %w", name, err)
				}
				return nil
			})
		}, dist.Timeout(20*time.Second))
	}
}

// TestPipelineDDPErrors tests that a DDP whose gradients a pipeline cannot average is an error.
func TestPipelineDDPErrors(t *testing.T) {
	leak.Check(t)
	mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
	for want, c := range map[string]struct {
		opts []dist.DDPOption
		run  func(ddp *dist.DDP, step func() error) error
		once bool // the stage runs the DDP in the first microbatch alone
	}{
		"a DDP with StaticGraph": {opts: []dist.DDPOption{dist.StaticGraph()}},
		"a DDP in Join":          {run: func(ddp *dist.DDP, step func() error) error { return ddp.Join(step) }},
		"the last microbatch":    {once: true},
	} {
		t.Run(want, func(t *testing.T) {
			leak.Check(t)
			ranks(t, 1, func(g *dist.Group) error {
				l := nn.NewLinear(3, 3)
				ddp, err := dist.NewDDP(ctx, g, l, c.opts...)
				if err != nil {
					return err
				}
				defer ddp.Close()
				passes := 0
				p, err := dist.NewPipeline(g, nn.Func(func(x *tensor.Tensor) *tensor.Tensor {
					if passes++; c.once && passes > 1 {
						return l.Forward(x)
					}
					return ddp.Forward(x)
				}), mse, 2)
				if err != nil {
					return err
				}
				if c.run == nil { // without gradients there is nothing to average
					passes = -2
					if err := second(p.Eval(ctx, tensor.Ones([]int{4, 3}), tensor.Ones([]int{4, 3}))); err != nil {
						t.Errorf("Eval: %v", err)
					}
				}
				step := func() error { return second(p.Step(ctx, tensor.Ones([]int{4, 3}), tensor.Ones([]int{4, 3}))) }
				if c.run != nil {
					err = c.run(ddp, step)
				} else {
					err = step()
				}
				if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
				return nil
			})
		})
	}
}

// TestPipelineDDPWithoutGradient tests that a DDP of the first stage is an error if the stage's last output has no gradient.
func TestPipelineDDPWithoutGradient(t *testing.T) {
	leak.Check(t)
	mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
	ranks(t, 2, func(g *dist.Group) error {
		alone, err := g.NewGroup(ctx, []int{g.Rank()})
		if err != nil {
			return err
		}
		defer alone.Close()
		ddp, err := dist.NewDDP(ctx, alone, nn.NewLinear(3, 3))
		if err != nil {
			return err
		}
		defer ddp.Close()
		passes := 0
		p, err := dist.NewPipeline(g, nn.Func(func(x *tensor.Tensor) *tensor.Tensor {
			if passes++; g.Rank() == 0 && passes == 2 {
				return x.Mul(1)
			}
			return ddp.Forward(x)
		}), mse, 2)
		if err != nil {
			return err
		}
		_, err = p.Step(ctx, tensor.Ones([]int{4, 3}), tensor.Ones([]int{4, 3}))
		if g.Rank() == 0 && (!errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "the last microbatch")) {
			t.Errorf("%v", err)
		}
		return nil
	})
}

// TestPipelineEval tests that Eval returns the loss of Step, without gradients, between steps, and in the loss's dtype.
func TestPipelineEval(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{1, 3} {
		ranks(t, n, func(g *dist.Group) error {
			graded := false
			square := func(y, target *tensor.Tensor) *tensor.Tensor {
				graded = y.RequiresGrad()
				return y.Sub(target).Square().Mean()
			}
			l := nn.NewLinear(3, 3, nn.DType(tensor.Float64))
			for i, p := range nn.Parameters(l) {
				p.Detach().Copy_(wave(p.Shape(), i))
			}
			p, err := dist.NewPipeline(g, l, square, 4)
			if err != nil {
				return err
			}
			x, target := wave([]int{8, 3}, 1).To(tensor.Float64), wave([]int{8, 3}, 2).To(tensor.Float64)
			y := x
			for range n {
				y = l.Forward(y)
			}
			want, err := y.Sub(target).Square().Mean().Item()
			if err != nil {
				return err
			}
			for i := range 4 {
				call := p.Eval
				if i == 2 {
					call = p.Step
				}
				got, err := call(ctx, x, target)
				if err != nil || !(math.Abs(got-want) <= 1e-13) {
					return fmt.Errorf("call %d: loss %v, want %v, %w", i, got, want, err)
				}
				if last := g.Rank() == n-1; graded != (last && i == 2) {
					return fmt.Errorf("call %d: the output requires a gradient: %v", i, graded)
				}
				if (nn.Parameters(l)[0].Grad() != nil) != (i >= 2) {
					return fmt.Errorf("call %d: gradient %v", i, nn.Parameters(l)[0].Grad())
				}
			}
			return nil
		})
	}
	var none *dist.Pipeline
	if _, err := none.Eval(ctx, nil, nil); !errors.Is(err, tensor.ErrNil) {
		t.Errorf("a nil pipeline: %v", err)
	}
}
