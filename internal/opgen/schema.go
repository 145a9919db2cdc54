package main

import (
	"fmt"
	"strings"
)

// schema is a parsed operator schema, as native_functions.yaml writes it.
type schema struct {
	text     string // the whole schema, as written
	name     string // "add"
	overload string // "Tensor" or ""
	args     []*arg
	returns  []string // types without alias marks
	inPlace  bool     // the first argument is written to and returned
}

type arg struct {
	name     string
	typ      string // base type without alias marks: "Tensor", "int", "Scalar", …
	list     bool
	listN    string // the N of int[N]
	optional bool   // T?, T[]?
	elemOpt  bool   // T?[]
	write    bool   // (a!)
	def      string // default literal
	hasDef   bool
	kwOnly   bool

	// from the table's flags
	tableDef bool // def comes from the table, not from the schema
	num      bool // a Tensor that also takes numbers
	option   bool // an option, not positional
	hidden   bool
}

func (s *schema) full() string {
	if s.overload == "" {
		return s.name
	}
	return s.name + "." + s.overload
}

func parseSchema(text string) (*schema, error) {
	s := &schema{text: text}
	open := strings.IndexByte(text, '(')
	arrow := strings.LastIndex(text, ") -> ")
	if open < 0 || arrow < 0 {
		return nil, fmt.Errorf("not a schema: %q", text)
	}
	s.name, s.overload, _ = strings.Cut(text[:open], ".")
	kwOnly := false
	for _, part := range splitTop(text[open+1 : arrow]) {
		if part == "*" {
			kwOnly = true
			continue
		}
		a, err := parseArg(part)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.full(), err)
		}
		a.kwOnly = kwOnly
		s.args = append(s.args, a)
	}
	ret := strings.TrimSpace(text[arrow+5:])
	if strings.HasPrefix(ret, "(") {
		ret = ret[1 : len(ret)-1]
	}
	for _, r := range splitTop(ret) {
		typ, _ := stripAlias(strings.Fields(r)[0])
		s.returns = append(s.returns, typ)
	}
	s.inPlace = len(s.args) > 0 && s.args[0].write && strings.HasSuffix(s.name, "_")
	return s, nil
}

func splitTop(s string) []string {
	var parts []string
	depth, start := 0, 0
	for i, c := range s {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, strings.TrimSpace(s[start:i]))
				start = i + 1
			}
		}
	}
	if rest := strings.TrimSpace(s[start:]); rest != "" {
		parts = append(parts, rest)
	}
	return parts
}

// stripAlias removes "(a!)" or "(a -> *)" from a type.
func stripAlias(t string) (string, bool) {
	i := strings.IndexByte(t, '(')
	if i < 0 {
		return t, false
	}
	j := strings.IndexByte(t, ')')
	return t[:i] + t[j+1:], strings.Contains(t[i:j], "!")
}

func parseArg(text string) (*arg, error) {
	a := &arg{}
	decl, def, hasDef := strings.Cut(text, "=")
	a.def, a.hasDef = def, hasDef
	sp := strings.LastIndexByte(decl, ' ')
	if sp < 0 {
		return nil, fmt.Errorf("not an argument: %q", text)
	}
	a.name = decl[sp+1:]
	t, write := stripAlias(decl[:sp])
	a.write = write
	if strings.HasSuffix(t, "?") {
		a.optional = true
		t = t[:len(t)-1]
	}
	if strings.HasSuffix(t, "]") {
		i := strings.IndexByte(t, '[')
		a.list, a.listN = true, t[i+1:len(t)-1]
		t = t[:i]
		if strings.HasSuffix(t, "?") {
			a.elemOpt = true
			t = t[:len(t)-1]
		}
	}
	if t == "SymInt" {
		t = "int"
	}
	switch t {
	case "Tensor", "int", "float", "bool", "Scalar", "str", "ScalarType", "Layout", "Device", "MemoryFormat", "Generator":
		a.typ = t
	default:
		return nil, fmt.Errorf("argument %s: type %q has no Go equivalent", a.name, t)
	}
	return a, nil
}
