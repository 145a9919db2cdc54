package tensor

import (
	"runtime"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
)

// The backends of ScaledDotProductAttention are a setting of the process in libtorch. choices has the regions of
// nn.SDPAKernel that are open, in the order in which they were entered. Regions of several goroutines must agree.
var choices struct {
	sync.Mutex
	open   []*choice
	before []int32 // the setting outside of all regions
}

type choice struct {
	thread   int
	backends []int32
}

// withAttention runs f with the given backends, in order of priority. It implements nn.SDPAKernel.
func withAttention(op string, backends []int32, f func() error) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	lockThread() // the thread identifies the goroutine
	defer runtime.UnlockOSThread()
	c := &choice{thread(), slices.Clone(backends)}
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return f()
}

func (c *choice) enter(op string) error {
	choices.Lock()
	defer choices.Unlock()
	for _, other := range choices.open {
		if other.thread != c.thread && !slices.Equal(other.backends, c.backends) {
			return refused(op, ErrArgument, "another goroutine computes with the backends %v: the choice applies to the whole process, so concurrent regions must agree",
				other.backends)
		}
	}
	before := cshim.AttentionBackends()
	if err := cshim.SetAttentionBackends(c.backends); err != nil {
		return newError(op, err)
	}
	if len(choices.open) == 0 {
		choices.before = before
	}
	choices.open = append(choices.open, c)
	return nil
}

func (c *choice) leave() {
	choices.Lock()
	defer choices.Unlock()
	choices.open = slices.DeleteFunc(choices.open, func(other *choice) bool { return other == c })
	backends := choices.before
	if n := len(choices.open); n != 0 {
		backends = choices.open[n-1].backends
	}
	_ = cshim.SetAttentionBackends(backends) // fails only for backends that do not exist
}
