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
