package tensor

import (
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// Scope owns the tensors that its goroutine makes while it is the innermost open scope, and frees them when it closes.
// Scopes nest and are dynamic, like Python's "with" statement: a scope also owns the tensors that called functions
// make. [Tensor.Keep] and [Tensor.MoveOut] take a tensor out of its scope. A goroutine with an open scope is locked to
// its OS thread.
type Scope struct {
	word   uint64 // identifies the scope on its thread; see scopeTable
	parent uint64
	site   uint32 // call site of NewScope, plus one; 0 if not recorded

	mu      sync.Mutex
	entries []*Tensor
	weak    []weakEntry // during a sweep: the entries from before it, which have the first slots
	closed  bool
	errs    []*failure // of operators in the scope; errors that the program has read are removed

	swept atomic.Int64 // number of tensors that sweeps have freed
	moves moves        // other additions and removals; guarded by mu
}

// marker is the scope word of a thread that is locked without a scope, for example by NoGrad. joined is set in the word
// of a thread that has joined a scope of another goroutine.
const (
	marker = 1 << 63
	joined = 1 << 61
)

// String returns the number of tensors that the scope owns, as text.
func (s *Scope) String() string {
	if s == nil {
		return "no scope"
	}
	return "scope of " + strconv.Itoa(s.Len()) + " tensors"
}

// NewScope opens a scope on this goroutine. Close it on the same goroutine:
//
//	scope, err := tensor.NewScope()
//	if err != nil {
//		return err
//	}
//	defer scope.Close()
//
// WithScope does both. The error is ErrScope if more goroutines have open scopes than SetMaxScopedGoroutines allows.
func NewScope() (*Scope, error) {
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	// Initialize the scope before publishing it: a sweep may read it at once.
	s := &Scope{entries: entriesPool.get()}
	if debugAlloc || opened.Add(1)%64 == 1 {
		s.site = sites.Here() + 1
	}
	if err := scopes.enter(s); err != nil {
		return nil, err
	}
	before, err := holdThread(s.word)
	if err != nil {
		scopes.leave(s.word)
		return nil, err
	}
	s.parent = before
	return s, nil
}

// holdThread locks the goroutine to its thread, preferably not the main one, and sets the thread's scope word. leave and
// letThread undo it.
func holdThread(word uint64) (before uint64, err error) {
	for tries := 0; ; tries++ {
		runtime.LockOSThread()
		if before = cshim.ScopeSet(word); before != cshim.ScopeMain {
			break
		}
		if tries == triesToLeave {
			before = 0
			break
		}
		cshim.ScopeSet(0)
		runtime.UnlockOSThread()
		leaveMainThread()
	}
	if before == 0 {
		n := held.Add(1)
		if n > maxHeld.Load() || n%256 == 0 {
			reapOrphans()
		}
		if held.Load() > maxHeld.Load() {
			held.Add(-1)
			cshim.ScopeSet(before)
			runtime.UnlockOSThread()
			return 0, refused("NewScope", ErrScope, "%d goroutines hold scopes already, and each holds an OS thread; "+
				"bound how many compute at once (a semaphore, a worker pool), or raise SetMaxScopedGoroutines", n-1)
		}
	}
	return before, nil
}

// leave sets the thread's scope word, which usually is word, to the one before. It reports whether the goroutine should
// yield.
func leave(word, before uint64) (yield bool) {
	now := cshim.ScopeLeave(word, before)
	if now&^cshim.ScopeYield != word {
		now = cshim.ScopeLeave(now, before)
	}
	return now&cshim.ScopeYield != 0
}

// letThread unlocks the goroutine after leave. The goroutine counts as one that holds a thread until then, also while it
// yields.
func letThread(before uint64, yield bool) {
	if yield {
		runtime.Gosched() // while the goroutine is locked to its thread: docs/decisions/0046-yield.md
	}
	if before == 0 {
		held.Add(-1)
	}
	runtime.UnlockOSThread()
}

// opened counts scopes. One scope in 64 records where it was opened, or all of them with LINSTOCK_DEBUG=alloc.
var opened atomic.Uint64

var held, maxHeld atomic.Int64

func init() { maxHeld.Store(1000) }

// SetMaxScopedGoroutines limits how many goroutines may have open scopes at once, 1,000 by default, and returns the
// previous limit. Each such goroutine occupies an OS thread, and the Go runtime ends the process at 10,000 threads.
func SetMaxScopedGoroutines(n int) int { return int(maxHeld.Swap(int64(max(1, n)))) }

// Close frees the scope's tensors and unlocks the goroutine from its thread. It returns the first error of an operator
// in the scope that the program has not read. It also closes scopes that were opened inside and not closed. A second
// Close does nothing. On a goroutine other than the one that opened the scope, Close does nothing and returns ErrScope.
func (s *Scope) Close() error {
	if s == nil {
		return refused("Close", ErrNil, "a scope is needed, got nil")
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil
	}
	if err := s.unmade("Close"); err != nil {
		return err
	}
	now := cshim.ScopeLeave(s.word, s.parent)
	yield := now&cshim.ScopeYield != 0
	var inside error
	if now &^= cshim.ScopeYield; now != s.word {
		if !s.encloses(now, joined) {
			return refused("Close", ErrScope, "this goroutine did not open the scope, or joins it, or has left the call that opened it%s", at(s.site))
		}
		inside = endInner(s.word)
		yield = leave(s.word, s.parent)
	}
	if err := s.end(yield); inside == nil {
		return err
	}
	return inside
}

// unmade returns an error for a Scope literal.
func (s *Scope) unmade(op string) error {
	if s.word == 0 {
		return refused(op, ErrScope, "NewScope did not make the scope")
	}
	return nil
}

// endInner ends the scopes that were opened inside the one with the given word and not closed. It returns their first error.
func endInner(word uint64) (first error) {
	for now := cshim.ScopeGet() &^ cshim.ScopeFlags; now != word; now = cshim.ScopeGet() &^ cshim.ScopeFlags {
		inner := scopeOf(now)
		if inner == nil {
			break
		}
		if err := inner.end(leave(inner.word, inner.parent)); first == nil {
			first = err
		}
	}
	return first
}

// encloses reports whether s is one of the scopes that enclose the scope identified by word, without those beyond a word
// with one of the bits of until.
func (s *Scope) encloses(word, until uint64) bool {
	for word&until == 0 {
		in := scopeOf(word)
		if in == nil || in == s {
			return in == s
		}
		word = in.parent
	}
	return false
}

// end ends a scope that the thread has left.
func (s *Scope) end(yield bool) error {
	err := s.releaseAll(true)
	tally.closed(s)
	scopes.leave(s.word)
	letThread(s.parent, yield)
	if pending.waiting() {
		pending.settle()
	}
	forgetDropped()
	return err
}

// releaseAll frees every entry, in one native call for all that no operator pins.
func (s *Scope) releaseAll(closing bool) error {
	defer reclaim.FreesEnd(reclaim.FreesBegin())
	s.mu.Lock()
	entries, errs := s.entries, s.errs
	s.entries, s.errs = nil, nil
	if s.weak != nil {
		live, dead := s.drainWeak()
		entries = append(live, entries...)
		s.moves.disposed += int64(len(dead))
		cshim.TensorsFree(dead)
	}
	s.closed = s.closed || closing
	s.moves.disposed += int64(len(entries))
	s.mu.Unlock()
	var batch [64]cshim.Handle
	n := 0
	// Free in reverse order of creation, so that views and graphs are freed before the tensors they refer to.
	for i := len(entries) - 1; i >= 0; i-- {
		t := entries[i]
		// Usually the tensor is not pinned. Then this takes one atomic operation instead of two.
		var h cshim.Handle
		if t.state.CompareAndSwap(0, released|freed) {
			h = t.owned()
		} else {
			t.state.Or(released)
			h = t.takeHandle()
		}
		if h != 0 {
			batch[n] = h
			if n++; n == len(batch) {
				cshim.TensorsFree(batch[:n])
				n = 0
			}
		}
	}
	cshim.TensorsFree(batch[:n])
	entriesPool.put(entries)
	for _, f := range errs {
		if !f.seen.Load() {
			return f.take()
		}
	}
	return nil
}

// add makes s the owner of t. It returns false if the scope is closed.
func (s *Scope) add(t *Tensor) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	t.setScope(s)
	s.moves.attached++
	s.enter(t)
	s.mu.Unlock()
	return true
}

