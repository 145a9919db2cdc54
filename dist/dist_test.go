package dist_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

var ctx = context.Background()

// ranks runs f as each of n ranks, goroutines, and closes their groups.
func ranks(t *testing.T, n int, f func(g *dist.Group) error, opts ...dist.Option) {
	t.Helper()
	if err := launch.Ranks(ctx, n, f, opts...); err != nil {
		t.Error(err)
	}
}

// want returns an error unless t holds exactly these values.
func want(what string, t *tensor.Tensor, values ...float32) error {
	got, err := tensor.Data[float32](t)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !slices.Equal(got, values) {
		return fmt.Errorf("%s: got %v, want %v", what, got, values)
	}
	return nil
}

func vector(values ...float32) *tensor.Tensor { return tensor.FromSlice(values, []int{len(values)}) }

// collectives holds, for three ranks, calls that return a tensor and the values that it must have then.
var collectives = map[string]func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error){
	"Broadcast": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r, r+10)
		return x, []float32{1, 11}, g.Broadcast(ctx, x, 1)
	},
	"AllReduce sum": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r, 1)
		return x, []float32{3, 3}, g.AllReduce(ctx, x, dist.Sum)
	},
	"AllReduce product": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r + 1)
		return x, []float32{6}, g.AllReduce(ctx, x, dist.Product)
	},
	"AllReduce average": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r, 3)
		return x, []float32{1, 3}, g.AllReduce(ctx, x, dist.Avg)
	},
	"AllReduce min": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r + 4)
		return x, []float32{4}, g.AllReduce(ctx, x, dist.Min)
	},
	"AllReduce max": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r + 4)
		return x, []float32{6}, g.AllReduce(ctx, x, dist.Max)
	},
	"AllReduceCoalesced": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x, y := vector(r), vector(2*r, 1)
		err := g.AllReduceCoalesced(ctx, []*tensor.Tensor{x, y}, dist.Sum)
		return tensor.Cat([]*tensor.Tensor{x, y}), []float32{3, 6, 3}, err
	},
	"Reduce": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r, 1)
		err := g.Reduce(ctx, x, 2, dist.Sum)
		if r != 2 {
			return vector(0), []float32{0}, err
		}
		return x, []float32{3, 3}, err
	},
	"AllGather": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := []*tensor.Tensor{vector(9, 9), vector(9, 9), vector(9, 9)}
		err := g.AllGather(ctx, out, vector(r, 2*r))
		return tensor.Cat(out), []float32{0, 0, 1, 2, 2, 4}, err
	},
	"AllGatherIntoTensor": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := tensor.Zeros([]int{6})
		return out, []float32{0, 0, 1, 2, 2, 4}, g.AllGatherIntoTensor(ctx, out, vector(r, 2*r))
	},
	"Gather": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		if r != 1 {
			return vector(0), []float32{0}, g.Gather(ctx, nil, vector(r), 1)
		}
		out := []*tensor.Tensor{vector(9), vector(9), vector(9)}
		err := g.Gather(ctx, out, vector(r), 1)
		return tensor.Cat(out), []float32{0, 1, 2}, err
	},
	"Scatter": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := vector(9)
		var in []*tensor.Tensor
		if r == 2 {
			in = []*tensor.Tensor{vector(5), vector(6), vector(7)}
		}
		return out, []float32{5 + r}, g.Scatter(ctx, out, in, 2)
	},
	"ReduceScatter": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := vector(9)
		return out, []float32{3 + 3*r}, g.ReduceScatter(ctx, out, []*tensor.Tensor{vector(r), vector(r + 1), vector(r + 2)}, dist.Sum)
	},
	"ReduceScatterTensor": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := vector(9)
		return out, []float32{3 + 3*r}, g.ReduceScatterTensor(ctx, out, vector(r, r+1, r+2), dist.Sum)
	},
	"ReduceScatterTensor of scalars": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := tensor.Zeros([]int{})
		return out, []float32{3 + 3*r}, g.ReduceScatterTensor(ctx, out, vector(r, r+1, r+2), dist.Sum)
	},
	"ReduceScatterTensor of stacked parts": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := vector(9, 9)
		return out, []float32{3 + 6*r, 6 + 6*r}, g.ReduceScatterTensor(ctx, out, vector(r, r+1, r+2, r+3, r+4, r+5).View(3, 2), dist.Sum)
	},
	"AllToAllSingle": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		out := vector(9, 9, 9)
		return out, []float32{r, 10 + r, 20 + r}, g.AllToAllSingle(ctx, out, vector(10*r, 10*r+1, 10*r+2), nil, nil)
	},
	// Rank r sends r+1 elements to each rank.
	"AllToAllSingle with sizes": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		n := int(r) + 1
		out := tensor.Zeros([]int{6})
		return out, []float32{0, 1, 1, 2, 2, 2}, g.AllToAllSingle(ctx, out, tensor.Full([]int{3 * n}, float64(r)), []int{1, 2, 3}, []int{n, n, n})
	},
	"Send and Recv": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		x := vector(r)
		if r == 0 {
			return x, []float32{0}, errors.Join(g.Send(ctx, x, 1, 7), g.Send(ctx, vector(5), 2, 8))
		}
		return x, []float32{5*r - 5}, g.Recv(ctx, x, 0, 6+int(r))
	},
	"Recv from any": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		if r != 1 {
			return vector(0), []float32{0}, g.Send(ctx, vector(r+1), 1, 3)
		}
		sum := vector(0)
		for range 2 {
			x := vector(9)
			w, err := g.RecvAsync(x, dist.AnySource, 3)
			if err == nil {
				err = w.Wait(ctx)
			}
			if err != nil {
				return sum, nil, err
			}
			if err := want("received", x, float32(w.Source()+1)); err != nil {
				return sum, nil, err
			}
			sum = sum.Add(x)
		}
		return sum, []float32{4}, nil
	},
	"Barrier": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		return vector(r), []float32{r}, g.Barrier(ctx)
	},
	"MonitoredBarrier": func(g *dist.Group, r float32) (*tensor.Tensor, []float32, error) {
		return vector(r), []float32{r}, g.MonitoredBarrier(ctx, 0)
	},
}

