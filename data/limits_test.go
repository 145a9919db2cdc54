package data_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// noPanic calls f and reports a panic.
func noPanic(t *testing.T, name string, f func() error) (err error) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s panics: %v", name, p)
		}
	}()
	return f()
}

// wide is a dataset of n zeros.
func wide(n int) data.Dataset {
	return must(data.NewSamples(n, []int{1}, nil, func(int, []int64, []int64) error { return nil }))
}

// first returns the error of a sequence's first element.
func first[T any](seq iter.Seq2[T, error]) error {
	for _, err := range seq {
		return err
	}
	return nil
}

// samples returns n samples of a loader's first epoch.
func samples(l *data.Loader, n int) (out []float64, err error) {
	for batch, err := range l.Batches(context.Background()) {
		if err != nil {
			return out, err
		}
		v, err := batch.Inputs.Reshape(-1).Item()
		if err != nil {
			return out, err
		}
		if out = append(out, v); len(out) == n {
			break
		}
	}
	return out, nil
}

// TestHugeSizes tests that sizes beyond the memory of any machine are errors, or need no memory.
func TestHugeSizes(t *testing.T) {
	leak.Check(t)
	const huge = 1 << 40
	endless := data.IterableFunc[int](func(context.Context, int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for yield(0, nil) {
			}
		}
	})
	sequential := must(data.NewSequentialSampler(huge))
	for name, f := range map[string]func() error{
		"Workers":                    func() error { return second(data.NewLoader(wide(huge), data.Workers(huge))) },
		"Prefetch":                   func() error { return second(data.NewLoader(wide(huge), data.Workers(1), data.Prefetch(huge))) },
		"Prefetch, iterable":         func() error { return second(data.NewIterableLoader(endless, nil, data.Prefetch(huge))) },
		"BatchSize, iterable":        func() error { return second(data.NewIterableLoader(endless, nil, data.BatchSize(huge))) },
		"BatchSize":                  func() error { return first(newLoader(t, wide(huge), data.BatchSize(huge)).Batches(t.Context())) },
		"RandomSampler":              func() error { return second(data.NewRandomSampler(huge)) },
		"RandomSampler, few":         func() error { return second(data.NewRandomSampler(huge, data.NumSamples(1))) },
		"RandomSampler, replacement": func() error { return second(data.NewRandomSampler(5, data.NumSamples(huge), data.Replacement(true))) },
		"WeightedRandomSampler":      func() error { return second(data.NewWeightedRandomSampler([]float64{1, 2}, huge)) },
		"DistributedSampler":         func() error { return second(data.NewDistributedSampler(huge, 2, 0)) },
		"RandomSplit":                func() error { return second(data.RandomSplit(wide(huge), []int{huge})) },
		"RandomSplit, fractions":     func() error { return second(data.RandomSplit(wide(huge), []float64{1})) },
		"Samples": func() error {
			d := must(data.NewSamples(1, []int{math.MaxInt32}, nil, func(int, []int64, []int64) error { return nil }))
			return second(d.Batch(t.Context(), make([]int, 1000)))
		},
		"Windows": func() error {
			return second(must(data.NewWindows(make([]uint8, 100), huge, 1)).Batch(t.Context(), []int{0}))
		},
		"Windows, MaxInt": func() error {
			return second(must(data.NewWindows(make([]uint8, 100), math.MaxInt, 1)).Batch(t.Context(), []int{0}))
		},
		"Windows, many": func() error {
			return second(must(data.NewWindows(make([]uint8, 1<<20), 1<<19, 1)).Batch(t.Context(), make([]int, 1<<20)))
		},
	} {
		if err := noPanic(t, name, f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}

	// These take memory only for what is read. The samples of a loader are their own numbers.
	numbered := must(data.NewSamples(math.MaxInt, nil, nil, func(i int, x, _ []float64) error { x[0] = float64(i); return nil }))
	batched := must(data.NewBatchSampler(sequential, 1, false))
	for name, c := range map[string]struct {
		opts []data.Option
		want []float64
	}{
		"order":        {nil, []float64{0, 1, 2}},
		"sequential":   {[]data.Option{data.WithSampler(sequential)}, []float64{0, 1, 2}},
		"batches":      {[]data.Option{data.WithBatchSampler(batched)}, []float64{0, 1, 2}},
		"distributed":  {[]data.Option{data.WithSampler(must(data.NewDistributedSampler(huge, 4, 1, data.Shuffle(false))))}, []float64{1, 5, 9}},
		"with workers": {[]data.Option{data.WithSampler(sequential), data.Workers(2)}, []float64{0, 1, 2}},
		"shuffled":     {[]data.Option{data.Shuffle(true)}, nil},
	} {
		l := newLoader(t, numbered, c.opts...)
		got, err := samples(l, 3)
		if err != nil || len(got) != 3 || c.want != nil && fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
		if l.Len() < huge/4 {
			t.Errorf("%s: Len is %d", name, l.Len())
		}
	}
	if n := newLoader(t, numbered, data.BatchSize(math.MaxInt)).Len(); n != 1 {
		t.Errorf("%d batches of MaxInt samples", n)
	}
	// With replacement, the size of the dataset needs no memory.
	if _, err := data.NewRandomSampler(huge, data.NumSamples(3), data.Replacement(true)); err != nil {
		t.Error(err)
	}
	// The context ends the reading of an endless sampler.
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	if err := first(newLoader(t, wide(5), data.WithSampler(forever{func() { cancel(why) }})).Batches(ctx)); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
		t.Errorf("an endless sampler: %v", err)
	}
	// It ends the drawing of the epochs before that of the position.
	for name, o := range map[string]data.Option{
		"sampler": data.WithSampler(must(data.NewRandomSampler(5))), "batches": data.WithBatchSampler(must(data.NewBatchSampler(must(data.NewRandomSampler(5)), 2, false))),
	} {
		l := newLoader(t, wide(5), o)
		if err := l.SetState(data.State{Epoch: math.MaxInt}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, why)
		if err := first(l.Batches(ctx)); !errors.Is(err, why) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: the last of all epochs: %v", name, err)
		}
		cancel()
	}
}

