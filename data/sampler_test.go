package data_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestGoldenIndices compares the indices of samplers and of RandomSplit with PyTorch's, epoch by epoch, also for epochs
// out of order.
func TestGoldenIndices(t *testing.T) {
	leak.Check(t)
	var want map[string]map[string][]json.RawMessage
	golden.Read(t, "data.json", &want)
	weights := []float64{0.5, 0, 2, 1, 0.25, 4, 0.125}
	batched := func(drop bool) func(data.Option) (any, error) {
		return func(seed data.Option) (any, error) {
			return data.NewBatchSampler(must(data.NewRandomSampler(10, seed)), 4, drop)
		}
	}
	wide := func(n int) func(data.Option) (any, error) {
		return func(seed data.Option) (any, error) {
			return data.NewRandomSampler(n, seed, data.Replacement(true), data.NumSamples(40))
		}
	}
	makers := map[string]func(seed data.Option) (any, error){
		"random":       func(s data.Option) (any, error) { return data.NewRandomSampler(10, s) },
		"random_large": func(s data.Option) (any, error) { return data.NewRandomSampler(700, s) },
		"random_replacement": func(s data.Option) (any, error) {
			return data.NewRandomSampler(10, s, data.Replacement(true), data.NumSamples(70))
		},
		"random_replacement_2^28-1": wide(1<<28 - 1), "random_replacement_2^28": wide(1 << 28), "random_replacement_2^32": wide(1<<32 + 5),
		"random_samples": func(s data.Option) (any, error) { return data.NewRandomSampler(10, s, data.NumSamples(25)) },
		"subset":         func(s data.Option) (any, error) { return data.NewSubsetRandomSampler([]int{3, 1, 4, 15, 9}, s) },
		"weighted":       func(s data.Option) (any, error) { return data.NewWeightedRandomSampler(weights, 20, s) },
		"weighted_one":   func(s data.Option) (any, error) { return data.NewWeightedRandomSampler(weights, 1, s) },
		"weighted_without": func(s data.Option) (any, error) {
			return data.NewWeightedRandomSampler(weights, 5, s, data.Replacement(false))
		},
		"batch": batched(false), "batch_drop": batched(true),
		"distributed":       func(s data.Option) (any, error) { return data.NewDistributedSampler(10, 3, 1, s) },
		"distributed_last":  func(s data.Option) (any, error) { return data.NewDistributedSampler(10, 3, 2, s) },
		"distributed_drop":  func(s data.Option) (any, error) { return data.NewDistributedSampler(10, 3, 2, s, data.DropLast(true)) },
		"distributed_order": func(s data.Option) (any, error) { return data.NewDistributedSampler(10, 3, 2, s, data.Shuffle(false)) },
		"distributed_many":  func(s data.Option) (any, error) { return data.NewDistributedSampler(3, 8, 7, s) },
		"split":             func(s data.Option) (any, error) { return data.RandomSplit(squares(t, 20, nil), []int{3, 10, 7}, s) },
		"split_fractions": func(s data.Option) (any, error) {
			return data.RandomSplit(squares(t, 23, nil), []float64{0.3, 0.3, 0.4}, s)
		},
	}
	for name, seeds := range want {
		if strings.HasPrefix(name, "loader") {
			continue // TestGeneratorHasPyTorchsOrders
		}
		for text, epochs := range seeds {
			seed, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			made, err := makers[name](data.Seed(seed))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // backwards, and then again
				for epoch := len(epochs) - 1; epoch >= 0; epoch-- {
					var got any
					length := -1
					switch s := made.(type) {
					case data.Sampler:
						got, length = slices.Collect(s.Indices(epoch)), s.Len()
					case data.BatchSampler:
						got, length = slices.Collect(s.Batches(epoch)), s.Len()
					case []*data.Subset:
						got, length = s[epoch].Indices(), s[epoch].Len()
					}
					if text, err := json.Marshal(got); err != nil || string(text) != string(epochs[epoch]) || length != reflect.ValueOf(got).Len() {
						t.Errorf("%s, seed %d, epoch %d: %v (Len %d), PyTorch's %s", name, seed, epoch, got, length, epochs[epoch])
					}
				}
			}
		}
	}
}

// TestManyWeights compares the order of 4000 of 5000 samples, of which many have the same weight, with PyTorch's.
func TestManyWeights(t *testing.T) {
	leak.Check(t)
	weights := make([]float64, 5000)
	for i := range weights {
		weights[i] = float64(i*37%101) / 8
	}
	s := must(data.NewWeightedRandomSampler(weights, 4000, data.Seed(5), data.Replacement(false)))
	for epoch, want := range []struct {
		first, last []int
		all         uint32
	}{
		{[]int{1871, 898, 1451, 3854, 4580, 2746}, []int{2812, 4057, 4032}, 1775143940},
		{[]int{3121, 3100, 588, 3119, 873, 1858}, []int{2858, 2372, 1074}, 2792298517},
	} {
		got, all := slices.Collect(s.Indices(epoch)), uint32(0)
		for _, i := range got {
			all = all*31 + uint32(i)
		}
		if len(got) != 4000 || !slices.Equal(got[:6], want.first) || !slices.Equal(got[3997:], want.last) || all != want.all {
			t.Errorf("epoch %d: %v…, PyTorch's %v…", epoch, got[:min(6, len(got))], want.first)
		}
	}
}

// TestRandomSplitSumsExactly tests fractions whose sum is 1 only if rounding errors do not accumulate, as in Python from
// 3.12 on.
func TestRandomSplitSumsExactly(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct {
		fractions []float64
		want      []int
	}{
		{[]float64{0.17, 0.07, 0.15, 0.2, 0.17, 0.14, 0.1}, []int{17, 7, 15, 20, 17, 14, 10}},
		{[]float64{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}, slices.Repeat([]int{10}, 10)},
	} {
		parts, err := data.RandomSplit(squares(t, 100, nil), c.fractions)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, p := range parts {
			got = append(got, p.Len())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v of 100 are %v, want %v", c.fractions, got, c.want)
		}
	}
	if _, err := data.RandomSplit(squares(t, 100, nil), []float64{0.5, 0.5, 1e-15}); err == nil {
		t.Error("fractions above 1 are accepted")
	}
}

