package data_test

import (
	"encoding/json"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestGeneratorHasPyTorchsOrders compares the epochs of a loader with those of PyTorch's DataLoader(shuffle=True,
// generator=g), also if it continues in the middle of them, and tests that it does not draw from the generator.
func TestGeneratorHasPyTorchsOrders(t *testing.T) {
	leak.Check(t)
	var want map[string]map[string][]json.RawMessage
	golden.Read(t, "data.json", &want)
	for name, c := range map[string]struct {
		n    int
		opts []data.Option
	}{
		"loader":       {10, []data.Option{data.BatchSize(3)}},
		"loader_even":  {10, []data.Option{data.BatchSize(5)}},
		"loader_drop":  {10, []data.Option{data.BatchSize(4), data.DropLast()}},
		"loader_large": {700, []data.Option{data.BatchSize(64), data.Seed(3)}},
	} {
		if len(want[name]) == 0 {
			t.Errorf("%s has no values", name)
		}
		for text, epochs := range want[name] {
			seed, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			g := tensor.NewGenerator().ManualSeed(seed)
			defer g.Release()
			for _, workers := range []int{0, 2} {
				loader := func() *data.Loader {
					return newLoader(t, squares(t, c.n, nil), append(c.opts, data.Shuffle(), data.Generator(g), data.Workers(workers))...)
				}
				l := loader()
				for epoch := range epochs {
					resumed := loader()
					if err := resumed.SetState(l.State()); err != nil {
						t.Fatal(err)
					}
					got := take(t, resumed, 1)
					if err := resumed.SetState(resumed.State()); err != nil {
						t.Fatal(err)
					}
					got = append(got, take(t, resumed, -1)...)
					whole := take(t, l, -1)
					if text, err := json.Marshal(whole); err != nil || string(text) != string(epochs[epoch]) || !slices.Equal(got, whole) {
						t.Errorf("%s, seed %d, %d workers, epoch %d: %v, continued: %v, PyTorch's %s", name, seed, workers, epoch, whole, got, epochs[epoch])
					}
				}
			}
			fresh := tensor.NewGenerator().ManualSeed(seed)
			defer fresh.Release()
			_ = tensor.WithScope(func() error {
				if same, err := g.State().Equal(fresh.State()); err != nil || !same {
					t.Errorf("the loader has drawn from the generator, %v", err)
				}
				return nil
			})
		}
	}
}

func TestGeneratorOfLoaders(t *testing.T) {
	leak.Check(t)
	g, released := tensor.NewGenerator().ManualSeed(5), tensor.NewGenerator()
	defer g.Release()
	released.Release()
	d, random := squares(t, 10, nil), must(data.NewRandomSampler(10))
	for i, c := range []struct {
		d    data.Dataset
		opts []data.Option
		want string
	}{
		{d, []data.Option{data.Generator(nil)}, "a generator is needed"},
		{d, []data.Option{data.Generator(g), data.WithSampler(random)}, "give the seed to the sampler"},
		{d, []data.Option{data.Generator(g), data.WithBatchSampler(must(data.NewBatchSampler(random, 2, false)))}, "give the seed to the sampler"},
		{d, []data.Option{data.Shuffle(), data.Generator(tensor.NewGenerator(tensor.Meta))}, "one of the CPU"},
		{d, []data.Option{data.Shuffle(), data.Generator(released)}, "released"},
		{wide(1<<30 + 1), []data.Option{data.Shuffle(), data.Generator(g)}, "2^30"},
		{sized(-1), []data.Option{data.Shuffle(), data.Generator(g)}, "Len is -1"},
	} {
		if _, err := data.NewLoader(c.d, c.opts...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("case %d: %v, want %q", i, err, c.want)
		}
	}
	if got := take(t, newLoader(t, d, data.Generator(g)), -1); !slices.IsSorted(got) {
		t.Errorf("without Shuffle a generator makes the order %v", got)
	}
	if got := take(t, newLoader(t, squares(t, 0, nil), data.Shuffle(), data.Generator(g)), -1); len(got) != 0 {
		t.Errorf("an empty dataset has the samples %v", got)
	}
}

// TestGeneratorAndPositions tests that a loader refuses the position of a loader whose order is drawn in another way, and
// names both ways.
func TestGeneratorAndPositions(t *testing.T) {
	leak.Check(t)
	d := squares(t, 10, nil)
	generator := func(seed uint64) []data.Option {
		g := tensor.NewGenerator().ManualSeed(seed)
		t.Cleanup(g.Release)
		return []data.Option{data.Shuffle(), data.Generator(g)}
	}
	random := func(seed uint64) []data.Option {
		return []data.Option{data.WithSampler(must(data.NewRandomSampler(10, data.Seed(seed))))}
	}
	plain, unused := []data.Option{data.Shuffle()}, generator(5)[1:]
	of := map[string]string{
		"generator 5": `Sampler "Shuffle", SamplerSeed 5, Generator true`, "generator 6": `Sampler "Shuffle", SamplerSeed 6, Generator true`,
		"generator 0": `Sampler "Shuffle", SamplerSeed 0, Generator true`, "random 5": `Sampler "RandomSampler", SamplerSeed 5, Generator false`,
		"plain": `Sampler "Shuffle", SamplerSeed 0, Generator false`, "unused": `Sampler "SequentialSampler", SamplerSeed 0, Generator false`,
	}
	opts := map[string][]data.Option{
		"generator 5": generator(5), "generator 6": generator(6), "generator 0": generator(0), "random 5": random(5), "plain": plain, "unused": unused,
	}
	for from, a := range of {
		for to, b := range of {
			state := newLoader(t, d, opts[from]...).State()
			state.Batch = 1
			err := newLoader(t, d, opts[to]...).SetState(state)
			want := "the position is that of a loader with " + a + ", and this loader has " + b
			if a == b && err != nil || a != b && (!refused(err) || !strings.Contains(err.Error(), want)) {
				t.Errorf("from %s to %s: %v, want %q", from, to, err, want)
			}
		}
	}
}

// changing is a dataset of another Len, which panics if n is negative.
type changing struct {
	data.Dataset
	n *int
}

func (d changing) Len() int {
	if *d.n < 0 {
		panic("no length")
	}
	return *d.n
}

// TestGeneratorAndLen tests that a loop over a dataset whose Len has changed is an error with Generator, whose orders it
// determines, and that the epoch begins when the Len is the old one again.
func TestGeneratorAndLen(t *testing.T) {
	leak.Check(t)
	g := tensor.NewGenerator().ManualSeed(5)
	defer g.Release()
	n := 4
	d, opts := changing{squares(t, 10, nil), &n}, []data.Option{data.Shuffle(), data.Generator(g)}
	l, other, plain := newLoader(t, d, opts...), newLoader(t, d, opts...), newLoader(t, d, data.Shuffle())
	got := take(t, l, -1)
	for wrong, want := range map[int]string{6: "has 6 samples, and had 4 ", 2: "has 2 samples, and had 4 ", -1: "Len panicked: no length"} {
		n = wrong
		if err := first(l.Batches(t.Context())); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	n = 6
	if got := take(t, plain, -1); len(got) != n {
		t.Errorf("without Generator: %d samples, want %d", len(got), n)
	}
	n = 4
	got = append(got, take(t, l, -1)...)
	if want := append(take(t, other, -1), take(t, other, -1)...); !slices.Equal(got, want) {
		t.Errorf("two epochs are %v, want %v", got, want)
	}
}

// TestOrderIsAllOfAnEpochsMemory tests that a sampler stores no order beside that of an epoch, though PyTorch draws
// another one.
func TestOrderIsAllOfAnEpochsMemory(t *testing.T) {
	leak.Check(t)
	const n, order = 1 << 20, 8 << 20 // samples, bytes
	g := tensor.NewGenerator().ManualSeed(5)
	defer g.Release()
	l := newLoader(t, squares(t, n, nil), data.Shuffle(), data.Generator(g))
	s := must(data.NewRandomSampler(n))
	for name, c := range map[string]struct {
		f      func()
		orders uint64
	}{
		"Generator":     {func() { take(t, l, 1) }, 1},
		"RandomSampler": {func() { s.Indices(0) }, 2}, // of which it appends one to the other
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.f()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got < c.orders*order || got > c.orders*order+order/2 {
			t.Errorf("%s allocates %d bytes, want that of %d orders, %d", name, got, c.orders, c.orders*order)
		}
	}
}
