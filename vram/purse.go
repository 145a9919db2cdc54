package vram

import (
	"runtime/metrics"
	"sync"
	"time"
)

// purse is the budget of time that pays for sweeps, but for those at the hard limit, which only take from it: it fills at
// share of the time that passes, up to a cap, and every sweep is taken from it.
type purse struct {
	mu      sync.Mutex
	share   float64
	spare   time.Duration
	at      time.Time
	cost    time.Duration // of a sweep, by the last ones
	scanned uint64        // bytes of the Go heap that the collector has to look through, when cost was last known
}

// defaultShare is what [Paced] may spend where it does not say.
const defaultShare = 0.05

// time5 holds what is to be spent.
var time5 = purse{share: defaultShare * caution, at: time.Now(), cost: 500 * time.Microsecond, scanned: smallHeap}

// caution makes it a little less than was promised: a sweep may cost more than the last ones.
const caution = 0.9

// smallHeap is as many bytes as say nothing of what a sweep costs.
const smallHeap = 16 << 20

// markRate is how many bytes a second the collector is taken to look through, until a sweep of such a heap was timed.
const markRate = 2 << 30

func (p *purse) look() (spare, cost time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grow(scannable())
	p.fill()
	return p.spare, p.cost
}

// grow raises the cost where the Go heap has grown to n bytes since it was known: such a heap is not swept several times
// to find out what that costs.
func (p *purse) grow(n uint64) {
	if n > 2*p.scanned {
		p.cost = max(p.cost, time.Duration(float64(n)/markRate*float64(time.Second)))
		p.scanned = n
	}
}

// fill adds what has come in: not more than pays for a step's worth of sweeps, or for one where one is dear.
func (p *purse) fill() {
	now := time.Now()
	p.spare += time.Duration(float64(now.Sub(p.at)) * p.share)
	p.at = now
	p.spare = min(p.spare, p.most())
}

// most is what the purse holds, and what it may owe.
func (p *purse) most() time.Duration { return max(100*time.Millisecond, p.cost) }

// debt is how much of the budget sweeps at the goal may overdraw.
const debt = 100 * time.Millisecond

// exhausted reports whether a sweep at the goal would overdraw a budget that has so much left where one costs so much:
// sweeps take share × elapsed time + debt at most. It never is where no share, or all of the time, was allowed.
func (p *purse) exhausted(spare, cost time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.share > 0 && p.share < caution && spare-cost < -debt
}

// pay takes a sweep's time out. Sweeps that are compelled may leave a debt, of one sweep at most. One that took far
// longer than the last ones was not to blame for all of it: others had the processors.
func (p *purse) pay(d time.Duration) {
	if d <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fill()
	n := scannable()
	p.grow(n)
	d = min(d, 4*p.cost)
	p.cost = (3*p.cost + min(d, 2*p.cost)) / 4
	p.scanned = max(n, smallHeap)
	p.spare = max(p.spare-d, -p.most())
}

// earn sets the share of the time that comes in from now on.
func (p *purse) earn(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fill()
	p.share = share * caution
}

// empty takes out what came in while another policy was in force, which spends nothing.
func (p *purse) empty() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fill()
	p.spare = min(p.spare, 0)
}

// scannable is how many bytes the Go collector has to look through, as of the last collection.
func scannable() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/scan/total:bytes"}}
	metrics.Read(s[:])
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
