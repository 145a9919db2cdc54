package flight

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Member is a rank in a group.
type Member struct {
	Rank  int     // in the group
	World int     // in the group of all
	Last  *Record // the last call
	// Behind is by how much later than the first rank this one has begun collectives, on average, according to the clocks of
	// their machines.
	Behind time.Duration

	calls map[int64]*Record // the collectives, by number
	done  int64             // the last collective that has ended without an error
	final int64             // the last collective that has begun
}

// A Group is what the members of a group have recorded.
type Group struct {
	Name    string
	Size    int
	Members []*Member // in ascending order
}

// Groups returns the groups of a run, sorted by name.
func (r *Run) Groups() []*Group {
	all := map[string]*Group{}
	for _, rank := range r.Ranks {
		members := map[string]*Member{}
		for i := range rank.Records {
			c := &rank.Records[i]
			m := members[c.Group]
			if m == nil {
				m = &Member{Rank: c.Rank, World: rank.Rank, calls: map[int64]*Record{}}
				members[c.Group] = m
				g := all[c.Group]
				if g == nil {
					g = &Group{Name: c.Group, Size: c.Size}
					all[c.Group] = g
				}
				g.Members = append(g.Members, m)
			}
			m.Last = c
			if c.Collective == 0 {
				continue
			}
			m.calls[c.Collective] = c
			m.final = max(m.final, c.Collective)
			if c.Ended != 0 && c.Error == "" {
				m.done = max(m.done, c.Collective)
			}
		}
	}
	sorted := slices.SortedFunc(maps.Values(all), func(a, b *Group) int { return strings.Compare(a.Name, b.Name) })
	for _, g := range sorted {
		slices.SortFunc(g.Members, func(a, b *Member) int { return a.Rank - b.Rank })
		g.compareTimes()
	}
	return sorted
}

// compareTimes sets Behind of the members.
func (g *Group) compareTimes() {
	if len(g.Members) == 0 {
		return
	}
	common := 0
	sums := make([]int64, len(g.Members))
	for n, first := range g.Members[0].calls {
		begun := make([]int64, len(g.Members))
		for i, m := range g.Members {
			c := m.calls[n]
			if c == nil || c.Call != first.Call {
				break
			}
			begun[i] = c.Begun
		}
		if slices.Contains(begun, 0) {
			continue
		}
		common++
		for i, at := range begun {
			sums[i] += at - slices.Min(begun)
		}
	}
	for i, m := range g.Members {
		m.Behind = time.Duration(sums[i] / int64(max(1, common)))
	}
}

// Explain says in plain words what the ranks of the run wait for.
func (r *Run) Explain() []string {
	var all []string
	if missing := absent(r.Ranks[0].Size, len(r.Ranks), func(i int) int { return r.Ranks[i].Rank }); missing != "" {
		all = append(all, fmt.Sprintf("No file from %s: not started, or on another machine.", missing))
	}
	for _, g := range r.Groups() {
		all = append(all, g.explain()...)
	}
	return all
}

// absent returns the numbers below size that are not among the n ones that number returns in ascending order.
func absent(size, n int, number func(i int) int) string {
	var ranks []int
	for r, i := 0, 0; r < size && len(ranks) <= 16; r++ {
		if i < n && number(i) == r {
			i++
			continue
		}
		ranks = append(ranks, r)
	}
	if len(ranks) == 0 {
		return ""
	}
	return named(ranks)
}

// named returns "rank 3" or "ranks 0, 1".
func named(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	more := ""
	if len(ranks) > 16 {
		ranks, more = ranks[:16], ", …"
	}
	return "ranks " + strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]") + more
}

func (g *Group) String() string { return "Group " + g.Name }

// Clock is how times are printed.
const Clock = "15:04:05.000"

func clock(ns int64) string { return time.Unix(0, ns).Format(Clock) }

func (g *Group) explain() (all []string) {
	if text := g.mismatch(); text != "" {
		return []string{text}
	}
	if text := g.late(); text != "" {
		all = append(all, text)
	}
	for _, m := range g.Members {
		// A call that was not waited for is recorded as in flight, so only a last one counts.
		if c := m.Last; c.Collective == 0 && !c.closes() && (c.Ended == 0 || c.Error != "") {
			all = append(all, fmt.Sprintf("%v: rank %d began %s at %s, line %s, %s.", g, m.Rank, c.Call, clock(c.Begun), c.Line, c.outcome()))
		}
	}
	if len(all) == 0 {
		var last int64
		for _, m := range g.Members {
			last = max(last, m.final)
		}
		all = append(all, fmt.Sprintf("%v: no rank is late; %d collectives.", g, last))
	}
	return all
}

// closes reports whether the call is the end of the group on its rank.
func (c *Record) closes() bool { return c.Call == Close || c.Call == Abort }

// The calls that end a group.
const (
	Close = "Close"
	Abort = "Abort"
)

