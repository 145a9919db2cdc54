// Package options formats the error for an unknown option.
package options

import "strings"

// Unknown returns the message for the option name passed to op, which accepts the options known.
func Unknown(op, name string, known []string) string {
	if len(known) == 0 {
		return "unknown option " + name + "; " + op + " has no options"
	}
	return "unknown option " + name + "; the options are " + strings.Join(known, ", ")
}
