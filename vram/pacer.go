package vram

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// account is what Go knows of one device.
type account struct {
	word int32

	mu       sync.Mutex
	budget   int64
	percent  int
	capacity int64
	reach    int64 // live after the last sweep
	highest  int64 // the highest reach of late
	summit   int64 // the highest of late of what a sweep for a block has left, and the block
	ahead    int64 // the largest small block of late that would have passed the summit
	total    int64 // given out, at the end of the last sweep
	begun    int64 // and when its collection began
	met      int64 // live then
	next     int64 // the largest block of late
	waits    int64 // live bytes past which an allocation waits

	peakOther int64 // Memory.PeakOther

	follows atomic.Bool // the limit follows the cgroups
	calm    atomic.Bool // so little is live that nothing is due before the trigger
}

var accounts struct {
	mu   sync.RWMutex
	cpu  account
	list atomic.Pointer[[]*account]
}

func init() {
	accounts.cpu = account{word: cpuWord, percent: 100}
	accounts.list.Store(&[]*account{&accounts.cpu})
	cshim.OnLoad(start)
}

// known are the devices that have been used or set.
func known() []*account { return *accounts.list.Load() }

func accountOf(word int32) *account {
	for _, a := range known() {
		if a.word == word {
			return a
		}
	}
	accounts.mu.Lock()
	defer accounts.mu.Unlock()
	for _, a := range known() {
		if a.word == word {
			return a
		}
	}
	list := append(append([]*account{}, known()...), &account{word: word, percent: accounts.cpu.percent})
	accounts.list.Store(&list)
	return list[len(list)-1]
}

// counts are of the whole process.
var counts struct {
	sweeps                      [Deep + 1]atomic.Int64
	freed, sweeping, collecting atomic.Int64 // bytes; nanoseconds
	asked, rounds               atomic.Int64
	waits, waiting, overdue     atomic.Int64 // of operators before they begin; those within them are the shim's
	classes                     [len(Counts{}.waits)]atomic.Int64
}

type policyBox struct {
	Policy
	every int64 // operators between two questions; 0: only when bytes have grown
	paced bool  // Paced is it, or wrapped in it: allocations wait at its line
}

// boxOf looks through what a policy wraps.
func boxOf(p Policy) *policyBox {
	box := &policyBox{Policy: p}
	for q := range wrapped(p) {
		if c, ok := q.(Counting); ok {
			if n := int64(c.EveryOperators()); n > 0 && (box.every == 0 || n < box.every) {
				box.every = n
			}
		}
		if _, ok := q.(Paced); ok {
			box.paced = true
		}
	}
	return box
}

// use puts a policy in force, with the share of time that its Paced may spend.
func use(p Policy) (before *policyBox) {
	share := defaultShare
	for q := range wrapped(p) {
		if q, ok := q.(Paced); ok && q.Share != 0 {
			share = min(max(q.Share, 0), 1)
			break
		}
	}
	before = policy.Swap(boxOf(p))
	time5.empty()
	time5.earn(share)
	return before
}

var (
	policy  atomic.Pointer[policyBox]
	counted atomic.Int64 // operators, where the policy counts them
)

func init() {
	policy.Store(boxOf(Paced{}))
	reclaim.Boundary = func() { boundary(false) }
	reclaim.BeforeBackward, reclaim.AfterBackward = beforeBackward, afterBackward
	reclaim.Relieve = relieve
	reclaim.OutOfMemory = outOfMemory
}

// SetPolicy changes when sweeps are due and returns the policy before; nil is [Paced].
func SetPolicy(p Policy) Policy {
	if p == nil {
		p = Paced{}
	}
	before := use(p)
	if cshim.Path() != "" {
		aim()
	}
	return before.Policy
}

// CurrentPolicy is the policy in use.
func CurrentPolicy() Policy { return policy.Load().Policy }

// start runs once, when libtorch has been loaded.
func start() {
	started.Store(time.Now().UnixNano())
	cshim.SamplesSetRate(DefaultProfileRate)
	setDefaults()
	if cshim.PressureAttach() {
		go pace()
	}
	aim()
}

