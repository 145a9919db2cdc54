// Package cli has what the commands of the examples share: the check of their arguments and of their directory for results.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

// Parse parses the flags of a command that takes no other arguments. It ends the program with status 2 if there are any,
// since flags after them would be ignored, as the flags themselves do after a mistake.
func Parse() { ParseArgs(flag.CommandLine, os.Args[1:]) }

// ParseArgs is Parse with the flags f, which must have been made with flag.ExitOnError, and the given arguments.
func ParseArgs(f *flag.FlagSet, args []string) {
	_ = f.Parse(args) // it ends the program after a mistake
	if f.NArg() > 0 {
		fmt.Fprintf(f.Output(), "unexpected arguments %q\n", f.Args())
		os.Exit(2)
	}
}

// MakeDir makes a directory for results, if there is none, before the work begins. It returns an error if no file
// can be made there.
func MakeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
