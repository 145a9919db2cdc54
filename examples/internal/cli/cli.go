// Package cli has what the commands of the examples share: the check of their arguments and of their directory for results.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

// Parse parses the flags of a command that takes no other arguments. It ends the program if there are any, since flags
// after them would be ignored.
func Parse() {
	flag.Parse()
	if err := NoArguments(flag.CommandLine); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// NoArguments returns an error if arguments follow the flags that f has parsed.
func NoArguments(f *flag.FlagSet) error {
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected arguments %q", f.Args())
	}
	return nil
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
