// Package options has what the options of several packages share: the error for an unknown one, and boolean values.
package options

import "strings"

// Unknown returns the message for the option name passed to op, which accepts the options known.
func Unknown(op, name string, known []string) string {
	if len(known) == 0 {
		return "unknown option " + name + "; " + op + " has no options"
	}
	return "unknown option " + name + "; the options are " + strings.Join(known, ", ")
}

// On returns the value of a boolean option, which is true without an argument.
func On(on []bool) bool { return len(on) == 0 || on[len(on)-1] }
