package tensor

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// parseIndex parses the text between the brackets of a Python index: comma-separated integers (also 0x1f, 0b1, ~0,
// 1_000), slices, "...", None, True, False, and lists of these, which may be nested. A list becomes an indexList.
// tuple reports whether the text has a comma outside lists: "0," is a tuple of one element in Python.
func parseIndex(s string) (items []any, tuple bool, err error) {
	p := indexParser{rest: strings.TrimSpace(s)}
	if p.rest == "" {
		return nil, false, errors.New("the index is empty")
	}
	items, tuple, err = p.elements()
	if err == nil && p.rest != "" {
		err = fmt.Errorf("unexpected %q outside a list", p.rest)
	}
	return items, tuple, err
}

// indexList is a list in the text of an index, such as [0, 2]. A program's []any is a tuple.
type indexList []any

type indexParser struct {
	rest  string // without leading spaces
	depth int
}

// elements parses up to the end of the text or of the enclosing list.
func (p *indexParser) elements() (items []any, comma bool, err error) {
	items = []any{}
	for p.rest != "" && p.rest[0] != ']' {
		var item any
		if p.rest[0] == '[' {
			item, err = p.list()
		} else {
			end := strings.IndexAny(p.rest, ",[]")
			if end < 0 {
				end = len(p.rest)
			}
			item, err = parseElement(strings.TrimSpace(p.rest[:end]))
			p.skip(end)
		}
		if _, slice := item.(Slice); slice && p.depth > 0 {
			err = fmt.Errorf("invalid element %v in a list", item)
		}
		if err != nil {
			return nil, false, err
		}
		items = append(items, item)
		if p.rest == "" || p.rest[0] == ']' {
			break
		}
		if p.rest[0] != ',' {
			return nil, false, fmt.Errorf("missing comma before %q", p.rest)
		}
		comma = true
		p.skip(1)
	}
	return items, comma, nil
}

// maxNesting is the greatest number of dimensions of a tensor, and therefore the greatest depth of a list.
const maxNesting = 64

func (p *indexParser) list() (any, error) {
	if p.depth == maxNesting {
		return nil, fmt.Errorf("lists are nested more than %d deep", maxNesting)
	}
	p.depth++
	p.skip(1)
	items, _, err := p.elements()
	if err != nil {
		return nil, err
	}
	if p.rest == "" {
		return nil, errors.New("missing ] at the end of a list")
	}
	p.skip(1)
	p.depth--
	return indexList(items), nil
}

func (p *indexParser) skip(n int) { p.rest = strings.TrimSpace(p.rest[n:]) }

func parseElement(w string) (any, error) {
	switch w {
	case "":
		return nil, errors.New("empty element between commas")
	case "...", "Ellipsis":
		return Ellipsis, nil
	case "None", "newaxis":
		return NewAxis, nil
	case "True":
		return true, nil
	case "False":
		return false, nil
	}
	if strings.IndexByte(w, ':') >= 0 {
		return parseSlice(w)
	}
	return parseInt(w)
}

// parseInt parses a Python integer literal, which may be preceded by operators -, + and ~.
func parseInt(w string) (int, error) {
	bad := fmt.Errorf("invalid index %q", w)
	literal := strings.TrimLeft(w, "+-~ \t")
	operators := w[:len(w)-len(literal)]
	// Python rejects decimal literals with a leading zero, except zero itself such as 00.
	octal := len(literal) > 1 && literal[0] == '0' && strings.IndexByte("0123456789_", literal[1]) >= 0 && strings.Trim(literal, "0_") != ""
	if literal == "" || len(literal) > 100 || octal {
		return 0, bad
	}
	n, ok := new(big.Int).SetString(literal, 0)
	if !ok {
		return 0, bad
	}
	for i := len(operators) - 1; i >= 0; i-- {
		switch operators[i] {
		case '-':
			n.Neg(n)
		case '~':
			n.Not(n)
		}
	}
	if !n.IsInt64() || int64(int(n.Int64())) != n.Int64() {
		return 0, bad
	}
	return int(n.Int64()), nil
}

func parseSlice(w string) (any, error) {
	parts := strings.Split(w, ":")
	if len(parts) > 3 {
		return nil, fmt.Errorf("too many colons in %q", w)
	}
	var s Slice
	for i, p := range parts {
		p = strings.TrimSpace(p)
		if p == "" || p == "None" {
			continue
		}
		n, err := parseInt(p)
		if err != nil {
			return nil, err
		}
		switch i {
		case 0:
			s.start, s.hasStart = n, true
		case 1:
			s.stop, s.hasStop = n, true
		case 2:
			s = s.By(n)
		}
	}
	return s, nil
}

// isTuple reports whether Python treats a list that is the whole index as a tuple: a short list that holds anything
// other than numbers.
func isTuple(list indexList) bool {
	if len(list) >= 32 {
		return false
	}
	for _, e := range list {
		switch e.(type) {
		case indexList, special:
			return true
		}
	}
	return false
}

// rectangle returns the shape and elements of the tensor for a nested list. mask reports whether all elements are
// bools; otherwise bools count as 0 and 1.
func rectangle(list indexList) (shape, elements []int, mask bool, err error) {
	shape = []int{len(list)}
	bools := 0
	for i, e := range list {
		var inner []int
		switch e := e.(type) {
		case int:
			elements = append(elements, e)
		case bool:
			bools++
			elements = append(elements, int(bit(e)))
		case indexList:
			part, values, isMask, err := rectangle(e)
			if err != nil {
				return nil, nil, false, err
			}
			inner, elements = part, append(elements, values...)
			if isMask {
				bools += len(values)
			}
		default:
			return nil, nil, false, fmt.Errorf("invalid element %v in a list of indices", e)
		}
		switch {
		case i == 0:
			shape = append(shape, inner...)
		case !slices.Equal(shape[1:], inner):
			return nil, nil, false, errors.New("nested lists must have equal lengths")
		}
	}
	return shape, elements, len(elements) > 0 && bools == len(elements), nil
}