// TestLoaderWithSamplers tests that a loader returns the samples of its sampler, and that it continues exactly.
func TestLoaderWithSamplers(t *testing.T) {
	leak.Check(t)
	random := must(data.NewRandomSampler(20, data.Seed(3), data.NumSamples(33)))
	weighted := must(data.NewWeightedRandomSampler(slices.Repeat([]float64{1, 3}, 10), 17, data.Seed(3)))
	uneven := lengths{}
	for name, opts := range map[string][]data.Option{
		"sampler":       {data.WithSampler(random), data.BatchSize(4)},
		"drop":          {data.WithSampler(weighted), data.BatchSize(4), data.DropLast(true)},
		"batch sampler": {data.WithBatchSampler(uneven)},
	} {
		for _, workers := range []int{0, 3} {
			opts := append(slices.Clone(opts), data.Workers(workers))
			whole := newLoader(t, squares(t, 20, nil), opts...)
			epochs := [][]int64{take(t, whole, -1), take(t, whole, -1)}
			if name == "sampler" && fmt.Sprint(epochs[1]) != fmt.Sprint(slices.Collect(random.Indices(1))) {
				t.Errorf("%s: epoch 1 is %v", name, epochs[1])
			}
			if name == "batch sampler" && !slices.Equal(epochs[1], []int64{1, 2, 3, 4, 5, 6}) {
				t.Errorf("%s: epoch 1 is %v", name, epochs[1])
			}
			for stop := range whole.Len() {
				l := newLoader(t, squares(t, 20, nil), opts...)
				got := take(t, l, stop)
				resumed := newLoader(t, squares(t, 20, nil), opts...)
				if err := resumed.SetState(l.State()); err != nil {
					t.Fatal(err)
				}
				got = append(got, rest(t, resumed)...)
				if !slices.Equal(got, epochs[0]) || !slices.Equal(take(t, resumed, -1), epochs[1]) {
					t.Errorf("%s, %d workers: continued after %d batches: %v, want %v", name, workers, stop, got, epochs[0])
				}
			}
		}
	}
	for i, opts := range [][]data.Option{{data.WithSampler(nil)}, {data.WithBatchSampler(nil)}, {data.WithSampler(random), data.Shuffle(true)}, {data.WithBatchSampler(uneven), data.BatchSize(2)},
		{data.NumSamples(3)}, {data.Option{}}} {
		if _, err := data.NewLoader(squares(t, 5, nil), opts...); err == nil {
			t.Errorf("NewLoader accepts case %d", i)
		}
	}
	// Indices that the dataset does not have, and a panic of the sampler, are errors.
	for _, bad := range []data.Sampler{random, fault{}} {
		l := newLoader(t, squares(t, 5, nil), data.WithSampler(bad))
		if err := first(l.Batches(t.Context())); err == nil || bad == data.Sampler(fault{}) && !isPanic(err, "fault.Indices", "in the sampler") {
			t.Errorf("a loader with the sampler %T: %v", bad, err)
		}
	}
}

// lengths has batches of 1, 2 and 3 samples.
type lengths struct{}

func (lengths) Len() int { return 3 }
func (lengths) Batches(epoch int) iter.Seq[[]int] {
	return slices.Values([][]int{{epoch}, {epoch + 1, epoch + 2}, {epoch + 3, epoch + 4, epoch + 5}})
}

type fault struct{}

func (fault) Len() int                  { return 3 }
func (fault) Indices(int) iter.Seq[int] { panic("in the sampler") }

func TestInvalidSamplers(t *testing.T) {
	leak.Check(t)
	d := squares(t, 5, nil)
	for i, err := range []error{
		second(data.NewSequentialSampler(-1)), second(data.NewRandomSampler(0)), second(data.NewRandomSampler(5, data.NumSamples(0))), second(data.NewRandomSampler(5, data.BatchSize(1))),
		second(data.NewRandomSampler(5, data.NumSamples(math.MaxInt))), second(data.NewSubsetRandomSampler(nil, data.Shuffle(true))),
		second(data.NewWeightedRandomSampler(nil, 1)), second(data.NewWeightedRandomSampler([]float64{0}, 1)), second(data.NewWeightedRandomSampler([]float64{-1, 2}, 1)),
		second(data.NewWeightedRandomSampler([]float64{math.NaN()}, 1)), second(data.NewWeightedRandomSampler([]float64{1}, 0)), second(data.NewWeightedRandomSampler([]float64{1}, 2, data.Replacement(false))),
		second(data.NewDistributedSampler(0, 1, 0)), second(data.NewDistributedSampler(5, 0, 0)), second(data.NewDistributedSampler(5, 2, 2)), second(data.NewDistributedSampler(5, 2, -1)),
		second(data.NewBatchSampler(nil, 1, false)), second(data.NewBatchSampler(must(data.NewSequentialSampler(3)), 0, false)),
		second(data.NewSubset(nil, nil)), second(data.NewSubset(d, []int{5})), second(data.NewSubset(d, []int{-1})),
		second(data.RandomSplit(nil, []int{1})), second(data.RandomSplit(d, []int{2, 2})), second(data.RandomSplit(d, []int{-1, 6})), second(data.RandomSplit(d, []int{math.MaxInt, math.MaxInt})),
		second(data.RandomSplit(d, []float64{0.5, 0.6})), second(data.RandomSplit(d, []float64{-0.5, 1.5})), second(data.RandomSplit(d, []float64{math.NaN()})), second(data.RandomSplit[float64](d, nil)),
		second(data.NewConcatDataset()), second(data.NewConcatDataset(nil)), second(data.NewStackDataset()), second(data.NewStackDataset(d, nil)), second(data.NewStackDataset(d, squares(t, 4, nil))),
		second(data.NewItems[int](1, nil, nil)), second(data.NewItems(-1, func(context.Context, int) (int, error) { return 0, nil }, nil)),
		second(data.NewIterableLoader[int](nil, nil)), second(data.NewIterableLoader(counting(3), nil, data.Workers(2))), second(data.NewIterableLoader(counting(3), nil, data.Shuffle(true))),
		second(data.NewIterableLoader(counting(3), nil, data.BatchSize(0))), second(data.NewChainDataset[int](nil)),
	} {
		if !refused(err) {
			t.Errorf("case %d: %v, want an invalid argument at a line of this file", i, err)
		}
	}
}

