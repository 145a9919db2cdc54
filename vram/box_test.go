package vram

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/balance"
)

// shared is a user's policy with a time budget that wraps others.
type shared struct {
	share float64
	list  []Policy
}

func (shared) Decide(State) Decision { return Decision{} }
func (p shared) TimeShare() float64  { return p.share }
func (p shared) Wrapped() []Policy   { return p.list }

// The settings of a policy count wherever it is wrapped, also in a user's policy.
func TestSettingsOfWrappedPolicies(t *testing.T) {
	balance.Hold(t, func() {})
	for _, c := range []struct {
		p     Policy
		every int64
		share float64
	}{
		{Paced{}, 0, 0.05},
		{Paced{Share: 0.2}, 0, 0.2},
		{Paced{Share: -1}, 0, 0},
		{Paced{Share: 7}, 0, 1},
		{Off{}, 0, 0.05},
		{Any{}, 0, 0.05},
		{Any{nil, Off{}}, 0, 0.05},
		{LiveShare{}, 100, 0.05},
		{Threshold{Else: LiveShare{Operators: 7, Else: Paced{Share: 0.1}}}, 7, 0.1},
		{Any{LiveShare{Operators: 9}, Rates{Else: LiveShare{Operators: 8}}}, 8, 0.05},
		{shared{0.3, []Policy{LiveShare{Operators: 3}}}, 3, 0.3},
		{Any{Paced{}, shared{0.3, nil}}, 0, 0.3},
	} {
		if box := boxOf(c.p); box.every != c.every || box.share != c.share {
			t.Errorf("%#v: %d operators, a share of %v; want %d, %v", c.p, box.every, box.share, c.every, c.share)
		}
	}
}