// TestCollectives tests the values of each collective.
func TestCollectives(t *testing.T) {
	leak.Check(t)
	for name, f := range collectives {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			ranks(t, 3, func(g *dist.Group) error {
				x, values, err := f(g, float32(g.Rank()))
				return errors.Join(err, want("the tensor", x, values...))
			})
		})
	}
}

// TestBoolCollectives tests that reductions of booleans have booleans.
func TestBoolCollectives(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		r := g.Rank()
		values := func() *tensor.Tensor { return tensor.FromSlice([]bool{true, r == 0, r > 0, false}, []int{4}) }
		for op := dist.Sum; op <= dist.Max; op++ {
			want := []bool{true, true, true, false}
			switch op {
			case dist.Avg:
				continue
			case dist.Product, dist.Min:
				want = []bool{true, false, false, false}
			}
			x, y, z := values(), values(), values()
			part, in := tensor.Zeros([]int{4}, tensor.Bool), []*tensor.Tensor{values(), values(), values()}
			err := errors.Join(g.AllReduce(ctx, x, op), g.AllReduceCoalesced(ctx, []*tensor.Tensor{y}, op), g.Reduce(ctx, z, 0, op),
				g.ReduceScatter(ctx, part, in, op))
			reduced := []*tensor.Tensor{x, y, part}
			if r == 0 {
				reduced = append(reduced, z)
			}
			for i, t := range reduced {
				bytes, e := tensor.CallUnchecked("aten::view.dtype", t, tensor.Uint8)
				if err = errors.Join(err, e); err != nil {
					return err
				}
				raw, e := tensor.Data[uint8](bytes[0].(*tensor.Tensor))
				for k, b := range raw {
					if (b == 1) != want[k] || b > 1 {
						e = fmt.Errorf("reduction %d, tensor %d: bytes %v, want %v", op, i, raw, want)
					}
				}
				if err = errors.Join(err, e); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// TestComplexCollectives tests collectives of complex tensors, which gloo does not have.
func TestComplexCollectives(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		return tensor.WithScope(func() error {
			value := func(r int) complex64 { return complex(float32(r), float32(r+1)) }
			mine := tensor.FromSlice([]complex64{value(g.Rank())}, []int{1})
			empty := func(n int) *tensor.Tensor { return tensor.Zeros([]int{n}, tensor.Complex64) }
			parts := []*tensor.Tensor{empty(1), empty(1)}
			all, scattered, exchanged, gathered := empty(2), empty(1), empty(2), []*tensor.Tensor(nil)
			var from []*tensor.Tensor
			if g.Rank() == 0 {
				from, gathered = []*tensor.Tensor{tensor.FromSlice([]complex64{5i}, []int{1}), tensor.FromSlice([]complex64{6i}, []int{1})}, []*tensor.Tensor{empty(1), empty(1)}
			}
			if err := errors.Join(g.AllGather(ctx, parts, mine.Conj()), g.AllGatherIntoTensor(ctx, all, mine), g.Scatter(ctx, scattered, from, 0), g.Gather(ctx, gathered, mine, 0),
				g.AllToAllSingle(ctx, exchanged, tensor.FromSlice([]complex64{1i, 2i}, []int{2}).Mul(g.Rank()+1), nil, nil)); err != nil {
				return err
			}
			is := func(what string, x *tensor.Tensor, want ...complex64) {
				if got, err := tensor.Data[complex64](x); err != nil || !slices.Equal(got, want) {
					t.Errorf("rank %d: %s: %v, %v, want %v", g.Rank(), what, got, err, want)
				}
			}
			if g.Rank() == 0 {
				if err := g.Send(ctx, mine.Conj(), 1, 0); err != nil {
					return err
				}
			} else {
				received := empty(1)
				if err := g.Recv(ctx, received, 0, 0); err != nil {
					return err
				}
				is("Recv", received, -1i)
			}
			is("AllGather", parts[1], complex(1, -2))
			is("AllGatherIntoTensor", all, value(0), value(1))
			is("Scatter", scattered, []complex64{5i, 6i}[g.Rank()])
			is("AllToAllSingle", exchanged, complex(0, float32(g.Rank()+1)), complex(0, 2*float32(g.Rank()+1)))
			for r, x := range gathered {
				is("Gather", x, value(r))
			}
			return nil
		})
	})
}

// TestGlooDTypes tests which dtypes gloo's collectives have, and that the errors for others name them.
func TestGlooDTypes(t *testing.T) {
	leak.Check(t)
	has := []tensor.DType{tensor.Uint8, tensor.Int8, tensor.Int32, tensor.Int64, tensor.Bool, tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64,
		tensor.Complex64, tensor.Complex128}
	lacks := []tensor.DType{tensor.Int16, tensor.Uint16, tensor.Uint32, tensor.Uint64, tensor.Float8E5M2, tensor.Float8E4M3FN}
	ranks(t, 2, func(g *dist.Group) error {
		return tensor.WithScope(func() error {
			for i, d := range slices.Concat(has, lacks) {
				x, two := tensor.Zeros([]int{1}, d), tensor.Zeros([]int{2}, d)
				for k, err := range []error{
					g.Broadcast(ctx, x, 0), g.AllReduce(ctx, x, dist.Sum), g.AllReduceCoalesced(ctx, []*tensor.Tensor{x}, dist.Sum), g.Reduce(ctx, x, 0, dist.Sum),
					g.AllGatherIntoTensor(ctx, two, x), g.ReduceScatterTensor(ctx, x, two, dist.Sum), g.AllToAllSingle(ctx, two, two, nil, nil),
				} {
					if refused := errors.Is(err, tensor.ErrArgument) && strings.Contains(err.Error(), d.String()+" tensors"); refused != (i >= len(has)) || err != nil && !refused {
						t.Errorf("collective %d of %v: %v", k, d, err)
					}
				}
				var err error
				if g.Rank() == 0 {
					err = g.Send(ctx, x, 1, 0)
				} else {
					err = g.Recv(ctx, x, 0, 0)
				}
				if err != nil {
					return fmt.Errorf("a message of %v: %w", d, err)
				}
				if err := g.AllReduce(ctx, x, dist.Avg); (err == nil) != (i < len(has) && (d.IsFloat() || d.IsComplex())) || err != nil && !strings.Contains(err.Error(), d.String()) {
					t.Errorf("an average of %v: %v", d, err)
				}
			}
			_, err := dist.NewDDP(ctx, g, &struct {
				Linear *nn.Linear
				Count  *tensor.Tensor `nn:",buffer"`
			}{nn.NewLinear(1, 1), tensor.Zeros([]int{1}, tensor.Int16)})
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "int16 tensors") {
				t.Errorf("NewDDP: %v", err)
			}
			return nil
		})
	})
}