// TestCombinedDatasets tests Subset, ConcatDataset and StackDataset.
func TestCombinedDatasets(t *testing.T) {
	leak.Check(t)
	d := squares(t, 10, nil)
	subset := must(data.NewSubset(d, []int{7, 2, 2, 9}))
	concat := must(data.NewConcatDataset(subset, squares(t, 0, nil), d))
	if got := take(t, newLoader(t, concat, data.BatchSize(3), data.Workers(2)), -1); !slices.Equal(got, []int64{7, 2, 2, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("ConcatDataset returns %v", got)
	}
	order := must(data.NewSubsetRandomSampler([]int{13, 0, 5, 3, 4}, data.Seed(1)))
	want := []int64{}
	for i := range order.Indices(0) {
		want = append(want, []int64{7, 2, 2, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}[i])
	}
	if got := take(t, newLoader(t, concat, data.BatchSize(4), data.WithSampler(order)), -1); !slices.Equal(got, want) {
		t.Errorf("ConcatDataset in random order returns %v, want %v", got, want)
	}
	stack := must(data.NewStackDataset(d, squares(t, 10, nil)))
	for batch, err := range newLoader(t, stack, data.BatchSize(10)).Batches(t.Context()) {
		if err != nil || len(batch.Tensors) != 4 {
			t.Errorf("StackDataset returns %d tensors, %v", len(batch.Tensors), err)
		}
	}
	mixed := must(data.NewConcatDataset(squares(t, 0, nil), must(data.NewTensorDataset(tensor.Ones([]int{2, 2}, tensor.Float64), tensor.Ones([]int{2}, tensor.Int64))), d))
	for _, err := range newLoader(t, mixed, data.BatchSize(3)).Batches(t.Context()) {
		if !refused(err) || !strings.Contains(err.Error(), "tensor 0 has dtype float32 in dataset 2, and float64 in dataset 1") {
			t.Errorf("a batch of datasets with two dtypes: %v", err)
		}
	}
	_ = tensor.WithScope(func() error {
		for _, b := range []data.Dataset{subset, concat, stack, &data.Subset{}, &data.ConcatDataset{}, &data.StackDataset{}, &data.Items[int]{}} {
			for _, at := range [][]int{{-1}, {99}, {math.MaxInt}, {math.MinInt}} {
				if ts, err := b.Batch(t.Context(), at); err == nil && len(ts) > 0 && ts[0].Err() == nil {
					if _, ok := b.(*data.StackDataset); !ok {
						t.Errorf("%T returns a batch of samples %v", b, at)
					}
				}
			}
		}
		return nil
	})
}

// counting is an iterable dataset of n numbers, 100 higher each epoch.
func counting(n int) data.IterableFunc[int] {
	return func(_ context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(100*epoch+i, nil) {
					return
				}
			}
		}
	}
}

// numbers returns the samples of the batches of an iterable loader.
func numbers(t *testing.T, batches iter.Seq2[data.Batch, error], n int) (out []int64) {
	t.Helper()
	if n == 0 {
		return nil
	}
	for batch, err := range batches {
		if err != nil {
			t.Fatal(err)
		}
		got := mustInts(t, batch.Inputs)
		if len(got) != batch.Size {
			t.Errorf("a batch of size %d has %d samples", batch.Size, len(got))
		}
		out = append(out, got...)
		if n--; n == 0 {
			break
		}
	}
	return out
}

// TestIterableLoader tests batches, epochs and exact continuation of iterable datasets, with and without a worker.
func TestIterableLoader(t *testing.T) {
	leak.Check(t)
	chain := must(data.NewChainDataset[int](counting(4), counting(3)))
	want := [][]int64{{0, 1, 2, 3, 0, 1, 2}, {100, 101, 102, 103, 100, 101, 102}}
	for _, workers := range []int{0, 1} {
		for _, drop := range []bool{false, true} {
			loader := func() *data.Loader {
				return must(data.NewIterableLoader(chain, nil, data.BatchSize(2), data.Workers(workers), data.DropLast(drop)))
			}
			cut := 7
			if drop {
				cut = 6
			}
			l := loader()
			if l.Len() != -1 {
				t.Errorf("Len is %d", l.Len())
			}
			for epoch := range 2 {
				if got := numbers(t, l.Batches(t.Context()), -1); !slices.Equal(got, want[epoch][:cut]) {
					t.Errorf("%d workers, epoch %d: %v, want %v", workers, epoch, got, want[epoch][:cut])
				}
			}
			for stop := range 5 {
				l := loader()
				got := numbers(t, l.Batches(t.Context()), stop)
				resumed := loader()
				if err := resumed.SetState(l.State()); err != nil {
					t.Fatal(err)
				}
				if resumed.State().Epoch == 0 {
					got = append(got, numbers(t, resumed.Resume(t.Context()), -1)...)
				}
				if !slices.Equal(got, want[0][:cut]) {
					t.Errorf("%d workers: continued after %d batches: %v, want %v", workers, stop, got, want[0][:cut])
				}
				if got := numbers(t, resumed.Batches(t.Context()), -1); !slices.Equal(got, want[1][:cut]) {
					t.Errorf("%d workers: the epoch after that is %v", workers, got)
				}
			}
		}
	}
	var got []int
	for v, err := range data.Shard(counting(7)(t.Context(), 0), 1, 3) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	if !slices.Equal(got, []int{1, 4}) {
		t.Errorf("Shard returns %v", got)
	}
	for _, err := range data.Shard(counting(7)(t.Context(), 0), 3, 3) {
		if err == nil {
			t.Error("Shard accepts index 3 of 3")
		}
	}
}

// TestCollateMayKeepSamples tests that the slice of samples that collate gets is not used again, with and without a worker.
func TestCollateMayKeepSamples(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 1} {
		var kept [][]int
		l := must(data.NewIterableLoader(counting(5), func(samples []int) ([]*tensor.Tensor, error) {
			kept = append(kept, samples)
			return data.DefaultCollate(samples)
		}, data.BatchSize(2), data.Workers(workers)))
		numbers(t, l.Batches(t.Context()), -1)
		if want := [][]int{{0, 1}, {2, 3}, {4}}; !reflect.DeepEqual(kept, want) {
			t.Errorf("%d workers: the samples that collate kept are %v, want %v", workers, kept, want)
		}
	}
}

// TestErrorsOfIterableDatasets tests errors, panics and Goexit of datasets and collate functions, and cancellation.
func TestErrorsOfIterableDatasets(t *testing.T) {
	broken := errors.New("broken")
	for name, fail := range map[string]func() error{
		"error": func() error { return broken }, "panic": func() error { panic("broken") }, "goexit": func() error { runtime.Goexit(); return nil },
	} {
		for _, workers := range []int{0, 1} {
			if name == "goexit" && workers == 0 {
				continue // it ends the test's own goroutine, as intended
			}
			for _, where := range []string{"dataset", "collate"} {
				t.Run(fmt.Sprintf("%s of the %s, %d workers", name, where, workers), func(t *testing.T) {
					leak.Check(t)
					dataset := data.IterableFunc[int](func(ctx context.Context, epoch int) iter.Seq2[int, error] {
						return func(yield func(int, error) bool) {
							for i := range 6 {
								var err error
								if i == 4 && where == "dataset" {
									err = fail()
								}
								if !yield(i, err) {
									return
								}
							}
						}
					})
					n := 0
					collate := func(samples []int) ([]*tensor.Tensor, error) {
						if n++; n == 3 && where == "collate" {
							if err := fail(); err != nil {
								return nil, err
							}
						}
						return data.DefaultCollate(samples)
					}
					l := must(data.NewIterableLoader(dataset, collate, data.BatchSize(2), data.Workers(workers)))
					batches, errs := 0, []error{}
					for _, err := range l.Batches(t.Context()) {
						if err != nil {
							errs = append(errs, err)
							continue
						}
						batches++
					}
					if batches != 2 || len(errs) != 1 || name == "error" && !errors.Is(errs[0], broken) {
						t.Errorf("%d batches, errors %v", batches, errs)
					}
					// The error of a panic says where: this function called fail.
					if name == "panic" && len(errs) == 1 && !isPanic(errs[0], "TestErrorsOfIterableDatasets", where+" panicked: broken") {
						t.Errorf("%v", errs[0])
					}
				})
			}
		}
	}
	t.Run("cancel", func(t *testing.T) {
		leak.Check(t)
		for _, workers := range []int{0, 1} {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := must(data.NewIterableLoader(counting(1000), nil, data.Workers(workers)))
			var last error
			n := 0
			for _, err := range l.Batches(ctx) {
				if last = err; err == nil {
					n++
				}
				cancel()
			}
			if n != 1 || !errors.Is(last, context.Canceled) {
				t.Errorf("after cancelling: %d batches, %v", n, last)
			}
			for _, err := range l.Batches(t.Context()) {
				if err != nil {
					t.Error(err)
				}
				break
			}
		}
	})
}

