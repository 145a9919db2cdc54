package dist_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// parts is the model of tests/golden/ddp.py, with parts that can be divided.
type parts struct {
	L1         nn.Layer
	Norm       *nn.BatchNorm1d
	L2         nn.Layer
	Unused, L3 *nn.Linear
	skip       bool
}

func newParts(phase int) *parts {
	m := &parts{L1: nn.NewLinear(12, 48), Norm: nn.NewBatchNorm1d(48), L2: nn.NewLinear(48, 48), Unused: nn.NewLinear(48, 48), L3: nn.NewLinear(48, 5)}
	for i, p := range nn.Parameters(m) {
		p.Detach().Copy_(wave(p.Shape(), i+phase).Div(4))
	}
	return m
}

func (n *parts) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = n.Norm.Forward(n.L1.Forward(x)).ReLU()
	if !n.skip {
		x = n.Unused.Forward(x)
	}
	return n.L3.Forward(n.L2.Forward(x).ReLU())
}

// shard divides the model as the script does. Options of all parts, and of those but the root.
func (n *parts) shard(g *dist.Group, tied bool, all, inner []dist.ShardOption) (*dist.FSDPModule, error) {
	l1, err := dist.Shard(ctx, g, n.L1, append(inner, all...)...)
	if err != nil {
		return nil, err
	}
	n.L1 = l1
	if !tied {
		l2, err := dist.Shard(ctx, g, n.L2, append(inner, all...)...)
		if err != nil {
			return nil, err
		}
		n.L2 = l2
	}
	return dist.Shard(ctx, g, n, all...)
}

// checkpointed recomputes a layer in the backward pass.
type checkpointed struct {
	Layer nn.Layer `nn:"."`
	last  func(x *tensor.Tensor) *tensor.Tensor
}

func (c *checkpointed) Forward(x *tensor.Tensor) *tensor.Tensor {
	return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return c.last(c.Layer.Forward(in[0])) }, x)
}

// shardVariant is a variant of tests/golden/fsdp.py.
type shardVariant struct {
	all, inner                 []dist.ShardOption
	accumulate                 int
	tied, unused, checkpointed bool
}

var bf16 = []dist.ShardOption{dist.ParamDType(tensor.BFloat16), dist.OutputDType(tensor.Float32)}

var shardVariants = map[string]shardVariant{
	"zero3":        {},
	"zero2":        {all: []dist.ShardOption{dist.ReshardAfterForward(false)}},
	"bf16":         {inner: bf16},
	"bf16 reduced": {inner: append(bf16, dist.ReduceDType(tensor.BFloat16))},
	"no sync":      {accumulate: 3},
	"tied":         {tied: true},
	"unused":       {unused: true},
	"checkpoint":   {checkpointed: true},
}

// batch returns the inputs of a step of the scripts.
func batch(rank, step, k int) (x, y *tensor.Tensor) {
	return wave([]int{8, 12}, 100*step+10*k+rank), tensor.Arange(0, 8).Mul(7).Add(step + rank).Remainder(5)
}

// train does what the script does.
func (v shardVariant) train(g *dist.Group) (out trained, err error) {
	m := newParts(g.Rank()) // rank 0's are those of all
	m.skip = v.unused
	if v.tied {
		m.Unused.Weight = m.L2.(*nn.Linear).Weight
	}
	if v.checkpointed {
		m.L2 = &checkpointed{m.L2, (*tensor.Tensor).Tanh}
	}
	root, err := m.shard(g, v.tied, v.all, v.inner)
	if err != nil {
		return out, err
	}
	opt, err := optim.NewAdamW(nn.Parameters(m), 1e-2)
	if err != nil {
		return out, err
	}
	step := func(s, k int) error {
		return tensor.WithScope(func() error {
			x, y := batch(g.Rank(), s, k)
			loss := nn.CrossEntropy(root.Forward(x), y)
			l, err := loss.Item()
			out.Losses = append(out.Losses, math.Float32bits(float32(l)))
			return errors.Join(err, loss.Backward())
		})
	}
	for s := range 15 {
		opt.ZeroGrad()
		for k := range v.accumulate - 1 {
			if err := root.NoSync(func() error { return step(s, k) }); err != nil {
				return out, err
			}
		}
		if err := errors.Join(step(s, max(0, v.accumulate-1)), opt.Step()); err != nil {
			return out, err
		}
	}
	state, err := dist.FullStateDict(ctx, g, m, 0)
	if err != nil {
		return out, err
	}
	if g.Rank() != 0 {
		return out, nil
	}
	out.Sum = new(float64)
	for i, p := range nn.NamedParameters(m) {
		sum, err := state[p.Name].To(tensor.Float64).Sum().Item()
		if err != nil {
			return out, fmt.Errorf("parameter %d: %w", i, err)
		}
		*out.Sum += sum
	}
	return out, nil
}

// TestShard compares the losses of two ranks with those of PyTorch's fully_shard.
func TestShard(t *testing.T) {
	leak.Check(t)
	compare(t, "fsdp.json", shardVariants)
}

// wide is a model in float64 with a part that is applied twice, one that is recomputed, and a frozen one.
type wide struct {
	In, Twice, Frozen, Last nn.Layer
	Scale                   *tensor.Tensor
}

func newWide() *wide {
	linear := func(in, out int) nn.Layer { return nn.NewLinear(in, out, nn.DType(tensor.Float64)) }
	m := &wide{In: linear(6, 7), Twice: linear(7, 7), Frozen: linear(7, 5), Last: linear(5, 2), Scale: nn.NewParameter(tensor.Ones([]int{1}, tensor.Float64))}
	for i, p := range nn.Parameters(m) {
		p.Detach().Copy_(wave(p.Shape(), i+1)) // not 0, with which all gradients would be
	}
	_ = nn.RequiresGrad_(m.Frozen, false)
	return m
}

func (m *wide) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = (&checkpointed{m.In, (*tensor.Tensor).Tanh}).Forward(x)
	x = m.Twice.Forward(m.Twice.Forward(x).Tanh()).Tanh()
	return m.Last.Forward(m.Frozen.Forward(x).Sigmoid()).Mul(m.Scale)
}

// input returns the input of a rank.
func input(rank int) *tensor.Tensor { return wave([]int{4, 6}, rank).To(tensor.Float64) }

// TestShardPrefetch tests that gathers that begin early change no loss, and when they begin: while a module computes, the
// parameters of the next one take memory.
func TestShardPrefetch(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		var plain, early prefetched
		for _, p := range []*prefetched{&plain, &early} {
			if err := tensor.WithScope(func() error { return p.train(g, p == &early) }); err != nil {
				return err
			}
		}
		if !slices.Equal(plain.losses, early.losses) {
			return fmt.Errorf("losses %v, with prefetch %v", plain.losses, early.losses)
		}
		if more := early.live - plain.live; more < prefetchedWidth*prefetchedWidth*4 {
			return fmt.Errorf("with prefetch the first module computes beside %d bytes more", more)
		}
		return nil
	})
}

const prefetchedWidth = 512

// prefetched is the outcome of training two divided modules.
type prefetched struct {
	losses []float64
	live   int64 // bytes while the first module computes
}

