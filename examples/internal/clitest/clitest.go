// Package clitest tests the commands of the examples.
package clitest

import (
	"os"
	"path/filepath"
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

// Printed returns what f prints.
func Printed(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "printed"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	os.Stdout = file
	f()
	out, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