// TestStreamOnTheLoopsGoroutine tests that without workers Iter and collate have the mode and the scope that are around
// the loop, and that the scope that Iter has open is around the loop's body.
func TestStreamOnTheLoopsGoroutine(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		outer, w := tensor.CurrentScope(), tensor.Ones([]int{2}).RequiresGrad_()
		dataset := data.IterableFunc[*tensor.Tensor](func(context.Context, int) iter.Seq2[*tensor.Tensor, error] {
			return func(yield func(*tensor.Tensor, error) bool) {
				for x, more := w.Mul(2), true; more; {
					if x.RequiresGrad() || !outer.Contains(x) {
						t.Errorf("Iter runs outside of NoGrad (%v) or of the scope (%v)", x.RequiresGrad(), !outer.Contains(x))
					}
					err := tensor.WithScope(func() error {
						x := x.Add(1)
						more = yield(x, nil)
						return x.Err()
					})
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
		collate := func(samples []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{samples[0].Mul(w)}, nil
		}
		return autograd.NoGrad(func() error {
			n := 0
			var moved *tensor.Tensor
			for batch, err := range must(data.NewIterableLoader(dataset, collate)).Batches(t.Context()) {
				if err != nil {
					return err
				}
				if batch.Inputs.RequiresGrad() {
					t.Error("collate runs outside of NoGrad")
				}
				if n > 0 && !errors.Is(moved.Err(), tensor.ErrReleased) {
					t.Errorf("what the body moved into the scope of Iter outlives that: %v", moved.Err())
				}
				if moved = batch.Inputs.Neg().MoveOut(); outer.Contains(moved) {
					t.Error("the scope of Iter is not around the body")
				}
				if n++; n == 3 {
					break
				}
			}
			if tensor.CurrentScope() != outer {
				t.Error("a scope is still open")
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// TestIterAfterTheLoop tests datasets that fail or go on when the loop has ended, which the loop cannot report, and
// those that recover a panic of its body, which Go reports.
func TestIterAfterTheLoop(t *testing.T) {
	leak.Check(t)
	for name, end := range map[string]func(yield func(int, error) bool){
		"panics":  func(func(int, error) bool) { panic("at the end") },
		"goes on": func(yield func(int, error) bool) { yield(1, nil) },
		"fails":   func(yield func(int, error) bool) { yield(1, errors.New("at the end")) },
	} {
		dataset := data.IterableFunc[int](func(context.Context, int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for yield(0, nil) {
				}
				end(yield)
			}
		})
		for _, workers := range []int{0, 1} {
			l := must(data.NewIterableLoader(dataset, nil, data.Workers(workers)))
			if got := numbers(t, l.Batches(t.Context()), 2); !slices.Equal(got, []int64{0, 0}) || l.State() != (data.State{Batch: 2, Sampler: "IterableDataset"}) {
				t.Errorf("%s, %d workers: %v, then the position is %+v", name, workers, got, l.State())
			}
			var last error
			for _, last = range l.Batches(t.Context()) {
				if last == nil {
					_ = tensor.Zeros([]int{2}).Add(tensor.Zeros([]int{3})) // which the loop reports
				}
			}
			if !errors.Is(last, tensor.ErrArgument) {
				t.Errorf("%s, %d workers: the error of the body is %v", name, workers, last)
			}
		}
	}
	recovers := data.IterableFunc[int](func(context.Context, int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			defer func() { _ = recover() }()
			yield(0, nil)
		}
	})
	defer func() {
		if p := recover(); p == nil {
			t.Error("the panic of the body is lost")
		}
	}()
	for _, err := range must(data.NewIterableLoader(recovers, nil)).Batches(t.Context()) {
		panic(fmt.Sprint("in the body: ", err))
	}
}

// TestEmptyEpoch tests that an epoch of an iterable dataset that has no batches ends, and that a position beyond an epoch is an
// error.
func TestEmptyEpoch(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 1} {
		dataset := data.IterableFunc[int](func(ctx context.Context, epoch int) iter.Seq2[int, error] {
			return counting(epoch%2)(ctx, epoch)
		})
		l := must(data.NewIterableLoader(dataset, nil, data.Workers(workers)))
		for epoch, want := range [][]int64{nil, {100}, nil, {300}} {
			if got := numbers(t, l.Batches(t.Context()), -1); !slices.Equal(got, want) || l.State().Epoch != epoch+1 {
				t.Errorf("%d workers: epoch %d returns %v, want %v; then the position is %+v", workers, epoch, got, want, l.State())
			}
		}
		if err := l.SetState(data.State{Epoch: 5, Batch: 2}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for _, err := range l.Batches(t.Context()) {
				if err == nil || !strings.Contains(err.Error(), "only 1 batches") {
					t.Errorf("%d workers: a position beyond the epoch: %v", workers, err)
				}
			}
		}
		if err := l.SetState(data.State{Epoch: 5, Batch: 1}); err != nil {
			t.Fatal(err)
		}
		if got := numbers(t, l.Batches(t.Context()), -1); len(got) != 0 || bare(l.State()) != (data.State{Epoch: 6}) {
			t.Errorf("%d workers: the end of an epoch returns %v; then the position is %+v", workers, got, l.State())
		}
	}
}

// yields is a sampler of n samples that has fewer of them in an epoch.
type yields struct{ n, fewer int }

func (y yields) Len() int { return y.n }

func (y yields) Indices(int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < y.fewer && yield(i); i++ {
		}
	}
}

// TestEmptySampler does what TestEmptyEpoch does with samplers.
func TestEmptySampler(t *testing.T) {
	leak.Check(t)
	l := newLoader(t, squares(t, 10, nil), data.WithSampler(yields{10, 0}))
	for epoch := range 2 {
		if got := take(t, l, -1); len(got) != 0 || l.State() != (data.State{Epoch: epoch + 1}) {
			t.Errorf("epoch %d returns %v; then the position is %+v", epoch, got, l.State())
		}
	}
	l = newLoader(t, squares(t, 10, nil), data.WithSampler(yields{10, 5}))
	if err := l.SetState(data.State{Batch: 8}); err != nil {
		t.Fatal(err)
	}
	for _, err := range l.Batches(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), "only 5 batches") {
			t.Errorf("a position beyond the epoch: %v", err)
		}
	}
}

// shrinking is a dataset whose Len panics after some calls.
type shrinking struct {
	data.Dataset
	calls *atomic.Int64
}

func (s shrinking) Len() int {
	if s.calls.Add(1) > 3 {
		panic("no length")
	}
	return s.Dataset.Len()
}

// TestLenPanics tests that a panic of a dataset's Len is an error, also on a worker.
func TestLenPanics(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 2} {
		l := newLoader(t, shrinking{squares(t, 10, nil), new(atomic.Int64)}, data.Workers(workers))
		var last error
		for _, last = range l.Batches(t.Context()) {
		}
		if !isPanic(last, "shrinking.Len", "no length") {
			t.Errorf("%d workers: %v", workers, last)
		}
	}
}

// sized is a dataset whose Len is of any value, or panics if it is 0.
type sized int

func (s sized) Len() int {
	if s == 0 {
		panic("no length")
	}
	return int(s)
}

func (sized) Batch(context.Context, []int) ([]*tensor.Tensor, error) {
	return nil, errors.New("no batch")
}

// TestInvalidLen tests that a negative Len of a dataset and a panic of it are errors that name the dataset.
func TestInvalidLen(t *testing.T) {
	leak.Check(t)
	for d, want := range map[sized]string{-1: "the dataset's Len is -1", 0: "the dataset's Len panicked: no length"} {
		for _, opts := range [][]data.Option{nil, {data.Shuffle()}, {data.Workers(2)}} {
			if err := first(newLoader(t, d, opts...).Batches(t.Context())); err == nil || !strings.Contains(err.Error(), want) || d == 0 && !isPanic(err, "sized.Len", "") {
				t.Errorf("Len %d, %d options: %v, want %q", d, len(opts), err, want)
			}
		}
	}
	if n := newLoader(t, sized(-5), data.BatchSize(2)).Len(); n != 0 {
		t.Errorf("a loader of a negative number of samples has %d batches", n)
	}
}

// TestNotAhead tests that without workers no sample is read before the loop asks for its batch.
func TestNotAhead(t *testing.T) {
	leak.Check(t)
	read := 0
	dataset := data.IterableFunc[int](func(ctx context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for read++; yield(read, nil); read++ {
			}
		}
	})
	l := must(data.NewIterableLoader(dataset, nil, data.BatchSize(2)))
	want := 2
	for _, err := range l.Batches(t.Context()) {
		if err != nil || read != want {
			t.Fatalf("%d samples were read, want %d, %v", read, want, err)
		}
		if want += 2; want == 8 {
			break
		}
	}
	if read != 6 {
		t.Errorf("%d samples were read of 6", read)
	}
}

