package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

var (
	quiet = cluster{node: 8, within: link{2e-6, 400e9}, between: link{6e-6, 45e9}}
	gpt   = job{forward: 0.03, backward: 0.06, optimizer: 0.003, bytes: 500e6, bucket: 25 << 20}
)

func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func near(a, b, part float64) bool { return math.Abs(a-b) <= part*math.Abs(b) }

// reduced returns when the last rank has a bucket that all had at 0.
func reduced(c cluster, a algorithm, bytes float64, ranks int) (last float64) {
	for _, t := range a(c, bytes, make([]float64, ranks), random()) {
		last = max(last, t)
	}
	return last
}

// Without noise the algorithms take their bounds.
func TestBounds(t *testing.T) {
	for _, ranks := range []int{2, 8, 16, 64, 256} {
		for _, bytes := range []float64{1e3, 1e6, 25e6, 1e9} {
			r, want := reduced(quiet, ring, bytes, ranks), quiet.ringBound(bytes, ranks)
			if r < want*(1-1e-9) || r > 1.1*want {
				t.Errorf("ring of %d ranks, %g bytes: %g s, the bound is %g", ranks, bytes, r, want)
			}
			tr, want := reduced(quiet, tree, bytes, ranks), quiet.treeBound(bytes, ranks)
			if tr < want*(1-1e-9) || tr > 1.1*want {
				t.Errorf("tree of %d ranks, %g bytes: %g s, the bound is %g", ranks, bytes, tr, want)
			}
		}
	}
	// The formula of a ring of equal links.
	n, s := 8.0, 25e6
	if want := 2 * (n - 1) * (2e-6 + s/n/400e9); !near(reduced(quiet, ring, s, 8), want, 1e-9) {
		t.Errorf("a ring of equal links takes %g s, want %g", reduced(quiet, ring, s, 8), want)
	}
}

// A network without latency and of endless bandwidth costs nothing; one rank has none.
func TestStep(t *testing.T) {
	free := cluster{node: 8, within: link{0, math.Inf(1)}, between: link{0, math.Inf(1)}}
	for _, a := range []algorithm{ring, tree} {
		for _, ranks := range []int{1, 8, 32} {
			if got := free.step(gpt, ranks, a, random()); !near(got, gpt.compute(), 1e-9) {
				t.Errorf("a step of %d ranks takes %g s, want %g", ranks, got, gpt.compute())
			}
		}
		before := 0.0
		for _, ranks := range []int{1, 8, 16, 64, 512} {
			got := quiet.step(gpt, ranks, a, random())
			if got < before {
				t.Errorf("a step of %d ranks takes %g s, of fewer %g", ranks, got, before)
			}
			before = got
		}
	}
	// All wait for the slowest rank.
	noisy := quiet
	noisy.jitter = 0.05
	if got, least := noisy.step(gpt, 256, tree, random()), 1.1*quiet.step(gpt, 256, tree, random()); got < least {
		t.Errorf("with jitter a step takes %g s, want %g or more", got, least)
	}
}
