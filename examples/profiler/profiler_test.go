package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/linstock-ml/linstock/internal/leak"
)

func TestRun(t *testing.T) {
	leak.Check(t)
	var table strings.Builder
	dir := t.TempDir()
	if err := run(&table, dir, 2, -1); err == nil || !strings.Contains(err.Error(), "-steps must be at least 3") {
		t.Errorf("two steps: got %v", err)
	}
	if err := run(&table, "main.go", 4, -1); err == nil || table.Len() > 0 {
		t.Errorf("a file for the folder: got %v after the steps", err)
	}
	if err := run(&table, dir, 4, -1); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"aten::addmm", "GeluBackward0", "main.go:", "ProfilerStep", "forward"} {
		if strings.Contains(table.String(), want) == (want == "ProfilerStep") {
			t.Errorf("the table and %q:\n%s", want, table.String())
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "time.pb.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := profile.ParseData(data); err != nil || len(p.Sample) == 0 {
		t.Errorf("the profile: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "trace.json")); err != nil || !strings.Contains(string(data), "ProfilerStep#2") {
		t.Errorf("the trace has no steps: %v", err)
	}
}