// State returns PyTorch's word for the state of a call: started, completed, or failed.
func (c *Record) State() string {
	switch {
	case c.Error != "":
		return "failed"
	case c.Ended == 0 && !c.closes():
		return "started"
	}
	return "completed"
}

func (c *Record) outcome() string {
	switch {
	case c.Error != "":
		return "which failed at " + clock(c.Ended) + ": " + strings.TrimPrefix(c.Error, "linstock: ")
	case c.Ended == 0:
		return "which has not ended"
	}
	return "which ended at " + clock(c.Ended)
}

// mismatch returns the first collective for which the members have made different calls, or "".
func (g *Group) mismatch() string {
	first := int64(0)
	calls := map[int64]string{}
	for _, m := range g.Members {
		for n, c := range m.calls {
			if call, seen := calls[n]; !seen {
				calls[n] = c.Call
			} else if call != c.Call && (first == 0 || n < first) {
				first = n
			}
		}
	}
	if first == 0 {
		return ""
	}
	by := map[string][]int{}
	var different []string
	for _, m := range g.Members {
		c := m.calls[first]
		if c == nil {
			continue
		}
		what := c.Call + " at " + c.Line
		if by[what] == nil {
			different = append(different, what)
		}
		by[what] = append(by[what], m.Rank)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v: the ranks called different collectives as number %d:", g, first)
	for _, what := range different {
		fmt.Fprintf(&b, "\n  %s called %s", named(by[what]), what)
	}
	return b.String()
}

// late returns which members have not begun the first collective that others could not end, or "".
func (g *Group) late() string {
	// The collective for which the first member waits.
	stuck := int64(0)
	for _, m := range g.Members {
		if m.final > m.done && (stuck == 0 || m.done+1 < stuck) {
			stuck = m.done + 1
		}
	}
	if stuck == 0 {
		for _, m := range g.Members {
			stuck = max(stuck, m.final)
		}
		if stuck == 0 || !slices.ContainsFunc(g.Members, func(m *Member) bool { return m.final < stuck }) {
			return ""
		}
	}
	var call *Record // of the first member that waits
	var wait, late, done []int
	for _, m := range g.Members {
		c := m.calls[stuck]
		switch {
		case c == nil && m.final >= stuck: // overwritten
			done = append(done, m.Rank)
		case c == nil:
			late = append(late, m.Rank)
			continue
		case m.done >= stuck:
			done = append(done, m.Rank)
		default:
			wait = append(wait, m.Rank)
		}
		if c != nil && (call == nil || c.Begun < call.Begun) {
			call = c
		}
	}
	if call == nil {
		return ""
	}
	missing := absent(g.Size, len(g.Members), func(i int) int { return g.Members[i].Rank })
	var b strings.Builder
	fmt.Fprintf(&b, "%v: ", g)
	switch {
	case len(late) != 0:
		fmt.Fprintf(&b, "%s late in", areLate(late))
	case missing != "":
		fmt.Fprintf(&b, "there is nothing of %s in", missing)
	case len(done) != 0:
		fmt.Fprintf(&b, "%s did not complete", named(wait))
	default:
		fmt.Fprintf(&b, "no rank has completed, but all have begun")
	}
	fmt.Fprintf(&b, " collective %d, %s, line %s.", stuck, call.Call, call.Line)
	if len(late) == 0 && missing == "" {
		latest := slices.MaxFunc(g.Members, func(a, b *Member) int { return int(a.begun(stuck) - b.begun(stuck)) })
		if by := time.Duration(latest.begun(stuck) - call.Begun); by > 0 {
			fmt.Fprintf(&b, "\n  rank %d was the last to begin, %v after the first", latest.Rank, by.Round(time.Millisecond))
		}
	}
	for _, m := range g.Members {
		if slices.Contains(late, m.Rank) {
			b.WriteString("\n  " + m.where())
		}
	}
	for _, m := range g.Members {
		if c := m.calls[stuck]; c != nil && slices.Contains(wait, m.Rank) {
			fmt.Fprintf(&b, "\n  rank %d began it at %s, line %s, %s", m.Rank, clock(c.Begun), c.Line, c.outcome())
		}
	}
	return b.String()
}

func areLate(ranks []int) string {
	if len(ranks) == 1 {
		return named(ranks) + " is"
	}
	return named(ranks) + " are"
}

func (m *Member) begun(collective int64) int64 {
	if c := m.calls[collective]; c != nil {
		return c.Begun
	}
	return 0
}

// where says what a member did last.
func (m *Member) where() string {
	c := m.Last
	if c.closes() {
		return fmt.Sprintf("rank %d ended with %s at %s, line %s", m.Rank, c.Call, clock(c.Begun), c.Line)
	}
	number := ""
	if c.Collective != 0 {
		number = fmt.Sprintf("collective %d, ", c.Collective)
	}
	return fmt.Sprintf("rank %d's last call was %s%s, line %s, %s", m.Rank, number, c.Call, c.Line, c.outcome())
}