func (p *prefetched) train(g *dist.Group, early bool) error {
	fill := func(l *nn.Linear, phase int) *nn.Linear {
		l.Weight.Detach().Copy_(wave(l.Weight.Shape(), phase).Div(16))
		return l
	}
	first := nn.NewSequential(fill(nn.NewLinear(4, prefetchedWidth, nn.NoBias()), 2), nn.Func(func(x *tensor.Tensor) *tensor.Tensor {
		// The ranks are in one process: both must be here.
		before := g.Barrier(ctx)
		s, err := vram.Stats(vram.CPU)
		if err := errors.Join(before, err, g.Barrier(ctx)); err != nil {
			return tensor.Failed(err)
		}
		p.live = s.Allocated
		return x.Tanh()
	}))
	a, err := dist.Shard(ctx, g, first)
	if err != nil {
		return err
	}
	b, err := dist.Shard(ctx, g, fill(nn.NewLinear(prefetchedWidth, prefetchedWidth, nn.NoBias()), 1))
	if err != nil {
		return err
	}
	if early {
		if err := errors.Join(a.SetModulesToForwardPrefetch(b), b.SetModulesToBackwardPrefetch(a)); err != nil {
			return err
		}
	}
	model := nn.NewSequential(a, b)
	opt, err := optim.NewSGD(nn.Parameters(model), 0.1)
	if err != nil {
		return err
	}
	defer opt.Release()
	for step := range 4 {
		opt.ZeroGrad()
		loss := model.Forward(wave([]int{8, 4}, step+g.Rank())).Square().Mean()
		l, err := loss.Item()
		if err := errors.Join(err, loss.Backward(), opt.Step()); err != nil {
			return err
		}
		p.losses = append(p.losses, l)
	}
	// The gather of b that this begins is never used.
	if err := autograd.NoGrad(func() error { return a.Forward(wave([]int{8, 4}, 0)).Err() }); err != nil {
		return err
	}
	if err := a.SetModulesToForwardPrefetch(a); !errors.Is(err, tensor.ErrArgument) {
		return fmt.Errorf("a module that prefetches itself: %v", err)
	}
	return errors.Join(a.Close(), b.Close())
}

// TestShardAfterStep tests that passes after a step of a fused optimizer compute with the new parameters, whatever passes
// before it have gathered or kept, and that no backward pass goes through a graph of before.
func TestShardAfterStep(t *testing.T) {
	leak.Check(t)
	linear := func(phase int) *nn.Linear {
		l := nn.NewLinear(4, 4)
		for _, p := range nn.Parameters(l) {
			p.Detach().Copy_(wave(p.Shape(), phase))
		}
		return l
	}
	for name, newOptimizer := range map[string]func(ps []*tensor.Tensor, lr float64, opts ...optim.Option) (*optim.Optimizer, error){
		"SGD": optim.NewSGD, "Adam": optim.NewAdam, "AdamW": optim.NewAdamW, "Adagrad": optim.NewAdagrad,
	} {
		ranks(t, 2, func(g *dist.Group) error {
			// train returns the losses of some steps. With unused, a forward pass that has no backward pass comes before each step.
			train := func(reshard, prefetch, unused bool) (losses []float64, err error) {
				return losses, tensor.WithScope(func() error {
					a, e1 := dist.Shard(ctx, g, linear(1), dist.ReshardAfterForward(reshard))
					b, e2 := dist.Shard(ctx, g, linear(2), dist.ReshardAfterForward(reshard))
					if err := errors.Join(e1, e2); err != nil {
						return err
					}
					if prefetch {
						if err := errors.Join(a.SetModulesToBackwardPrefetch(b), b.SetModulesToBackwardPrefetch(a)); err != nil {
							return err
						}
					}
					model := nn.NewSequential(a, b)
					opt, err := newOptimizer(nn.Parameters(model), 0.1)
					if err != nil {
						return err
					}
					defer opt.Release()
					var other *tensor.Tensor
					for step := range 3 {
						x := wave([]int{8, 4}, step+g.Rank())
						opt.ZeroGrad()
						loss := model.Forward(x).Square().Mean()
						l, err := loss.Item()
						losses = append(losses, l)
						if err := errors.Join(err, loss.Backward()); err != nil {
							return err
						}
						if unused {
							other = model.Forward(x.Neg()).Sum()
							err = other.Err()
						}
						if err := errors.Join(err, opt.Step()); err != nil {
							return err
						}
					}
					if unused {
						if err := other.Backward(); err == nil || !strings.Contains(err.Error(), "was changed between the forward pass and its backward pass") {
							return fmt.Errorf("%s, reshard %v: a backward pass through a graph of before the step: %v", name, reshard, err)
						}
					}
					return errors.Join(a.Close(), b.Close())
				})
			}
			want, err := train(true, false, false)
			if err != nil {
				return err
			}
			for _, reshard := range []bool{true, false} {
				for _, prefetch := range []bool{true, false} {
					if got, err := train(reshard, prefetch, !prefetch); err != nil || !slices.Equal(got, want) {
						return fmt.Errorf("%s, reshard %v, prefetch %v: losses %v, want %v, %v", name, reshard, prefetch, got, want, err)
					}
				}
			}
			return nil
		})
	}
}

// TestShardFloat8 trains divided Linears with products in float8. The losses are those of the whole model, and while the graph
// waits for the backward pass it keeps no whole weight.
func TestShardFloat8(t *testing.T) {
	leak.Check(t)
	const width = 64
	ranks(t, 2, func(g *dist.Group) error {
		kept := map[nn.Float8Recipe]int64{}
		for _, recipe := range []nn.Float8Recipe{nn.NoFloat8, nn.Float8TensorWise, nn.Float8RowWise, nn.Float8RowWiseWithGWHP} {
			train := func(divided bool) (losses []float64, err error) {
				return losses, tensor.WithScope(func() error {
					fill := func(phase int) *nn.Linear {
						l := nn.NewLinear(width, width, nn.NoBias())
						l.Weight.Detach().Copy_(wave(l.Weight.Shape(), phase).Div(8))
						l.Float8 = recipe
						return l
					}
					first, second := fill(1), fill(2)
					var model nn.Layer = nn.NewSequential(first, &nn.Tanh{}, second)
					defer nn.Release(model)
					if divided {
						a, err := dist.Shard(ctx, g, first)
						if err != nil {
							return err
						}
						b, err := dist.Shard(ctx, g, second)
						if err != nil {
							return err
						}
						model = nn.NewSequential(a, &nn.Tanh{}, b)
					}
					opt, err := optim.NewSGD(nn.Parameters(model), 0.1)
					if err != nil {
						return err
					}
					defer opt.Release()
					x := wave([]int{24, width}, 3)
					for range 3 {
						opt.ZeroGrad()
						loss := model.Forward(x).Pow(2).Mean()
						l, err := loss.Item()
						if divided { // the ranks are in one process: both must be here
							err = errors.Join(err, g.Barrier(ctx), vram.Collect(), g.Barrier(ctx))
							// A worker of Gloo holds the buffers of a reduction for some time after its end.
							least, want := int64(math.MaxInt64), int64(-1)
							if recipe != nn.NoFloat8 {
								want = kept[nn.NoFloat8]
							}
							for i := 0; err == nil && least > want && (i < 10 || want >= 0 && i < 1000); i++ {
								time.Sleep(5 * time.Millisecond)
								var s vram.Memory
								s, err = vram.Stats(vram.CPU)
								least = min(least, s.Allocated)
							}
							kept[recipe] = least
							err = errors.Join(err, g.Barrier(ctx))
						}
						if err := errors.Join(err, loss.Backward(), opt.Step()); err != nil {
							return err
						}
						losses = append(losses, l)
					}
					return nil
				})
			}
			whole, err := train(false)
			if err != nil {
				return err
			}
			divided, err := train(true)
			if err != nil {
				return err
			}
			if !slices.EqualFunc(whole, divided, func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(a) }) {
				return fmt.Errorf("%v: losses %v, divided %v", recipe, whole, divided)
			}
		}
		for recipe, bytes := range kept {
			if bytes > kept[nn.NoFloat8] {
				return fmt.Errorf("%v: %d bytes are live after the forward pass, %d without a recipe", recipe, bytes, kept[nn.NoFloat8])
			}
		}
		return nil
	})
}

