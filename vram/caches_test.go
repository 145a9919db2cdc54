package vram

import (
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
)

// The cache shrinks by half of what was not used at any of some ticks, also while the program allocates.
func TestUnusedCacheShrinks(t *testing.T) {
	balance.Hold(t, func() {})
	const mib = 1 << 20
	data := make([]float32, 64*mib/4)
	cached := func() int64 {
		m, err := cshim.MemoryStats(cpuWord)
		if err != nil {
			t.Fatal(err)
		}
		return m.Cached
	}
	for _, c := range []struct {
		name        string
		used        int // floats in use at the fourth tick
		ticks       int
		least, most int64 // MiB that are left
	}{
		{"unused", 0, 8, 30, 34},
		{"for less long", 0, 7, 60, 80},
		{"half used", len(data) / 2, 8, 46, 50},
		{"used", len(data), 8, 60, 80},
		{"few bytes unused", len(data) * 7 / 8, 8, 60, 80},
	} {
		if err := cshim.MemoryEmptyCache(cpuWord); err != nil {
			t.Fatal(err)
		}
		cshim.TensorFree(ofData(t, data))
		if n := cached(); n < 60*mib {
			t.Fatalf("%d bytes are cached", n)
		}
		idle := idleCache{allocations: -1}
		for i := range c.ticks {
			cshim.TensorFree(ofData(t, data[:1])) // an allocation
			if i == 3 && c.used > 0 {
				h := ofData(t, data[:c.used])
				idle.tick()
				cshim.TensorFree(h)
			} else {
				idle.tick()
			}
		}
		if n := cached(); n < c.least*mib || n > c.most*mib {
			t.Errorf("%s: %.1f MiB are cached, want %d to %d", c.name, float64(n)/mib, c.least, c.most)
		}
	}
}

// Reclaimers are asked for the bytes that a device has refused, if they are known.
func TestRelieveAsksForTheBytes(t *testing.T) {
	balance.Hold(t, func() {})
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	got := make(chan int64, 1)
	defer Register(Reclaimer{Name: "test", Reclaim: func(want int64) { got <- want }})()
	for asked, want := range map[int64]int64{5 << 20: 5 << 20, 0: 1 << 62} {
		relieve(1<<8, asked)
		if n := <-got; n != want {
			t.Errorf("asked for %d bytes where %d were refused, want %d", n, asked, want)
		}
	}
}
