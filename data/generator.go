package data

// generator is PyTorch's random generator for the CPU, the Mersenne Twister mt19937, so that samplers draw PyTorch's
// indices. It is separate from libtorch's default generator, which tensors use.
type generator struct {
	state [624]uint32
	at    int
}

// newGenerator returns torch.Generator().manual_seed(seed).
func newGenerator(seed uint64) *generator {
	g := &generator{at: len(generator{}.state)}
	g.state[0] = uint32(seed)
	for i := 1; i < len(g.state); i++ {
		g.state[i] = 1812433253*(g.state[i-1]^g.state[i-1]>>30) + uint32(i)
	}
	return g
}

// random returns 32 random bits.
func (g *generator) random() uint32 {
	if g.at == len(g.state) {
		for k := range g.state {
			y := g.state[k]&0x80000000 | g.state[(k+1)%624]&0x7fffffff
			g.state[k] = g.state[(k+397)%624] ^ y>>1 ^ y&1*0x9908b0df
		}
		g.at = 0
	}
	y := g.state[g.at]
	g.at++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// random64 returns 64 random bits.
func (g *generator) random64() uint64 {
	high := uint64(g.random())
	return high<<32 | uint64(g.random())
}

// word returns 64 random bits if wide, and otherwise 32.
func (g *generator) word(wide bool) uint64 {
	if wide {
		return g.random64()
	}
	return uint64(g.random())
}

// below returns a random number in [0, n), as torch.randint draws it.
func (g *generator) below(n int) int {
	return int(g.word(uint64(n) >= 1<<28) % uint64(n))
}

// uniform returns a random number in [0, 1).
func (g *generator) uniform() float64 {
	return float64(g.random64()&(1<<53-1)) * 0x1p-53
}

// perm returns torch.randperm(n).
func (g *generator) perm(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	for i := range n - 1 {
		j := i + int(g.word(wideOrder(n))%uint64(n-i))
		p[i], p[j] = p[j], p[i]
	}
	return p
}

// skip draws what perm(n) draws.
func (g *generator) skip(n int) {
	for range n - 1 {
		g.word(wideOrder(n))
	}
}

// wideOrder reports whether perm(n) draws 64 bits for each number.
func wideOrder(n int) bool { return uint64(n) >= 0xffffffff/20 }