// TestShardReplicas compares parameters that pairs of ranks divide, twice, with parameters that all four divide.
func TestShardReplicas(t *testing.T) {
	leak.Check(t)
	ranks(t, 4, func(g *dist.Group) error {
		mesh, err := dist.NewDeviceMesh(ctx, g, []int{2, 2}, "replicate", "shard")
		if err != nil {
			return err
		}
		linear := nn.NewLinear(4, 4)
		if _, err := dist.Shard(ctx, mesh.Group("replicate"), linear, dist.Replicas(g)); !errors.Is(err, tensor.ErrArgument) {
			return fmt.Errorf("replicas that have other rows: %v", err)
		}
		nn.Release(linear)
		var losses [2][]float64
		for i, group := range []*dist.Group{g, mesh.Group("shard")} {
			var opts []dist.ShardOption
			if i == 1 {
				opts = append(opts, dist.Replicas(mesh.Group("replicate")))
			}
			err := tensor.WithScope(func() error {
				m := newParts(g.Rank()) // rank 0's are those of all
				m.skip = true
				root, err := m.shard(group, false, opts, nil)
				if err != nil {
					return err
				}
				if i == 1 && m.L3.Weight.Size(0) != 5/2+1-group.Rank() {
					return fmt.Errorf("rank %d of the pair has %d of 5 rows", group.Rank(), m.L3.Weight.Size(0))
				}
				opt, err := optim.NewSGD(nn.Parameters(m), 0.1)
				if err != nil {
					return err
				}
				defer opt.Release()
				for s := range 5 {
					opt.ZeroGrad()
					x, y := batch(g.Rank(), s, 0)
					loss := nn.CrossEntropy(root.Forward(x), y)
					l, err := loss.Item()
					if err := errors.Join(err, loss.Backward()); err != nil {
						return err
					}
					norm, err := nn.ClipGradNorm_(nn.Parameters(m), 1).Item()
					if err := errors.Join(err, opt.Step()); err != nil {
						return err
					}
					losses[i] = append(losses[i], l, norm)
				}
				return root.Close()
			})
			if err != nil {
				return err
			}
		}
		for i, want := range losses[0] {
			if got := losses[1][i]; !(math.Abs(got-want) <= 1e-5*math.Abs(want)) {
				return fmt.Errorf("losses and norms %v, divided among all %v", losses[1], losses[0])
			}
		}
		return mesh.Close()
	})
}

// TestShardReduceFloat16 tests averages of gradients whose sum is beyond the largest float16.
func TestShardReduceFloat16(t *testing.T) {
	leak.Check(t)
	ranks(t, 4, func(g *dist.Group) error {
		return tensor.WithScope(func() error {
			l := nn.NewLinear(1, 4, nn.NoBias())
			m, err := dist.Shard(ctx, g, l, dist.ReduceDType(tensor.Float16))
			if err != nil {
				return err
			}
			if err := m.Forward(tensor.Full([]int{1, 1}, float64(30000+1000*g.Rank()))).Sum().Backward(); err != nil {
				return err
			}
			mean, err := l.Weight.Grad().Item()
			if err != nil || !(math.Abs(mean-31500) <= 31500/1000) {
				return fmt.Errorf("the gradient is %v, want 31500, %w", mean, err)
			}
			return m.Close()
		})
	})
}

// TestShardOptimizers tests that ranks skip a step together if the gradients of one rank's rows have an infinity, and that
// what needs whole parameters refuses rows.
func TestShardOptimizers(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		return tensor.WithScope(func() error {
			l := nn.NewLinear(3, 4, nn.NoBias())
			m, err := dist.Shard(ctx, g, l)
			if err != nil {
				return err
			}
			params := nn.Parameters(l)
			for name, make := range map[string]func([]*tensor.Tensor, float64, ...optim.Option) (*optim.Optimizer, error){
				"Adafactor": optim.NewAdafactor, "LBFGS": optim.NewLBFGS, "Muon": optim.NewMuon} {
				if _, err := make(params, 0.1); err == nil || !strings.Contains(err.Error(), "is this process's part of a parameter that package dist divides") {
					return fmt.Errorf("%s: %v", name, err)
				}
			}
			column := dist.NewColwiseParallel(g, nn.NewLinear(3, 4))
			path := filepath.Join(t.TempDir(), "model.safetensors")
			for _, err := range []error{checkpoint.SaveModel(path, l), checkpoint.SaveModel(path, nn.Clone(column)), checkpoint.SaveTraining(path, m, nil)} {
				if err == nil || !strings.Contains(err.Error(), "weight is this process's part of a parameter that package dist divides") {
					return fmt.Errorf("saving rows: %v", err)
				}
			}
			opt, err := optim.NewSGD(params, 0.1)
			if err != nil {
				return err
			}
			if err := checkpoint.SaveValues(path, checkpoint.Optimizer(opt)); err == nil || !strings.Contains(err.Error(), "parts of parameters that package dist divides") {
				return fmt.Errorf("saving the state of rows: %v", err)
			}
			defer opt.Release()
			scaler, err := optim.NewGradScaler()
			if err != nil {
				return err
			}
			for _, infinite := range []bool{false, true, false} {
				opt.ZeroGrad()
				before := l.Weight.Detach().Clone()
				if err := scaler.Scale(m.Forward(tensor.Ones([]int{2, 3})).Sum()).Backward(); err != nil {
					return err
				}
				if infinite && g.Rank() == 1 {
					l.Weight.Grad().Fill_(math.Inf(1))
				}
				if err := scaler.Step(opt); err != nil {
					return err
				}
				scaler.Update()
				if same, err := l.Weight.Equal(before); err != nil || same != infinite {
					return fmt.Errorf("an infinity %v, weights unchanged %v, %w", infinite, same, err)
				}
			}
			if s := scaler.GetScale(); s != 32768 {
				return fmt.Errorf("the scale is %v, want 32768", s)
			}
			return m.Close()
		})
	})
}

