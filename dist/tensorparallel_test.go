package dist_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// filled returns a module whose parameters have values that depend on the phase.
func filled[M any](m M, phase int) M {
	for i, p := range nn.Parameters(m) {
		p.Detach().Copy_(wave(p.Shape(), phase+i))
	}
	return m
}

func double(shape []int, phase int) *tensor.Tensor { return wave(shape, phase).To(tensor.Float64) }

var f64 = nn.DType(tensor.Float64)

// same returns an error unless got and want are equal to 1e-12 of the largest element of want, or of 1.
func same(what string, got, want *tensor.Tensor) error {
	if fmt.Sprint(got.Shape()) != fmt.Sprint(want.Shape()) {
		return fmt.Errorf("%s: shape %v, want %v: %v, %v", what, got.Shape(), want.Shape(), got.Err(), want.Err())
	}
	largest, err := want.Abs().Max().Item()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if d, err := got.Sub(want).Abs().Max().Item(); err != nil || !(d <= 1e-12*max(1, largest)) {
		return fmt.Errorf("%s differs by %v of %v, %v", what, d, largest, err)
	}
	return nil
}

// part returns what a rank has of t along a dimension.
func part(g *dist.Group, t *tensor.Tensor, dim int) *tensor.Tensor {
	n := t.Size(dim)
	each := (n + g.Size() - 1) / g.Size()
	return t.Narrow(dim, g.Rank()*each, min(each, n-g.Rank()*each))
}

// sameGradients compares the gradients of a divided model with those of the whole one, whose parameters have the same names.
func sameGradients(divided, whole any) error {
	grads := map[string]*tensor.Tensor{}
	for _, n := range nn.NamedParameters(whole) {
		grads[n.Name] = n.Tensor.Grad()
	}
	var errs []error
	for _, s := range dcp.Model("", divided) {
		want := grads[s.Name]
		if want == nil || s.Tensor.Grad() == nil {
			errs = append(errs, fmt.Errorf("%s: no gradient: %v, %v", s.Name, s.Tensor.Grad(), want))
			continue
		}
		if s.Global != nil {
			want = want.Reshape(s.Global...)
		}
		for dim, at := range s.Offsets {
			want = want.Narrow(dim, at, s.Tensor.Size(dim))
		}
		errs = append(errs, same("the gradient of "+s.Name, s.Tensor.Grad(), want))
		delete(grads, s.Name)
	}
	if len(grads) != 0 {
		errs = append(errs, fmt.Errorf("%d parameters are missing", len(grads)))
	}
	return errors.Join(errs...)
}

// onRanks runs f on the ranks of groups of 2 and of 3.
func onRanks(t *testing.T, f func(g *dist.Group) error) {
	t.Helper()
	for _, n := range []int{2, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			leak.Check(t)
			ranks(t, n, f)
		})
	}
}

