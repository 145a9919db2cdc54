package profiler_test

import (
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/linstock-ml/linstock/profiler"
	"github.com/linstock-ml/linstock/tensor"
)

func Example() {
	x, w := tensor.Ones([]int{64, 32}), tensor.Ones([]int{32, 8}).RequiresGrad_()
	p, err := profiler.Start(profiler.RecordShapes())
	if err != nil {
		log.Fatal(err)
	}
	err = profiler.RecordFunction("loss", func() error {
		return x.MatMul(w).Sum().Backward()
	})
	trace, stopErr := p.Stop()
	if err := errors.Join(err, stopErr); err != nil {
		log.Fatal(err)
	}
	// The table has the times: trace.KeyAverages().Table(profiler.SortBy(profiler.SelfCPUTimeTotal)).
	for _, e := range trace.Events {
		line, _, _ := strings.Cut(e.Line, ":")
		switch e.Name {
		case "aten::mm", "MmBackward0", "loss":
			fmt.Println(e.Name, e.Shapes, line)
		}
	}
	// Output:
	// loss  example_test.go
	// aten::mm [[64, 32], [32, 8]] example_test.go
	// MmBackward0 [[64, 8]] example_test.go
	// aten::mm [[32, 64], [64, 8]] example_test.go
}

// Record steps 3 and 4 of each cycle of five, and write a trace of them.
func ExampleSchedule() {
	p, err := profiler.Start(
		profiler.Schedule{Wait: 2, Warmup: 1, Active: 2, Repeat: 1},
		profiler.OnTraceReady(func(t *profiler.Trace) error {
			fmt.Println("a trace of", t.KeyAverages()[0].Count, "steps")
			return nil // t.ExportChromeTrace("trace.json")
		}))
	if err != nil {
		log.Fatal(err)
	}
	for range 10 {
		if err := profiler.RecordFunction("step", func() error {
			return tensor.WithScope(func() error { return tensor.Ones([]int{4}).Exp().Err() })
		}); err != nil {
			log.Fatal(err)
		}
		if err := p.Step(); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := p.Stop(); err != nil {
		log.Fatal(err)
	}
	// Output: a trace of 2 steps
}
