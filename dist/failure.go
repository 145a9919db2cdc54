package dist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/callsite"
	"github.com/linstock-ml/linstock/internal/flight"
	"github.com/linstock-ml/linstock/internal/refuse"
)

const (
	// grace is how long a rank that has met a failure waits for the first answer of the store, whose host may be stopped,
	// and then for the reports of the others.
	grace = time.Second
	// storeTime is how long it waits for the verdict, and 10 ms more for each rank.
	storeTime = 3 * grace
)

// job is what the groups that were made from one another share. It has a port that this process listens on and never
// accepts from: that the kernel accepts connections tells the other ranks that the process exists.
type job struct {
	store    *Store
	host     int // the rank, in the group of all, that hosts the store; -1: none of them does
	listener net.Listener
	others   sync.Map     // their addresses, by their ranks in the group of all, as far as they were asked for
	groups   atomic.Int64 // those that are open
	flight   *flight.Recorder
	waited   atomic.Int64 // nanoseconds in collectives, without those of backward passes
}

func newJob(op string, store *Store, host int) (*job, error) {
	s, err := NewPrefixStore("default_pg", store)
	if err != nil {
		return nil, err
	}
	// The address from which this machine reaches the store's host can most likely be reached from there, too.
	ip := "127.0.0.1"
	if s.addr != "" {
		if c, err := net.Dial("udp", s.addr); err == nil { // sends nothing
			if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
				ip = a.IP.String()
			}
			_ = c.Close()
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		_ = s.Close()
		return nil, refuse.Error(op, err, "%v", err)
	}
	return (&job{store: s, host: host, listener: l}).share(), nil
}

func (j *job) share() *job {
	j.groups.Add(1)
	return j
}

func (j *job) close() error {
	if j.groups.Add(-1) != 0 {
		return nil
	}
	return errors.Join(j.listener.Close(), j.store.Close(), j.flight.Close())
}

// address returns what other ranks need to find out whether this process exists.
func (j *job) address() string {
	host, _ := os.Hostname()
	return host + " " + j.listener.Addr().String()
}

// addressOf returns the address of another rank, and "" if the store has none.
func (j *job) addressOf(rank int) string {
	if known, ok := j.others.Load(rank); ok {
		return known.(string)
	}
	address, err := read(j.store, addressKey(rank))
	if err != nil || address == "" {
		return ""
	}
	j.others.Store(rank, address)
	return address
}

