package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestRunsInASixteenthOfItsAllocations tests that the program makes 16 times the memory it may use, stays below the
// limit, and that the profile names the line that holds the live memory.
func TestRunsInASixteenthOfItsAllocations(t *testing.T) {
	leak.Check(t)
	t.Cleanup(func() { _ = vram.SetLimit(vram.CPU, vram.Share(0.9)) })
	if err := vram.ResetPeak(vram.CPU); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	before := vram.ReadCounts()
	var out bytes.Buffer
	if err := command([]string{"-limit", "128MiB", "-total", "2GiB", "-dir", dir}, &out); err != nil {
		t.Fatal(err)
	}
	stats, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	if stats.Peak > 128<<20 {
		t.Errorf("the peak is %d, beyond the limit", stats.Peak)
	}
	if c := vram.ReadCounts(); c.OOMs != before.OOMs || c.Full+c.Deep == before.Full+before.Deep {
		t.Errorf("sweeps and failures went from %+v to %+v", before, c)
	}
	for _, want := range []string{"limit 128 MiB", "memory summary, device cpu", "main.go:", "unreachable tensors", "activations", "8 samples"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output does not say %q:\n%s", want, out.String())
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "native.pb.gz"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.ParseData(data)
	if err != nil {
		t.Fatal(err)
	}
	var held int64
	for _, s := range p.Sample {
		if f := s.Location[0].Line[0].Function; strings.HasSuffix(f.Name, ".step") && s.Label["operator"][0] == "Mul" {
			held += s.Value[0]
		}
	}
	if held < 8*4<<20 {
		t.Errorf("by the profile, step's Mul holds %d bytes, want %d", held, 8*4<<20)
	}
	if data, err = os.ReadFile(filepath.Join(dir, "snapshot.pickle")); err != nil || !bytes.HasPrefix(data, []byte("\x80\x02")) {
		t.Errorf("the snapshot is not a pickle: %v", err)
	}
}

func TestWrongArguments(t *testing.T) {
	leak.Check(t)
	for _, args := range [][]string{{"-limit", "much"}, {"-total", "more"}, {"-device", "abacus"}, {"-dir", "main.go"}} {
		if err := command(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%q gives no error", args)
		}
	}
}
