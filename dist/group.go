package dist

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/callsite"
	"github.com/linstock-ml/linstock/internal/flight"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/strides"
	"github.com/linstock-ml/linstock/tensor"
)

// A Group is this process's membership in a set of connected processes; see the package documentation. Several goroutines
// may use one. PyTorch: torch.distributed.ProcessGroup.
type Group struct {
	name       string
	rank, size int
	members    []int // the members' ranks in the group that Init made
	timeout    time.Duration
	checked    bool
	backend    string
	backends   cshim.Backends // those of backend
	store      *Store         // its keys
	job        *job
	children   atomic.Int64
	joins      atomic.Int64 // of its DDPs, that run

	start       sync.Mutex // orders collectives
	collectives int64      // that have begun, if they are recorded

	mu     sync.RWMutex // held for reading while native is used, for writing by Close
	native cshim.Group
	closed atomic.Bool

	state   sync.Mutex
	aborted bool
	severed bool                   // cut was called
	kept    map[*Work]struct{}     // those that only a wait completes
	parts   map[io.Closer]struct{} // the DDPs and FSDPModules that are open
	failure *failure

	reported struct { // the last Report
		at     time.Time
		waited time.Duration
	}
}

// join is connect for members that have connected in another group before. It ends when one of them has ended without having
// connected. Its error names such ranks or, if it timed out, those that have not connected, by their ranks in that
// group.
func (g *Group) join(ctx context.Context, op string, base *Store, prefix string, ranks []int) (err error) {
	if g.store, err = NewPrefixStore(prefix+"/", base); err != nil {
		return err
	}
	if err := g.store.setWithin(ctx, op, g.timeout, comingKey(g.rank), nil); err != nil {
		return err
	}
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		look := time.NewTicker(max(grace, g.allRanks()))
		defer look.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-look.C:
			}
			if len(g.without(connectedKey, g.ended(g.others()...))) != 0 {
				cancel()
				return
			}
		}
	}()
	err = g.connect(watched, op, prefix)
	if err == nil || ctx.Err() != nil {
		return err
	}
	e := &PeerError{Op: op, Rank: ranks[g.rank], Kind: ErrConnection, Message: "it ended before it had connected", Caller: callsite.Line()}
	found := make(chan []int, 1)
	go func() {
		absent := g.without(connectedKey, g.ended(g.others()...))
		if len(absent) == 0 && errors.Is(err, ErrTimeout) {
			e.Kind, e.Message = ErrTimeout, "it has not called "+op
			absent = g.without(comingKey, g.others())
		}
		found <- absent
	}()
	select {
	case absent := <-found:
		for _, r := range absent {
			e.Ranks = append(e.Ranks, ranks[r])
		}
	case <-time.After(2 * grace): // the store does not answer
		return err
	}
	if len(e.Ranks) == 0 {
		return err
	}
	slices.Sort(e.Ranks)
	return e
}

// connect connects a group whose members and store are set. prefix is that of the store, as of Python's groups.
func (g *Group) connect(ctx context.Context, op, prefix string) (err error) {
	g.kept, g.parts = map[*Work]struct{}{}, map[io.Closer]struct{}{}
	g.reported.at = time.Now()
	checked := ""
	if g.checked {
		checked = prefix
	}
	g.native, err = await(ctx, op, g.store, g.timeout, func(n cshim.Store, within int64, cancel *int32) (cshim.Group, error) {
		native, err := cshim.GroupNew(n, g.rank, g.size, g.backends, g.timeout.Milliseconds(), within, checked, cancel)
		var e *cshim.Error
		if errors.As(err, &e) && e.Code == cshim.CodeGeneric {
			e.Code = cshim.CodeConnection // gloo's error for it has another type
			if strings.Contains(e.Message, "Connect timeout") {
				e.Code = cshim.CodeTimeout
			}
		}
		return native, err
	}, cshim.Group.Free)
	if err != nil {
		return err
	}
	return g.store.setWithin(ctx, op, g.timeout, connectedKey(g.rank), nil)
}

// inTime calls f, which uses the store, and waits for it at most for grace: the store may not answer.
func inTime(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(grace):
	}
}