// TestLiveQueue tests that a batch does not wait for the next one, whose sample may be the answer to it, and that the
// position after the last batch is in the same epoch, with and without a worker.
func TestLiveQueue(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 1} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		answers := make(chan int, 1)
		queue := data.IterableFunc[int](func(ctx context.Context, _ int) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for sample := 0; sample < 3 && yield(sample, nil); {
					select {
					case sample = <-answers:
					case <-ctx.Done():
						return
					}
				}
			}
		})
		l := must(data.NewIterableLoader(queue, nil, data.Workers(workers)))
		n := 0
		for batch, err := range l.Batches(ctx) {
			if err != nil {
				t.Errorf("%d workers: after %d batches: %v", workers, n, err)
				break
			}
			n++
			if got := mustInts(t, batch.Inputs); got[0] != int64(batch.Index) || bare(l.State()) != (data.State{Batch: n}) {
				t.Errorf("%d workers: batch %d is %v, then the position is %+v", workers, batch.Index, got, l.State())
			}
			answers <- n
		}
		if n != 3 || bare(l.State()) != (data.State{Epoch: 1}) {
			t.Errorf("%d workers: %d batches, then the position is %+v", workers, n, l.State())
		}
	}
}

// TestContextEndsAStream tests that a loop whose context ends within a batch, or before its position, returns the
// context's error, and neither a part of the batch nor another error.
func TestContextEndsAStream(t *testing.T) {
	leak.Check(t)
	for _, workers := range []int{0, 1} {
		for _, at := range []data.State{{}, {Batch: 3}} {
			ctx, cancel := context.WithCancel(t.Context())
			queue := data.IterableFunc[int](func(ctx context.Context, _ int) iter.Seq2[int, error] {
				return func(yield func(int, error) bool) {
					_ = yield(0, nil) && yield(1, nil)
					cancel()
					<-ctx.Done()
				}
			})
			l := must(data.NewIterableLoader(queue, nil, data.BatchSize(4), data.Workers(workers)))
			if err := l.SetState(at); err != nil {
				t.Fatal(err)
			}
			for batch, err := range l.Batches(ctx) {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%d workers, from %+v: batch %d, error %v", workers, at, batch.Index, err)
				}
			}
			if bare(l.State()) != at {
				t.Errorf("%d workers: the position is %+v, want %+v", workers, l.State(), at)
			}
		}
	}
}