// pace serves allocations that wait.
func pace() {
	// Its thread is marked as the one that sweeps, and must not be another goroutine's.
	runtime.LockOSThread()
	var idle idleCache
	var p cshim.Pressure
	beat := newBeat()
	pulse.Store(beat)
	waits := counts.waits.Load()
	for {
		switch cshim.PressureNext(&p, 2000) {
		case -1:
			return
		case 0:
			now := counts.waits.Load()
			beat.hurry(now != waits)
			waits = now
			tick()
			idle.tick()
		case 1:
			beat.hurry(true)
			serve(&p)
		}
	}
}

// serve frees for allocations that wait. Only a round that is said to be whole lets one of them fail.
func serve(p *cshim.Pressure) {
	p.Whole = 0
	asked := time.Now()
	counts.rounds.Add(1)
	sweeper.Lock()
	defer sweeper.Unlock()
	if sweeper.begun.After(asked) {
		if sweeper.whole { // another goroutine's sweep has served it
			p.Whole = 1
		}
		return
	}
	depth := Full
	if p.Hard != 0 {
		depth = Deep
	}
	// A round for room below the limit is over when anything was freed or given there: those who do not fit yet ask for
	// another. One for the sake of the peak is over when the block makes none; one at the line is whole. The largest
	// block of late is taken away from the state first: where it does not meet the line, the one that waits is not
	// another one to come.
	a := accountOf(p.Device)
	before := a.progress()
	largest, _ := cshim.MemoryLargest(a.word)
	enough := func() bool { return a.progress() > before || p.Hard == cshim.HardLimit && a.fits(p.Bytes) }
	s, err := a.state()
	if err == nil {
		a.expects(s, p.Bytes, largest)
	}
	if p.Hard == 0 {
		if err != nil || !a.worthwhile(s, p.Bytes) {
			p.Whole = flag(err != nil || a.gives(s, p.Bytes))
			return
		}
		if s.Live+p.Bytes > s.line() {
			enough = nil // the line follows what can be reached, which only a whole sweep tells
		} else {
			enough = func() bool {
				m, err := cshim.MemoryPace(a.word)
				return err == nil && m.Live+p.Bytes <= s.peak()
			}
		}
	}
	cost := sweep(depth, p.Bytes, enough)
	if sweeper.whole && !(p.Hard != 0 && a.returnIdleHeap(p.Bytes)) {
		p.Whole = 1
	}
	swept(cost)
	if p.Hard == 0 {
		if s, err := a.state(); err == nil {
			a.proved(s.Live + p.Bytes)
			p.Whole = flag(a.gives(s, p.Bytes))
		}
	}
}

func flag(on bool) int32 {
	if on {
		return 1
	}
	return 0
}

// gives says whether bytes are given past the line where allocations wait: those for which what can be reached leaves no
// room, and those that only make a new peak. Where others have taken the room meanwhile, who waits asks again.
func (a *account) gives(s State, bytes int64) bool {
	if min(s.Live, s.Reachable)+bytes > s.line() {
		a.mu.Lock()
		a.reach += bytes
		a.mu.Unlock()
		a.aim()
		return true
	}
	a.aim()
	a.mu.Lock()
	defer a.mu.Unlock()
	return s.Live+bytes <= s.line() && s.Live+bytes > a.waits
}

// proved notes what is needed after a sweep with the block that it was for.
func (a *account) proved(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.summit = max(a.summit, bytes)
}

// expects notes that a block of so many bytes, and the largest of late, meet the line or the summit: the next question is
// asked before another one does, since an operator that sweeps before it begins costs less than one that waits for a
// round. A large one is not expected again: operators far below would be swept for it.
func (a *account) expects(s State, bytes, largest int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case s.Live+bytes <= s.line():
		if bytes <= s.Live/16 {
			a.ahead = max(a.ahead, bytes)
		}
	case largest <= s.line()/16:
		a.next = max(a.next, largest)
	}
}

// worthwhile says whether a sweep for a block that passes the line is due, or else can be paid for; where neither, the
// block is given.
func (a *account) worthwhile(s State, bytes int64) bool {
	return s.Live+bytes > s.line() || s.affords(bytes)
}

func (a *account) fits(bytes int64) bool {
	m, err := cshim.MemoryPace(a.word)
	return err == nil && m.Limit > 0 && m.Live+bytes <= m.Limit
}