// TestShardGradients compares the gradients of three ranks, some of which have no rows of some parameters, with those of an
// undivided model for the inputs of all, after clipping, also in a second pass over the graph and if another policy keeps
// saved tensors.
func TestShardGradients(t *testing.T) {
	leak.Check(t)
	for _, reshard := range []bool{true, false} {
		ranks(t, 3, func(g *dist.Group) error {
			whole, m := newWide(), newWide()
			for _, part := range []*nn.Layer{&m.In, &m.Twice, &m.Frozen} {
				u, err := dist.Shard(ctx, g, *part, dist.ReshardAfterForward(reshard))
				if err != nil {
					return err
				}
				*part = u
			}
			root, err := dist.Shard(ctx, g, m, dist.ReshardAfterForward(reshard))
			if err != nil {
				return err
			}
			for r := range g.Size() {
				if err := errors.Join(whole.Forward(input(r)).Square().Sum().Div(3).Mul(2).Backward()); err != nil {
					return err
				}
			}
			loss := autograd.SavedTensors(autograd.SaveOnDisk(t.TempDir(), autograd.MinBytes(0)), func() *tensor.Tensor {
				return root.Forward(input(g.Rank())).Square().Sum()
			})
			if err := errors.Join(loss.Backward(tensor.RetainGraph(true)), loss.Backward()); err != nil {
				return err
			}
			largest, err := nn.ClipGradNorm_(nn.Parameters(whole), math.Inf(1), nn.NormType(math.Inf(1))).Item()
			if got, e := nn.ClipGradNorm_(nn.Parameters(m), math.Inf(1), nn.NormType(math.Inf(1))).Item(); errors.Join(err, e) != nil || !(math.Abs(got-largest) <= 1e-12*largest) {
				t.Errorf("the largest of all ranks' gradients is %v, %v, want %v, %v", got, e, largest, err)
			}
			most := 0.1
			before, err := nn.ClipGradNorm_(nn.Parameters(whole), most).Item()
			if err != nil || before < 2*most {
				t.Errorf("the norm of the undivided model's gradients is %v, %v", before, err)
			}
			if got, err := nn.ClipGradNorm_(nn.Parameters(m), most).Item(); err != nil || !(math.Abs(got-before) <= 1e-12*before) {
				t.Errorf("the norm of all ranks' gradients is %v, %v, want %v", got, err, before)
			}
			want := nn.NamedParameters(whole)
			names := func(named []nn.Named) (all []string) {
				for _, n := range named {
					all = append(all, n.Name)
				}
				return all
			}
			if got := names(nn.NamedParameters(m)); !slices.Equal(got, names(want)) {
				t.Errorf("parameters %v, want %v", got, names(want))
			}
			grads := map[string]*tensor.Tensor{}
			for _, n := range want {
				grads[n.Name] = n.Tensor.Grad()
			}
			for prefix, u := range map[string]any{"in.": m.In, "twice.": m.Twice, "frozen.": m.Frozen, "": root} {
				for _, p := range u.(*dist.FSDPModule).Parameters() {
					want, grad := grads[prefix+p.Name], p.Tensor.Grad()
					if want == nil || grad == nil {
						if want != nil || grad != nil {
							t.Errorf("%s%s: gradient %v, want %v", prefix, p.Name, grad, want)
						}
						continue
					}
					if d, err := grad.Sub(want.Narrow(0, p.Offset, p.Tensor.Size(0))).Abs().Sum().Item(); err != nil || !(d <= 1e-12) {
						t.Errorf("%s%s: the gradient differs by %v, %v", prefix, p.Name, d, err)
					}
				}
			}
			opt, err := optim.NewAdamW(nn.Parameters(m), 1e-3)
			if err != nil {
				return err
			}
			return errors.Join(opt.Step(), g.Barrier(ctx))
		})
	}
}

// TestShardMemory tests the bytes of two ranks together: of a parameter, its gradient and AdamW's state each has a half, and
// between forward and backward pass the graph holds whole parameters with ZeRO-2 only.
func TestShardMemory(t *testing.T) {
	leak.Check(t)
	for _, reshard := range []bool{true, false} {
		var before int64
		ranks(t, 2, func(g *dist.Group) error {
			// each calls f on rank 0 while both ranks stand still.
			each := func(what string, most float64, parameters int) error {
				if err := g.Barrier(ctx); err != nil {
					return err
				}
				if s, err := vram.Stats(vram.CPU); g.Rank() == 0 {
					if parameters == 0 {
						before = s.Requested
					} else if got := float64(s.Requested-before) / float64(parameters); err != nil || got > most || got < most-1 {
						t.Errorf("%s, reshard %v: %.2f bytes a parameter, want %.2f, %v", what, reshard, got, most, err)
					}
				}
				return g.Barrier(ctx)
			}
			if err := each("", 0, 0); err != nil {
				return err
			}
			m := nn.NewSequential()
			parameters := 0
			for range 6 {
				l := nn.NewLinear(511, 511)
				parameters += l.Weight.Numel() + l.Bias.Numel()
				u, err := dist.Shard(ctx, g, l, dist.ReshardAfterForward(reshard))
				if err != nil {
					return err
				}
				m.Layers = append(m.Layers, u, &nn.Tanh{})
			}
			defer nn.Release(m)
			opt, err := optim.NewAdamW(nn.Parameters(m), 1e-3)
			if err != nil {
				return err
			}
			defer opt.Release()
			for range 3 {
				if err := tensor.WithScope(func() error {
					opt.ZeroGrad()
					return errors.Join(m.Forward(tensor.Ones([]int{2, 511})).Sum().Backward(), opt.Step())
				}); err != nil {
					return err
				}
			}
			if err := each("at rest", 16*1.02, parameters); err != nil {
				return err
			}
			return tensor.WithScope(func() error {
				opt.ZeroGrad()
				loss := m.Forward(tensor.Ones([]int{2, 511})).Sum()
				most := 12 * 1.02
				if !reshard {
					most += 8
				}
				return errors.Join(loss.Err(), each("after the forward pass", most, parameters), loss.Backward())
			})
		})
	}
}

// TestShardPeak tests that neither the whole parameters nor the gradients of NoSync take memory while gradients are reduced
// beside the last gradient, its copy for the collective, and the result, which gloo has twice.
func TestShardPeak(t *testing.T) {
	leak.Check(t)
	const width = 1024
	for _, accumulate := range []bool{false, true} {
		ranks(t, 1, func(g *dist.Group) error {
			l := nn.NewLinear(width, width, nn.NoBias())
			defer nn.Release(l)
			u, err := dist.Shard(ctx, g, l)
			if err != nil {
				return err
			}
			return tensor.WithScope(func() error {
				_, settled := balance.Settle(tensor.Flush, nil)
				before, err := vram.Stats(vram.CPU)
				if err := errors.Join(settled, err, vram.ResetPeak(vram.CPU)); err != nil {
					return err
				}
				backward := func() error { return u.Forward(tensor.Ones([]int{1, width})).Sum().Backward() }
				if accumulate {
					if err := u.NoSync(backward); err != nil {
						return err
					}
				}
				if err := backward(); err != nil {
					return err
				}
				after, err := vram.Stats(vram.CPU)
				if whole := float64(after.Peak-before.Allocated) / (4 * width * width); err != nil || whole >= 5 {
					t.Errorf("accumulate %v: memory for %.2f whole parameters, want 4, %v", accumulate, whole, err)
				}
				return nil
			})
		})
	}
}

// TestShardPrefetchUnused tests that what a backward pass, or a forward pass that it computes again, gathers early and does
// not use is freed at its end.
func TestShardPrefetchUnused(t *testing.T) {
	leak.Check(t)
	for _, again := range []bool{false, true} {
		prefetchUnused(t, again)
	}
}