// TestOneRank tests that a group of one rank computes, too.
func TestOneRank(t *testing.T) {
	leak.Check(t)
	ranks(t, 1, func(g *dist.Group) error {
		x, out := vector(3, 4), tensor.Zeros([]int{2})
		all, err := dist.AllGatherObject(ctx, g, "a")
		if len(all) != 1 || all[0] != "a" {
			t.Errorf("AllGatherObject: %v", all)
		}
		return errors.Join(err, g.Barrier(ctx), g.AllReduce(ctx, x, dist.Sum), g.AllGatherIntoTensor(ctx, out, x), want("out", out, 3, 4), g.MonitoredBarrier(ctx, 0))
	})
}

// TestLongestTimeout tests that a timeout beyond all clocks does not expire.
func TestLongestTimeout(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		x := vector(1)
		return errors.Join(g.AllReduce(ctx, x, dist.Sum), want("x", x, 2), g.MonitoredBarrier(ctx, math.MaxInt64))
	}, dist.Timeout(math.MaxInt64))
	store, err := dist.NewTCPStore(ctx, "localhost:0", true, dist.Timeout(math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client, err := dist.NewTCPStore(ctx, store.Addr(), false, dist.Timeout(math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Set("k", nil); err != nil {
		t.Error(err)
	}
}

// TestWork tests collectives that are waited for later, in another order, after their tensors were released.
func TestWork(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		var works []*dist.Work
		var xs []*tensor.Tensor
		for i := range 10 {
			x := tensor.Full([]int{1000}, float64(i+g.Rank()))
			w, err := g.AllReduceAsync(x, dist.Sum)
			if err != nil {
				return err
			}
			works, xs = append(works, w), append(xs, x)
			// Nobody waits for this one, and its tensor ends before it.
			y := tensor.Ones([]int{100000})
			if _, err := g.AllReduceAsync(y, dist.Sum); err != nil {
				return err
			}
			y.Release()
		}
		if works[0].Source() != -1 {
			t.Error("a source")
		}
		for i, w := range slices.Backward(works) {
			if err := errors.Join(w.Wait(ctx), w.Wait(ctx), w.Err()); err != nil || !w.Done() {
				return fmt.Errorf("work %d: %v, %w", i, w.Done(), err)
			}
			if err := want("sum", xs[i].Narrow(0, 999, 1), float32(2*i+1)); err != nil {
				return err
			}
		}
		return g.Barrier(ctx)
	})
}

// TestSource tests that only a completed receive has a source.
func TestSource(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		calls := []func() (*dist.Work, error){
			func() (*dist.Work, error) { return g.AllReduceAsync(vector(0), dist.Sum) },
			func() (*dist.Work, error) {
				return g.ReduceScatterAsync(vector(0), []*tensor.Tensor{vector(1), vector(2)}, dist.Sum)
			},
		}
		source := -1
		if g.Rank() == 0 {
			send := func() (*dist.Work, error) { return g.SendAsync(vector(0), 1, 0) }
			calls = append(calls, send, send)
		} else {
			source = 0
			for _, src := range []int{0, dist.AnySource} {
				calls = append(calls, func() (*dist.Work, error) { return g.RecvAsync(vector(0), src, 0) })
			}
		}
		for i, want := range []int{-1, -1, source, source} {
			w, err := calls[i]()
			if err != nil {
				return err
			}
			before := w.Source()
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if got := w.Source(); before != -1 || got != want {
				t.Errorf("rank %d, collective %d: source %d, then %d, want -1 and %d", g.Rank(), i, before, got, want)
			}
		}
		return nil
	})
}

