package data

import "math/rand/v2"

// order returns the order of the samples in an epoch. It depends only on seed and epoch, so that a resumed run
// continues in the same order.
func order(n int, shuffle bool, seed uint64, epoch int) func(i int) int {
	switch {
	case !shuffle:
		return func(i int) int { return i }
	case n <= listed:
		perm := rand.New(rand.NewPCG(seed, mix(uint64(epoch)))).Perm(n)
		return func(i int) int { return perm[i] }
	}
	return scattered(n, mix(seed^mix(uint64(epoch)+1)))
}

// listed is the largest number of samples for which order stores a permutation: 8 MiB, computed in 15 ms. A text has
// tens of millions of windows, of which a run may use a thousandth.
const listed = 1 << 20

// scattered returns a permutation of 0…n-1 that is computed, not stored: a Feistel network over the next even number of
// bits, applied again until the result is below n, which takes fewer than four rounds on average.
func scattered(n int, key uint64) func(i int) int {
	half := uint(1)
	for half < 32 && uint64(1)<<(2*half) < uint64(n) {
		half++
	}
	mask := uint64(1)<<half - 1
	const rounds = 8
	var keys [rounds]uint64
	for r := range keys {
		key = mix(key)
		keys[r] = key
	}
	return func(i int) int {
		for x := uint64(i); ; {
			left, right := x>>half, x&mask
			for _, k := range keys {
				left, right = right, left^(mix(right^k)&mask)
			}
			if x = left<<half | right; x < uint64(n) {
				return int(x)
			}
		}
	}
}

// mix is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
