package tensor

import (
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// Scope owns the tensors that its goroutine makes while it is the innermost one, and frees them when it
// closes. Scopes nest and are dynamic, like "with torch.no_grad()": what a called function makes is in it too.
// A goroutine with an open scope holds its OS thread.
type Scope struct {
	word   uint64 // this scope on its thread; see scopeTable
	parent uint64
	site   uint32 // where it was opened, plus one; 0: not noted

	mu      sync.Mutex
	entries []*Tensor
	weak    []weakEntry // during a sweep: the entries from before it, whose slots come first
	closed  bool
	errs    []*failure // that operators met in here; those that somebody has looked at are dropped

	swept atomic.Int64 // tensors that sweeps have freed
	moves moves        // what else has come and gone, under mu
}

// marker is the scope word of a thread that is held without a scope (by NoGrad, say). joined is set in the word of a
// thread that has joined a scope of another goroutine's.
const (
	marker = 1 << 63
	joined = 1 << 61
	flags  = cshim.ScopeSampled | cshim.ScopeLong // what the shim adds
)

// String says how many tensors the scope owns.
func (s *Scope) String() string {
	if s == nil {
		return "no scope"
	}
	return "scope of " + strconv.Itoa(s.Len()) + " tensors"
}

// NewScope opens a scope on this goroutine; Close it on the same goroutine:
//
//	scope, err := tensor.NewScope()
//	if err != nil {
//		return err
//	}
//	defer scope.Close()
//
// WithScope does both. The error is ErrScope where more goroutines hold scopes than SetMaxScopedGoroutines
// allows.
func NewScope() (*Scope, error) {
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	// All before others can find it: a sweep may look at once.
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

// holdThread locks the goroutine to its thread and sets the thread's scope word; letThread undoes it.
func holdThread(word uint64) (before uint64, err error) {
	leaveMainThread()
	runtime.LockOSThread()
	before = cshim.ScopeSet(word)
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

func letThread(before uint64) {
	cshim.ScopeSet(before)
	if before == 0 {
		held.Add(-1)
	}
	runtime.UnlockOSThread()
}

// opened counts scopes: one of 64 notes where it was opened, all of them under LINSTOCK_DEBUG=alloc.
var opened atomic.Uint64

var held, maxHeld atomic.Int64

func init() { maxHeld.Store(1000) }

// SetMaxScopedGoroutines bounds how many goroutines may hold scopes at once, 1,000 by default; each holds an OS
// thread, of which the Go runtime allows 10,000 before it ends the process. It returns the bound before.
func SetMaxScopedGoroutines(n int) int { return int(maxHeld.Swap(int64(max(1, n)))) }

// Close frees the scope's tensors and gives the thread back. It returns the first error that an operator met
// inside and that nobody has looked at. A second Close does nothing. Scopes opened inside and left open are
// closed too. On another goroutine than the one that opened the scope it does nothing and returns ErrScope.
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
	now := cshim.ScopeGet()
	if now != s.word {
		if !s.encloses(now) {
			return refused("Close", ErrScope, "the scope was opened on another goroutine%s", at(s.site))
		}
		for inner := scopeOf(now); inner != nil && inner != s; inner = scopeOf(cshim.ScopeGet()) {
			inner.end()
		}
	}
	return s.end()
}

// encloses says whether s is among the scopes around the one that word names.
func (s *Scope) encloses(word uint64) bool {
	for word&joined == 0 {
		in := scopeOf(word)
		if in == nil || in == s {
			return in == s
		}
		word = in.parent
	}
	return false
}

func (s *Scope) end() error {
	err := s.releaseAll(true)
	tally.closed(s)
	scopes.leave(s.word)
	letThread(s.parent)
	if pending.waiting() {
		pending.settle()
	}
	forgetDropped()
	return err
}

// releaseAll frees every entry, in one crossing for all that no operator pins.
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
	// Last made, first freed, as a stack unwinds: what views and graphs hang on goes before what they hang on.
	for i := len(entries) - 1; i >= 0; i-- {
		t := entries[i]
		if t.inScope() != s {
			continue
		}
		// Almost always nobody pins it: one atomic operation instead of two.
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

// add makes t the scope's; false when the scope is closed.
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

// addNew is add for a tensor that was born with s as its owner.
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

// forget takes t out of the scope; false when it was not in it.
func (s *Scope) forget(t *Tensor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.inScope() != s {
		return false
	}
	at := int(t.slot)
	if at < len(s.weak) {
		if s.weak[at].gone || s.weak[at].t.Value() != t {
			return false
		}
		s.weak[at].gone = true
		t.setScope(nil)
		s.moves.disposed++
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
	t.setScope(nil)
	s.moves.disposed++
	return true
}

func (s *Scope) remember(f *failure) {
	s.mu.Lock()
	if len(s.errs) == rememberedErrors {
		s.errs = slices.DeleteFunc(s.errs, func(old *failure) bool { return old.seen.Load() })
	}
	if len(s.errs) < rememberedErrors {
		s.errs = append(s.errs, f)
	}
	s.mu.Unlock()
}

// rememberedErrors bounds what a scope holds of errors that nobody looks at: the first is what Close returns.
const rememberedErrors = 16

// Len is how many tensors the scope owns.
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

// Contains says whether t is among the scope's tensors, those that its Close frees.
func (s *Scope) Contains(t *Tensor) bool {
	if s == nil || t == nil || t.inScope() != s {
		return false
	}
	s.mu.Lock()
	in := s.holds(t)
	s.mu.Unlock()
	return in
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

// ReleaseExcept frees the scope's tensors but those given, which stay in it; the scope stays open. It may be called on
// any goroutine.
func (s *Scope) ReleaseExcept(keep ...*Tensor) error {
	if s == nil {
		return refused("ReleaseExcept", ErrNil, "a scope is needed, got nil")
	}
	kept := make(map[*Tensor]bool, len(keep))
	for _, t := range keep {
		kept[t] = true
	}
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
		// One that has gone to another scope meanwhile is not ours to free.
		if t := all[i]; !kept[t] && t.inScope() == s {
			t.Release()
		}
	}
	entriesPool.put(all)
	return nil
}

// Join runs f on this goroutine inside a scope that another has opened: what f makes belongs to it. Close stays with
// the goroutine that opened it; once it has closed, what f still makes is outside of all scopes.
func (s *Scope) Join(f func() error) error {
	if s == nil {
		return refused("Join", ErrNil, "a scope is needed, got nil")
	}
	if f == nil {
		return refused("Join", ErrArgument, "a function is needed, got nil")
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
		// Scopes that f has opened and left open.
		for now := cshim.ScopeGet(); now != word; now = cshim.ScopeGet() {
			inner := scopeOf(now)
			if inner == nil {
				break
			}
			_ = inner.end()
		}
		letThread(before)
	}()
	return f()
}

// Adopt makes tensors this scope's, out of whatever scope they are in, and returns the first error among
// them. What is already released is refused.
func (s *Scope) Adopt(ts ...*Tensor) error {
	if s == nil {
		return refused("Adopt", ErrNil, "a scope is needed, got nil")
	}
	for _, t := range ts {
		if err := t.moveTo("Adopt", s); err != nil {
			return err
		}
	}
	return nil
}

// moveTo takes t out of its scope and into another; nil is none.
func (t *Tensor) moveTo(op string, to *Scope) error {
	if !t.pin() {
		return unusable(op, t)
	}
	defer t.unpin()
	if from := t.inScope(); from == to {
		return nil
	} else if from != nil {
		from.detach(t)
	}
	if to != nil {
		if !to.add(t) {
			t.attach()
			return refused(op, ErrScope, "the scope is closed")
		}
		return nil
	}
	t.attach()
	return nil
}

// Keep takes t out of all scopes and returns it: it lives until Release, or until nobody can reach it.
func (t *Tensor) Keep() *Tensor {
	if err := t.moveTo("Keep", nil); err != nil {
		return passOn("Keep", t)
	}
	return t
}

// MoveOut takes t one scope outward and returns it; from an outermost scope, out of all.
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

// WithScope runs f in a scope of its own and closes it, also when f panics. It returns f's error, or else the
// first error of an operator inside that nobody has looked at.
func WithScope(f func() error) (err error) {
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

// Tidy runs f in a scope of its own and frees all that f made but its result, which moves one scope outward.
// PyTorch frees temporaries at their last use; this is how a function that makes many of them keeps as low a
// peak.
func Tidy(f func() *Tensor) *Tensor {
	s, err := NewScope()
	if err != nil {
		return failed(err)
	}
	defer s.Close()
	t := f()
	// What f returns without having made it stays where it is, and what failed is nowhere.
	if t != nil && t.inScope() == s {
		t.MoveOut()
	}
	return t
}

// TidyAll is Tidy for several results.
func TidyAll(f func() ([]*Tensor, error)) ([]*Tensor, error) {
	s, err := NewScope()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	ts, err := f()
	for _, t := range ts {
		if t != nil && t.inScope() == s {
			t.MoveOut()
		}
	}
	return ts, err
}

// CurrentScope is this goroutine's innermost scope; nil where there is none.
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

// scopeTable finds a scope by its word, which is all that C can hold: the slot in the low 32 bits, plus one,
// and above it a count that tells a slot's users apart.
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
	tab.count = (tab.count + 1) & 0x1fffffff // the top bits are marker's, the shim's and joined's
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

// each calls f with every open scope.
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

// scopeOf is the open scope that a word names, or nil.
func scopeOf(word uint64) *Scope {
	if word&^(marker|joined|flags) == 0 {
		return nil
	}
	slot := uint32(word) - 1
	chunk := scopes.chunks[slot/128].Load()
	if chunk == nil {
		return nil
	}
	if s := chunk[slot%128].Load(); s != nil && s.word == word&^(joined|flags) {
		return s
	}
	return nil
}

// reapOrphans closes the scopes of goroutines that ended without closing them: the runtime ends their threads,
// and the shim notices.
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
				_ = s.releaseAll(true) // its goroutine is gone, and who would be told with it
				tally.closed(s)
				scopes.leave(s.word)
			}
		}
		if n < len(words) {
			return
		}
	}
}

// entriesPool keeps the entry lists of closed scopes: a training step's list is as long as the one before.
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