// TestSubgroups tests groups of some ranks, and groups of those.
func TestSubgroups(t *testing.T) {
	leak.Check(t)
	ranks(t, 4, func(g *dist.Group) error {
		var mine *dist.Group
		for _, members := range [][]int{{3, 1}, {0, 2}} {
			sub, err := g.NewGroup(ctx, members)
			if err != nil {
				return err
			}
			if slices.Contains(members, g.Rank()) != (sub != nil) {
				return fmt.Errorf("group %v: %v", members, sub)
			}
			if sub != nil {
				mine = sub
				if members[sub.Rank()] != g.Rank() || sub.Size() != 2 || !slices.Equal(sub.Ranks(), members) {
					return fmt.Errorf("group %v: %v of ranks %v", members, sub, sub.Ranks())
				}
			}
		}
		defer mine.Close()
		x := vector(float32(g.Rank()))
		if err := errors.Join(mine.AllReduce(ctx, x, dist.Sum), want("sum", x, float32(4-2*((g.Rank()+1)%2)))); err != nil {
			return err
		}
		alone, err := mine.NewGroup(ctx, []int{mine.Rank()}) // the groups of the two ranks have the same name
		if err == nil {
			err = errors.Join(alone.Barrier(ctx), alone.Close())
		}
		return err
	})
}