// ended reports whether the process at an address has ended, as far as that can be known.
func ended(address string) bool {
	host, addr, _ := strings.Cut(address, " ")
	own, _ := os.Hostname()
	if a, err := net.ResolveTCPAddr("tcp", addr); err != nil || a.IP.IsLoopback() && host != own {
		return false
	}
	c, err := net.DialTimeout("tcp", addr, grace/2)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func addressKey(rank int) string { return fmt.Sprintf("linstock/address/%d", rank) }
func reportKey(rank int) string  { return fmt.Sprintf("linstock/report/%d", rank) }

// comingKey is set in the store of a group that NewGroup makes before the rank connects, connectedKey in that of each group
// once the rank has connected.
func comingKey(rank int) string    { return fmt.Sprintf("linstock/coming/%d", rank) }
func connectedKey(rank int) string { return fmt.Sprintf("linstock/connected/%d", rank) }

const (
	verdictKey = "linstock/verdict"
	// alarmKey is set when a rank has met a failure, or has left, in a group whose backend does not notice it.
	alarmKey = "linstock/alarm"

	// The reports of a rank: it has met the failure; it knows the verdict; it closes or aborts the group.
	meets, knows, leaves = "meets", "knows", "leaves"
)

// failure is what made a group fail, and the verdict on it.
type failure struct {
	kind    error
	message string
	done    chan struct{} // closed when the verdict is there
	ranks   []int
	blocked bool // a call of the store has not returned
}

func (f *failure) error(op string, rank int) error {
	<-f.done
	others := slices.DeleteFunc(slices.Clone(f.ranks), func(r int) bool { return r == rank })
	return &PeerError{Ranks: others, Op: op, Rank: rank, Kind: f.kind, Message: f.message, Caller: callsite.Line()}
}

func (f *failure) stuck() bool {
	<-f.done
	return f.blocked
}

// diagnose returns the error for a collective that has failed with err. The first failure of the group decides which ranks
// all its errors name. late lists the ranks that the caller knows to be late.
func (g *Group) diagnose(op string, late []int, err error) error {
	message, kind := network(err)
	if kind == nil {
		return failed(op, err)
	}
	g.state.Lock()
	if g.aborted || g.closed.Load() {
		g.state.Unlock()
		return g.check(op)
	}
	f := g.failure
	first := f == nil
	if first {
		f = &failure{kind: kind, message: message, done: make(chan struct{})}
		g.failure = f
	}
	g.state.Unlock()
	if first {
		if late == nil {
			late = g.late(message)
		}
		f.ranks, f.blocked = g.judge(late)
		close(f.done)
	}
	return f.error(op, g.rank)
}

// hasFailed reports whether the group has failed, here or by report of its other ranks, or one of their processes has
// ended.
func (g *Group) hasFailed() bool {
	if g.check("") != nil {
		return true
	}
	reports, err := g.reports()
	return err == nil && slices.ContainsFunc(reports, func(r report) bool { return r.what != "" }) || len(g.ended(g.others()...)) != 0
}

// judge lets the other ranks notice the failure, and returns the ranks that have caused it.
func (g *Group) judge(late []int) (ranks []int, blocked bool) {
	_ = g.cut("")
	answers, found := make(chan struct{}), make(chan []int, 1)
	go func() { found <- g.inquire(late, answers) }()
	end := time.After(storeTime + g.allRanks())
	select {
	case <-answers:
	case <-time.After(grace):
		return g.storeHost(), true
	}
	select {
	case ranks = <-found:
		return ranks, false
	case <-end:
		return g.storeHost(), true
	}
}

// allRanks returns a time in which the store can answer a question of each rank.
func (g *Group) allRanks() time.Duration { return time.Duration(g.size) * 10 * time.Millisecond }

// storeHost returns the rank that hosts the store, if it is another one of the group.
func (g *Group) storeHost() []int {
	if r := slices.Index(g.members, g.job.host); r >= 0 && r != g.rank {
		return []int{r}
	}
	return nil
}

// inquire reports the failure in the store, closes answers when the store has answered, and returns the verdict.
func (g *Group) inquire(late []int, answers chan<- struct{}) []int {
	err := g.store.Set(reportKey(g.rank), []byte(meets)) // a TCP store does not answer
	g.alarm()
	if err == nil {
		_, err = g.store.Check(verdictKey)
	}
	close(answers)
	if err != nil {
		return g.storeHost()
	}
	found := make(chan []int, 1)
	go func() { found <- g.ended(g.others()...) }()
	var ended []int
	for waits := true; waits; {
		select {
		case ended = <-found:
			waits = false
		case <-time.After(10 * time.Millisecond):
			if verdict, err := g.read(verdictKey); err == nil && verdict != "" {
				return g.obey(verdict)
			}
		}
	}
	end := time.Now().Add(grace)
	for {
		if verdict, err := g.read(verdictKey); err != nil {
			return g.storeHost()
		} else if verdict != "" {
			return g.obey(verdict)
		}
		reports, err := g.reports()
		left, silent := of(reports, leaves), of(reports, "")
		switch over := time.Now().After(end); {
		case err != nil:
			return g.storeHost()
		case len(ended) != 0:
			return g.propose(ended)
		case len(late) != 0:
			return g.propose(late)
		case len(left) != 0:
			return g.propose(left)
		case over || len(silent) == 0:
			return g.propose(silent)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// propose writes a verdict unless another rank has, and returns the one that counts.
func (g *Group) propose(ranks []int) []int {
	slices.Sort(ranks)
	text, err := json.Marshal(append([]int{}, ranks...))
	if err != nil {
		return ranks
	}
	verdict, err := g.store.CompareSet(verdictKey, nil, text)
	if err != nil {
		return ranks
	}
	return g.obey(string(verdict))
}

// obey returns the ranks of a verdict. The store ends with the process that hosts it, which may be about to return: it waits
// until the others know the verdict.
func (g *Group) obey(verdict string) (ranks []int) {
	_ = json.Unmarshal([]byte(verdict), &ranks)
	_ = g.store.Set(reportKey(g.rank), []byte(knows))
	if g.members[g.rank] != g.job.host {
		return ranks
	}
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		reports, err := g.reports()
		if err != nil || !slices.ContainsFunc(reports, func(r report) bool {
			return r.what != knows && r.what != leaves && !slices.Contains(ranks, r.rank)
		}) {
			break
		}
	}
	return ranks
}

// report is what another rank has reported: "" for nothing.
type report struct {
	rank int
	what string
}

// of returns the ranks of the reports that say what.
func of(reports []report, what string) (ranks []int) {
	for _, r := range reports {
		if r.what == what {
			ranks = append(ranks, r.rank)
		}
	}
	return ranks
}

// reports returns the reports of the other ranks.
func (g *Group) reports() (all []report, err error) {
	for r := range g.size {
		if r == g.rank {
			continue
		}
		what, err := g.read(reportKey(r))
		if err != nil {
			return nil, err
		}
		all = append(all, report{r, what})
	}
	return all, nil
}

// read returns the value of a key of the group, and "" if it is not set.
func (g *Group) read(key string) (string, error) { return read(g.store, key) }

// read asks the store once, where Check and Get would ask four times: CompareSet returns what it expects if the key is not set.
func read(s *Store, key string) (string, error) {
	unset := []byte("linstock: not set") // no key has this value
	v, err := s.CompareSet(key, unset, unset)
	if err != nil || bytes.Equal(v, unset) {
		return "", err
	}
	return string(v), nil
}

// others returns the other ranks.
func (g *Group) others() (ranks []int) {
	for r := range g.size {
		if r != g.rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// ended returns those of the given ranks whose processes have ended.
func (g *Group) ended(of ...int) (ranks []int) {
	gone := make([]bool, g.size)
	var all sync.WaitGroup
	for _, r := range of {
		if address := g.job.addressOf(g.members[r]); address != "" {
			all.Go(func() { gone[r] = ended(address) })
		}
	}
	all.Wait()
	for r, is := range gone {
		if is {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

const (
	lookPause = 200 * time.Millisecond
	lookDial  = 5 // pauses between connections to the next rank
)

// onDevices reports whether the group has a backend for tensors on devices.
func (g *Group) onDevices() bool { return g != nil && g.backends&cshim.NCCL != 0 }

// alarm lets the ranks that look out know that the group has failed.
func (g *Group) alarm() {
	if g.onDevices() && g.size > 1 {
		_ = g.store.Set(alarmKey, []byte(meets))
	}
}

// drain waits until the collectives on a device are complete that c10d has started by itself.
func (g *Group) drain(op string) error {
	if !g.onDevices() {
		return nil
	}
	var failure error
	err := g.use(op, func(n cshim.Group) error {
		begun := time.Now()
		failure = n.Settle()
		g.job.waited.Add(int64(time.Since(begun)))
		return nil
	})
	if err != nil || failure == nil {
		return err
	}
	return g.diagnose(op, nil, failure)
}

// lookout looks, until stop is called, for failures of other ranks: a kernel of NCCL waits for a process that has ended as it
// does for one that is late. It cuts the connections when it finds one. Each rank connects to the next one only.
func (g *Group) lookout() (stop func()) { return g.lookoutFor(-1) }

// lookoutFor is lookout for a send, receive or exchange with the rank peer, unless peer is -1: the other ranks, also the one
// that hosts the store, may leave meanwhile.
func (g *Group) lookoutFor(peer int) (stop func()) {
	if !g.onDevices() || g.size == 1 {
		return func() {}
	}
	watched, needed := peer, true // needed: without the store, another rank has failed
	if peer < 0 {
		watched = g.next()
	} else {
		needed = g.job.host < 0 || g.members[peer] == g.job.host
	}
	done := make(chan struct{})
	go func() {
		pause := time.NewTicker(lookPause)
		defer pause.Stop()
		seen, refused, lost := 0, false, false
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-pause.C:
			}
			what := ""
			if !lost {
				var err error
				if what, err = g.read(alarmKey); what == leaves && peer >= 0 {
					what, err = g.read(reportKey(peer))
				}
				lost = err != nil
			}
			switch {
			case lost && needed, what == meets:
				_ = g.cut("")
				return
			case what == leaves:
				// What a rank has sent before it left is still to arrive.
				if seen++; seen > lookDial {
					_ = g.cut("")
					return
				}
			}
			if !refused && i%lookDial != 0 {
				continue
			}
			before := refused
			if refused = g.ended(watched) != nil; refused && before {
				_ = g.cut("")
				return
			}
		}
	}()
	return func() { close(done) }
}

// lookoutForSenders checks, until stop is called, whether another rank can still send to a receive from any rank, for
// which gloo does not notice closed connections. It cuts the connections when one rank has failed or ended without
// leaving, or all have left: what a rank sent before it left may still arrive.
func (g *Group) lookoutForSenders() (stop func()) {
	done := make(chan struct{})
	go func() {
		look := time.NewTicker(max(grace, g.allRanks()))
		defer look.Stop()
		for seen := 0; seen < 2; {
			select {
			case <-done:
				return
			case <-look.C:
			}
			reports, err := g.reports()
			left, silent := of(reports, leaves), of(reports, "")
			switch {
			case err != nil && g.size > 2:
				return // the store's host may have left
			case err != nil, len(left)+len(silent) < len(reports):
				seen = 2
			case len(silent) == 0 || len(g.ended(silent...)) != 0:
				seen++
			default:
				seen = 0
			}
		}
		_ = g.cut("")
	}()
	return func() { close(done) }
}

// next returns the rank after this one.
func (g *Group) next() int { return (g.rank + 1) % g.size }
