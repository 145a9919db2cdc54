package main

import (
	"math"
	"math/rand/v2"
)

// link is a connection of two ranks: latency in seconds, bandwidth in bytes a second.
type link struct{ latency, bandwidth float64 }

func (l link) occupied(bytes float64) float64 { return bytes / l.bandwidth }

// cluster is the machines and their noise.
type cluster struct {
	node            int // ranks of a node
	within, between link
	jitter          float64 // standard deviation of a rank's time to compute, as a part of it
	random          float64 // the part of a latency that is random
}

// job is a training step on one device, without messages. Times are in seconds.
type job struct {
	forward, backward, optimizer float64
	bytes                        float64 // of all gradients
	bucket                       float64 // bytes of a bucket
}

func (j job) compute() float64 { return j.forward + j.backward + j.optimizer }

func (j job) buckets() int { return max(1, int(math.Ceil(j.bytes/j.bucket))) }

// An algorithm reduces bytes on the ranks and returns when each rank has the sums. ready is when each rank has its gradients
// and its links.
type algorithm func(c cluster, bytes float64, ready []float64, rng *rand.Rand) (done []float64)

// step returns the time of a step: when the last rank has updated its parameters.
func (c cluster) step(j job, ranks int, reduce algorithm, rng *rand.Rand) float64 {
	factor := make([]float64, ranks)
	for r := range factor {
		factor[r] = 1 + c.jitter*math.Abs(rng.NormFloat64())
	}
	n := j.buckets()
	done := make([]float64, ranks)
	for b := range n {
		ready := make([]float64, ranks)
		made := j.forward + j.backward*float64(b+1)/float64(n)
		for r := range ready {
			ready[r] = max(made*factor[r], done[r])
		}
		done = ready
		if ranks > 1 {
			done = reduce(c, j.bytes/float64(n), ready, rng)
		}
	}
	last := 0.0
	for r, t := range done {
		last = max(last, t+j.optimizer*factor[r])
	}
	return last
}

// delay returns a random latency of a link.
func (c cluster) delay(l link, rng *rand.Rand) float64 {
	if c.random == 0 {
		return l.latency
	}
	return l.latency * (1 - c.random + c.random*rng.ExpFloat64())
}

// inside returns what one ring or tree has of a link within a node. All of a node share these links; between nodes each has
// one of its own.
func (c cluster) inside(ranks int) link {
	return link{c.within.latency, c.within.bandwidth / float64(c.rings(ranks))}
}

// after returns the link from a rank to the next one in the ring.
func (c cluster) after(rank, ranks int) link {
	if ranks > c.node && (rank+1)%c.node == 0 {
		return c.between
	}
	return c.inside(ranks)
}

// rings returns how many rings or pairs of trees divide a bucket.
func (c cluster) rings(ranks int) int {
	if ranks > c.node {
		return c.node
	}
	return 1
}

// ringPart returns how many bytes a rank sends in a turn.
func (c cluster) ringPart(bytes float64, ranks int) float64 {
	return bytes / float64(ranks) / float64(c.rings(ranks))
}

func ring(c cluster, bytes float64, ready []float64, rng *rand.Rand) []float64 {
	n := len(ready)
	part := c.ringPart(bytes, n)
	links := make([]link, n)
	for r := range links {
		links[r] = c.after(r, n)
	}
	has := append([]float64(nil), ready...)  // when a rank has what it sends next
	free := append([]float64(nil), ready...) // when its link is free
	next := make([]float64, n)
	for range 2 * (n - 1) {
		for r := range n {
			sent := max(has[r], free[r]) + links[r].occupied(part)
			free[r] = sent
			to := r + 1
			if to == n {
				to = 0
			}
			next[to] = sent + c.delay(links[r], rng)
		}
		// A rank that has not computed its own gradients cannot add them.
		for r := range n {
			has[r] = max(next[r], ready[r])
		}
	}
	return has
}

// chunk is how many bytes a tree sends at once, about.
const chunk = 64 << 10

