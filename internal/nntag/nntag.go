// Package nntag has the rules by which package nn names a struct's fields, for nn and for the analyzer that checks them.
package nntag

import (
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Options are those that the tag nn:"name,option" has.
var Options = []string{"buffer", "optional"}

// Tag is a field's tag.
type Tag struct {
	Skip    bool   // nn:"-"
	Name    string // in the state; empty: what is in the field has no prefix
	Options []string
	Unknown []string // options that do not exist
}

// Has reports whether the tag has an option.
func (t *Tag) Has(option string) bool { return slices.Contains(t.Options, option) }

// Parse reads the tag of a field.
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

// Snake returns PyTorch's way of writing a Go name: LN1 is ln1, RunningMean running_mean, QKVProj qkv_proj.
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