// TestDefaultCollate tests the kinds of samples.
func TestDefaultCollate(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		type point struct {
			X, Y  float32
			Label int
			_     string // not exported
			Image *tensor.Tensor
			Box   [2]int32
			Parts []*tensor.Tensor
		}
		p := func(v float32) *point {
			return &point{X: v, Y: -v, Label: int(v), Image: tensor.Full([]int{3}, v), Box: [2]int32{1, 2}, Parts: []*tensor.Tensor{tensor.Ones([]int{}), tensor.Zeros([]int{2})}}
		}
		ts, err := data.DefaultCollate([]*point{p(1), p(2)})
		if err != nil {
			return err
		}
		var got []string
		for _, x := range ts {
			got = append(got, fmt.Sprint(x.DType(), x.Shape()))
		}
		if want := "[float32[2] float32[2] int64[2] float32[2 3] int32[2 2] float32[2] float32[2 2]]"; strings.ReplaceAll(fmt.Sprint(got), " [", "[") != strings.ReplaceAll(want, " [", "[") {
			t.Errorf("a struct becomes %v, want %v", got, want)
		}
		type pair struct {
			Left, Right int
			_           string
		}
		type extra struct{ Weight float32 }
		type kind int
		type bare struct{ _ sync.Mutex }
		type embedding struct {
			pair
			*extra
			kind
			*bare
			Label bool
		}
		e := func(v int) embedding {
			return embedding{pair: pair{Left: v, Right: -v}, extra: &extra{float32(v)}, kind: kind(v), bare: (*bare)(nil), Label: v > 1}
		}
		ts, err = data.DefaultCollate([]embedding{e(1), e(2)})
		if got, want := fmt.Sprint(ts), "[tensor([1, 2]) tensor([-1, -2]) tensor([1., 2.]) tensor([False,  True])]"; err != nil || got != want {
			t.Errorf("a struct with embedded ones becomes %v, %v; want %v", got, err, want)
		}
		if _, err := data.DefaultCollate([]embedding{{}}); err == nil || !strings.Contains(err.Error(), "field extra: sample 0 is nil") {
			t.Errorf("a nil embedded struct: %v", err)
		}
		type grade float32
		type scores [2]int
		for _, c := range []struct {
			of   func() ([]*tensor.Tensor, error)
			want string
		}{
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]bool{true, false}) }, "tensor([ True, False])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]uint8{1, 2}) }, "tensor([1, 2], dtype=torch.uint8)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]float64{0.5}) }, "tensor([0.5000], dtype=torch.float64)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]uint16{1, 65535}) }, "tensor([    1, 65535], dtype=torch.uint16)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]uint32{1 << 31}) }, "tensor([2147483648], dtype=torch.uint32)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]uint64{1 << 63}) }, "tensor([9223372036854775808], dtype=torch.uint64)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][]complex64{{1i}}) }, "tensor([[0.+1.j]])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]complex128{2}) }, "tensor([2.+0.j], dtype=torch.complex128)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][1]tensor.Float16Bits{{0x3c00}}) }, "tensor([[1.]], dtype=torch.float16)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]tensor.BFloat16Bits{0x3f80}) }, "tensor([1.], dtype=torch.bfloat16)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]tensor.Float8E5M2Bits{0x3c}) }, "tensor([1.], dtype=torch.float8_e5m2)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]tensor.Float8E4M3FNBits{0x38}) }, "tensor([1.], dtype=torch.float8_e4m3fn)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]tensor.Float8E5M2FNUZBits{0x40}) }, "tensor([1.], dtype=torch.float8_e5m2fnuz)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]tensor.Float8E4M3FNUZBits{0x40}) }, "tensor([1.], dtype=torch.float8_e4m3fnuz)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]any{1, 2}) }, "tensor([1, 2])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][]int16{{1, 2}, {3, 4}}) }, "tensor([[1, 2],\n        [3, 4]], dtype=torch.int16)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][]grade{{1, 2}, {3, 0.5}}) }, "tensor([[1.0000, 2.0000],\n        [3.0000, 0.5000]])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]grade{0.5, 2}) }, "tensor([0.5000, 2.0000])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]scores{{1, -1}, {3}}) }, "tensor([[ 1, -1],\n        [ 3,  0]])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]*[2]bool{{true}, {false, true}}) }, "tensor([[ True, False],\n        [False,  True]])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]any{[]uint8{7}, &[]uint8{8}}) }, "tensor([[7],\n        [8]], dtype=torch.uint8)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]any{grade(1), grade(2)}) }, "tensor([1., 2.])"},
			{func() ([]*tensor.Tensor, error) {
				return data.DefaultCollate([][]tensor.BFloat16Bits{{0x3f80, 0x4000}})
			}, "tensor([[1., 2.]], dtype=torch.bfloat16)"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][][]int64{{{1, 2}}, {{3, 4}}}) }, "tensor([[1, 2],\n        [3, 4]])"},
			{func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][]float64{nil, {}}) }, "tensor([], size=(2, 0), dtype=torch.float64)"},
		} {
			ts, err := c.of()
			if err != nil || len(ts) != 1 || ts[0].String() != c.want {
				t.Errorf("%v, %v; want %s", ts, err, c.want)
			}
		}
		type endless struct{ Next *endless }
		cycle := &endless{}
		cycle.Next = cycle
		for i, of := range []func() ([]*tensor.Tensor, error){
			func() ([]*tensor.Tensor, error) { return data.DefaultCollate[int](nil) }, func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]any{1, "x"}) },
			func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]any{nil}) }, func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]string{"x"}) },
			func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]struct{ x int }{{1}}) }, func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][]int{{1}, {1, 2}}) },
			func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]*tensor.Tensor{nil}) }, func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]*endless{cycle}) },
			func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]map[string]int{{}}) }, func() ([]*tensor.Tensor, error) { return data.DefaultCollate([][]string{{}}) },
			func() ([]*tensor.Tensor, error) {
				return data.DefaultCollate([]*tensor.Tensor{tensor.Ones([]int{1}), tensor.Ones([]int{2})})
			},
			func() ([]*tensor.Tensor, error) {
				return data.DefaultCollate([]*tensor.Tensor{tensor.Ones([]int{1}), tensor.Ones([]int{1}, tensor.Int64)})
			},
			func() ([]*tensor.Tensor, error) { return data.DefaultCollate([]uint{1}) },
		} {
			if ts, err := of(); err == nil {
				t.Errorf("case %d becomes %v", i, ts)
			}
		}
		return nil
	})
	if err != nil {
		t.Log(err) // the errors above
	}
}

// TestItems tests a dataset of structs, with workers, and that PinMemory does nothing without an accelerator.
func TestItems(t *testing.T) {
	leak.Check(t)
	type sample struct {
		In  [2]float32
		Out int64
	}
	d := must(data.NewItems(10, func(_ context.Context, i int) (sample, error) {
		return sample{[2]float32{float32(i), float32(i * i)}, int64(i)}, nil
	}, nil))
	for _, workers := range []int{0, 3} {
		l := newLoader(t, d, data.BatchSize(4), data.Workers(workers), data.PinMemory(true), data.Device(tensor.CPU))
		if got := take(t, l, -1); !slices.Equal(got, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("%d workers: %v", workers, got)
		}
		for batch, err := range newLoader(t, d, data.PinMemory(true), data.Device(tensor.Meta)).Batches(t.Context()) {
			if err != nil || batch.Inputs.Device() != tensor.Meta {
				t.Fatalf("a batch on meta: %v", err)
			}
		}
	}
}