func prefetchUnused(t *testing.T, again bool) {
	t.Helper()
	const width = 256
	ranks(t, 1, func(g *dist.Group) error {
		a, e1 := dist.Shard(ctx, g, nn.NewLinear(width, width))
		b, e2 := dist.Shard(ctx, g, nn.NewLinear(width, width))
		if err := errors.Join(e1, e2); err != nil {
			return err
		}
		model := nn.NewSequential(a, b)
		defer nn.Release(model)
		prefetch := func() error {
			return errors.Join(a.SetModulesToBackwardPrefetch(b), b.SetModulesToBackwardPrefetch(a))
		}
		if again {
			model.Layers[0] = &checkpointed{a, (*tensor.Tensor).Tanh}
			prefetch = func() error { return a.SetModulesToForwardPrefetch(b) }
		}
		before, err := balance.Settle(tensor.Flush, nil)
		if err := errors.Join(err, prefetch()); err != nil {
			return err
		}
		if err := errors.Join(tensor.WithScope(func() error {
			return model.Forward(tensor.Ones([]int{1, width})).Sum().Backward()
		}), tensor.ZeroGrads(nn.Parameters(model), true)); err != nil {
			return err
		}
		after, err := balance.Settle(tensor.Flush, nil)
		if more := after.Bytes - before.Bytes; more >= 4*width*width {
			t.Errorf("a pass, with a forward pass in it %v, leaves %d bytes", again, more)
		}
		return err
	})
}

// beside is a model that calls the divided part of a module that it has.
type beside struct {
	Block *nn.Linear
	Part  *dist.FSDPModule
}

func (m *beside) Forward(x *tensor.Tensor) *tensor.Tensor { return m.Part.Forward(x) }

// within is beside with a struct.
type within struct {
	Block nn.Linear
	Part  *dist.FSDPModule
}

func (m *within) Forward(x *tensor.Tensor) *tensor.Tensor { return m.Part.Forward(x) }

// TestShardShared tests parameters that several modules share: a Shard has all of these within it, or none.
func TestShardShared(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		tied := func() (a, b *nn.Linear) {
			a, b = nn.NewLinear(4, 4), nn.NewLinear(4, 4)
			b.Weight.Release()
			b.Weight = a.Weight
			return a, b
		}
		a, b := tied()
		part, err := dist.Shard(ctx, g, nn.NewSequential(a, b))
		if err != nil {
			return err
		}
		again := nn.NewSequential(part, part, nn.NewLinear(4, 4))
		root, err := dist.Shard(ctx, g, again)
		if err != nil {
			return err
		}
		if err := root.Forward(wave([]int{2, 4}, g.Rank())).Sum().Backward(); err != nil {
			return err
		}
		for what, divide := range map[string]func(l *nn.Linear) (any, error){
			"a part beside the module": func(l *nn.Linear) (any, error) {
				part, err := dist.Shard(ctx, g, l)
				return &beside{Block: l, Part: part}, err
			},
			"a part of a struct": func(l *nn.Linear) (_ any, err error) {
				m := &within{Block: *l}
				m.Part, err = dist.Shard(ctx, g, &m.Block)
				return m, err
			},
		} {
			l, whole := nn.NewLinear(3, 5), nn.NewLinear(3, 5)
			for i, p := range nn.Parameters(nn.NewSequential(l, whole)) {
				p.Detach().Copy_(wave(p.Shape(), i%2))
			}
			m, err := divide(l)
			if err != nil {
				return err
			}
			root, err := dist.Shard(ctx, g, m)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			x := wave([]int{2, 3}, 0)
			y, want := root.Forward(x), whole.Forward(x)
			if same, err := y.Equal(want); !same || err != nil {
				t.Errorf("%s: the result is %v, want %v, %v", what, y, want, err)
			}
			if err := errors.Join(y.Square().Sum().Backward(), want.Square().Sum().Backward()); err != nil {
				return err
			}
			for i, p := range nn.Parameters(m) {
				first := 3 * g.Rank()
				grad := nn.Parameters(whole)[i].Grad()
				if same, err := p.Grad().Equal(grad.Narrow(0, first, min(3, 5-first))); !same || err != nil {
					t.Errorf("%s: the gradient of parameter %d is %v, the whole one %v, %v", what, i, p.Grad(), grad, err)
				}
			}
		}
		a, b = tied()
		if part, err = dist.Shard(ctx, g, a); err != nil {
			return err
		}
		if _, err := dist.Shard(ctx, g, a); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "Shard has divided the module already") {
			t.Errorf("twice: %v", err)
		}
		for what, m := range map[string]any{
			"alone": b, "without the part": nn.NewSequential(a), "beside it": nn.NewSequential(part, b), "in a map": &struct {
				A nn.Layer
				B map[string]*tensor.Tensor
			}{part, map[string]*tensor.Tensor{"weight": a.Weight}},
		} {
			if _, err := dist.Shard(ctx, g, m); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "a module that Shard has divided") {
				t.Errorf("%s: %v", what, err)
			}
		}
		return g.Barrier(ctx)
	})
}

// TestShardFrozen tests that the whole parameters of frozen modules are freed: by the forward pass if no backward pass
// can reach its results, and when a backward pass has gone through the module.
func TestShardFrozen(t *testing.T) {
	leak.Check(t)
	const width, layers = 256, 6
	for _, reshard := range []bool{true, false} {
		for _, run := range []struct {
			name      string
			input, no bool // the input requires a gradient; NoGrad
			kept      int  // whole modules between the passes with ReshardAfterForward(false)
		}{
			{"no gradient", false, false, 0},
			{"NoGrad", true, true, 0},
			{"gradient", true, false, layers},
		} {
			ranks(t, 1, func(g *dist.Group) error {
				m := nn.NewSequential()
				defer nn.Release(m)
				for range layers {
					l := nn.NewLinear(width, width, nn.NoBias())
					l.Weight.RequiresGrad_(false)
					u, err := dist.Shard(ctx, g, l, dist.ReshardAfterForward(reshard))
					if err != nil {
						return err
					}
					m.Layers = append(m.Layers, u)
				}
				return tensor.WithScope(func() error {
					x := tensor.Ones([]int{1, width})
					if run.input {
						x.RequiresGrad_()
					}
					// A thread of gloo frees what a collective has used some time after the wait for it.
					if _, err := balance.Settle(tensor.Flush, nil); err != nil {
						return err
					}
					before, err := vram.Stats(vram.CPU)
					if err != nil {
						return err
					}
					whole := func(when string, want int) {
						for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
							s, err := vram.Stats(vram.CPU)
							got := math.Round(float64(s.Requested-before.Requested) / (4 * width * width))
							if err == nil && int(got) == want {
								return
							}
							if err != nil || time.Now().After(end) {
								t.Errorf("%s, reshard %v, %s: %v modules are whole, want %d, %v", run.name, reshard, when, got, want, err)
								return
							}
						}
					}
					forward := func() error {
						h := x.Mul(1)
						if h.RequiresGrad() {
							if _, err := h.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) {
								whole("in the backward pass", 0)
								return nil, nil
							}); err != nil {
								return err
							}
						}
						y := m.Forward(h)
						want := run.kept
						if reshard {
							want = 0
						}
						whole("after the forward pass", want)
						if !y.RequiresGrad() {
							return y.Err()
						}
						return y.Sum().Backward()
					}
					if run.no {
						err = autograd.NoGrad(forward)
					} else {
						err = forward()
					}
					whole("at the end", 0)
					return err
				})
			})
		}
	}
}