// forever is a sampler of endless epochs, which calls f at its 5,000th sample.
type forever struct{ f func() }

func (forever) Len() int { return 1 }
func (s forever) Indices(int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; yield(0); i++ {
			if i == 5000 {
				s.f()
			}
		}
	}
}

// TestNilAndZeroValues tests that nil, and values that no constructor made, are errors.
func TestNilAndZeroValues(t *testing.T) {
	leak.Check(t)
	ctx, some := t.Context(), []int{0}
	const unmade, noContext = "no constructor made", "a context is needed, got nil"
	none := context.Context(nil)
	items := must(data.NewItems(3, func(context.Context, int) (int, error) { return 1, nil }, nil))
	loader := newLoader(t, wide(3))
	for name, c := range map[string]struct {
		f    func() error
		want string
	}{
		"Batches(nil)":       {func() error { return first(loader.Batches(none)) }, noContext},
		"Resume(nil)":        {func() error { return first(loader.Resume(none)) }, noContext},
		"Samples.Batch(nil)": {func() error { return second(wide(3).Batch(none, some)) }, noContext},
		"Items.Batch(nil)":   {func() error { return second(items.Batch(none, some)) }, noContext},
		"Loader zero":        {func() error { return first((&data.Loader{}).Batches(ctx)) }, "not made by NewLoader"},
		"Loader nil":         {func() error { return first((*data.Loader)(nil).Batches(ctx)) }, "not made by NewLoader"},
		"Loader nil resume":  {func() error { return first((*data.Loader)(nil).Resume(ctx)) }, "not made by NewLoader"},
		"SetState zero":      {func() error { return (&data.Loader{}).SetState(data.State{}) }, "not made by NewLoader"},
		"SetState nil":       {func() error { return (*data.Loader)(nil).SetState(data.State{}) }, "not made by NewLoader"},
		"Shard":              {func() error { return first(data.Shard[int](nil, 0, 2)) }, "a sequence is needed, got nil"},
		"IterableFunc":       {func() error { return first(data.IterableFunc[int](nil).Iter(ctx, 0)) }, "a function is needed, got nil"},
		"ChainDataset nil":   {func() error { return first((*data.ChainDataset[int])(nil).Iter(ctx, 0)) }, unmade},
		"NewChainDataset": {func() error { return second(data.NewChainDataset[int](data.IterableFunc[int](nil))) },
			"dataset 0 is nil"},
		"ChainDataset of nil": {func() error {
			empty := data.IterableFunc[int](func(context.Context, int) iter.Seq2[int, error] { return nil })
			return first(must(data.NewChainDataset[int](empty)).Iter(ctx, 0))
		}, "Iter returned nil"},
		"loader of nil": {func() error {
			empty := data.IterableFunc[int](func(context.Context, int) iter.Seq2[int, error] { return nil })
			return first(must(data.NewIterableLoader(empty, nil)).Batches(ctx))
		}, "the dataset's Iter returned nil"},
		"NewLoader":         {func() error { return second(data.NewLoader((*data.Subset)(nil))) }, "a dataset is needed, got nil"},
		"NewIterableLoader": {func() error { return second(data.NewIterableLoader((*data.ChainDataset[int])(nil), nil)) }, "a dataset is needed, got nil"},
		"WithSampler":       {func() error { return second(data.NewLoader(wide(1), data.WithSampler((*pointer)(nil)))) }, "a sampler is needed, got nil"},
		"NewBatchSampler":   {func() error { return second(data.NewBatchSampler((*pointer)(nil), 1, false)) }, "a sampler is needed, got nil"},
		"NewSubset":         {func() error { return second(data.NewSubset((*data.TensorDataset)(nil), nil)) }, "a dataset is needed, got nil"},
		"NewConcatDataset":  {func() error { return second(data.NewConcatDataset((*data.TensorDataset)(nil))) }, "dataset 0 is nil"},
		"NewStackDataset":   {func() error { return second(data.NewStackDataset((*data.TensorDataset)(nil))) }, "dataset 0 is nil"},
		"RandomSplit":       {func() error { return second(data.RandomSplit((*data.Items[int])(nil), some)) }, "a dataset is needed, got nil"},
	} {
		err := noPanic(t, name, c.f)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		kind := tensor.ErrArgument
		if strings.Contains(c.want, "got nil") || strings.Contains(c.want, "is nil") {
			kind = tensor.ErrNil
		}
		if name != "loader of nil" && (!refused(err) || !errors.Is(err, kind)) {
			t.Errorf("%s: %v, want %v at a line of this file", name, err, kind)
		}
	}
	for _, d := range []data.Dataset{
		(*data.TensorDataset)(nil), (*data.ConcatDataset)(nil), (*data.StackDataset)(nil), (*data.Subset)(nil), (*data.Items[int])(nil),
		(*data.Samples[int32, int64])(nil), (*data.Windows[uint8])(nil), &data.TensorDataset{}, &data.ConcatDataset{}, &data.StackDataset{},
		&data.Subset{}, &data.Items[int]{}, &data.Samples[int32, int64]{}, &data.Windows[uint8]{},
	} {
		for _, indices := range [][]int{nil, some} {
			name := fmt.Sprintf("%T.Batch(%v)", d, indices)
			err := noPanic(t, name, func() error {
				return tensor.WithScope(func() error { return second(d.Batch(ctx, indices)) })
			})
			if !refused(err) || !strings.Contains(err.Error(), unmade) {
				t.Errorf("%s: %v", name, err)
			}
		}
		_ = noPanic(t, fmt.Sprintf("%T.Len", d), func() error {
			if n := d.Len(); n != 0 {
				t.Errorf("%T has %d samples", d, n)
			}
			return nil
		})
	}
	_ = noPanic(t, "the other methods", func() error {
		for _, l := range []*data.Loader{nil, {}} {
			if l.Len() != 0 || l.State() != (data.State{}) {
				t.Errorf("a loader that no constructor made has %d batches at %v", l.Len(), l.State())
			}
		}
		(*data.TensorDataset)(nil).Release()
		if s := (*data.Subset)(nil); s.Indices() != nil {
			t.Error("a nil subset has indices")
		}
		return nil
	})
}

// pointer is a sampler whose methods read its fields.
type pointer struct{ n int }

func (p *pointer) Len() int                  { return p.n }
func (p *pointer) Indices(int) iter.Seq[int] { return func(func(int) bool) { p.n++ } }
