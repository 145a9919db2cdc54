package tensor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// parseIndex reads what stands between Python's brackets: ints, slices, "...", None, True, False and lists of
// ints or of bools, with commas between.
func parseIndex(s string) ([]any, error) {
	var items []any
	rest := strings.TrimSpace(s)
	if rest == "" {
		return nil, errors.New("an index is needed")
	}
	for rest != "" {
		var word string
		if rest[0] == '[' {
			end := strings.IndexByte(rest, ']')
			if end < 0 {
				return nil, errors.New("a list is not closed")
			}
			word, rest = rest[:end+1], strings.TrimSpace(rest[end+1:])
			if rest != "" && rest[0] != ',' {
				return nil, fmt.Errorf("a comma is needed before %q", rest)
			}
			rest = strings.TrimPrefix(rest, ",")
		} else {
			word, rest, _ = strings.Cut(rest, ",")
		}
		item, err := parseElement(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		items = append(items, item)
		rest = strings.TrimSpace(rest) // a comma at the end is Python's one-element tuple
	}
	return items, nil
}

func parseElement(w string) (any, error) {
	switch w {
	case "":
		return nil, errors.New("an element is empty")
	case "...", "Ellipsis":
		return Ellipsis, nil
	case "None", "newaxis":
		return NewAxis, nil
	case "True":
		return true, nil
	case "False":
		return false, nil
	}
	if w[0] == '[' {
		return parseList(w[1 : len(w)-1])
	}
	if strings.IndexByte(w, ':') >= 0 {
		return parseSlice(w)
	}
	return parseInt(w)
}

func parseInt(w string) (int, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(w), 10, 0)
	if err != nil {
		return 0, fmt.Errorf("%q is no index", w)
	}
	return int(n), nil
}

func parseSlice(w string) (any, error) {
	parts := strings.Split(w, ":")
	if len(parts) > 3 {
		return nil, fmt.Errorf("%q has too many colons", w)
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

func parseList(w string) (any, error) {
	ints, bools := []int{}, []bool{}
	rest := strings.TrimSpace(w)
	for rest != "" {
		var word string
		word, rest, _ = strings.Cut(rest, ",")
		switch word, rest = strings.TrimSpace(word), strings.TrimSpace(rest); word {
		case "True", "False":
			bools = append(bools, word == "True")
		default:
			n, err := parseInt(word)
			if err != nil {
				return nil, err
			}
			ints = append(ints, n)
		}
	}
	switch {
	case len(bools) == 0:
		return ints, nil
	case len(ints) == 0:
		return bools, nil
	}
	return nil, errors.New("a list has ints and bools")
}