// chunks returns how a tree divides what its links carry for a bucket.
func (c cluster) chunks(bytes float64, ranks int) (n int, part float64) {
	load := treeLoad * bytes / float64(c.rings(ranks))
	n = max(1, int(math.Ceil(load/chunk)))
	return n, load / float64(n)
}

func tree(c cluster, bytes float64, ready []float64, rng *rand.Rand) []float64 {
	n := len(ready)
	chunks, part := c.chunks(bytes, n)
	parents := make([]int, n)
	links := make([]link, n)
	for r := range n {
		parents[r], links[r] = c.parent(r, n)
	}
	up := make([]float64, n)                 // when a rank has the sum of its subtree
	free := append([]float64(nil), ready...) // when the link to the parent is free
	down := make([]float64, n)               // when a rank has the sum of all
	freeDown := make([]float64, n)
	for range chunks {
		copy(up, ready)
		for r := n - 1; r > 0; r-- { // children come after their parents
			sent := max(up[r], free[r]) + links[r].occupied(part)
			free[r] = sent
			up[parents[r]] = max(up[parents[r]], sent+c.delay(links[r], rng))
		}
		down[0] = up[0]
		for r := 1; r < n; r++ {
			sent := max(down[parents[r]], freeDown[r]) + links[r].occupied(part)
			freeDown[r] = sent
			down[r] = sent + c.delay(links[r], rng)
		}
	}
	return down
}

// parent returns the vertex above a rank, which has a smaller number, and the link to it.
func (c cluster) parent(rank, ranks int) (int, link) {
	if rank%c.node != 0 {
		return rank - 1, c.inside(ranks)
	}
	node := rank / c.node
	return (node - 1) / 2 * c.node, c.between
}

// depth returns the links from the deepest leaf to the root, within nodes and between them.
func (c cluster) depth(ranks int) (within, between int) {
	for node := (ranks+c.node-1)/c.node - 1; node > 0; node = (node - 1) / 2 {
		between++
	}
	return min(ranks, c.node) - 1, between
}

// treeLoad is how often a rank's links carry a bucket in both trees together: as a vertex of one it receives half from each
// of two children and half from its parent, and as a leaf of the other half from its parent.
const treeLoad = 2

// ringBound is the time of a ring without noise. Either a link is busy all the time, or a part of the bucket goes around.
func (c cluster) ringBound(bytes float64, ranks int) float64 {
	if ranks == 1 {
		return 0
	}
	part := c.ringPart(bytes, ranks)
	turn, busy := 0.0, 0.0
	for r := range ranks {
		l := c.after(r, ranks)
		turn += (l.latency + l.occupied(part)) / float64(ranks)
		busy = max(busy, l.occupied(part))
	}
	return 2 * float64(ranks-1) * max(turn, busy)
}

// treeBound is the time of a tree without noise: a chunk goes from the deepest leaf to the root and back, and the others
// follow it over the slowest link.
func (c cluster) treeBound(bytes float64, ranks int) float64 {
	if ranks == 1 {
		return 0
	}
	chunks, part := c.chunks(bytes, ranks)
	within, between := c.depth(ranks)
	inside := c.inside(ranks)
	path := float64(within)*(inside.latency+inside.occupied(part)) + float64(between)*(c.between.latency+c.between.occupied(part))
	slowest := 0.0
	if within > 0 {
		slowest = inside.occupied(part)
	}
	if between > 0 {
		slowest = max(slowest, c.between.occupied(part))
	}
	return 2*path + float64(chunks-1)*slowest
}

// stepBound returns the time of a step without noise if each bucket takes the bound: it is hidden behind the backward pass
// except for what is left when the last gradients are there.
func stepBound(j job, bucket float64) float64 {
	n := j.buckets()
	done := 0.0
	for b := range n {
		done = max(j.forward+j.backward*float64(b+1)/float64(n), done) + bucket
	}
	return done + j.optimizer
}