// TestOtherProcesses tests that an epoch continues with exactly the samples that no process has seen when the number of
// processes or the size of batches changes, also twice in an epoch, and that the next epoch is a whole one.
func TestOtherProcesses(t *testing.T) {
	leak.Check(t)
	type job struct{ replicas, batch, batches int }
	for name, jobs := range map[string][]job{
		"4 to 2":      {{4, 2, 3}, {2, 2, 0}},
		"2 to 3":      {{2, 3, 4}, {3, 3, 0}},
		"4 to 2 to 3": {{4, 1, 5}, {2, 4, 2}, {3, 2, 0}},
		"2 as before": {{2, 3, 4}, {2, 3, 0}},
		"3 to 1":      {{3, 2, 8}, {1, 1, 0}},
	} {
		for _, shuffle := range []bool{false, true} {
			const n = 53
			state, seen := data.State{}, map[int]int{}
			for k, j := range jobs {
				var states []data.State
				for r := range j.replicas {
					s := must(data.NewDistributedSampler(n, j.replicas, r, data.Shuffle(shuffle)))
					opts := []data.Option{data.BatchSize(j.batch), data.WithSampler(s)}
					if (k%2 == 1) == shuffle { // the same as a batch sampler
						opts = []data.Option{data.WithBatchSampler(must(data.NewBatchSampler(s, j.batch, false)))}
					}
					l := must(data.NewLoader(must(data.NewTensorDataset(tensor.Arange(0, n, tensor.Int64))), opts...))
					if err := l.SetState(state); err != nil {
						t.Fatal(name, err)
					}
					batches := 0
					for b, err := range l.Batches(context.Background()) {
						if err != nil {
							t.Fatal(name, err)
						}
						for _, i := range must(tensor.Data[int64](b.Inputs)) {
							seen[int(i)]++
						}
						if batches++; batches == j.batches {
							break
						}
					}
					states = append(states, l.State())
				}
				for _, s := range states {
					if s != states[0] {
						t.Errorf("%s: the processes' states differ: %+v", name, states)
					}
				}
				if state = states[0]; j.batches > 0 && len(seen) != state.Seen {
					t.Errorf("%s: %d samples seen, and the state says %+v", name, len(seen), state)
				}
			}
			twice := 0
			for _, times := range seen {
				twice += times - 1
			}
			// The last processes get equal numbers of samples: less than one each is repeated.
			if last := jobs[len(jobs)-1].replicas; len(seen) != n || twice >= last || bare(state) != (data.State{Epoch: 1}) {
				t.Errorf("%s: %d of %d samples, %d repeated, then %+v", name, len(seen), n, twice, state)
			}
		}
	}
	const n = 10
	plain := must(data.NewLoader(must(data.NewTensorDataset(tensor.Ones([]int{n})))))
	divided := must(data.NewLoader(must(data.NewTensorDataset(tensor.Ones([]int{n}))), data.BatchSize(2),
		data.WithSampler(must(data.NewDistributedSampler(n, 4, 0, data.DropLast(true))))))
	for _, err := range []error{plain.SetState(data.State{Batch: 1, Seen: 4}), divided.SetState(data.State{Seen: n}), divided.SetState(data.State{Seen: -1})} {
		if !refused(err) || !strings.Contains(err.Error(), "linstock: SetState: ") {
			t.Errorf("SetState returns %v", err)
		}
	}
	// The rest of the epoch has fewer samples than processes, and DropLast omits it.
	if err := divided.SetState(data.State{Seen: 7}); err != nil {
		t.Fatal(err)
	}
	for _, err := range divided.Batches(context.Background()) {
		t.Errorf("a batch of an epoch without samples, or %v", err)
	}
	if s := bare(divided.State()); s != (data.State{Epoch: 1}) {
		t.Errorf("after the rest of an epoch that has no batches: %+v", s)
	}
}

// TestOtherProcessesWithFewerSteps tests that an epoch can continue with other processes whose epochs have fewer steps,
// though a step has as many samples, and that what is left of it is omitted.
func TestOtherProcessesWithFewerSteps(t *testing.T) {
	leak.Check(t)
	type job struct{ replicas, batch int }
	for name, c := range map[string]struct {
		n           int
		drop        []data.Option // of the loader
		dropSamples []data.Option // of the sampler
		from, to    job
		batches     int
		want        data.State
	}{
		"batches": {11, []data.Option{data.DropLast()}, nil, job{2, 3}, job{1, 6}, 1, data.State{Batch: 1, Seen: 6, Sampler: "DistributedSampler"}},
		"samples": {13, nil, []data.Option{data.DropLast()}, job{1, 6}, job{2, 3}, 2, data.State{Batch: 2, Seen: 12, Sampler: "DistributedSampler"}},
	} {
		loader := func(j job) *data.Loader {
			s := must(data.NewDistributedSampler(c.n, j.replicas, 0, c.dropSamples...))
			return must(data.NewLoader(wide(c.n), append([]data.Option{data.BatchSize(j.batch), data.WithSampler(s)}, c.drop...)...))
		}
		from := loader(c.from)
		left := c.batches
		for _, err := range from.Batches(t.Context()) {
			if err != nil {
				t.Fatal(name, err)
			}
			if left--; left == 0 {
				break
			}
		}
		if s := from.State(); s != c.want {
			t.Fatalf("%s: the state is %+v, want %+v", name, s, c.want)
		}
		to := loader(c.to)
		if err := to.SetState(from.State()); err != nil {
			t.Error(name, err)
			continue
		}
		for _, err := range to.Resume(t.Context()) {
			t.Errorf("%s: a batch, or %v", name, err)
		}
		if s := bare(to.State()); s != (data.State{Epoch: 1}) {
			t.Errorf("%s: after the rest of the epoch: %+v", name, s)
		}
	}
}

// bare returns a position without the sampler's name.
func bare(s data.State) data.State {
	s.Sampler = ""
	return s
}

// TestStateOfAnotherSampler tests that a loader refuses the position of a loader that has other orders, though their seeds
// are equal, and accepts one whose sampler is unknown.
func TestStateOfAnotherSampler(t *testing.T) {
	leak.Check(t)
	const n = 10
	d := squares(t, n, nil)
	loader := func(opts ...data.Option) *data.Loader { return newLoader(t, d, opts...) }
	weights := slices.Repeat([]float64{1}, n)
	for _, seed := range []uint64{0, 5} {
		with := func(f func(opts ...data.Option) (data.Sampler, error), opts ...data.Option) *data.Loader {
			return loader(data.WithSampler(must(f(append(opts, data.Seed(seed))...))))
		}
		random := func(opts ...data.Option) (data.Sampler, error) { return data.NewRandomSampler(n, opts...) }
		weighted := func(opts ...data.Option) (data.Sampler, error) {
			return data.NewWeightedRandomSampler(weights, n, opts...)
		}
		subset := func(opts ...data.Option) (data.Sampler, error) {
			return data.NewSubsetRandomSampler([]int{0, 1, 2, 3}, opts...)
		}
		distributed := func(opts ...data.Option) (data.Sampler, error) {
			return data.NewDistributedSampler(n, 1, 0, opts...)
		}
		// Those of the same name accept each other's positions.
		loaders := map[string][]*data.Loader{
			"RandomSampler":                             {with(random), loader(data.WithBatchSampler(must(data.NewBatchSampler(must(random(data.Seed(seed))), 1, false))))},
			"RandomSampler with Replacement":            {with(random, data.Replacement())},
			"WeightedRandomSampler":                     {with(weighted)},
			"WeightedRandomSampler without Replacement": {with(weighted, data.Replacement(false))},
			"SubsetRandomSampler":                       {with(subset)},
			"DistributedSampler":                        {with(distributed)},
		}
		unknown := []*data.Loader{with(func(...data.Option) (data.Sampler, error) { return yields{n, n}, nil })}
		if seed == 0 {
			loaders["Shuffle"] = []*data.Loader{loader(data.Shuffle()), loader(data.Shuffle(), data.Seed(3))}
			loaders["SequentialSampler"] = []*data.Loader{loader(), loader(data.WithSampler(must(data.NewSequentialSampler(n))))}
			loaders["DistributedSampler without Shuffle"] = []*data.Loader{with(distributed, data.Shuffle(false))}
			loaders["IterableDataset"] = []*data.Loader{must(data.NewIterableLoader(counting(n), nil))}
		}
		for from, givers := range loaders {
			for to, takers := range loaders {
				for i, taker := range takers {
					state := givers[(i+1)%len(givers)].State()
					state.Batch = 2
					err := taker.SetState(state)
					if from == to {
						if err != nil || taker.State() != state || state.Sampler != to {
							t.Errorf("seed %d, %s: %v, then the position is %+v", seed, to, err, taker.State())
						}
						continue
					}
					if !refused(err) || !strings.Contains(err.Error(), strconv.Quote(from)) || !strings.Contains(err.Error(), strconv.Quote(to)) {
						t.Errorf("seed %d, from %s to %s: %v", seed, from, to, err)
					}
					// A state that was saved before it named its sampler.
					if err := taker.SetState(bare(state)); err != nil || taker.State().Sampler != to {
						t.Errorf("seed %d, from an unknown sampler to %s: %v, then the position is %+v", seed, to, err, taker.State())
					}
				}
			}
			if seed != 0 {
				continue // that of a sampler of another type is 0
			}
			for _, l := range unknown {
				if err := l.SetState(givers[0].State()); err != nil || l.State().Sampler != "" {
					t.Errorf("from %s to an unknown sampler: %v, then the position is %+v", from, err, l.State())
				}
				if err := givers[0].SetState(l.State()); err != nil || givers[0].State().Sampler != from {
					t.Errorf("from an unknown sampler to %s: %v, then the position is %+v", from, err, givers[0].State())
				}
			}
		}
	}
}

