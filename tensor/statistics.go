package tensor

import (
	"sync"

	"github.com/linstock-ml/linstock/cshim"
)

// Statistics count tensors: what was made and freed, inside scopes and outside, and what is live. TorchSharp:
// DisposeScopeManager.Statistics. They cost an operator nothing: what is made inside follows from what is there and
// what has left, and the shim counts handles by thread anyway.
type Statistics struct {
	CreatedInScopes, CreatedOutside   int64
	DisposedInScopes, DisposedOutside int64 // freed
	Attached                          int64 // taken into a scope after they were made (Adopt, MoveOut)
	Detached                          int64 // taken out of a scope alive (Keep, Adopt, MoveOut)
	Swept                             int64 // of DisposedInScopes, those that a sweep found unreachable
	LiveInScopes                      int64
	TotalCount                        int64 // live, everywhere
	PeakCount                         int64 // the most there were at once; up to 64 a thread may be missing
}

// moves are what has come to a scope other than by birth, and what has gone.
type moves struct {
	attached, detached, disposed int64
	tallied                      bool // in the sum of closed scopes
}

// scopeTally sums the scopes that are closed.
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

// statistics are s's; s.mu is held.
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

// Statistics are those of one scope, also after its Close. What concerns tensors outside scopes, and PeakCount, is 0
// there; TotalCount is what is live in the scope.
func (s *Scope) Statistics() Statistics {
	if s == nil {
		return Statistics{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statistics()
}

// detach is forget for a tensor that lives on.
func (s *Scope) detach(t *Tensor) {
	if s.forget(t) {
		s.mu.Lock()
		s.moves.disposed--
		s.moves.detached++
		s.mu.Unlock()
	}
}

// ReadStatistics are those of the process. While other goroutines compute, the figures are of slightly different
// moments.
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
