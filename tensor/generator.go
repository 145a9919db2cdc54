package tensor

import "github.com/linstock-ml/linstock/cshim"

// Generator is a random number generator with its own state. As an option of an operator that draws, and in the option
// nn.Generator of a function that initializes a tensor, it replaces the device's generator:
//
//	g := tensor.NewGenerator().ManualSeed(7)
//	defer g.Release()
//	x := tensor.Randn([]int{2, 3}, g)
//
// Any goroutine may use it. It belongs to no scope: Release frees it, or the Go collector after the last use. PyTorch:
// torch.Generator.
type Generator struct {
	native[cshim.Generator]
	fail   error // of NewGenerator
	device Device
}

// NewGenerator makes a generator of a device, by default the CPU, with PyTorch's default seed. An error is in Err and in
// every result that the generator would draw. A generator of the CPU takes 3 KB of native memory, which neither limits nor
// reports count and which does not make the collector run: reuse one with ManualSeed rather than make many, or call Release.
// PyTorch: torch.Generator.
func NewGenerator(d ...Device) *Generator {
	g := &Generator{device: generator(d)}
	if g.fail = cshim.Load(); g.fail == nil {
		g.fail = g.device.check("NewGenerator")
	}
	if g.fail == nil {
		h, err := cshim.NewGenerator(g.device.word())
		if g.fail = newError("NewGenerator", err); g.fail == nil {
			g.own(h, cshim.Generator.Free)
		}
	}
	return g
}

// acquire keeps the generator until drop.
func (g *Generator) acquire(op string) error {
	switch {
	case g == nil:
		return refused(op, ErrArgument, "a generator is needed, got nil")
	case g.fail != nil:
		return g.fail
	case g.native.acquire():
		return nil
	case g.h == 0:
		return refused(op, ErrArgument, "a generator is needed, got a Generator literal")
	}
	return refused(op, ErrReleased, "the generator has been released")
}

// use calls f while the generator is kept.
func (g *Generator) use(op string, f func(h cshim.Generator) error) error {
	if err := g.acquire(op); err != nil {
		return err
	}
	defer g.drop()
	return newError(op, f(g.h))
}

// Release frees the generator when the operators that use it have returned. Later uses return ErrReleased. A second Release
// does nothing.
func (g *Generator) Release() {
	if g != nil && g.h != 0 {
		g.release()
	}
}

// Err returns the error of NewGenerator or ManualSeed, ErrReleased for a released generator, and nil otherwise.
func (g *Generator) Err() error {
	return g.use("Err", func(cshim.Generator) error { return nil })
}

// Device returns the generator's device. PyTorch: torch.Generator.device.
func (g *Generator) Device() Device {
	if g == nil {
		return CPU
	}
	return g.device
}

// ManualSeed sets the seed and returns g. An error is that of the next use. PyTorch: torch.Generator.manual_seed.
func (g *Generator) ManualSeed(seed uint64) *Generator {
	if err := g.use("ManualSeed", func(h cshim.Generator) error { return h.Seed(seed) }); err != nil {
		return &Generator{fail: err, device: g.Device()}
	}
	return g
}

// Seed sets a seed that is not predictable and returns it. PyTorch: torch.Generator.seed.
func (g *Generator) Seed() (seed uint64, err error) {
	err = g.use("Seed", func(h cshim.Generator) (err error) { seed, err = h.SeedRandom(); return err })
	return seed, err
}

// InitialSeed returns the last seed that was set. PyTorch: torch.Generator.initial_seed.
func (g *Generator) InitialSeed() (seed uint64, err error) {
	err = g.use("InitialSeed", func(h cshim.Generator) (err error) { seed, err = h.CurrentSeed(); return err })
	return seed, err
}

// State returns the state, a uint8 tensor on the CPU. PyTorch: torch.Generator.get_state.
func (g *Generator) State() *Tensor {
	const op = "State"
	if err := g.acquire(op); err != nil {
		return failed(err)
	}
	defer g.drop()
	return wrapResult(op, g.h.State())
}

// SetState sets the state, which State of a generator of the same type of device has returned. PyTorch:
// torch.Generator.set_state.
func (g *Generator) SetState(state *Tensor) error {
	const op = "SetState"
	var named error // by the state, whose use names the operation
	err := g.use(op, func(own cshim.Generator) error {
		named = state.use(op, func(h cshim.Handle) error { return newError(op, asError(own.SetState(h)), state) })
		return nil
	})
	if err != nil {
		return err
	}
	return named
}

// Clone returns a generator of the same device and state. PyTorch: torch.Generator.clone_state.
func (g *Generator) Clone() *Generator {
	const op = "Clone"
	if err := g.acquire(op); err != nil {
		return &Generator{fail: err, device: g.Device()}
	}
	defer g.drop()
	c := NewGenerator(g.device)
	if c.fail != nil {
		return c
	}
	r := g.h.State()
	err := newError(op, asError(r.Err))
	if err == nil {
		err = c.use(op, func(h cshim.Generator) error { return asError(h.SetState(r.Handle)) })
		cshim.TensorFree(r.Handle)
	}
	if err != nil {
		c.Release()
		return &Generator{fail: err, device: g.device}
	}
	return c
}