// TestTensorParallel compares a feed-forward network that is divided with the whole one, and the gradients of its gradients.
func TestTensorParallel(t *testing.T) {
	leak.Check(t)
	onRanks(t, func(g *dist.Group) error {
		first, second, last := filled(nn.NewLinear(6, 8, f64), 1), filled(nn.NewLinear(8, 4, f64), 3), filled(nn.NewLinear(4, 6, nn.NoBias(), f64), 5)
		whole := nn.NewSequential(first, &nn.Tanh{}, second, last)
		divided := nn.NewSequential(dist.NewColwiseParallel(g, first), &nn.Tanh{}, dist.NewRowwiseParallel(g, second),
			dist.NewColwiseParallel(g, last, dist.OutputLayouts(dist.Replicate())))
		if err := nn.Check(divided); err != nil {
			return err
		}
		run := func(m nn.Layer) (y, gx *tensor.Tensor, err error) {
			x := double([]int{3, 5, 6}, 7).RequiresGrad_()
			y = m.Forward(x)
			loss := y.Mul(y).Mul(double([]int{6}, 9)).Sum()
			grads, err := autograd.Grad([]*tensor.Tensor{loss}, []*tensor.Tensor{x}, tensor.CreateGraph(true))
			if err != nil {
				return nil, nil, err
			}
			err = loss.Add(grads[0].Square().Sum()).Backward()
			return y, x.Grad(), err
		}
		want, wantX, err := run(whole)
		if err != nil {
			return err
		}
		got, gotX, err := run(divided)
		if err := errors.Join(err, same("y", got, want), same("the gradient of x", gotX, wantX), sameGradients(divided, whole)); err != nil {
			return err
		}
		// The norm is that of the whole gradients, and clipping by it gives what it gives for the whole ones.
		for _, order := range []float64{math.Inf(1), 1, 3, 2} {
			most := math.Inf(1)
			if order == 2 {
				most = 0.5
			}
			got, want := nn.ClipGradNorm_(nn.Parameters(divided), most, nn.NormType(order)), nn.ClipGradNorm_(nn.Parameters(whole), most, nn.NormType(order))
			if err := same(fmt.Sprintf("the norm of order %v", order), got, want); err != nil {
				return err
			}
		}
		if err := sameGradients(divided, whole); err != nil {
			return fmt.Errorf("clipped: %w", err)
		}
		if err := nn.ClipGradNorm_(nn.Parameters(divided), 1, nn.NormType(0)).Err(); !errors.Is(err, tensor.ErrArgument) {
			return fmt.Errorf("NormType(0): %v", err)
		}
		second.Weight.RequiresGrad_(false)
		if r := dist.NewRowwiseParallel(g, second); r.Weight.RequiresGrad() || !r.Bias.RequiresGrad() {
			return fmt.Errorf("of a weight that is not trained: %v, %v", r.Weight.RequiresGrad(), r.Bias.RequiresGrad())
		}
		return nil
	})
}

// positions adds an embedding of the positions from First on.
type positions struct {
	Embedding *nn.Embedding
	First     int
}

func (p *positions) Forward(x *tensor.Tensor) *tensor.Tensor {
	return x.Add(p.Embedding.Forward(tensor.Arange(p.First, p.First+x.Size(1), tensor.Int64)))
}

// transformer is a GPT of one block.
type transformer struct {
	Tokens, Positions, LN1, QKV, Proj, LN2, MLP, LN3, Head nn.Layer
	heads                                                  int
}

func (m *transformer) Forward(ids *tensor.Tensor) *tensor.Tensor {
	x := m.Positions.Forward(m.Tokens.Forward(ids))
	x = x.Add(m.Proj.Forward(nn.CausalAttention(m.QKV.Forward(m.LN1.Forward(x)), m.heads)))
	return m.Head.Forward(m.LN3.Forward(x.Add(m.MLP.Forward(m.LN2.Forward(x)))))
}

// newTransformer returns the GPT of tests/golden/gpt.py with one layer.
func newTransformer(vocabulary, width, length, heads int, opts ...nn.Option) *transformer {
	linear := func(in, out int) *nn.Linear { return nn.NewLinear(in, out, opts...) }
	norm := func() *nn.LayerNorm { return nn.NewLayerNorm(width, opts...) }
	return &transformer{
		Tokens: nn.NewEmbedding(vocabulary, width, opts...), Positions: &positions{nn.NewEmbedding(length, width, opts...), 0},
		LN1: norm(), QKV: linear(width, 3*width), Proj: linear(width, width),
		LN2: norm(), MLP: nn.NewSequential(linear(width, 4*width), &nn.GELU{}, linear(4*width, width)),
		LN3: norm(), Head: nn.NewLinear(width, vocabulary, append(opts, nn.NoBias())...), heads: heads,
	}
}