// swept notes what a full sweep has left, and pays for it. What was given out while it ran says nothing of what can be
// reached, and what one has left that ended early is no more than that.
func swept(cost time.Duration) {
	time5.pay(cost + cost/4) // the threads that it wakes are in the way of the next operators
	for _, a := range known() {
		if m, err := cshim.MemoryPace(a.word); err == nil {
			a.mu.Lock()
			// What was let pass for being little will be again: to sweep below it gains nothing.
			a.summit = max(a.summit, min(a.met, a.reach+a.reach/16))
			if sweeper.ended {
				a.reach = max(0, m.Live-(m.Total-a.begun))
			} else {
				a.reach = min(a.reach, m.Live)
			}
			a.total = m.Total
			a.highest = max(a.highest, a.reach)
			a.mu.Unlock()
			a.aim()
		}
	}
}

// tick lets the highest reachable bytes, the summit and the largest block sink, so that a program that has become smaller
// is swept again. A policy that asks for none of them learns nothing of them, and they stay.
func tick() {
	Flush()
	if !policy.Load().paced {
		return
	}
	for _, a := range known() {
		a.mu.Lock()
		a.highest = max(a.reach, a.highest-a.highest/8)
		a.summit = max(a.highest, a.summit-a.summit/8)
		a.next -= a.next / 4
		a.ahead -= a.ahead / 4
		a.mu.Unlock()
	}
}

// idleCache shrinks what the CPU's allocator keeps while nobody allocates.
type idleCache struct{ allocations int64 }

func (c *idleCache) tick() {
	m, err := cshim.MemoryStats(cpuWord)
	if err == nil && m.Cached > 0 && m.Allocations == c.allocations {
		start := time.Now()
		freed, _ := cshim.MemoryTrim(cpuWord, m.Cached/2)
		caches.gave(freed, start)
	}
	c.allocations = m.Allocations
}

func (a *account) state() (State, error) {
	m, err := cshim.MemoryPace(a.word)
	if err != nil {
		return State{}, err
	}
	largest, err := cshim.MemoryLargest(a.word)
	if err != nil {
		return State{}, err
	}
	spare, cost := time5.look()
	exhausted := time5.exhausted(spare, cost)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = max(a.next, largest)
	return State{
		Device: nameOf(a.word), Live: m.Live, Reserved: m.Reserved, Capacity: a.capacity, Limit: m.Limit,
		Budget: a.softLimit(m.Limit), Reachable: a.reach, Highest: a.highest, Next: a.next, Allocated: m.Total - a.total,
		Percent: a.percent, Spare: spare, Cost: cost, total: m.Total, summit: a.summit,
		ahead: a.ahead, exhausted: exhausted,
	}, nil
}

// aim sets where the next question is due and where allocations wait, for every device.
func aim() {
	for _, a := range known() {
		a.aim()
	}
	if policy.Load().every > 0 {
		cshim.SetDue(true)
	}
}

func (a *account) aim() {
	if s, err := a.state(); err == nil {
		a.aimAt(policy.Load().Decide(s))
	}
}

// aimAt sets when the next question is due: after so many bytes more, as the policy says.
func (a *account) aimAt(d Decision) {
	s, err := a.state()
	if err != nil {
		return
	}
	const never = 1<<63 - 1
	line := int64(never)
	paced := policy.Load().paced
	a.calm.Store(paced && s.Live+s.Next < min(spareFloor, s.line())/2)
	if paced {
		if line = s.line(); s.Limit > 0 && line >= s.Limit {
			line = never // the limit itself refuses
		}
		// A block that would make a new peak waits for a sweep, too.
		if s.Percent >= 0 && s.Spare >= s.Cost {
			peak := s.peak()
			if s.Live >= peak {
				// Not each block of a live set that grows: a large one, or when a sweep for a small one could be paid,
				// and the next operator has not been asked before it.
				peak = s.Live + min(s.Live/16, max(s.Live/64, s.promise()-s.Allocated)) + s.small()
			}
			line = min(line, max(s.spareFrom(), peak))
		}
	}
	total := int64(never)
	if d.Total > 0 {
		total = s.total + d.Total
	}
	a.mu.Lock()
	a.waits = line
	a.mu.Unlock()
	_ = cshim.MemorySetLines(a.word, s.Live+min(max(d.Again, 1<<20), 1<<60), total, line)
}

