package tensor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// optionData is what tests/golden/options.py wrote.
func optionData(t *testing.T) (data struct {
	Draws   map[string][2][]float64
	Strides map[string][]int
}) {
	t.Helper()
	text, err := os.ReadFile("../tests/golden/options.json")
	if err == nil {
		err = json.Unmarshal(text, &data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestGenerator tests that every operator that draws draws from the generator what PyTorch's does, and nothing from the
// device's.
func TestGenerator(t *testing.T) {
	begin(t)
	want := optionData(t).Draws
	p := func() *Tensor { return FromSlice([]float32{0.2, 0.5, 0.8}, nil) }
	x := func() *Tensor { return Zeros([]int{2, 3}) }
	draws := map[string]func(g *Generator) *Tensor{
		"Rand":             func(g *Generator) *Tensor { return Rand([]int{2, 3}, g) },
		"Randn":            func(g *Generator) *Tensor { return Randn([]int{2, 3}, g) },
		"RandInt":          func(g *Generator) *Tensor { return RandInt(3, 100, []int{5}, g) },
		"RandPerm":         func(g *Generator) *Tensor { return RandPerm(7, g) },
		"RandLike":         func(g *Generator) *Tensor { return x().RandLike(g) },
		"RandnLike":        func(g *Generator) *Tensor { return x().RandnLike(g) },
		"RandIntLike":      func(g *Generator) *Tensor { return x().RandIntLike(3, 100, g) },
		"Bernoulli":        func(g *Generator) *Tensor { return p().Bernoulli(g) },
		"BernoulliP":       func(g *Generator) *Tensor { return x().BernoulliP(0.5, g) },
		"Bernoulli_":       func(g *Generator) *Tensor { return x().Bernoulli_(P(0.4), g) },
		"BernoulliTensor_": func(g *Generator) *Tensor { return x().BernoulliTensor_(p(), g) },
		"Multinomial":      func(g *Generator) *Tensor { return p().Multinomial(2, g) },
		"Poisson":          func(g *Generator) *Tensor { return p().Mul(10).Poisson(g) },
		"Binomial":         func(g *Generator) *Tensor { return Full([]int{3}, 10.0).Binomial(p(), g) },
		"Normal":           func(g *Generator) *Tensor { return Normal(1, 2, []int{3}, g) },
		"NormalTensor":     func(g *Generator) *Tensor { return p().NormalTensor(p(), g) },
		"Normal_":          func(g *Generator) *Tensor { return x().Normal_(1, 2, g) },
		"Uniform_":         func(g *Generator) *Tensor { return x().Uniform_(-1, 2, g) },
		"Exponential_":     func(g *Generator) *Tensor { return x().Exponential_(Lambd(2), g) },
		"LogNormal_":       func(g *Generator) *Tensor { return x().LogNormal_(0, 1, g) },
		"Cauchy_":          func(g *Generator) *Tensor { return x().Cauchy_(0, 1, g) },
		"Geometric_":       func(g *Generator) *Tensor { return x().Geometric_(0.3, g) },
		"Random_":          func(g *Generator) *Tensor { return x().Random_(g) },
		"RandomTo_":        func(g *Generator) *Tensor { return x().RandomTo_(50, g) },
		"RandomFrom_":      func(g *Generator) *Tensor { return x().RandomFrom_(3, 50, g) },
		"RReLU":            func(g *Generator) *Tensor { return x().Sub(1).RReLU(0.1, 0.3, Training(true), g) },
		"RReLU_":           func(g *Generator) *Tensor { return x().Sub(1).RReLU_(0.1, 0.3, Training(true), g) },
	}
	for _, o := range operators {
		if drawsNumbers(o.name) && draws[o.name] == nil {
			t.Errorf("%s takes a generator, and the test does not call it", o.name)
		}
	}
	for name, draw := range draws {
		t.Run(name, func(t *testing.T) {
			begin(t)
			if len(want[name]) != 2 || want[name][0] == nil {
				t.Error("PyTorch's draws are missing: tests/golden/options.py")
			}
			err := WithScope(func() error {
				before, err := Data[uint8](RNGState())
				if err != nil {
					return err
				}
				g := NewGenerator().ManualSeed(11)
				defer g.Release()
				for i, want := range want[name] {
					got, err := Data[float64](draw(g).To(Float64))
					if err != nil {
						return err
					}
					if !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(b)) }) || len(got) == 0 {
						t.Errorf("draw %d is %v, want %v", i, got, want)
					}
				}
				after, err := Data[uint8](RNGState())
				if err == nil && !slices.Equal(before, after) {
					t.Error("the CPU's generator has drawn")
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestGeneratorState(t *testing.T) {
	begin(t)
	err := WithScope(func() error {
		g := NewGenerator()
		defer g.Release()
		if seed, err := g.InitialSeed(); err != nil || seed != 67280421310721 {
			t.Errorf("the default seed is %d, %v", seed, err)
		}
		if g.Device() != CPU || g.Err() != nil {
			t.Errorf("the generator is of %v, with the error %v", g.Device(), g.Err())
		}
		if seed, err := g.ManualSeed(5).InitialSeed(); err != nil || seed != 5 {
			t.Errorf("the seed is %d, %v, want 5", seed, err)
		}
		state := g.State()
		c := g.Clone()
		defer c.Release()
		draw := func(g *Generator) []float32 {
			values, err := Data[float32](Rand([]int{4}, g))
			if err != nil {
				t.Error(err)
			}
			return values
		}
		first := draw(g)
		if second := draw(g); slices.Equal(first, second) {
			t.Error("two draws are equal")
		}
		if err := g.SetState(state); err != nil {
			return err
		}
		if again, cloned := draw(g), draw(c); !slices.Equal(first, again) || !slices.Equal(first, cloned) {
			t.Errorf("after SetState %v, of the clone %v, want %v", again, cloned, first)
		}
		seed, err := g.Seed()
		if now, failed := g.InitialSeed(); err != nil || failed != nil || now != seed {
			t.Errorf("Seed returned %d, %v, but the seed is %d, %v", seed, err, now, failed)
		}
		gone := Zeros([]int{1})
		gone.Release()
		for _, state := range []*Tensor{Zeros([]int{3}), gone, nil} {
			if err := g.SetState(state); err == nil || strings.Count(err.Error(), "SetState: ") != 1 || strings.Count(err.Error(), " at ") != 1 {
				t.Errorf("SetState takes another tensor, or repeats its name: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestGeneratorThatCannotBeUsed(t *testing.T) {
	begin(t)
	g := NewGenerator()
	g.Release()
	g.Release()
	for name, g := range map[string]*Generator{"released": g, "literal": {}, "of no device": NewGenerator(Device{CPUType, -5}), "of meta": NewGenerator(Meta)} {
		want := ErrArgument
		if name == "released" {
			want = ErrReleased
		}
		check := func(what string, err error) {
			t.Helper()
			if err == nil || (name == "released" || name == "literal") && !errors.Is(err, want) {
				t.Errorf("%s: %s returns %v", name, what, err)
			}
		}
		check("Err", g.Err())
		check("Rand", Rand([]int{2}, g).Err())
		check("ManualSeed", g.ManualSeed(1).Err())
		check("Clone", g.Clone().Err())
		check("State", g.State().Err())
		_, err := g.Seed()
		check("Seed", err)
		_, err = g.InitialSeed()
		check("InitialSeed", err)
		x := Zeros([]int{1})
		check("SetState", g.SetState(x))
		x.Release()
		g.Release()
	}
	var none *Generator
	none.Release()
	if none.Err() == nil || none.ManualSeed(1).Err() == nil || none.Device() != CPU {
		t.Error("a nil generator can be used")
	}
	x := Rand([]int{2}, none)
	if x.Err() != nil {
		t.Errorf("with a nil generator, the device's does not draw: %v", x.Err())
	}
	x.Release()
	ones := Ones([]int{2})
	if err := ones.Add(1, NewGenerator()).Err(); !errors.Is(err, ErrArgument) {
		t.Errorf("Add takes a generator: %v", err)
	}
	ones.Release()
}

// TestGeneratorOfGoroutines tests that goroutines can share a generator, and release it while others draw.
func TestGeneratorOfGoroutines(t *testing.T) {
	begin(t)
	g := NewGenerator().ManualSeed(3)
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 100 {
				x := Rand([]int{3}, g)
				if err := x.Err(); err != nil && !errors.Is(err, ErrReleased) {
					t.Error(err)
				}
				x.Release()
			}
		}()
	}
	g.Release()
	all.Wait()
}

// TestForkRNGOutlivesScopes tests that the generators get their states back if the function ends the scope that encloses
// ForkRNG.
func TestForkRNGOutlivesScopes(t *testing.T) {
	begin(t)
	for name, end := range map[string]func(*Scope) error{"Close": (*Scope).Close, "ReleaseAll": (*Scope).ReleaseAll} {
		before := RNGState(CPU)
		s := open(t)
		bad := errors.New("bad")
		if err := ForkRNG(func() error { return errors.Join(Rand([]int{3}, CPU).Err(), end(s), bad) }); !errors.Is(err, bad) || errors.Is(err, ErrReleased) {
			t.Errorf("%s: %v", name, err)
		}
		after := RNGState(CPU)
		if same, err := after.Equal(before); err != nil || !same {
			t.Errorf("%s: the generator has moved; %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		before.Release()
		after.Release()
	}
}

func TestForkRNG(t *testing.T) {
	begin(t)
	draw := func() float64 {
		x := Rand(nil, Float64)
		defer x.Release()
		v, err := Item[float64](x)
		if err != nil {
			t.Error(err)
		}
		return v
	}
	if err := ManualSeed(4); err != nil {
		t.Fatal(err)
	}
	first, second := draw(), draw()
	if err := ManualSeed(4); err != nil {
		t.Fatal(err)
	}
	draw()
	bad := errors.New("bad")
	if err := ForkRNG(func() error { draw(); return bad }); err != bad {
		t.Errorf("ForkRNG returns %v, want the function's error", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = ForkRNG(func() error { draw(); panic("bad") })
	}()
	if got := draw(); got != second || got == first {
		t.Errorf("after ForkRNG %v is drawn, want %v", got, second)
	}
	if err := ForkRNG(nil); !errors.Is(err, ErrNil) {
		t.Errorf("without a function: %v", err)
	}
	missing := Device{CPUType, -5}
	_, err := RNGStates(missing)
	for op, err := range map[string]error{
		"RNGStates": err, "SetRNGStates": SetRNGStates(nil, missing), "ForkRNG": ForkRNG(func() error { return nil }, missing),
	} {
		var e *Error
		if !errors.As(err, &e) || e.Op != op || e.Kind != ErrArgument {
			t.Errorf("%s of a missing device: %v", op, err)
		}
	}
	err = WithScope(func() error {
		states, err := RNGStates()
		if err != nil {
			return err
		}
		third := draw()
		if err := SetRNGStates(states); err != nil {
			return err
		}
		if got := draw(); got != third {
			t.Errorf("after SetRNGStates %v is drawn, want %v", got, third)
		}
		if err := SetRNGStates(states, CPU, CPU, CPU); !errors.Is(err, ErrArgument) {
			t.Errorf("states of other devices: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestMemoryFormats(t *testing.T) {
	begin(t)
	want := optionData(t).Strides
	err := WithScope(func() error {
		image, volume := Zeros([]int{2, 3, 4, 5}), Zeros([]int{2, 3, 4, 5, 6})
		last := image.Contiguous(ChannelsLast)
		for name, x := range map[string]*Tensor{
			"Contiguous":             last,
			"Contiguous back":        last.Contiguous(ContiguousFormat),
			"Clone":                  image.Clone(ChannelsLast),
			"Clone of channels last": last.Clone(PreserveFormat),
			"Clone to contiguous":    last.Clone(ContiguousFormat),
			"Clone 3d":               volume.Clone(ChannelsLast3d),
			"Empty":                  Empty([]int{2, 3, 4, 5}, ChannelsLast),
			"ZerosLike":              image.ZerosLike(ChannelsLast),
			"OnesLike":               image.OnesLike(ChannelsLast),
			"FullLike":               image.FullLike(2, ChannelsLast),
			"EmptyLike":              volume.EmptyLike(ChannelsLast3d),
			"RandLike":               image.RandLike(ChannelsLast),
			"RandnLike":              image.RandnLike(ChannelsLast),
			"RandIntLike":            image.RandIntLike(0, 9, ChannelsLast),
		} {
			if err := x.Err(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if got := x.Stride(); !slices.Equal(got, want[name]) {
				t.Errorf("%s has the strides %v, want %v", name, got, want[name])
			}
		}
		for _, x := range []*Tensor{image.Clone(MemoryFormat(9)), volume.Clone(ChannelsLast), image.Add(1, ChannelsLast), Zeros([]int{2}, Layout(-1))} {
			if !errors.Is(x.Err(), ErrArgument) {
				t.Errorf("the error is %v, want ErrArgument", x.Err())
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLayoutOption(t *testing.T) {
	begin(t)
	err := WithScope(func() error {
		x := Zeros([]int{2, 3}, SparseCOO)
		if err := x.Err(); err != nil {
			return err
		}
		if s := fmt.Sprint(x); s != "tensor(indices=tensor([], size=(2, 0)),\n       values=tensor([], size=(0,)),\n       size=(2, 3), nnz=0, layout=torch.sparse_coo)" {
			t.Errorf("the tensor is\n%s", s)
		}
		if y := Zeros([]int{2}, Strided, PinMemory(false)); y.Err() != nil {
			t.Error(y.Err())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(SparseCSR, Layout(50), ChannelsLast, MemoryFormat(-1)); got != "sparse_csr layout(50) channels_last memory_format(-1)" {
		t.Errorf("names are %q", got)
	}
}