// TestSequenceParallel compares a transformer with divided heads, feed-forward network, vocabulary, loss, and sequences between
// them with the whole one.
func TestSequenceParallel(t *testing.T) {
	leak.Check(t)
	onRanks(t, func(g *dist.Group) error {
		const vocabulary, width, length = 7, 12, 6
		whole := filled(newTransformer(vocabulary, width, length, 6, f64), 1)
		whole.LN2 = nn.NewSequential(whole.LN2, nn.NewDropout(0))
		up, down := whole.MLP.(*nn.Sequential).Layers[0], whole.MLP.(*nn.Sequential).Layers[2]
		sequence, gather, scatter := func(m nn.Layer) nn.Layer { return dist.NewSequenceParallel(g, nn.Clone(m)) }, dist.InputLayouts(dist.ShardDim(1)), dist.OutputLayouts(dist.ShardDim(1))
		divided := &transformer{
			Tokens:    dist.NewRowwiseParallel(g, whole.Tokens, scatter),
			Positions: sequence(&positions{whole.Positions.(*positions).Embedding, g.Rank() * length / g.Size()}),
			LN1:       sequence(whole.LN1),
			QKV:       dist.NewColwiseParallel(g, whole.QKV, dist.Fused(3), gather),
			Proj:      dist.NewRowwiseParallel(g, whole.Proj, scatter),
			LN2:       sequence(whole.LN2),
			MLP:       nn.NewSequential(dist.NewColwiseParallel(g, up, gather), &nn.GELU{}, dist.NewRowwiseParallel(g, down, scatter)),
			LN3:       sequence(whole.LN3),
			Head:      dist.NewColwiseParallel(g, whole.Head, gather),
			heads:     whole.heads / g.Size(),
		}
		if err := nn.Check(divided); err != nil {
			return err
		}
		ids := tensor.Arange(0, 2*length, tensor.Int64).Mul(5).Remainder(vocabulary).View(2, length)
		targets := ids.Mul(3).Add(1).Remainder(vocabulary).Flatten().IndexFill(0, tensor.FromSlice([]int64{2, 7}, []int{2}), -1)
		want := nn.CrossEntropy(whole.Forward(ids).Flatten(tensor.EndDim(1)), targets, tensor.IgnoreIndex(-1))
		got := dist.LossParallel(g, divided.Forward(ids).Flatten(tensor.EndDim(1)), targets, vocabulary, tensor.IgnoreIndex(-1))
		if err := errors.Join(same("the loss", got, want), want.Backward(), got.Backward()); err != nil {
			return err
		}
		if err := sameGradients(divided, whole); err != nil {
			return err
		}
		return autograd.NoGrad(func() error {
			return same("a result without a graph", divided.Forward(ids), part(g, whole.Forward(ids), -1))
		})
	})
}

// mixed is a module with parameters of two dtypes.
type mixed struct{ A, B, C *tensor.Tensor }

func (m *mixed) Forward(x *tensor.Tensor) *tensor.Tensor {
	return x.Mul(m.A).To(tensor.Float64).Mul(m.B).Mul(m.C.To(tensor.Float64))
}