// addNew is add for a new tensor that already has s as its owner.
func (s *Scope) addNew(t *Tensor) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	s.enter(t)
	s.mu.Unlock()
	return true
}

func (s *Scope) enter(t *Tensor) {
	t.slot = int32(len(s.weak) + len(s.entries))
	s.entries = append(s.entries, t)
}

// forget removes t from the scope. It returns false if the scope does not own t.
func (s *Scope) forget(t *Tensor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.inScope() != s || !s.remove(t) {
		return false
	}
	t.setScope(nil)
	s.moves.disposed++
	return true
}

// give takes t from the scope for moveTo, in transit. It returns false if the scope does not own t any more. A scope that
// owns t but has no entry for it has taken it off its list to release it: give then releases it.
func (s *Scope) give(t *Tensor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.inScope() != s {
		return false
	}
	if !s.remove(t) {
		t.state.Or(released)
		return false
	}
	s.moves.detached++
	t.setScope(&transit)
	return true
}

// remove removes t from the entries. It returns false if it is not among them. s.mu is held.
func (s *Scope) remove(t *Tensor) bool {
	at := int(t.slot)
	if at < len(s.weak) {
		if s.weak[at].gone || s.weak[at].t.Value() != t {
			return false
		}
		s.weak[at].gone = true
		return true
	}
	if at -= len(s.weak); at >= len(s.entries) || s.entries[at] != t {
		return false
	}
	last := len(s.entries) - 1
	moved := s.entries[last]
	s.entries[at], moved.slot = moved, t.slot
	s.entries[last] = nil
	s.entries = s.entries[:last]
	return true
}