// TestFullState tests that ranks save a whole state and load their rows of one.
func TestFullState(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		whole, m := newParts(5), newParts(1)
		if _, err := m.shard(g, false, nil, nil); err != nil {
			return err
		}
		want := nn.StateDict(whole).Map()
		if err := dist.LoadFullStateDict(g, m, want); err != nil {
			return err
		}
		got, err := dist.FullStateDict(ctx, g, m, 1)
		if err != nil {
			return err
		}
		if g.Rank() != 1 {
			want = nil
		}
		if len(got) != len(want) {
			t.Errorf("%d tensors, want %d", len(got), len(want))
		}
		for name, w := range want {
			if same, err := got[name].Equal(w); !same || err != nil {
				t.Errorf("%s differs: %v", name, err)
			}
		}
		p := m.L1.(*dist.FSDPModule).Parameters()[0]
		for i, err := range []error{
			second(p.Gather(ctx, wave([]int{3, 3}, 0), 1)), second(p.Gather(ctx, nil, 1)), second((*dist.ShardedParameter)(nil).Gather(ctx, p.Tensor, 1)),
			second(dist.FullStateDict(ctx, g, m, 3)), second(dist.FullStateDict(ctx, nil, m, 0)), second(dist.FullStateDict(ctx, g, nil, 0)),
			dist.LoadFullStateDict(g, m, map[string]*tensor.Tensor{"l1.weight": wave([]int{3, 3}, 0)}), dist.LoadFullStateDict(nil, m, nil), dist.LoadFullStateDict(g, m, nil),
		} {
			if err == nil {
				t.Errorf("call %d: no error", i)
			}
		}
		return g.Barrier(ctx)
	})
}

// TestShardCheckpoint tests that three ranks load what two have saved.
func TestShardCheckpoint(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "checkpoint")
	sums := map[int]float64{}
	for _, n := range []int{2, 3} {
		ranks(t, n, func(g *dist.Group) error {
			m := newParts(n)
			root, err := m.shard(g, false, nil, nil)
			if err != nil {
				return err
			}
			opt, err := optim.NewAdamW(nn.Parameters(m), 1e-2)
			if err != nil {
				return err
			}
			state := dcp.State{Shards: dcp.Model("model.", root), Optimizer: opt}
			if n == 2 {
				x, y := batch(g.Rank(), 0, 0)
				err = errors.Join(nn.CrossEntropy(root.Forward(x), y).Backward(), opt.Step(), dcp.Save(ctx, g, dir, state))
			} else {
				err = dcp.Load(ctx, g, dir, state)
			}
			if err != nil {
				return err
			}
			own := tensor.Zeros([]int{1}, tensor.Float64) // of the parameters and the optimizer's state
			for i, p := range nn.Parameters(m) {
				own.Add_(p.Detach().To(tensor.Float64).Square().Sum())
				own.Add_(opt.StateDict().State[i]["exp_avg"].(*tensor.Tensor).To(tensor.Float64).Square().Sum())
			}
			if err := g.AllReduce(ctx, own, dist.Sum); err != nil {
				return err
			}
			sum, err := own.Sum().Item()
			if g.Rank() == 0 {
				sums[n] = sum
			}
			return err
		})
	}
	if sums[2] == 0 || !(math.Abs(sums[2]-sums[3]) <= 1e-12*sums[2]) {
		t.Errorf("the squares of the state add up to %v on two ranks, %v on three", sums[2], sums[3])
	}
}

// TestShardErrors tests modules that cannot be divided, and passes that cannot be computed.
func TestShardErrors(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		scalar := &struct{ P *tensor.Tensor }{nn.NewParameter(tensor.Ones(nil))}
		mixed := nn.NewSequential(nn.NewLinear(2, 2), nn.NewLinear(2, 2, nn.DType(tensor.Float64)))
		graph := nn.NewLinear(2, 2)
		if err := graph.Forward(tensor.Ones([]int{2, 2})).Sum().Backward(); err != nil {
			return err
		}
		inMap := &struct{ P map[string]*tensor.Tensor }{map[string]*tensor.Tensor{"x": nn.NewParameter(tensor.Ones([]int{2}))}}
		var none *dist.FSDPModule
		var noContext context.Context
		m := newParts(0)
		root, err := m.shard(g, false, nil, nil)
		if err != nil {
			return err
		}
		x, _ := batch(0, 0, 0)
		y := root.Forward(x).Sum()
		m.Norm.Weight.Detach().Add_(1)
		changed := y.Backward()
		if changed == nil || !strings.Contains(changed.Error(), "was changed between the forward pass and its backward pass") {
			t.Errorf("a changed parameter: %v", changed)
		}
		unequal := second(dist.Shard(ctx, g, nn.NewLinear(2, 2+g.Rank())))
		if unequal == nil || !strings.Contains(unequal.Error(), "the ranks divide different modules: rank") {
			t.Errorf("unequal modules: %v", unequal)
		}
		created := root.Forward(x).Sum().Backward(tensor.CreateGraph(true))
		for i, err := range []error{
			second(dist.Shard(ctx, g, scalar)), second(dist.Shard(ctx, g, mixed)), second(dist.Shard(ctx, g, graph)), second(dist.Shard(ctx, g, inMap)),
			second(dist.Shard(ctx, g, nil)), second(dist.Shard(ctx, nil, m)), second(dist.Shard(noContext, g, m)), second(dist.Shard(ctx, g, m, nil)),
			second(dist.Shard(ctx, g, m, dist.ParamDType(tensor.Int64))), second(dist.Shard(ctx, g, nn.NewLinear(2, 2), dist.Replicas(nil))), created,
			none.Forward(x).Err(), none.Run(func() *tensor.Tensor { return x }).Err(), second(none.RunAll(nil)), root.Run(nil).Err(), second(root.RunAll(nil)), none.NoSync(nil), root.NoSync(nil), none.ResetIterState(),
			(&dist.FSDPModule{}).Run(func() *tensor.Tensor { return x }).Err(), (&dist.FSDPModule{Module: m}).Forward(x).Err(), (&dist.FSDPModule{}).Forward(x).Err(), root.Forward(nil).Err(),
			root.Run(func() *tensor.Tensor { return nil }).Err(),
		} {
			if err == nil {
				t.Errorf("call %d: no error", i)
			}
		}
		input := x.Detach().RequiresGrad_()
		if _, err := autograd.Grad([]*tensor.Tensor{root.Forward(input).Sum()}, []*tensor.Tensor{input}); err != nil {
			return err
		}
		if rows := m.Norm.Weight.Size(0); rows != 24 || none.Close() != nil || none.Parameters() != nil || (&dist.FSDPModule{}).Close() != nil {
			t.Errorf("%d rows after the passes", rows)
		}
		y = root.Forward(x).Sum()
		if err := errors.Join(root.Close(), root.Close()); err != nil {
			return err
		}
		if err := y.Backward(); !errors.Is(err, dist.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		return g.Barrier(ctx)
	})
}

// TestShardFailure tests that the failure of a rank is an error of the backward pass of the other, and that nothing is left.
func TestShardFailure(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		m := newParts(0)
		root, err := m.shard(g, false, nil, nil)
		if err != nil {
			return err
		}
		x, _ := batch(0, 0, 0)
		if err := root.NoSync(func() error { return root.Forward(x).Sum().Backward() }); err != nil {
			return err
		}
		y := root.Forward(x).Sum()
		if g.Rank() == 1 {
			return g.Abort()
		}
		if err := blames(y.Backward(), "AllGatherIntoTensor", dist.ErrConnection, 1); err != nil {
			return err
		}
		if err := root.Forward(x).Err(); err == nil {
			t.Error("a forward pass after the failure")
		}
		return nil
	})
}

// hooked ends backward passes through its result with an error.
type hooked struct {
	Layer nn.Layer `nn:"."`
	err   error
}

func (h *hooked) Forward(x *tensor.Tensor) *tensor.Tensor {
	y := h.Layer.Forward(x)
	if _, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, h.err }); err != nil {
		return tensor.Failed(err)
	}
	return y
}

