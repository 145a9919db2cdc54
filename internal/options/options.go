// Package options words the error for an option that a function does not have.
package options

import "strings"

// Unknown is the message for the option name given to op, which has the options known.
func Unknown(op, name string, known []string) string {
	if len(known) == 0 {
		return "there is no option " + name + "; " + op + " has none"
	}
	return "there is no option " + name + "; the options are " + strings.Join(known, ", ")
}