// transit is the owner of a tensor while it moves: only one goroutine at a time moves a tensor.
var transit Scope

func (s *Scope) remember(f *failure) {
	s.mu.Lock()
	if len(s.errs) == rememberedErrors {
		s.errs = slices.DeleteFunc(s.errs, func(old *failure) bool { return old.seen.Load() })
	}
	if len(s.errs) < rememberedErrors {
		s.errs = append(s.errs, f)
	} else {
		s.errs[rememberedErrors-1] = f
	}
	s.mu.Unlock()
}

// rememberedErrors limits how many unread errors a scope keeps: the first ones and the last. Close returns the first.
const rememberedErrors = 16

// Len returns the number of tensors that the scope owns.
func (s *Scope) Len() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.entries)
	for i := range s.weak {
		if !s.weak[i].gone {
			n++
		}
	}
	return n
}

// Contains reports whether the scope owns t, that is, whether Close frees it.
func (s *Scope) Contains(t *Tensor) bool {
	if s == nil || t == nil || t.inScope() != s {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.inScope() == s && s.holds(t) // t may have moved: its slot is then guarded by another scope's lock
}

func (s *Scope) holds(t *Tensor) bool {
	at := int(t.slot)
	if at < len(s.weak) {
		return !s.weak[at].gone && s.weak[at].t.Value() == t
	}
	at -= len(s.weak)
	return at < len(s.entries) && s.entries[at] == t
}

// ReleaseAll frees the scope's tensors now; the scope stays open.
func (s *Scope) ReleaseAll() error { return s.ReleaseExcept() }

// ReleaseExcept frees all tensors of the scope except those given; the scope stays open. It may be called on any
// goroutine.
func (s *Scope) ReleaseExcept(keep ...*Tensor) error {
	if s == nil {
		return refused("ReleaseExcept", ErrNil, "a scope is needed, got nil")
	}
	if err := s.unmade("ReleaseExcept"); err != nil {
		return err
	}
	kept := make(map[*Tensor]bool, len(keep))
	for _, t := range keep {
		kept[t] = true
	}
	defer reclaim.FreesEnd(reclaim.FreesBegin())
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return refused("ReleaseExcept", ErrScope, "the scope has closed%s", at(s.site))
	}
	all := s.entries
	var dead []cshim.Handle
	if s.weak != nil {
		var live []*Tensor
		live, dead = s.drainWeak()
		all = append(live, all...)
	}
	s.entries = entriesPool.get()
	for _, t := range all {
		if kept[t] {
			s.enter(t)
		}
	}
	s.moves.disposed += int64(len(dead) + len(all) - len(s.entries))
	s.mu.Unlock()
	cshim.TensorsFree(dead)
	for i := len(all) - 1; i >= 0; i-- {
		if t := all[i]; !kept[t] {
			t.Release()
		}
	}
	entriesPool.put(all)
	return nil
}

