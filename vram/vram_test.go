package vram_test

import (
	"fmt"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func Example() {
	x := tensor.Zeros([]int{1024, 1024}) // 4 MiB of float32
	defer x.Release()
	stats, err := vram.Stats(tensor.CPU)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(stats.Allocated >= 4<<20, stats.Peak >= stats.Allocated)
	// Output: true true
}

func TestPeakFollowsAndResets(t *testing.T) {
	leak.Check(t)
	x := tensor.Zeros([]int{1 << 20})
	before, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	x.Release()
	if err := vram.ResetPeak(tensor.CPU); err != nil {
		t.Fatal(err)
	}
	after, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	if freed := before.Allocated - after.Allocated; freed < 4<<20 {
		t.Errorf("%d bytes were freed, want 4 MiB at least", freed)
	}
	if after.Peak >= before.Peak || after.Peak < after.Allocated {
		t.Errorf("peak after the reset %d, before %d, live %d", after.Peak, before.Peak, after.Allocated)
	}
	if after.Frees <= before.Frees {
		t.Errorf("frees went from %d to %d", before.Frees, after.Frees)
	}
}