type message struct {
	Name   string
	Values []float64
}

// TestObjects tests the collectives for Go values.
func TestObjects(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		r := g.Rank()
		mine := message{fmt.Sprint("rank ", r), make([]float64, 100*r)}
		all, err := dist.AllGatherObject(ctx, g, mine)
		if err != nil {
			return err
		}
		for i, m := range all {
			if m.Name != fmt.Sprint("rank ", i) || len(m.Values) != 100*i {
				t.Errorf("rank %d: AllGatherObject: %d: %q, %d values", r, i, m.Name, len(m.Values))
			}
		}
		at, err := dist.GatherObject(ctx, g, r*r, 1)
		if err != nil || r == 1 && !slices.Equal(at, []int{0, 1, 4}) || r != 1 && at != nil {
			t.Errorf("rank %d: GatherObject: %v, %v", r, at, err)
		}
		if err := dist.BroadcastObject(ctx, g, &mine, 2); err != nil || mine.Name != "rank 2" {
			t.Errorf("rank %d: BroadcastObject: %q, %v", r, mine.Name, err)
		}
		var parts []string
		if r == 0 {
			parts = []string{"a", "b", "c"}
		}
		if v, err := dist.ScatterObject(ctx, g, parts, 0); err != nil || v != string(rune('a'+r)) {
			t.Errorf("rank %d: ScatterObject: %q, %v", r, v, err)
		}
		if r != 1 {
			err = dist.SendObject(ctx, g, message{Name: fmt.Sprint("from ", r)}, 1, r)
		} else {
			for _, src := range []int{2, dist.AnySource} { // from 0
				var m message
				var from int
				m, from, err = dist.RecvObject[message](ctx, g, src, max(0, src))
				if err != nil || from != max(0, src) || m.Name != fmt.Sprint("from ", from) {
					t.Errorf("RecvObject: %q from %d, %v", m.Name, from, err)
				}
			}
		}
		if err != nil {
			return err
		}
		pointers, err := dist.AllGatherObject(ctx, g, map[bool]*int{true: &r}[r > 0])
		if err != nil || len(pointers) != 3 || pointers[0] != nil || pointers[1] == nil || *pointers[2] != 2 {
			t.Errorf("rank %d: pointers: %v, %v", r, pointers, err)
		}
		anys, err := dist.AllGatherObject(ctx, g, []any{nil, "a", 2}[r])
		if err != nil || !slices.Equal(anys, []any{nil, "a", 2}) {
			t.Errorf("rank %d: interfaces: %v, %v", r, anys, err)
		}
		if _, err := dist.AllGatherObject(ctx, g, []*int{nil}); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("rank %d: a slice of nil pointers: %v", r, err)
		}
		if err := dist.SendObject(ctx, g, func() {}, (r+1)%3, 0); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("rank %d: SendObject of a function: %v", r, err)
		}
		if _, err := dist.AllGatherObject(ctx, g, func() {}); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("rank %d: a function: %v", r, err)
		}
		return nil
	})
}

