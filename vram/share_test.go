package vram

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/balance"
)

// The share of the time budget is the policy's, also if other policies wrap it.
func TestTimeShare(t *testing.T) {
	balance.Hold(t, func() {})
	for _, c := range []struct {
		p     Policy
		share float64
	}{
		{Paced{}, 0.05},
		{Paced{Share: 0.2}, 0.2},
		{Paced{Share: -1}, -1},
		{Off{}, 0},
		{Any{}, 0},
		{Any{nil, Off{}}, 0},
		{Any{Off{}, Paced{}}, 0.05},
		{Any{Paced{Share: -1}}, -1},
		{Any{nil, Paced{Share: -1}, Paced{Share: -2}}, -1},
		{Any{Paced{Share: -1}, Paced{Share: 0.01}}, 0.01},
		{Any{Paced{Share: 0.01}, Off{}}, 0}, // 0.05
		{Any{Off{}, Paced{Share: 0.01}}, 0},
		{Any{Off{}, Paced{Share: -1}}, 0},
		{LiveShare{}, 0},
		{Threshold{Else: LiveShare{Else: Paced{Share: 0.1}}}, 0.1},
		{Any{Paced{}, Rates{Else: Paced{Share: 0.3}}}, 0.3},
	} {
		if d := c.p.Decide(State{Capacity: 1 << 40}); d.Share != c.share {
			t.Errorf("%#v: a share of %v; want %v", c.p, d.Share, c.share)
		}
	}
}

// zero is a policy that leaves every field of its decision at 0.
type zero struct{}

func (zero) Decide(State) Decision { return Decision{} }

// A policy that says nothing about Again is asked again after 1 MiB, also if other policies wrap it.
func TestAgainIsAtLeast1MiB(t *testing.T) {
	balance.Hold(t, func() {})
	for _, p := range []Policy{Any{zero{}}, Any{Off{}, zero{}}, Threshold{Else: zero{}}, Rates{Else: zero{}}, LiveShare{Else: zero{}}} {
		if d := p.Decide(State{Capacity: 1 << 40}); d.Again != leastStep {
			t.Errorf("%#v: again after %d bytes", p, d.Again)
		}
	}
}

// A share that the program chose counts before the soft limit, which always exists unless the program removes it.
func TestShareBeforeSoftLimit(t *testing.T) {
	balance.Hold(t, func() {})
	s := State{Capacity: 100 << 20, SoftLimit: 80 << 20, Live: 60 << 20, Allocated: 20 << 20}
	for share, want := range map[float64]Depth{0: None, 0.5: Full, 0.7: None, 0.9: None} {
		if d := (LiveShare{Share: share}).Decide(s); d.Sweep != want {
			t.Errorf("share %v: depth %v, want %v", share, d.Sweep, want)
		}
	}
	s.Live, s.SoftLimit = 85<<20, 0
	if d := (LiveShare{Share: 0.9}).Decide(s); d.Sweep != None {
		t.Errorf("below the share: depth %v", d.Sweep)
	}
	if d := (LiveShare{Share: 0.8}).Decide(s); d.Sweep != Full {
		t.Errorf("above the share: depth %v", d.Sweep)
	}
}
