package idioms

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The lines in the outputs that the documents show hold the operators that are named there.
func TestLinesOfExamples(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, d := range []struct {
		doc, source string
		code        []string // on each line that doc names, in order
	}{
		{"docs/profiling.md", "examples/profiler/main.go", []string{"n.Hidden.Forward(x)", "h.GELU()", "n.Out.Forward(h)", "n.Hidden.Forward(x)"}},
		{"docs/memory.md", "examples/outofmemory/main.go", []string{"scaled.Mul(gate)", "y.Mean()"}},
	} {
		named, source := regexp.MustCompile(`\bmain\.go:(\d+)`).FindAllStringSubmatch(read(d.doc), -1), strings.Split(read(d.source), "\n")
		if len(named) != len(d.code) {
			t.Errorf("%s names %d lines, want %d", d.doc, len(named), len(d.code))
			continue
		}
		for i, m := range named {
			if n, err := strconv.Atoi(m[1]); err != nil || n < 1 || n > len(source) || !strings.Contains(source[n-1], d.code[i]) {
				t.Errorf("%s names %s of %s for %s, which is not there", d.doc, m[0], d.source, d.code[i])
			}
		}
	}
}
