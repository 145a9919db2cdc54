// Package clitest tests the commands of the examples.
package clitest

import (
	"strings"
	"testing"
)

// Refused tests that command returns, for each of the options, an error that contains its key.
func Refused[O any](t *testing.T, command func(O) error, cases map[string]O) {
	t.Helper()
	for want, o := range cases {
		if err := command(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", o, err, want)
		}
	}
}