// TestShardAfterFailure tests that the module's fields hold this rank's rows after a backward pass that has failed.
func TestShardAfterFailure(t *testing.T) {
	leak.Check(t)
	bad := errors.New("bad")
	for _, reshard := range []bool{true, false} {
		ranks(t, 2, func(g *dist.Group) error {
			m := newParts(0)
			root, err := m.shard(g, false, []dist.ShardOption{dist.ReshardAfterForward(reshard)}, nil)
			if err != nil {
				return err
			}
			second := m.L2.(*dist.FSDPModule)
			h := &hooked{second, bad}
			m.L2 = h
			rows := func(after string) {
				all := nn.Parameters(m)
				for _, u := range []*dist.FSDPModule{m.L1.(*dist.FSDPModule), second, root} {
					for _, p := range u.Parameters() {
						if !slices.Contains(all, p.Tensor) {
							t.Errorf("after %s, reshard %v: the field of %s does not hold the rows", after, reshard, p.Name)
						}
					}
				}
			}
			x, _ := batch(g.Rank(), 0, 0)
			if err := root.Forward(x).Sum().Backward(); !errors.Is(err, bad) {
				t.Errorf("Backward: %v", err)
			}
			rows("Backward")
			x = x.Detach().RequiresGrad_()
			if _, err := autograd.Grad([]*tensor.Tensor{root.Forward(x).Sum()}, []*tensor.Tensor{x}); !errors.Is(err, bad) {
				t.Errorf("Grad: %v", err)
			}
			rows("Grad")
			h.err = nil
			err = root.Forward(x).Sum().Backward()
			rows("a pass that succeeds")
			return err
		})
	}
}

// TestShardReset tests that ResetIterState discards the gradients that NoSync has accumulated, and what a pass that failed
// has left.
func TestShardReset(t *testing.T) {
	leak.Check(t)
	bad := errors.New("bad")
	ranks(t, 2, func(g *dist.Group) error {
		m := newParts(0)
		root, err := m.shard(g, false, nil, nil)
		if err != nil {
			return err
		}
		h := &hooked{Layer: m.L2}
		m.L2 = h
		// pass returns the gradients of a pass on inputs of a step.
		pass := func(step int) (grads []*tensor.Tensor, err error) {
			x, y := batch(g.Rank(), step, 0)
			if err := nn.CrossEntropy(root.Forward(x), y).Backward(); err != nil {
				return nil, err
			}
			for _, p := range nn.Parameters(m) {
				if p.Grad() != nil {
					grads = append(grads, p.Grad().Clone())
				}
			}
			return grads, tensor.ZeroGrads(nn.Parameters(m), true)
		}
		alone, err := pass(0)
		if err != nil {
			return err
		}
		for _, before := range []string{"NoSync", "a pass that failed"} {
			if before == "NoSync" {
				err = root.NoSync(func() error { return second(pass(1)) })
			} else {
				h.err = bad
				if failure := second(pass(1)); !errors.Is(failure, bad) {
					err = fmt.Errorf("the pass: %w", failure)
				}
				h.err = nil
			}
			if err := errors.Join(err, tensor.ZeroGrads(nn.Parameters(m), true), root.ResetIterState()); err != nil {
				return err
			}
			after, err := pass(0)
			if err != nil {
				return err
			}
			if len(after) != len(alone) {
				return fmt.Errorf("after %s: %d gradients, want %d", before, len(after), len(alone))
			}
			for i := range after {
				if same, err := after[i].Equal(alone[i]); err != nil || !same {
					return fmt.Errorf("after %s: gradient %d is not that of the pass alone, %w", before, i, err)
				}
			}
		}
		return nil
	})
}

// TestDividedIsRefused tests that what would take a rank's rows for whole parameters is an error.
func TestDividedIsRefused(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewLinear(4, 2))
		root, err := dist.Shard(ctx, g, model)
		if err != nil {
			return err
		}
		column := dist.NewColwiseParallel(g, nn.NewLinear(4, 4))
		if err := column.Err(); err != nil {
			return err
		}
		defer nn.Release(column)
		merged := nn.NewLoRALinear(nn.NewLinear(2, 2), 1)
		if err := merged.Merge(); err != nil {
			return err
		}
		build := func(part []*tensor.Tensor) (*optim.Optimizer, error) { return optim.NewSGD(part, 0.1) }
		// The failed tensors are the scope's error, too.
		_ = tensor.WithScope(func() error {
			for name, err := range map[string]error{
				"Clone":                               nn.Check(nn.Clone(model)),
				"Clone of the FSDPModule":             nn.Check(nn.Clone(root)),
				"dcp.Model of a part":                 dcp.Save(ctx, g, filepath.Join(t.TempDir(), "checkpoint"), dcp.State{Shards: dcp.Model("", model)}),
				"NewAveragedModel":                    nn.NewAveragedModel(model).Err(),
				"FunctionalCall":                      second(nn.FunctionalCall(model, nil)),
				"ToEmpty":                             nn.ToEmpty(model, tensor.CPU),
				"NewDDP":                              second(dist.NewDDP(ctx, g, model)),
				"NewDDP of parts":                     second(dist.NewDDP(ctx, g, column)),
				"NewZeroRedundancyOptimizer":          second(dist.NewZeroRedundancyOptimizer(g, nn.Parameters(model), build)),
				"NewZeroRedundancyOptimizer of parts": second(dist.NewZeroRedundancyOptimizer(g, nn.Parameters(column), build)),
				"FullStateDict of parts":              second(dist.FullStateDict(ctx, g, column, 0)),
				"FullStateDict of a merged layer":     second(dist.FullStateDict(ctx, g, merged, 0)),
			} {
				if !errors.Is(err, tensor.ErrArgument) {
					t.Errorf("%s: %v", name, err)
				}
			}
			return nil
		})
		// The module is in working order.
		return errors.Join(root.Forward(tensor.Ones([]int{3, 4})).Sum().Backward(), second(dist.FullStateDict(ctx, g, model, 0)))
	})
}

