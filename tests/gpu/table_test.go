package main

import (
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
)

// TestDryOptions tests that the options of a dry run have their place in the command.
func TestDryOptions(t *testing.T) {
	leak.Check(t)
	for _, p := range parts {
		for _, s := range p.steps {
			if (s.dry != "") != strings.Contains(s.argv, "{dry}") {
				t.Errorf("%s/%s: argv is %q, dry %q", p.name, s.name, s.argv, s.dry)
			}
		}
	}
}

// TestSkippedTestsAreNoResult tests that a step whose tests are all skipped fails.
func TestSkippedTestsAreNoResult(t *testing.T) {
	leak.Check(t)
	for out, want := range map[string]bool{"--- SKIP: TestA (0.00s)\n": false, "--- SKIP: TestA (0.00s)\n--- PASS: TestB (0.00s)\n": true, "": false} {
		if err := readGoTest(nil, []byte(out), &stepResult{}); (err == nil) != want {
			t.Errorf("%q: %v", out, err)
		}
	}
}
