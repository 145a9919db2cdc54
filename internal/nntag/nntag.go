// Package nntag implements the rules by which package nn names a struct's fields, for nn and for the analyzer that
// checks them.
package nntag

import (
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Options are the options of the tag nn:"name,option".
var Options = []string{"buffer", "nonpersistent", "optional"}

// Tag is the parsed tag of a field.
type Tag struct {
	Skip    bool   // nn:"-"
	Name    string // in the state; empty if parts of the field have no prefix
	Options []string
	Unknown []string // options that are not in Options
}

// Has reports whether the tag has an option.
func (t *Tag) Has(option string) bool { return slices.Contains(t.Options, option) }

// Parse parses the tag of a field.
func Parse(tag reflect.StructTag, field string, embedded bool) Tag {
	text, has := tag.Lookup("nn")
	name, rest, _ := strings.Cut(text, ",")
	t := Tag{Skip: name == "-"}
	for _, o := range strings.Split(rest, ",") {
		switch {
		case o == "":
		case slices.Contains(Options, o):
			t.Options = append(t.Options, o)
		default:
			t.Unknown = append(t.Unknown, o)
		}
	}
	switch {
	case name == "." || embedded && !has:
	case name == "":
		t.Name = Snake(field)
	default:
		t.Name = name
	}
	return t
}

// Snake returns PyTorch's spelling of a Go name: LN1 is ln1, RunningMean is running_mean, QKVProj is qkv_proj.
func Snake(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) {
			next := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if !unicode.IsUpper(runes[i-1]) || next {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
