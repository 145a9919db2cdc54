package data

import "math/rand/v2"

// order gives the samples' order in an epoch: from seed and epoch alone, so that a resumed run goes on in it.
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

// listed is how many samples get a permutation in memory: 8 MiB, made in 15 ms. A text has tens of millions of
// windows, of which a run may see a thousandth.
const listed = 1 << 20

// scattered is a permutation of 0…n-1 that is computed and not stored: a Feistel network over the next even
// number of bits, walked on until it lands below n, which takes fewer than four steps on average.
func scattered(n int, key uint64) func(i int) int {
	half := uint(1)
	for 1<<(2*half) < n {
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