// beforeBackward is reclaim.BeforeBackward.
func beforeBackward() {
	if cshim.Path() != "" && !calm() {
		boundary(true)
	}
}

// afterBackward is reclaim.AfterBackward: the graph has been freed, so the next decision is due far below.
func afterBackward() {
	if cshim.Path() != "" && !calm() {
		aim()
	}
}

// calm spares small programs the questions around their backward passes.
func calm() bool {
	for _, a := range known() {
		if !a.calm.Load() {
			return false
		}
	}
	return !cshim.Due()
}

func boundary(backward bool) {
	box := policy.Load()
	if !backward {
		cshim.SetDue(box.every > 0)
		if box.every > 0 && counted.Add(1)%box.every != 0 {
			return
		}
	}
	counts.asked.Add(1)
	if cshim.Capturing() {
		aimIn(16 << 20) // a sweep frees on this thread
		return
	}
	var until time.Time
	for range 16 { // others may have taken the room again
		depth, full := ask(box, backward)
		if depth == None {
			return
		}
		done := sweeper.released()
		if sweeper.TryLock() {
			defer sweeper.Unlock()
			cost := sweep(depth, 0, nil)
			if depth == Light {
				aim()
			} else {
				swept(cost)
			}
			return
		}
		// One sweeps, the others go on while there is room. Where there is none they wait here: who waits within an
		// operator, in C, keeps a processor of Go's until its monitor takes that away, which may sleep for 10 ms.
		if !full || cshim.Sweeping() { // the one who sweeps may run a reclaimer's operators
			aimIn(16 << 20)
			return
		}
		if until.IsZero() {
			until = time.Now().Add(patience)
		}
		if waited(done, until) {
			return
		}
	}
}

// ask puts the question to the policy for every device. It says whether the next operator may find no room on one for
// which a sweep is due.
func ask(box *policyBox, backward bool) (depth Depth, full bool) {
	for _, a := range known() {
		s, err := a.state()
		if err != nil {
			continue
		}
		s.Backward, s.Operators = backward, box.every
		d := box.Decide(s)
		if d.Sweep == None {
			if !backward {
				a.aimAt(d)
			}
			continue
		}
		depth = max(depth, d.Sweep)
		room := s.Limit // 0: none
		if box.paced {
			room = s.line()
		}
		full = full || room > 0 && s.Live+s.expected() > room
	}
	return depth, full
}

// aimIn sets the next question to so many bytes from now.
func aimIn(bytes int64) {
	for _, a := range known() {
		a.aimAt(Decision{Again: bytes, Total: bytes})
	}
}

// relieve is reclaim.Relieve: a deep sweep, and the cache of the device's allocator is emptied, outside every lock. The
// cache stays where the limit refuses the bytes, since it does not count towards the limit. Where their number is unknown
// every device's cache is emptied. While the calling thread captures a CUDA graph, relieve does nothing.
func relieve(device int32, asked int64) bool {
	if cshim.Capturing() {
		return false
	}
	before := freesEverywhere()
	sweeper.Lock()
	defer sweeper.Unlock()
	swept(sweep(Deep, 1<<62, nil))
	progress := freesEverywhere() != before
	for _, a := range known() {
		m, err := cshim.MemoryPace(a.word)
		if err != nil || a.word == cpuWord || asked != 0 && a.word != device || m.Reserved <= m.Live ||
			m.Limit > 0 && m.Live+asked > m.Limit {
			continue
		}
		start := time.Now()
		_ = cshim.MemoryEmptyCache(a.word)
		if now, err := cshim.MemoryPace(a.word); err == nil {
			caches.gave(m.Reserved-now.Reserved, start)
			progress = progress || now.Reserved < m.Reserved
		}
	}
	return progress
}

func freesEverywhere() (n int64) {
	for _, a := range known() {
		if m, err := cshim.MemoryPace(a.word); err == nil {
			n += m.Freed
		}
	}
	return n
}

// progress grows whenever anything is given out or given back on the device.
func (a *account) progress() int64 {
	m, err := cshim.MemoryPace(a.word)
	if err != nil {
		return 0
	}
	return m.Freed + m.Total
}
