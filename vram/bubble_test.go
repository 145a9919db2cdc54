package vram_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// targets is a policy that never collects and records the last target.
type targets struct{ last *atomic.Int64 }

func (p targets) Decide(s vram.State) vram.Decision {
	p.last.Store(s.Target)
	return vram.Decision{}
}

// A bubble of testing/synctest may be the first to compute: its clock moves, and has no effect on the pacer's.
func TestBubble(t *testing.T) {
	if !elsewhere.Process(t) {
		return
	}
	const large = 64 * mib
	target := new(atomic.Int64)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if v, err := tensor.Ones([]int{3}).Sum().Item(); err != nil || v != 3 {
			t.Errorf("%v, %v", v, err)
		}
		time.Sleep(time.Minute)
		if d := time.Since(start); d != time.Minute {
			t.Errorf("a minute took %v", d)
		}
	})
	leak.Check(t)
	x := tensor.Ones([]int{large / 4})
	defer x.Release()
	ok(t, vram.Collect())
	usePolicy(t, targets{target})
	check := func(where string) {
		for range 3 {
			ok(t, tensor.Ones([]int{mib}).Err())
		}
		if got := target.Load(); got < large || got > 2*large {
			t.Errorf("%s the target is %d bytes, with %d reachable", where, got, large)
		}
	}
	check("before a bubble")
	synctest.Test(t, func(*testing.T) { check("in a bubble") })
	check("after a bubble")
}

// A limit that another goroutine sets while the first operator loads libtorch is not replaced by the default.
func TestLimitBesideTheFirstOperator(t *testing.T) {
	if !elsewhere.Process(t) {
		return
	}
	computed := make(chan error)
	go func() { computed <- tensor.Ones([]int{3}).Err() }()
	for cshim.Path() == "" {
		runtime.Gosched()
	}
	ok(t, vram.SetLimit(vram.CPU, vram.Bytes(200*mib)))
	ok(t, <-computed)
	leak.Check(t)
	if m := memoryNow(t); m.Limit != 200*mib {
		t.Errorf("the limit is %d bytes, want %d", m.Limit, 200*mib)
	}
}