// Join runs f on this goroutine inside a scope that another goroutine opened: the scope owns the tensors that f makes.
// Only the goroutine that opened the scope can close it. Tensors that f makes after that belong to no scope.
func (s *Scope) Join(f func() error) (err error) {
	if s == nil {
		return refused("Join", ErrNil, "a scope is needed, got nil")
	}
	if f == nil {
		return refused("Join", ErrArgument, "a function is needed, got nil")
	}
	if err := s.unmade("Join"); err != nil {
		return err
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return refused("Join", ErrScope, "the scope has closed%s", at(s.site))
	}
	word := s.word | joined
	before, err := holdThread(word)
	if err != nil {
		return err
	}
	defer func() {
		if inside := endInner(word); err == nil {
			err = inside
		}
		letThread(before, leave(word, before))
	}()
	return f()
}

// Adopt moves tensors from their scopes to s, and returns the first of their errors. A released tensor is an error.
func (s *Scope) Adopt(ts ...*Tensor) error {
	if s == nil {
		return refused("Adopt", ErrNil, "a scope is needed, got nil")
	}
	if err := s.unmade("Adopt"); err != nil {
		return err
	}
	for _, t := range ts {
		if err := t.moveTo("Adopt", s); err != nil {
			return err
		}
	}
	return nil
}

// moveTo moves t from its scope to another one, or to none if to is nil.
func (t *Tensor) moveTo(op string, to *Scope) error {
	if !t.pin() {
		return unusable(op, t)
	}
	defer t.unpin()
	for ours := false; !ours; {
		switch from := (*Scope)(atomic.LoadPointer(&t.owner)); from {
		case &transit:
			runtime.Gosched()
		case to:
			return nil
		case nil:
			ours = atomic.CompareAndSwapPointer(&t.owner, nil, unsafe.Pointer(&transit))
		default:
			if ours = from.give(t); !ours && t.state.Load()&released != 0 {
				return unusable(op, t)
			}
		}
	}
	added := to != nil && to.add(t)
	if !added {
		t.attach()
		t.setScope(nil)
	}
	switch {
	case t.state.Load()&released != 0: // release saw no scope, or this one
		if added {
			to.forget(t)
		}
		return unusable(op, t)
	case to != nil && !added:
		return refused(op, ErrScope, "the scope is closed")
	}
	return nil
}

// Keep removes t from all scopes and returns it. It then lives until Release, or until it becomes unreachable. If t is
// failed, released or nil, the result is a failed tensor.
func (t *Tensor) Keep() *Tensor {
	if t.handle() == 0 || t.moveTo("Keep", nil) != nil {
		return passOn("Keep", t)
	}
	return t
}