// TestRefusals tests that invalid arguments are errors on the rank that gives them, and that the group computes afterwards.
func TestRefusals(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		x, released := tensor.Ones([]int{4}), tensor.Ones([]int{2})
		released.Release()
		var none context.Context
		ended, end := context.WithCancel(ctx)
		end()
		two := []*tensor.Tensor{x, x}
		for name, c := range map[string]struct {
			err  error
			kind error
		}{
			"a nil tensor":      {g.AllReduce(ctx, nil, dist.Sum), tensor.ErrNil},
			"a released tensor": {g.AllReduce(ctx, released, dist.Sum), tensor.ErrReleased},
			"an expanded one":   {g.AllReduce(ctx, tensor.Ones([]int{1}).Expand(1000000), dist.Sum), tensor.ErrArgument},
			"a transposed one":  {g.Broadcast(ctx, tensor.Ones([]int{2, 3}).T(), 0), tensor.ErrArgument},
			"no reduction":      {g.AllReduce(ctx, x, 99), tensor.ErrArgument},
			"a rank beyond":     {g.Broadcast(ctx, x, 2), tensor.ErrArgument},
			"a rank of 33 bits": {g.Broadcast(ctx, x, 1<<32), tensor.ErrArgument},
			"a tag of 33 bits":  {second(g.SendAsync(x, 1-g.Rank(), 1<<32+3)), tensor.ErrArgument},
			"a negative tag":    {second(g.RecvAsync(x, dist.AnySource, -1)), tensor.ErrArgument},
			"a root of any":     {g.Reduce(ctx, x, dist.AnySource, dist.Sum), tensor.ErrArgument},
			"a negative rank":   {g.Send(ctx, x, -1, 0), tensor.ErrArgument},
			"itself":            {g.Send(ctx, x, g.Rank(), 0), tensor.ErrArgument},
			"outputs":           {g.AllGather(ctx, two[:1], x), tensor.ErrArgument},
			"sizes of outputs":  {g.AllGather(ctx, two, tensor.Ones([]int{3})), tensor.ErrArgument},
			"one output":        {g.AllGatherIntoTensor(ctx, x, x), tensor.ErrArgument},
			"dtypes":            {g.AllGatherIntoTensor(ctx, tensor.Ones([]int{8}, tensor.Int64), x), tensor.ErrArgument},
			"parts":             {g.AllToAllSingle(ctx, x, x, []int{1, 1}, []int{2, 2}), tensor.ErrArgument},
			"other dtypes":      {g.AllToAllSingle(ctx, tensor.Zeros([]int{4}, tensor.Int32), x, nil, nil), tensor.ErrArgument},
			"scattered dtypes":  {g.ReduceScatter(ctx, tensor.Zeros([]int{4}, tensor.Int32), two, dist.Sum), tensor.ErrArgument},
			"scattered sizes":   {g.ReduceScatter(ctx, tensor.Zeros([]int{3}), two, dist.Sum), tensor.ErrArgument},
			"dtypes of one":     {g.ReduceScatterTensor(ctx, tensor.Zeros([]int{2}, tensor.Int32), x, dist.Sum), tensor.ErrArgument},
			"sizes of one":      {g.ReduceScatterTensor(ctx, tensor.Zeros([]int{3}), x, dist.Sum), tensor.ErrArgument},
			"no tensors":        {g.AllReduceCoalesced(ctx, nil, dist.Sum), tensor.ErrArgument},
			"scalars":           {g.ReduceScatterTensor(ctx, tensor.Zeros([]int{}), x, dist.Sum), tensor.ErrArgument},
			"transposed parts":  {g.ReduceScatterTensor(ctx, tensor.Zeros([]int{3}), tensor.Ones([]int{3, 2}).T(), dist.Sum), tensor.ErrArgument},
			"an ended context":  {g.MonitoredBarrier(ended, 0), context.Canceled},
			"no context":        {second(g.NewGroup(none, []int{0, 1})), tensor.ErrNil},
			"a nil pointer":     {dist.BroadcastObject[int](ctx, g, nil, 0), tensor.ErrNil},
			"a negative time":   {g.MonitoredBarrier(ctx, -1), tensor.ErrArgument},
			"an empty group":    {second(g.NewGroup(ctx, nil)), tensor.ErrArgument},
			"a rank twice":      {second(g.NewGroup(ctx, []int{1, 1})), tensor.ErrArgument},
			"a rank not in it":  {second(g.NewGroup(ctx, []int{2})), tensor.ErrArgument},
			"a nil option":      {second(g.NewGroup(ctx, []int{0}, nil)), tensor.ErrArgument},
		} {
			if !errors.Is(c.err, c.kind) || strings.Contains(c.err.Error(), "enforce") {
				t.Errorf("%s: got %v, want %v", name, c.err, c.kind)
			}
		}
		return errors.Join(g.AllReduce(ctx, x, dist.Sum), want("sum", x, 2, 2, 2, 2))
	})
}