// settle waits until the other ranks have connected, at most for grace: one whose connections were closed before would fail. It
// does not wait for ranks that have no address, which are written in Python. blocked reports whether the store does not answer.
func (g *Group) settle() (blocked bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		end := time.Now().Add(grace)
		for r := range g.size {
			for {
				connecting, err := g.lacks(r, connectedKey(r))
				if err != nil || time.Now().After(end) {
					return
				}
				if !connecting {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	select {
	case <-done:
		return false
	case <-time.After(2 * grace):
		return true
	}
}

// lacks reports whether another rank, written in Go, has not set its key.
func (g *Group) lacks(r int, key string) (bool, error) {
	if r == g.rank {
		return false, nil
	}
	if there, err := g.store.Check(key); there || err != nil {
		return false, err
	}
	return g.job.store.Check(addressKey(g.members[r]))
}

// without returns those of the given ranks that lack a key.
func (g *Group) without(key func(rank int) string, of []int) (ranks []int) {
	for _, r := range of {
		if lacks, err := g.lacks(r, key(r)); lacks && err == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Rank returns this process's rank in the group; -1 for nil. PyTorch: torch.distributed.get_rank.
func (g *Group) Rank() int {
	if g == nil {
		return -1
	}
	return g.rank
}

// Size returns the number of ranks; 0 for nil. PyTorch: torch.distributed.get_world_size.
func (g *Group) Size() int {
	if g == nil {
		return 0
	}
	return g.size
}

// Ranks returns the ranks that the members have in the group that Init made. PyTorch:
// torch.distributed.get_process_group_ranks.
func (g *Group) Ranks() []int {
	if g == nil {
		return nil
	}
	return slices.Clone(g.members)
}

// NewGroup returns a group of the given ranks of g, in their order. All ranks of g must call it, with the same ranks; for
// those that are not among them the result is nil. PyTorch sorts the ranks, unless sort_ranks is False: pass them sorted if
// some of them are written in Python. If one of the ranks has ended, or does not call NewGroup in time, the error is a
// *PeerError that names it by its rank in g. Options: Timeout, CheckCollectives, Backend; the defaults are those of g. A
// closed group leaves a few keys for each rank in the store: make groups once, not in each step. PyTorch:
// torch.distributed.new_group.
func (g *Group) NewGroup(ctx context.Context, ranks []int, opts ...Option) (*Group, error) {
	const op = "NewGroup"
	if err := g.check(op); err != nil {
		return nil, err
	}
	o, err := optionsOf(op, append([]Option{Timeout(g.timeout), CheckCollectives(g.checked), Backend(g.backend)}, opts...))
	if err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, refuse.Nil(op, "a context")
	}
	if len(ranks) == 0 {
		return nil, refuse.Error(op, tensor.ErrArgument, "a group needs at least one rank")
	}
	sub := &Group{rank: -1, size: len(ranks), timeout: o.timeout, checked: o.checked, backend: o.backend, backends: o.backends}
	for i, r := range ranks {
		if r < 0 || r >= g.size || slices.Contains(ranks[:i], r) {
			return nil, refuse.Error(op, tensor.ErrArgument, "ranks %v: want distinct numbers in [0, %d)", ranks, g.size)
		}
		if r == g.rank {
			sub.rank = i
		}
		sub.members = append(sub.members, g.members[r])
	}
	number := strconv.FormatInt(g.children.Add(1), 10)
	if sub.rank < 0 {
		return nil, nil
	}
	sub.name = g.name + "." + number
	sub.job = g.job.share()
	if err := sub.join(ctx, op, g.store, number, ranks); err != nil {
		_ = sub.Close()
		return nil, err
	}
	return sub, nil
}

// check returns an error if g can no longer be used.
func (g *Group) check(op string) error {
	if g == nil {
		return refuse.Nil(op, "a group")
	}
	if g.job == nil {
		return refuse.Error(op, tensor.ErrNil, "the group was made by neither Init nor NewGroup")
	}
	if g.closed.Load() {
		return refuse.Error(op, ErrClosed, "the group was closed")
	}
	g.state.Lock()
	aborted, f := g.aborted, g.failure
	g.state.Unlock()
	switch {
	case aborted:
		return refuse.Error(op, ErrAborted, "the group was aborted")
	case f != nil:
		return f.error(op, g.rank)
	}
	return nil
}

// use calls f with the native group, which Close does not free meanwhile.
func (g *Group) use(op string, f func(n cshim.Group) error) error {
	if err := g.check(op); err != nil {
		return err
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.native == 0 {
		return refuse.Error(op, ErrClosed, "the group was closed")
	}
	return f(g.native)
}

// await calls f, which waits for the other ranks, with the native group, and returns f's error as failure. If ctx ends, it
// aborts the group. The flight recorder gets what as the name of the call.
func (g *Group) await(ctx context.Context, op, what string, f func(n cshim.Group) error) (failure, err error) {
	err = g.use(op, func(n cshim.Group) error {
		g.start.Lock()
		defer g.start.Unlock()
		defer context.AfterFunc(ctx, func() { _ = g.Abort() })()
		defer g.lookout()()
		record := g.record(true, "%s", what)
		begun := time.Now()
		failure = f(n)
		g.job.waited.Add(int64(time.Since(begun)))
		g.job.flight.End(record, failure)
		return nil
	})
	if err == nil && failure != nil && ctx.Err() != nil {
		err = abortedBy(op, ctx)
	}
	return failure, err
}

// abortedBy returns the error of a call that has aborted the group because ctx has ended.
func abortedBy(op string, ctx context.Context) error {
	return refuse.Error(op, orTimeout(ctx.Err()), "%v; the group was aborted", ctx.Err())
}

// broadcastCoalesced copies the tensors of the rank src to those of the others. It sends contiguous copies of those
// that are not contiguous.
func (g *Group) broadcastCoalesced(ctx context.Context, op string, ts []*tensor.Tensor, src int) error {
	if err := g.checkDTypes(op, Sum, ts); err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		sent := slices.Clone(ts)
		for i, t := range ts {
			if t.Err() == nil && !t.IsContiguous() {
				sent[i] = t.Detach().Contiguous()
			}
		}
		if err := g.call(ctx, op, "BroadcastCoalesced", func(n cshim.Group) error {
			return withHandles(op, sent, func(h []cshim.Handle) error { return n.BroadcastCoalesced(h, src) })
		}); err != nil || g.rank == src {
			return err
		}
		for i, t := range ts {
			if sent[i] != t {
				if err := t.Detach().Copy_(sent[i]).Err(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// dense returns an error unless the elements of t lie in memory without gaps and overlaps, in any order of dimensions.
func dense(op, name string, t *tensor.Tensor) error {
	shape, stride := t.Shape(), t.Stride()
	if len(stride) != len(shape) {
		return refuse.Error(op, tensor.ErrArgument, "%s is not a dense tensor", name)
	}
	if !strides.Dense(shape, stride) {
		return refuse.Error(op, tensor.ErrArgument, "%s of shape %v is not dense in memory: its strides are %v", name, shape, stride)
	}
	return nil
}

// call calls f as await does, unless ctx has ended, and returns the error that names the ranks that are gone.
func (g *Group) call(ctx context.Context, op, what string, f func(n cshim.Group) error) error {
	if err := refuse.Ended(op, ctx, ErrTimeout); err != nil {
		return err
	}
	failure, err := g.await(ctx, op, what, f)
	if err != nil {
		return err
	}
	return g.diagnose(op, nil, failure)
}

// Abort makes the group's collectives fail: those in flight and all later ones on this rank with ErrAborted, those of the
// other ranks with a *PeerError that names this rank. It does not wait for them, and for a store whose host does not answer
// a second at most. PyTorch: torch.distributed.distributed_c10d._abort_process_group.
func (g *Group) Abort() error {
	if g == nil {
		return refuse.Nil("Abort", "a group")
	}
	if g.job == nil {
		return refuse.Error("Abort", tensor.ErrNil, "the group was made by neither Init nor NewGroup")
	}
	g.state.Lock()
	again := g.aborted
	g.aborted = true
	g.state.Unlock()
	if again || g.closed.Load() {
		return nil
	}
	inTime(func() {
		g.leave()
		g.alarm()
	})
	g.record(false, flight.Abort)
	return g.cut("Abort")
}

// orAbort calls f, and aborts the group if f fails, panics or ends the goroutine: the other ranks wait for this one.
func (g *Group) orAbort(f func() error) (err error) {
	done := false
	defer func() {
		if !done {
			_ = g.Abort()
		}
	}()
	err = f()
	done = err == nil
	return err
}

// cut closes the connections of a group that is not freed yet, and ends the waits that do not notice it.
func (g *Group) cut(op string) error {
	g.state.Lock()
	g.severed = true
	kept := slices.Collect(maps.Keys(g.kept))
	g.state.Unlock()
	for _, w := range kept {
		if w.any {
			w.interrupt()
		}
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.native == 0 {
		return nil
	}
	return failed(op, g.native.Abort())
}

func (g *Group) isSevered() bool {
	g.state.Lock()
	defer g.state.Unlock()
	return g.severed
}

// Close leaves the group; see the package documentation. If the store's host does not answer, for example because it
// is stopped, Close returns after a few seconds, and a goroutine and the connection to the store remain until the
// host answers or ends. A second Close does nothing. PyTorch: torch.distributed.destroy_process_group.
func (g *Group) Close() error {
	if g == nil || g.job == nil || g.closed.Swap(true) {
		return nil
	}
	g.state.Lock()
	cut := len(g.kept) != 0
	parts := slices.Collect(maps.Keys(g.parts))
	f, aborted := g.failure, g.aborted
	g.state.Unlock()
	var busy []io.Closer
	for _, c := range parts {
		if inUse(c) {
			busy = append(busy, c)
		} else {
			_ = c.Close()
		}
	}
	g.record(false, flight.Close)
	var stuck bool
	switch {
	case f != nil:
		stuck = f.stuck()
	case !aborted && g.native != 0 && g.size > 1:
		stuck = g.settle()
	}
	var err error
	// The native group aborts its collectives in flight, without those that only a wait completes. A monitored barrier
	// holds the lock, and a DDP in a collective holds its own.
	locked := !cut && len(busy) == 0 && g.mu.TryLock()
	if !stuck { // otherwise the store does not take the report either
		inTime(g.leave)
	}
	if !locked {
		err = g.cut("Close")
		for _, c := range busy {
			_ = c.Close()
		}
		g.mu.Lock()
	}
	g.native.Free()
	g.native = 0
	g.mu.Unlock()
	g.state.Lock()
	clear(g.kept)
	g.state.Unlock()
	return errors.Join(err, g.store.Close(), g.job.close())
}

// inUse reports whether c is a DDP whose native reducer is in use. After its group is closed, none comes into use.
func inUse(c io.Closer) bool {
	d, ok := c.(*DDP)
	if !ok {
		return false
	}
	if !d.mu.TryLock() {
		return true
	}
	d.mu.Unlock()
	return false
}

// leave tells the other ranks that this rank does not go on. They learn it from the closed connections if this fails.
func (g *Group) leave() {
	g.state.Lock()
	reported := g.failure != nil
	g.state.Unlock()
	if !reported && g.store != nil && g.size > 1 {
		_ = g.store.Set(reportKey(g.rank), []byte(leaves))
		if g.onDevices() {
			_, _ = g.store.CompareSet(alarmKey, nil, []byte(leaves))
		}
	}
}

// Barrier waits until all ranks have called it. PyTorch: torch.distributed.barrier.
func (g *Group) Barrier(ctx context.Context) error {
	return g.run(ctx, "Barrier", func() (*Work, error) { return g.BarrierAsync() })
}

// BarrierAsync starts a Barrier.
func (g *Group) BarrierAsync() (*Work, error) {
	return g.begin("Barrier", cshim.Collective{Kind: cshim.Barrier}, nil, nil)
}

// MonitoredBarrier waits until all ranks have called it. Rank 0 waits for each rank, at most for timeout, or for the
// group's timeout if timeout is 0; the others wait for the group's timeout. If some ranks do not call it, the error is
// a *PeerError that names them. It takes longer than Barrier. No other collective of the group may be in flight.
// PyTorch: torch.distributed.monitored_barrier with wait_all_ranks.
func (g *Group) MonitoredBarrier(ctx context.Context, timeout time.Duration) error {
	const op = "MonitoredBarrier"
	if timeout < 0 {
		return refuse.Error(op, tensor.ErrArgument, "timeout %v", timeout)
	}
	return g.call(ctx, op, op, func(n cshim.Group) error {
		if timeout == 0 {
			timeout = g.timeout
		}
		return n.MonitoredBarrier(max(1, timeout.Milliseconds()))
	})
}

// String returns the name of the group, the rank and the number of ranks.
func (g *Group) String() string {
	if g == nil {
		return "no group"
	}
	return fmt.Sprintf("group %s, rank %d of %d", g.name, g.rank, g.size)
}