// MoveOut moves t to the enclosing scope and returns it. From an outermost scope it moves t out of all scopes. A t in
// no scope, which a failed tensor is, is returned as it is.
func (t *Tensor) MoveOut() *Tensor {
	if t == nil {
		return passOn("MoveOut", t)
	}
	s := t.inScope()
	if s == nil {
		return t
	}
	if err := t.moveTo("MoveOut", scopeOf(s.parent)); err != nil {
		return passOn("MoveOut", t)
	}
	return t
}

// WithScope runs f in a scope and closes the scope, also if f panics. It returns the error of f, or otherwise the first
// error of an operator in the scope that the program has not read.
func WithScope(f func() error) (err error) {
	if f == nil {
		return refused("WithScope", ErrNil, "a function is needed, got nil")
	}
	s, err := NewScope()
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := s.Close(); err == nil {
			err = closeErr
		}
	}()
	return f()
}

// Tidy runs f in a scope, moves its result to the enclosing scope, and frees everything else that f made. PyTorch frees
// temporaries after their last use; a function with many temporaries uses Tidy to reach a similar peak of memory. Errors that
// the program has not read become the enclosing scope's; without one, the result is a failed tensor.
func Tidy(f func() *Tensor) (t *Tensor) {
	if f == nil {
		return failed(refused("Tidy", ErrNil, "a function is needed, got nil"))
	}
	s, err := NewScope()
	if err != nil {
		return failed(err)
	}
	made := false // t is f's own
	defer func() {
		parent := scopeOf(s.parent)
		if t != nil && t.fail != nil { // it stands for the errors that led to it
			s.handOver(parent, t.fail)
			_ = s.Close()
			return
		}
		if parent != nil {
			s.handOver(parent)
		}
		switch err := s.Close(); {
		case err == nil:
		case parent != nil:
			parent.remember(&failure{err: err})
		default:
			if made {
				t.Release()
			}
			t = failed(err)
		}
	}()
	t = f()
	made = s.moveOut(t)
	return t
}

// moveOut moves a result out of s, if s owns it or a scope that was opened in s and not closed, and reports whether it has.
// Other results stay in their scopes, and a failed tensor is in none.
func (s *Scope) moveOut(t *Tensor) bool {
	if t == nil {
		return false
	}
	in := t.inScope()
	return (in == s || in != nil && s.encloses(in.word, joined)) && t.moveTo("MoveOut", scopeOf(s.parent)) == nil
}

// handOver gives errors, or all of s if none are given, to the parent, which may be nil: the caller of TidyAll has them.
func (s *Scope) handOver(parent *Scope, only ...*failure) {
	var errs []*failure
	s.mu.Lock()
	s.errs = slices.DeleteFunc(s.errs, func(f *failure) bool {
		mine := only == nil || slices.Contains(only, f)
		if mine && !f.seen.Load() {
			errs = append(errs, f)
		}
		return mine
	})
	s.mu.Unlock()
	for _, f := range errs {
		if parent != nil {
			parent.remember(f)
		}
	}
}

// TidyAll is Tidy for several results. It returns the error of f, or otherwise the first error of an operator in f that the
// program has not read.
func TidyAll(f func() ([]*Tensor, error)) (ts []*Tensor, err error) {
	if f == nil {
		return nil, refused("TidyAll", ErrNil, "a function is needed, got nil")
	}
	s, err := NewScope()
	if err != nil {
		return nil, err
	}
	bad := false // a failed result stands for the errors that led to it
	defer func() {
		if closeErr := s.Close(); err == nil && !bad {
			err = closeErr
		}
	}()
	ts, err = f()
	for _, t := range ts {
		s.moveOut(t)
		if t != nil && t.fail != nil {
			bad = true
			s.handOver(scopeOf(s.parent), t.fail)
		}
	}
	return ts, err
}