func second[T any](_ T, err error) error { return err }

// TestNil tests that nil groups, works and stores are errors.
func TestNil(t *testing.T) {
	leak.Check(t)
	var g *dist.Group
	var w *dist.Work
	var s *dist.Store
	var none context.Context
	two := tensor.Ones([]int{2})
	defer two.Release()
	for name, err := range map[string]error{
		"ReduceScatterTensor": g.ReduceScatterTensor(ctx, two, two, dist.Sum),
		"AllReduce":           g.AllReduce(ctx, nil, dist.Sum), "NewGroup": second(g.NewGroup(ctx, []int{0})), "Abort": g.Abort(),
		"MonitoredBarrier": g.MonitoredBarrier(ctx, 0), "AllGatherObject": second(dist.AllGatherObject(ctx, g, 1)),
		"a work": w.Wait(ctx), "Err": w.Err(), "Set": s.Set("a", nil), "Get": second(s.Get(ctx, "a")),
		"NewPrefixStore": second(dist.NewPrefixStore("a", s)), "a context": second(dist.Init(none)),
	} {
		if !errors.Is(err, tensor.ErrNil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if g.Rank() != -1 || g.Size() != 0 || g.Ranks() != nil || w.Done() || w.Source() != -1 || s.Addr() != "" || g.String() == "" {
		t.Error("properties of nil")
	}
	if err := errors.Join(g.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// TestCheckCollectives tests that collectives that differ between the ranks are an error on all of them, and that models train.
func TestCheckCollectives(t *testing.T) {
	leak.Check(t)
	ranks(t, 2, func(g *dist.Group) error {
		x := tensor.Ones([]int{4})
		sub, err := g.NewGroup(ctx, []int{1, 0})
		if err != nil {
			return err
		}
		if err := errors.Join(g.AllReduce(ctx, x, dist.Sum), want("x", x, 2, 2, 2, 2), sub.Barrier(ctx)); err != nil {
			return err
		}
		for _, g := range []*dist.Group{g, sub} {
			err := g.AllReduce(ctx, tensor.Ones([]int{4 + 4*g.Rank()}), dist.Sum)
			if err == nil || !strings.Contains(err.Error(), "mismatch") {
				return fmt.Errorf("other sizes: %v", err)
			}
			if g.Rank() == 0 {
				err = g.Barrier(ctx)
			} else {
				err = g.AllReduce(ctx, x, dist.Sum)
			}
			if err == nil || !strings.Contains(err.Error(), "mismatch") {
				return fmt.Errorf("a barrier and an all-reduce: %v", err)
			}
		}
		return errors.Join(sub.Close(), equalReplicas(g, 4))
	}, dist.CheckCollectives(true))
}

// TestCheckCollectivesAfterSends tests that different numbers of sends and receives on the ranks are not a mismatch.
func TestCheckCollectivesAfterSends(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		x := vector(1)
		sum := func(value float32) error {
			x := vector(1)
			return errors.Join(g.AllReduce(ctx, x, dist.Sum), want("the sum", x, value))
		}
		var err error
		switch g.Rank() {
		case 0:
			err = errors.Join(g.Send(ctx, x, 1, 0), g.Recv(ctx, x, dist.AnySource, 0))
		case 1:
			err = errors.Join(g.Recv(ctx, x, 0, 0), g.Send(ctx, x, 0, 0), g.Send(ctx, x, 2, 0))
		case 2:
			err = g.Recv(ctx, x, 1, 0)
		}
		if err := errors.Join(err, sum(3), g.MonitoredBarrier(ctx, 0), sum(3)); err != nil {
			return err
		}
		err = g.AllReduce(ctx, tensor.Ones([]int{1 + g.Rank()}), dist.Sum)
		if err == nil || !strings.Contains(err.Error(), "mismatch") {
			return fmt.Errorf("other sizes: %v", err)
		}
		return nil
	}, dist.CheckCollectives())
}