// TestSequenceParallelOfTwoDTypes compares the gradients of parameters of two dtypes with those for the whole sequence.
func TestSequenceParallelOfTwoDTypes(t *testing.T) {
	leak.Check(t)
	onRanks(t, func(g *dist.Group) error {
		ones := func(dtype tensor.DType) *tensor.Tensor { return nn.NewParameter(tensor.Ones([]int{2}, dtype)) }
		whole := &mixed{ones(tensor.Float32), ones(tensor.Float64), ones(tensor.Float32)}
		own := nn.Clone(whole)
		x := tensor.Arange(0, 12).To(tensor.Float32).View(6, 2)
		if err := errors.Join(whole.Forward(x).Sum().Backward(), dist.NewSequenceParallel(g, own).Forward(part(g, x, 0)).Sum().Backward()); err != nil {
			return err
		}
		want := nn.Parameters(whole)
		for i, p := range nn.Parameters(own) {
			if err := same(fmt.Sprintf("gradient %d", i), p.Grad(), want[i].Grad()); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestEmbeddingParallel compares embeddings that are divided by rows and by columns, with a row that is not trained, with the
// whole one.
func TestEmbeddingParallel(t *testing.T) {
	leak.Check(t)
	onRanks(t, func(g *dist.Group) error {
		for _, pad := range []int{0, 5, 6} {
			ids := tensor.Arange(0, 24, tensor.Int64).Mul(3).Remainder(7).View(6, 4)
			factor := double([]int{6, 4, 6}, 3)
			run := func(m nn.Layer, factor *tensor.Tensor, ids *tensor.Tensor) (*tensor.Tensor, error) {
				y := m.Forward(ids)
				return y, y.Square().Mul(factor).Sum().Backward()
			}
			whole := filled(nn.NewEmbedding(7, 6, nn.PaddingIdx(pad), f64), 1)
			want, err := run(whole, factor, ids)
			if err != nil {
				return err
			}
			columns := func(opts ...dist.ParallelOption) nn.Layer { return dist.NewColwiseParallel(g, whole, opts...) }
			rows := func(opts ...dist.ParallelOption) nn.Layer { return dist.NewRowwiseParallel(g, whole, opts...) }
			for _, c := range []struct {
				name string
				m    nn.Layer
				ids  *tensor.Tensor
				dim  int // in which the result is divided; -1 for none
			}{
				{"columns", columns(), ids, 2},
				{"columns, gathered", columns(dist.OutputLayouts(dist.Replicate())), ids, -1},
				{"columns, of divided ids", columns(dist.InputLayouts(dist.ShardDim(0))), part(g, ids, 0), 2},
				{"rows", rows(), ids, -1},
				{"rows, with divided results", rows(dist.OutputLayouts(dist.ShardDim(0))), ids, 0},
				{"rows, with divided features", rows(dist.OutputLayouts(dist.ShardDim(-1))), ids, 2},
			} {
				want, factor := want, factor
				if c.dim >= 0 {
					want, factor = part(g, want, c.dim), part(g, factor, c.dim)
				}
				got, err := run(c.m, factor, c.ids)
				if err := errors.Join(err, same("y", got, want), sameGradients(c.m, whole)); err != nil {
					return fmt.Errorf("%s, padding %d: %w", c.name, pad, err)
				}
			}
		}
		return nil
	})
}

// TestRedistribute compares tensors in each layout, and their gradients, with parts of the whole.
func TestRedistribute(t *testing.T) {
	leak.Check(t)
	onRanks(t, func(g *dist.Group) error {
		layouts := []dist.Placement{dist.Replicate(), dist.ShardDim(0), dist.ShardDim(-1)}
		in := func(t *tensor.Tensor, p dist.Placement) *tensor.Tensor {
			switch p {
			case layouts[1]:
				return part(g, t, 0)
			case layouts[2]:
				return part(g, t, 2)
			}
			return t
		}
		factor := double([]int{12, 2, 12}, 5)
		x := double([]int{12, 2, 12}, 2).RequiresGrad_()
		if err := x.Mul(x).Mul(factor).Sum().Backward(); err != nil {
			return err
		}
		ids := tensor.Arange(0, 288, tensor.Int64).View(12, 2, 12)
		for _, from := range layouts {
			for _, to := range layouts {
				own := in(x.Detach(), from).Clone().RequiresGrad_()
				y := dist.Redistribute(g, own, from, to)
				err := same("the result", y, in(x, to))
				err = errors.Join(err, y.Mul(y).Mul(in(factor, to)).Sum().Backward(), same("the gradient", own.Grad(), in(x.Grad(), from)))
				equal, failed := dist.Redistribute(g, in(ids, from), from, to).Equal(in(ids, to))
				if err := errors.Join(err, failed); err != nil || !equal {
					return fmt.Errorf("from %v to %v: integers are equal: %v, %w", from, to, equal, err)
				}
			}
		}
		return nil
	})
}

// TestLossParallel compares the losses of divided logits, and their gradients, with those of whole ones.
func TestLossParallel(t *testing.T) {
	leak.Check(t)
	onRanks(t, func(g *dist.Group) error {
		for _, shape := range [][]int{{7}, {5, 7}, {5, 7, 3}} {
			dim := min(1, len(shape)-1)
			targetShape := append(append([]int{}, shape[:dim]...), shape[dim+1:]...)
			n := 1
			for _, s := range targetShape {
				n *= s
			}
			weight := double([]int{7}, 4).Abs().Add(0.1)
			targets := tensor.Arange(0, n, tensor.Int64).Mul(3).Add(4).Remainder(7).View(targetShape...)
			for i, opts := range [][]tensor.Option{
				nil, {tensor.ReduceSum}, {tensor.ReduceNone}, {tensor.IgnoreIndex(3)}, {tensor.IgnoreIndex(0), tensor.ReduceSum},
				{tensor.LabelSmoothing(0.1), tensor.IgnoreIndex(6)}, {tensor.LabelSmoothing(1.0), tensor.IgnoreIndex(2), tensor.ReduceNone},
				{tensor.Weight(weight)}, {tensor.Weight(weight), tensor.IgnoreIndex(3), tensor.ReduceSum}, {tensor.Weight(weight), tensor.ReduceNone},
				{tensor.Weight(weight), tensor.LabelSmoothing(0.3), tensor.IgnoreIndex(6)}, {tensor.Weight(weight), tensor.LabelSmoothing(1.0)},
			} {
				x := double(shape, 2).Mul(30).RequiresGrad_()
				own := part(g, x.Detach(), dim).Clone().RequiresGrad_()
				want, got := nn.CrossEntropy(x, targets, opts...), dist.LossParallel(g, own, targets, 7, opts...)
				err := same("the loss", got, want)
				for _, loss := range []*tensor.Tensor{want, got} {
					err = errors.Join(err, loss.Mul(double(loss.Shape(), 5)).Sum().Backward())
				}
				if err := errors.Join(err, same("the gradient", own.Grad(), part(g, x.Grad(), dim))); err != nil {
					return fmt.Errorf("logits %v, options %d: %w", shape, i, err)
				}
			}
		}
		own := part(g, double([]int{2, 7}, 0), 1).Clone().RequiresGrad_()
		loss := dist.LossParallel(g, own, tensor.Full([]int{2}, -100, tensor.Int64), 7)
		v, err := loss.Item()
		if err := errors.Join(err, loss.Backward(), same("the gradient without targets", own.Grad(), own.ZerosLike())); err != nil || !math.IsNaN(v) {
			return fmt.Errorf("without targets: %v, %w", v, err)
		}
		half := part(g, double([]int{4, 7}, 1), 1).To(tensor.BFloat16)
		loss = dist.LossParallel(g, half, tensor.Zeros([]int{4}, tensor.Int64), 7)
		if v, err := loss.Item(); err != nil || loss.DType() != tensor.BFloat16 || !(v > 0) {
			return fmt.Errorf("bfloat16: %v, %v, %w", loss.DType(), v, err)
		}
		// Autocast casts half-precision logits, as for the whole ones.
		err = autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error {
			for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float64} {
				x, targets := double([]int{4, 7}, 1).To(dtype).Contiguous(), tensor.Arange(0, 4, tensor.Int64)
				want, got := nn.CrossEntropy(x, targets), dist.LossParallel(g, part(g, x, 1).Clone().RequiresGrad_(), targets, 7)
				if d, err := got.Sub(want).Abs().Item(); err != nil || got.DType() != want.DType() || !(d <= 1e-6) {
					return fmt.Errorf("within autocast, %v: %v, want %v, %w", dtype, got, want, errors.Join(err, got.Backward()))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		loss = dist.LossParallel(g, own, tensor.Zeros([]int{2}, tensor.Int64), 7)
		if _, err := autograd.Grad([]*tensor.Tensor{loss}, []*tensor.Tensor{own}, tensor.CreateGraph(true)); !errors.Is(err, tensor.ErrNotImplemented) {
			return fmt.Errorf("a gradient with a graph: %w", err)
		}
		return nil
	})
}

// TestDividedWithoutGradient tests that parameters of divided layers and losses whose results have no part in the loss get
// no gradient, or zeros.
func TestDividedWithoutGradient(t *testing.T) {
	leak.Check(t)
	rows := dist.ShardDim(0)
	for name, unused := range map[string]func(g *dist.Group) nn.Layer{
		"layers": func(g *dist.Group) nn.Layer {
			return nn.NewSequential(dist.NewColwiseParallel(g, nn.NewLinear(6, 8, f64)), dist.NewRowwiseParallel(g, nn.NewLinear(8, 4, f64)))
		},
		"scattered": func(g *dist.Group) nn.Layer {
			return nn.NewSequential(dist.NewColwiseParallel(g, nn.NewLinear(6, 8, f64)), dist.NewRowwiseParallel(g, nn.NewLinear(8, 4, f64), dist.OutputLayouts(rows)))
		},
		"gathered": func(g *dist.Group) nn.Layer {
			return nn.NewSequential(nn.NewLinear(6, 4, f64), dist.NewColwiseParallel(g, nn.NewLinear(4, 6, f64), dist.InputLayouts(rows), dist.OutputLayouts(dist.Replicate())))
		},
		"redistributed": func(g *dist.Group) nn.Layer {
			return nn.NewSequential(nn.NewLinear(6, 4, f64), nn.Func(func(x *tensor.Tensor) *tensor.Tensor {
				return dist.Redistribute(g, dist.Redistribute(g, x, dist.Replicate(), rows), rows, dist.Replicate())
			}))
		},
		"sequence": func(g *dist.Group) nn.Layer { return dist.NewSequenceParallel(g, nn.NewLayerNorm(6, f64)) },
		"loss": func(g *dist.Group) nn.Layer {
			head := dist.NewColwiseParallel(g, nn.NewLinear(6, 8, f64))
			return nn.NewSequential(head, nn.Func(func(x *tensor.Tensor) *tensor.Tensor {
				return dist.LossParallel(g, x, tensor.Arange(0, x.Size(0)), 8)
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			ranks(t, 2, func(g *dist.Group) error {
				alone, err := g.NewGroup(ctx, []int{g.Rank()})
				if err != nil {
					return err
				}
				defer alone.Close()
				m := &heads{nn.NewLinear(3, 6, f64), nn.NewLinear(6, 1, f64), unused(g)}
				ddp, err := dist.NewDDP(ctx, alone, m, dist.FindUnusedParameters())
				if err != nil {
					return err
				}
				defer ddp.Close()
				ys, err := ddp.RunAll(func() ([]*tensor.Tensor, error) { return m.forward(double([]int{4, 3}, 0)) })
				if err == nil {
					err = errors.Join(ys[0].Sum().Backward(), ys[1].Err())
				}
				if err != nil {
					return err
				}
				for _, n := range nn.NamedParameters(m) {
					grad := n.Tensor.Grad()
					if unused := strings.HasPrefix(n.Name, "aux."); !unused && grad == nil {
						return fmt.Errorf("%s has no gradient", n.Name)
					} else if unused && grad != nil {
						if most, err := grad.Abs().Max().Item(); err != nil || most != 0 {
							return fmt.Errorf("the gradient of %s is %v, want none or zeros; %w", n.Name, grad, err)
						}
					}
				}
				return nil
			})
		})
	}
}

// boundedLoss is the role of a rank that has a quarter of the logits, and never the bytes of the whole.
func boundedLoss(g *dist.Group) error {
	const rows, classes = 512, 4096
	head := dist.NewColwiseParallel(g, filled(nn.NewLinear(8, classes, nn.NoBias(), f64), 1))
	defer nn.Release(head)
	x, targets := double([]int{rows, 8}, 2), tensor.Arange(0, rows, tensor.Int64)
	if err := errors.Join(head.Err(), vram.ResetPeak(vram.CPU)); err != nil {
		return err
	}
	before, err := vram.Stats(vram.CPU)
	if err != nil {
		return err
	}
	if err := dist.LossParallel(g, head.Forward(x), targets, classes).Backward(); err != nil {
		return err
	}
	after, err := vram.Stats(vram.CPU)
	if whole := int64(rows * classes * 8); err == nil && after.Peak-before.Allocated >= whole {
		err = fmt.Errorf("%d bytes at the peak, the whole logits have %d", after.Peak-before.Allocated, whole)
	}
	return errors.Join(err, g.Barrier(ctx))
}

// TestLossParallelMemory tests that no rank allocates as many bytes as the whole logits have.
func TestLossParallelMemory(t *testing.T) {
	leak.Check(t)
	job{n: 4, role: "bounded loss"}.run(t)
}

// TestTensorParallelErrors tests arguments that cannot be computed with. All are errors before the first collective.
func TestTensorParallelErrors(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		linear := func(in, out int) *nn.Linear { return filled(nn.NewLinear(in, out, f64), 0) }
		embedding := func(opts ...nn.Option) *nn.Embedding { return nn.NewEmbedding(6, 4, append(opts, f64)...) }
		x, ids := tensor.Ones([]int{2, 3, 6}, tensor.Float64), tensor.Zeros([]int{2, 3}, tensor.Int64)
		logits, targets := tensor.Ones([]int{3, 4}, tensor.Float64), tensor.Zeros([]int{3}, tensor.Int64)
		replicate, first, second := dist.Replicate(), dist.ShardDim(0), dist.ShardDim(1)
		var noCol *dist.ColwiseParallel
		var noRow *dist.RowwiseParallel
		var noSeq *dist.SequenceParallel
		var noLinear *nn.Linear
		loss := func(logits, targets *tensor.Tensor, opts ...tensor.Option) error {
			return dist.LossParallel(g, logits, targets, 8, opts...).Err()
		}
		for name, err := range map[string]error{
			"uneven, gathered":       dist.NewColwiseParallel(g, linear(6, 3), dist.OutputLayouts(replicate)).Err(),
			"too few outputs":        dist.NewColwiseParallel(g, linear(6, 1)).Err(),
			"too few inputs":         dist.NewRowwiseParallel(g, linear(1, 6)).Err(),
			"no group":               dist.NewColwiseParallel(nil, linear(6, 6)).Err(),
			"no layer":               dist.NewRowwiseParallel(g, nil).Forward(x).Err(),
			"a nil layer":            dist.NewRowwiseParallel(g, noLinear).Err(),
			"another layer":          dist.NewColwiseParallel(g, &nn.ReLU{}).Err(),
			"an empty layer":         dist.NewColwiseParallel(g, &nn.Linear{}).Forward(x).Err(),
			"a nil option":           dist.NewColwiseParallel(g, linear(6, 6), nil).Err(),
			"a layout of outputs":    dist.NewColwiseParallel(g, linear(6, 6), dist.OutputLayouts(second)).Err(),
			"a layout of inputs":     dist.NewRowwiseParallel(g, linear(6, 6), dist.InputLayouts(replicate)).Err(),
			"fused rows":             dist.NewRowwiseParallel(g, linear(6, 6), dist.Fused(3)).Err(),
			"fused parts":            dist.NewColwiseParallel(g, linear(6, 6), dist.Fused(4)).Err(),
			"fused embedding":        dist.NewColwiseParallel(g, embedding(), dist.Fused(2)).Err(),
			"bounded rows":           dist.NewRowwiseParallel(g, embedding(nn.MaxNorm(1))).Err(),
			"a zero ColwiseParallel": (&dist.ColwiseParallel{}).Forward(x).Err(),
			"a zero RowwiseParallel": (&dist.RowwiseParallel{}).Forward(x).Err(),
			"nil ColwiseParallel":    noCol.Forward(x).Err(),
			"nil RowwiseParallel":    noRow.Forward(x).Err(),
			"nil x":                  dist.NewColwiseParallel(g, linear(6, 6)).Forward(nil).Err(),
			"a small x":              dist.NewRowwiseParallel(g, linear(6, 6)).Forward(x).Err(),
			"no such dimension":      dist.NewColwiseParallel(g, linear(6, 6), dist.InputLayouts(dist.ShardDim(-4))).Forward(x).Err(),
			"a sequence of 3":        dist.NewRowwiseParallel(g, linear(12, 6), dist.OutputLayouts(second)).Forward(x).Err(),
			"divided features":       dist.NewRowwiseParallel(g, linear(12, 6), dist.OutputLayouts(dist.ShardDim(-1))).Forward(x).Err(),
			"no such result":         dist.NewRowwiseParallel(g, linear(12, 6), dist.OutputLayouts(dist.ShardDim(3))).Forward(x).Err(),
			"an id beyond":           dist.NewRowwiseParallel(g, embedding()).Forward(ids.Add(6)).Err(),
			"a negative id":          dist.NewRowwiseParallel(g, embedding()).Forward(ids.Sub(1)).Err(),
			"an id that is a float":  dist.NewRowwiseParallel(g, embedding(), dist.OutputLayouts(first)).Forward(x).Err(),
			"no group, redistribute": dist.Redistribute(nil, x, replicate, first).Err(),
			"nil, redistribute":      dist.Redistribute(g, nil, replicate, first).Err(),
			"from no dimension":      dist.Redistribute(g, x, dist.ShardDim(3), replicate).Err(),
			"to no dimension":        dist.Redistribute(g, x, replicate, dist.ShardDim(-4)).Err(),
			"to 3 of 2 ranks":        dist.Redistribute(g, x, replicate, second).Err(),
			"a sequence, no group":   dist.NewSequenceParallel(nil, linear(6, 6)).Err(),
			"a sequence, no module":  dist.NewSequenceParallel(g, nil).Forward(x).Err(),
			"a failed module":        dist.NewSequenceParallel(g, nn.NewLinear(-1, 6)).Err(),
			"a sequence of ids":      dist.NewSequenceParallel(g, embedding()).Forward(ids).Err(),
			"a sequence, nil x":      dist.NewSequenceParallel(g, linear(6, 6)).Forward(nil).Err(),
			"a zero sequence":        (&dist.SequenceParallel{}).Forward(x).Err(),
			"a nil sequence":         noSeq.Forward(x).Err(),
			"whole logits":           loss(tensor.Ones([]int{3, 8}, tensor.Float64), targets),
			"a target beyond":        loss(logits, targets.Add(8)),
			"a negative target":      loss(logits, targets.Sub(1)),
			"probabilities":          loss(logits, logits),
			"integers":               loss(logits.To(tensor.Int64), targets),
			"other rows":             loss(logits, tensor.Zeros([]int{4}, tensor.Int64)),
			"a number":               loss(tensor.Ones(nil, tensor.Float64), targets),
			"nil logits":             loss(nil, targets),
			"nil targets":            loss(logits, nil),
			"a nil loss option":      loss(logits, targets, nil),
			"another option":         loss(logits, targets, tensor.Beta(1)),
			"no reduction":           loss(logits, targets, tensor.Reduction(7)),
			"smoothing":              loss(logits, targets, tensor.LabelSmoothing(2)),
			"nil weights":            loss(logits, targets, tensor.Weight(nil)),
			"a rank's weights":       loss(logits, targets, tensor.Weight(tensor.Ones([]int{4}, tensor.Float64))),
			"weights of integers":    loss(logits, targets, tensor.Weight(tensor.Ones([]int{8}, tensor.Int64))),
			"trained weights":        loss(logits, targets, tensor.Weight(tensor.Ones([]int{8}, tensor.Float64).RequiresGrad_())),
			"a loss, no group":       dist.LossParallel(nil, logits, targets, 8).Err(),
			"too few classes":        dist.LossParallel(g, logits.Narrow(1, 0, 1), targets, 1).Err(), // the first rank would have one
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		for name, m := range map[string]nn.Layer{
			"column": dist.NewColwiseParallel(g, linear(6, 6), dist.OutputLayouts(replicate)), "row": dist.NewRowwiseParallel(g, linear(12, 6)),
		} {
			wide := tensor.Ones([]int{2, 7}, tensor.Float64)
			if err := tensor.WithScope(func() error { _ = m.Forward(wide); return nil }); !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("%s: the scope of a wide x returns %v", name, err)
			}
		}
		col, row, seq := dist.NewColwiseParallel(g, linear(6, 6)), dist.NewRowwiseParallel(g, linear(12, 6)), dist.NewSequenceParallel(g, linear(6, 6))
		if err := errors.Join(col.Err(), row.Err(), seq.Err(), g.Barrier(ctx), g.Close()); err != nil {
			return err
		}
		for name, y := range map[string]*tensor.Tensor{"column": col.Forward(x), "row": row.Forward(x), "sequence": seq.Forward(x), "loss": dist.LossParallel(g, logits, targets, 8)} {
			if !errors.Is(y.Err(), dist.ErrClosed) {
				t.Errorf("%s: a closed group: %v", name, y.Err())
			}
		}
		return nil
	})
}