// CurrentScope returns this goroutine's innermost scope, or nil if there is none.
func CurrentScope() *Scope {
	if cshim.Load() != nil {
		return nil
	}
	return currentScope()
}

func currentScope() *Scope {
	if cshim.Path() == "" {
		return nil
	}
	return scopeOf(cshim.ScopeGet())
}

// scopeTable finds a scope by its word, which is all that C can hold: the low 32 bits are the slot plus one, and the
// bits above are a count that distinguishes successive scopes in the slot.
type scopeTable struct {
	mu     sync.Mutex
	chunks [128]atomic.Pointer[[128]atomic.Pointer[Scope]]
	free   []uint32
	used   uint32
	count  uint32
}

var scopes scopeTable

func (tab *scopeTable) enter(s *Scope) error {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	var slot uint32
	if n := len(tab.free); n > 0 {
		slot = tab.free[n-1]
		tab.free = tab.free[:n-1]
	} else {
		slot = tab.used
		if slot == 128*128 {
			return refused("NewScope", ErrScope, "%d scopes are open", slot)
		}
		if slot%128 == 0 {
			tab.chunks[slot/128].Store(new([128]atomic.Pointer[Scope]))
		}
		tab.used++
	}
	tab.count = (tab.count + 1) & 0x07ffffff // the top bits are used by marker, joined and the shim
	s.word = uint64(tab.count)<<32 | uint64(slot+1)
	tab.chunks[slot/128].Load()[slot%128].Store(s)
	return nil
}

func (tab *scopeTable) leave(word uint64) {
	slot := uint32(word) - 1
	tab.mu.Lock()
	tab.chunks[slot/128].Load()[slot%128].Store(nil)
	tab.free = append(tab.free, slot)
	tab.mu.Unlock()
}

// each calls f for every open scope.
func (tab *scopeTable) each(f func(*Scope)) {
	tab.mu.Lock()
	used := tab.used
	tab.mu.Unlock()
	for slot := range used {
		if s := tab.chunks[slot/128].Load()[slot%128].Load(); s != nil {
			f(s)
		}
	}
}

// scopeOf returns the open scope that word identifies, or nil.
func scopeOf(word uint64) *Scope {
	if word&^(marker|joined|cshim.ScopeFlags) == 0 {
		return nil
	}
	slot := uint32(word) - 1
	chunk := scopes.chunks[slot/128].Load()
	if chunk == nil {
		return nil
	}
	if s := chunk[slot%128].Load(); s != nil && s.word == word&^(joined|cshim.ScopeFlags) {
		return s
	}
	return nil
}

// reapOrphans closes the scopes of goroutines that ended without closing them. The runtime ends the threads of such
// goroutines, and the shim detects it.
func reapOrphans() {
	var words [32]uint64
	for {
		n := cshim.ScopeOrphans(words[:])
		for _, word := range words[:n] {
			held.Add(-1)
			for word&joined == 0 {
				s := scopeOf(word)
				if s == nil {
					break
				}
				word = s.parent
				_ = s.releaseAll(true) // the goroutine has ended, so there is nowhere to return the errors
				tally.closed(s)
				scopes.leave(s.word)
			}
		}
		if n < len(words) {
			return
		}
	}
}

// entriesPool reuses the entry lists of closed scopes: the lists of successive training steps have the same length.
type entriesList struct{ pool sync.Pool }

var entriesPool entriesList

func (p *entriesList) get() []*Tensor {
	if e, ok := p.pool.Get().(*[]*Tensor); ok {
		return (*e)[:0]
	}
	return make([]*Tensor, 0, 32)
}

func (p *entriesList) put(e []*Tensor) {
	if cap(e) == 0 || cap(e) > 1<<16 {
		return
	}
	clear(e[:cap(e)])
	e = e[:0]
	p.pool.Put(&e)
}
