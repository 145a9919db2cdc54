package profiler_test

import (
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/profiler"
	"github.com/linstock-ml/linstock/tensor"
)

// BenchmarkAdd measures what recording costs an operator on 16 floats: nothing before the first profile and after it. The
// metric cpu-ns/op is the time of the processors, which does not count other programs.
//
//	go test -run - -bench Add -count 5 ./profiler
func BenchmarkAdd(b *testing.B) {
	leak.Check(b)
	x := tensor.Ones([]int{16})
	defer x.Release()
	add := func(b *testing.B) {
		before := cpuTime(b)
		for b.Loop() {
			x.Add(x).Release()
		}
		b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
	}
	recorded := func(opts ...profiler.Option) func(b *testing.B) {
		return func(b *testing.B) {
			p, err := profiler.Start(append(opts, profiler.MaxEvents(1<<16))...)
			if err != nil {
				b.Fatal(err)
			}
			add(b)
			if _, err := p.Stop(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("before", add)
	b.Run("recorded", recorded())
	b.Run("shapes", recorded(profiler.RecordShapes()))
	b.Run("after", add)
}

func cpuTime(b *testing.B) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