// TestEpochWithAnotherSampler tests that a loader begins an epoch at the position of a loader with another sampler, with its
// own order, and that the fields of its own state make it take one in the middle of an epoch.
func TestEpochWithAnotherSampler(t *testing.T) {
	leak.Check(t)
	const n = 6
	d := squares(t, n, nil)
	g := tensor.NewGenerator().ManualSeed(5)
	defer g.Release()
	weights := slices.Repeat([]float64{1}, n)
	options := map[string]func() []data.Option{
		"none":      func() []data.Option { return nil },
		"shuffle":   func() []data.Option { return []data.Option{data.Shuffle(), data.Seed(3)} },
		"generator": func() []data.Option { return []data.Option{data.Shuffle(), data.Generator(g)} },
		"weighted": func() []data.Option {
			return []data.Option{data.WithSampler(must(data.NewWeightedRandomSampler(weights, n, data.Seed(4))))}
		},
		"distributed": func() []data.Option {
			return []data.Option{data.WithSampler(must(data.NewDistributedSampler(n, 1, 0, data.Seed(8))))}
		},
	}
	for from, a := range options {
		for to, b := range options {
			if from == to || from == "shuffle" && to == "generator" || from == "generator" && to == "shuffle" {
				continue
			}
			giver, taker, plain := newLoader(t, d, a()...), newLoader(t, d, b()...), newLoader(t, d, b()...)
			take(t, giver, -1)
			begin := plain.State()
			begin.Epoch, begin.Seed = 1, giver.State().Seed
			if err := errors.Join(taker.SetState(giver.State()), plain.SetState(begin)); err != nil || taker.State() != begin {
				t.Errorf("from %s to %s: %v, then the position is %+v, want %+v", from, to, err, taker.State(), begin)
				continue
			}
			order := take(t, plain, -1)
			if got := take(t, taker, -1); !slices.Equal(got, order) {
				t.Errorf("from %s to %s: the epoch is %v, want %v", from, to, got, order)
			}
			take(t, giver, 2)
			middle := giver.State()
			before := taker.State()
			if err := taker.SetState(middle); !refused(err) || taker.State() != before {
				t.Errorf("from %s to %s, in the middle of an epoch: %v, then the position is %+v", from, to, err, taker.State())
			}
			middle.Sampler, middle.SamplerSeed, middle.Generator = before.Sampler, before.SamplerSeed, before.Generator
			if to != "distributed" {
				middle.Seen = 0 // the samples of all processes
			}
			if err := taker.SetState(middle); err != nil {
				t.Errorf("from %s to %s, as that of its own sampler: %v", from, to, err)
			} else if got := take(t, taker, -1); !slices.Equal(got, order[2:]) {
				t.Errorf("from %s to %s: the rest of the epoch is %v, want %v", from, to, got, order[2:])
			}
		}
	}
}

// TestStateOfAnotherSeed tests that a loader continues with the seed of the state that it is given, and refuses that of a
// sampler with another seed, which would repeat and omit samples.
func TestStateOfAnotherSeed(t *testing.T) {
	leak.Check(t)
	samplers := map[string]func(seed uint64) data.Option{
		"random": func(seed uint64) data.Option {
			return data.WithSampler(must(data.NewRandomSampler(10, data.Seed(seed))))
		},
		"batches": func(seed uint64) data.Option {
			return data.WithBatchSampler(must(data.NewBatchSampler(must(data.NewSubsetRandomSampler([]int{1, 2, 3}, data.Seed(seed))), 1, false)))
		},
		"distributed": func(seed uint64) data.Option {
			return data.WithSampler(must(data.NewDistributedSampler(10, 2, 0, data.Seed(seed))))
		},
		"none": func(uint64) data.Option { return data.Shuffle() },
		"ordered": func(seed uint64) data.Option {
			return data.WithSampler(must(data.NewDistributedSampler(10, 2, 0, data.Seed(seed), data.Shuffle(false))))
		},
	}
	for name, with := range samplers {
		d := squares(t, 10, nil)
		from := newLoader(t, d, with(5), data.Seed(3))
		got := take(t, from, 1)
		other := newLoader(t, d, with(8), data.Seed(4))
		before := other.State()
		if err := other.SetState(from.State()); name == "none" || name == "ordered" {
			if err != nil || other.State() != from.State() {
				t.Errorf("%s: the position is %+v, want %+v, %v", name, other.State(), from.State(), err)
			}
		} else if !refused(err) || !strings.Contains(err.Error(), "SamplerSeed 5") || !strings.Contains(err.Error(), "SamplerSeed 8") || other.State() != before {
			t.Errorf("%s: the position of another sampler: %v", name, err)
		}
		same := newLoader(t, d, with(5), data.Seed(4))
		if err := same.SetState(from.State()); err != nil {
			t.Fatal(name, err)
		}
		if got, want := append(got, take(t, same, -1)...), take(t, newLoader(t, d, with(5), data.Seed(3)), -1); !slices.Equal(got, want) {
			t.Errorf("%s: continued: %v, want %v", name, got, want)
		}
	}
	iterable := must(data.NewIterableLoader(counting(3), nil))
	if err := iterable.SetState(data.State{SamplerSeed: 5}); !refused(err) {
		t.Errorf("the position of a sampler in an iterable dataset: %v", err)
	}
}