// TestShardOfParts tests that what needs the same parameters on all ranks refuses rows and parts that differ between
// the ranks of its group, and that Shard takes parts that do not differ.
func TestShardOfParts(t *testing.T) {
	leak.Check(t)
	ranks(t, 4, func(g *dist.Group) error {
		mesh, err := dist.NewDeviceMesh(ctx, g, []int{2, 2}, "dp", "tp")
		if err != nil {
			return err
		}
		defer mesh.Close()
		dp, tp := mesh.Group("dp"), mesh.Group("tp")
		again, err := g.NewGroup(ctx, g.Ranks())
		if err != nil {
			return err
		}
		defer again.Close()
		block, closed := nn.NewLinear(4, 4), nn.NewLinear(4, 4)
		inner, err := dist.Shard(ctx, g, block)
		if err != nil {
			return err
		}
		before, err := dist.Shard(ctx, g, closed)
		if err := errors.Join(err, before.Close()); err != nil {
			return err
		}
		column := dist.NewColwiseParallel(tp, filled(nn.NewLinear(4, 8, f64), 1))
		if err := column.Err(); err != nil {
			return err
		}
		part := column.Weight.Detach().Clone()
		build := func(part []*tensor.Tensor) (*optim.Optimizer, error) { return optim.NewSGD(part, 0.1) }
		shard := func(g *dist.Group, m any, opts ...dist.ShardOption) func() error {
			return func() error { return second(dist.Shard(ctx, g, m, opts...)) }
		}
		for _, c := range []struct {
			name string
			f    func() error
		}{
			{"Shard of rows of another group", shard(again, nn.NewSequential(inner, nn.NewLinear(4, 4)))},
			{"Shard of rows of a closed one", shard(g, closed)},
			{"Shard of rows of a closed one, another group", shard(again, closed)},
			{"Shard of parts", shard(tp, column)},
			{"Shard of parts in a larger group", shard(g, column)},
			{"Shard of parts of the replicas", shard(dp, column, dist.Replicas(tp))},
			{"NewDDP in a larger group", func() error { return second(dist.NewDDP(ctx, g, column)) }},
			{"NewZeroRedundancyOptimizer in a group of the same ranks", func() error {
				return second(dist.NewZeroRedundancyOptimizer(again, append(nn.Parameters(column), nn.Parameters(block)...), build))
			}},
			{"NewColwiseParallel of rows", func() error { return dist.NewColwiseParallel(g, block).Err() }},
			{"NewRowwiseParallel of rows", func() error { return dist.NewRowwiseParallel(again, closed).Err() }},
			{"NewSequenceParallel of parts", func() error { return dist.NewSequenceParallel(tp, column).Err() }},
		} {
			if err := c.f(); !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if same, err := column.Weight.Equal(part); err != nil || !same {
			t.Errorf("rank %d has another part, %v", g.Rank(), err)
		}
		rows, err := dist.Shard(ctx, dp, column)
		if err != nil {
			return err
		}
		whole, err := rows.Parameters()[0].Gather(ctx, column.Weight, 0)
		if err != nil || dp.Rank() != 0 {
			return err
		}
		return same("the part of a part", whole, part)
	}, dist.Timeout(10*time.Second))
}

// TestShardOfMeta tests a model that is made on the meta device and divided module by module.
func TestShardOfMeta(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		layers := func(opts ...nn.Option) []nn.Layer {
			return []nn.Layer{nn.NewLinear(6, 8, opts...), nn.NewBatchNorm1d(8, opts...), nn.NewLinear(8, 4, opts...)}
		}
		reference := nn.NewSequential(layers()...)
		defer nn.Release(reference)
		for i, p := range nn.Parameters(reference) {
			p.Detach().Copy_(wave(p.Shape(), i))
		}
		divided := layers(nn.Device(tensor.Meta))
		if err := second(dist.Shard(ctx, g, divided[0])); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "nn.ToEmpty") {
			t.Errorf("on the meta device: %v", err)
		}
		for i, l := range divided {
			if err := nn.ToEmpty(l, tensor.CPU); err != nil {
				return err
			}
			m, err := dist.Shard(ctx, g, l)
			if err != nil {
				return err
			}
			divided[i] = m
		}
		model := nn.NewSequential(divided...)
		if err := dist.LoadFullStateDict(g, model, nn.StateDict(reference).Map()); err != nil {
			return err
		}
		x := wave([]int{5, 6}, 0)
		d, err := model.Forward(x).Sub(reference.Forward(x)).Abs().Max().Item()
		if err == nil && !(d <= 1e-6) {
			t.Errorf("the output differs by %v", d)
		}
		return err
	})
}

// TestShardNormIsNaN tests that all ranks learn of a NaN in the gradients of any of them, by each norm.
func TestShardNormIsNaN(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		m, err := dist.Shard(ctx, g, nn.NewLinear(2, 3, nn.NoBias()))
		if err != nil {
			return err
		}
		params := nn.Parameters(m)
		for _, order := range []float64{math.Inf(1), 2} {
			for r := range g.Size() {
				value := 1.0
				if r == g.Rank() {
					value = math.NaN()
				}
				if err := params[0].SetGrad(tensor.Full(params[0].Shape(), value)); err != nil {
					return err
				}
				err := nn.ClipGradNorm_(params, 1, nn.NormType(order), nn.ErrorIfNonfinite()).Err()
				v, e := nn.ClipGradNorm_(params, 1, nn.NormType(order)).Item()
				if !errors.Is(err, tensor.ErrArgument) || e != nil || !math.IsNaN(v) {
					return fmt.Errorf("order %v, NaN on rank %d: %v; %v, %v", order, r, err, v, e)
				}
			}
		}
		return nil
	})
}

// inputType notes the dtype of its last input.
type inputType struct {
	Linear *nn.Linear
	seen   tensor.DType
}

func (m *inputType) Forward(x *tensor.Tensor) *tensor.Tensor {
	m.seen = x.DType()
	return m.Linear.Forward(x.To(m.Linear.Weight.DType()))
}

// TestCastForwardInputs tests that Forward casts its input to the dtype of ParamDType unless the option is false.
func TestCastForwardInputs(t *testing.T) {
	leak.Check(t)
	ranks(t, 1, func(g *dist.Group) error {
		for want, opts := range map[tensor.DType][]dist.ShardOption{
			tensor.BFloat16: {dist.CastForwardInputs()},
			tensor.Float32:  {dist.CastForwardInputs(false)},
		} {
			m := &inputType{Linear: nn.NewLinear(2, 2)}
			root, err := dist.Shard(ctx, g, m, append(opts, dist.ParamDType(tensor.BFloat16))...)
			if err != nil {
				return err
			}
			if err := tensor.WithScope(func() error { return root.Forward(tensor.Ones([]int{2})).Err() }); err != nil {
				return err
			}
			if m.seen != want {
				t.Errorf("the module got %v, want %v", m.seen, want)
			}
			nn.Release(m)
			if err := root.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// stage is a module whose parameters an FSDPModule within it has.
type stage struct{ Inner nn.Layer }

// TestShardWithoutParameters tests that a module whose parameters other FSDPModules have begins the gathers that it is told to
// begin, casts its results, and ends what its forward pass made.
func TestShardWithoutParameters(t *testing.T) {
	leak.Check(t)
	ranks(t, 1, func(g *dist.Group) error {
		const width = 256
		inner, err := dist.Shard(ctx, g, nn.NewLinear(width, width, nn.NoBias()))
		if err != nil {
			return err
		}
		root, err := dist.Shard(ctx, g, &stage{inner}, dist.OutputDType(tensor.BFloat16))
		if err != nil {
			return err
		}
		if n := len(root.Parameters()); n != 0 {
			return fmt.Errorf("%d parameters", n)
		}
		if err := errors.Join(root.SetModulesToForwardPrefetch(inner), root.SetModulesToBackwardPrefetch(inner)); err != nil {
			return err
		}
		x := tensor.Ones([]int{1, width})
		before, err := vram.Stats(vram.CPU)
		var made *tensor.Tensor
		y := root.Run(func() *tensor.Tensor {
			if s, err := vram.Stats(vram.CPU); err != nil || s.Allocated-before.Allocated < 4*width*width {
				t.Errorf("the inner module's gather has not begun: %d bytes, %v", s.Allocated-before.Allocated, err)
			}
			made = inner.Forward(x)
			return made.Mul(2)
		})
		if err := errors.Join(err, y.Err()); err != nil {
			return err
		}
		if y.DType() != tensor.BFloat16 {
			t.Errorf("the result is %v", y.DType())
		}
		if err := made.Err(); !errors.Is(err, tensor.ErrReleased) {
			t.Errorf("a tensor of the forward pass: %v", err)
		}
		if err := y.Sum().Backward(); err != nil {
			return err
		}
		return same("the gradient", inner.Parameters()[0].Tensor.Grad(), tensor.Full([]int{width, width}, 2))
	})
}
