//go:build !unix

package dcp

import "os"

// lock does nothing: on this system no lock ends with its process.
func lock(string) (f *os.File, sure, free bool, err error) { return nil, false, true, nil }
