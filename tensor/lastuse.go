package tensor

import (
	"reflect"
	"sync"

	"github.com/linstock-ml/linstock/internal/handle"
)

// LastUse releases t. "linstock go" inserts calls of it after the last use of a tensor; programs call Release.
// t may be nil. A later use returns ErrReleased with both lines: its own and at.
func (t *Tensor) LastUse(at string) {
	if t == nil || t.h == 0 || t.state.Load()&released != 0 {
		return
	}
	if t.release() {
		t.notes.Or((lastUses.number(at) + 1) << 1) // above noteAsked
	}
}

// LastUseThen is LastUse and returns true. "linstock go" inserts it before the condition of an if statement
// whose header discards t.
func (t *Tensor) LastUseThen(at string) bool {
	t.LastUse(at)
	return true
}

// LastUseUnless is LastUse if t is none of live. "linstock go" inserts it.
func (t *Tensor) LastUseUnless(at string, live ...*Tensor) {
	for _, l := range live {
		if l == t {
			return
		}
	}
	t.LastUse(at)
}

// LastUseUnlessIn is LastUseUnless if t is also not in list, nor beyond its end in its array, where a longer slice may
// hold t. It compares 1,024 elements at most: if there are more, t is left to its scope. "linstock go" inserts it.
func (t *Tensor) LastUseUnlessIn(at string, list []*Tensor, live ...*Tensor) {
	const most = 1024
	if cap(list) > most {
		return
	}
	for i := len(list) - 1; i >= 0; i-- { // the last one is the most likely
		if list[i] == t {
			return
		}
	}
	for _, l := range list[len(list):cap(list)] {
		if l == t {
			return
		}
	}
	t.LastUseUnless(at, live...)
}

// LastUseHold stores t in *temporary if it is none of live, and returns t. "linstock go" inserts it.
func (t *Tensor) LastUseHold(temporary **Tensor, live ...*Tensor) *Tensor {
	if temporary == nil {
		return t
	}
	*temporary = t
	for _, l := range live {
		if l == t {
			*temporary = nil
		}
	}
	return t
}

// LastUseHoldUnless stores t in *temporary if it is none of the operands that LastUseHold has stored in from, forgets those,
// and returns t. "linstock go" inserts it.
func (t *Tensor) LastUseHoldUnless(temporary **Tensor, from ...**Tensor) *Tensor {
	made := t
	for _, p := range from {
		if p == nil {
			continue
		}
		if *p == t {
			made = nil
		}
		*p = nil
	}
	if temporary != nil {
		*temporary = made
	}
	return t
}

// LastUseOf releases the temporaries from which t was computed, except those that are t itself, and returns t.
// "linstock go" inserts it.
func (t *Tensor) LastUseOf(at string, temporaries ...**Tensor) *Tensor {
	for _, p := range temporaries {
		if p == nil {
			continue
		}
		old := *p
		*p = nil
		if old != t {
			old.LastUse(at)
		}
	}
	return t
}

// LastUseAfter releases the temporaries from which result was computed, which holds none of them, and returns result.
// "linstock go" inserts it.
func LastUseAfter[R any](result R, at string, temporaries ...**Tensor) R {
	_ = (*Tensor)(nil).LastUseOf(at, temporaries...)
	return result
}

// LastUseElement releases ts[i], which t is about to replace, unless it is t or another element of ts or of its array after
// it. It returns t. "linstock go" inserts it.
func (t *Tensor) LastUseElement(at string, ts []*Tensor, i int) *Tensor {
	const few = 64 // elements to compare
	if i < 0 || i >= len(ts) || cap(ts) > few {
		return t
	}
	for k, other := range ts[:cap(ts)] {
		if k != i && other == ts[i] {
			return t
		}
	}
	ts[i].LastUseUnless(at, t)
	return t
}

// LastUseLayer records that the method Forward of T, or of *T, borrows its argument and returns a new tensor or the argument,
// as [nn.Layer] requires: nn.Pipe then releases its results as those of the library's layers. "linstock go" inserts it.
//
// [nn.Layer]: https://pkg.go.dev/github.com/linstock-ml/linstock/nn#Layer
func LastUseLayer[T any]() { handle.Borrowing.Store(reflect.TypeFor[T](), true) }

// lastUses numbers the lines that release tensors.
var lastUses useTable

type useTable struct {
	numbers sync.Map // line to number
	mu      sync.Mutex
	lines   []string
}

func (u *useTable) number(line string) uint32 {
	if n, ok := u.numbers.Load(line); ok {
		return n.(uint32)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if n, ok := u.numbers.Load(line); ok {
		return n.(uint32)
	}
	n := uint32(len(u.lines))
	u.lines = append(u.lines, line)
	u.numbers.Store(line, n)
	return n
}

// lastUseLine is the line that released t by LastUse, "" for others.
func (t *Tensor) lastUseLine() string {
	n := t.notes.Load() >> 1
	if n == 0 {
		return ""
	}
	lastUses.mu.Lock()
	defer lastUses.mu.Unlock()
	return lastUses.lines[n-1]
}
