package tensor

import (
	"sync"

	"github.com/linstock-ml/linstock/cshim"
)

// Statistics counts tensors that were made and freed, inside and outside scopes, and tensors that are live. Counting
// costs an operator nothing: what was made in a scope follows from its entries and removals, and the shim counts
// handles per thread anyway. TorchSharp: DisposeScopeManager.Statistics.
type Statistics struct {
	CreatedInScopes, CreatedOutside   int64
	DisposedInScopes, DisposedOutside int64 // freed
	Attached                          int64 // moved into a scope after they were made (Adopt, MoveOut)
	Detached                          int64 // moved out of a scope (Keep, Adopt, MoveOut)
	Swept                             int64 // those of DisposedInScopes that a sweep found unreachable
	LiveInScopes                      int64
	TotalCount                        int64 // live, inside and outside scopes
	PeakCount                         int64 // highest number live at once; may be too low by up to 64 per thread
}

// moves counts tensors that joined a scope after they were made, and tensors that left one.
type moves struct {
	attached, detached, disposed int64
	tallied                      bool // included in the sum of closed scopes
}

// scopeTally sums the statistics of closed scopes.
type scopeTally struct {
	mu  sync.Mutex
	sum Statistics
}

var tally scopeTally

func (st *scopeTally) closed(s *Scope) {
	st.mu.Lock()
	defer st.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.moves.tallied {
		s.moves.tallied = true
		st.sum.add(s.statistics())
	}
}

func (sum *Statistics) add(one Statistics) {
	sum.CreatedInScopes += one.CreatedInScopes
	sum.DisposedInScopes += one.DisposedInScopes
	sum.Attached += one.Attached
	sum.Detached += one.Detached
	sum.Swept += one.Swept
	sum.LiveInScopes += one.LiveInScopes
}

// statistics returns the statistics of s. s.mu must be held.
func (s *Scope) statistics() Statistics {
	live := int64(len(s.entries))
	for i := range s.weak {
		if !s.weak[i].gone {
			live++
		}
	}
	swept := s.swept.Load()
	disposed := s.moves.disposed + swept
	return Statistics{
		CreatedInScopes: live + disposed + s.moves.detached - s.moves.attached, DisposedInScopes: disposed,
		Attached: s.moves.attached, Detached: s.moves.detached, Swept: swept, LiveInScopes: live, TotalCount: live,
	}
}

// Statistics returns the statistics of the scope, also after Close. Fields about tensors outside scopes, and PeakCount,
// are 0; TotalCount is the number of live tensors in the scope.
func (s *Scope) Statistics() Statistics {
	if s == nil {
		return Statistics{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statistics()
}

// ReadStatistics returns the statistics of the process. While other goroutines compute, the fields are read at slightly
// different times.
func ReadStatistics() Statistics {
	if cshim.Path() == "" {
		return Statistics{}
	}
	tally.mu.Lock()
	sum := tally.sum
	scopes.each(func(s *Scope) {
		s.mu.Lock()
		if !s.moves.tallied {
			sum.add(s.statistics())
		}
		s.mu.Unlock()
	})
	tally.mu.Unlock()
	m, err := cshim.MemoryStats(cpuWord)
	if err != nil {
		return sum
	}
	sum.TotalCount, sum.PeakCount = m.Handles, m.MostHandles
	sum.CreatedOutside = max(0, m.Created-sum.CreatedInScopes)
	sum.DisposedOutside = max(0, m.Created-m.Handles-sum.DisposedInScopes)
	return sum
}

const cpuWord = 0xff
