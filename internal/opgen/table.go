package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// op is a line of the table, or the in-place sibling that "+_" in a line requests.
type op struct {
	*schema
	goName  string
	doc     string
	section string
	line    int
	hot     bool
	fn      bool
	scalar  []string // the overloads for numbers: for each operand of num=, and for both of two
	tensors string   // the operator that takes a tensor where this one takes a number
	same    int      // number of leading tensors that must have the same shape
}

func readTable(path string) ([]*op, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ops []*op
	var section string
	seen := map[string]int{}
	add := func(o *op) error {
		if before, dup := seen[o.goName]; dup {
			return fmt.Errorf("%s is already defined at line %d", o.goName, before)
		}
		seen[o.goName] = o.line
		ops = append(ops, o)
		return nil
	}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "#"); ok {
			section = strings.TrimSpace(rest)
			continue
		}
		o, inPlace, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		o.section, o.line = section, n
		if err := add(o); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if inPlace {
			sib, err := sibling(o, line)
			if err == nil {
				err = add(sib)
			}
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n, err)
			}
		}
	}
	for _, o := range ops {
		if err := o.checkDoc(); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, o.line, err)
		}
		base, inPlace := strings.CutSuffix(o.goName, "_")
		tensors := base + "Tensor"
		if inPlace {
			tensors += "_"
		}
		if seen[tensors] != 0 && slices.ContainsFunc(o.args, func(a *arg) bool { return a.typ == "Scalar" && !a.list }) {
			o.tensors = tensors
		}
	}
	return ops, sc.Err()
}

var capitalised = regexp.MustCompile(`\b[A-Z][A-Za-z0-9]*`)

// checkDoc returns an error if the doc writes an option's name in other cases: Go has no such option.
func (o *op) checkDoc() error {
	for _, word := range capitalised.FindAllString(o.doc, -1) {
		for _, a := range o.args {
			if name := camel(a.name); a.option && !a.hidden && a.enum() == "" && word != name && strings.EqualFold(word, name) {
				return fmt.Errorf("the doc of %s names the option %s %s", o.goName, name, word)
			}
		}
	}
	return nil
}

func parseLine(line string) (o *op, inPlace bool, err error) {
	fields := strings.SplitN(line, " | ", 4)
	if len(fields) != 4 {
		return nil, false, fmt.Errorf("want four fields, got %d", len(fields))
	}
	s, err := parseSchema(strings.TrimSpace(fields[2]))
	if err != nil {
		return nil, false, err
	}
	o = &op{schema: s, goName: strings.TrimSpace(fields[0]), doc: strings.TrimSpace(fields[3])}
	if !strings.HasPrefix(o.doc, o.goName+" ") {
		return nil, false, fmt.Errorf("the doc of %s does not begin with its name", o.goName)
	}
	inPlace, err = o.applyFlags(strings.TrimSpace(fields[1]))
	return o, inPlace, err
}

func (o *op) applyFlags(flags string) (inPlace bool, err error) {
	byName := map[string]*arg{}
	for _, a := range o.args {
		byName[a.name] = a
		a.option = a.hasDef || a.optional && a.kwOnly
	}
	each := func(list, sep string, f func(a *arg, lit string) error) error {
		for _, item := range strings.Split(list, sep) {
			name, lit, _ := strings.Cut(item, "=")
			a := byName[name]
			if a == nil {
				return fmt.Errorf("%s has no argument %q", o.full(), name)
			}
			if err := f(a, lit); err != nil {
				return err
			}
		}
		return nil
	}
	for _, flag := range strings.Fields(flags) {
		key, val, _ := strings.Cut(flag, "=")
		switch key {
		case "-":
		case "hot":
			o.hot = true
		case "fn":
			o.fn = true
		case "scalar":
			o.scalar = strings.Split(val, ",")
		case "+_":
			inPlace = true
		case "num":
			err = each(val, ",", func(a *arg, _ string) error {
				if a.typ != "Tensor" || a.list {
					return fmt.Errorf("%s: num=%s is not a tensor", o.full(), a.name)
				}
				a.num = true
				return nil
			})
		case "opt":
			err = each(val, ";", func(a *arg, lit string) error {
				a.option, a.hasDef, a.def, a.tableDef = true, true, lit, true
				return nil
			})
		case "req":
			err = each(val, ",", func(a *arg, _ string) error { a.option = false; return nil })
		case "same":
			o.same, err = strconv.Atoi(val)
			for i := range o.same {
				if err == nil && (i >= len(o.args) || o.args[i].typ != "Tensor" || o.args[i].list) {
					err = fmt.Errorf("%s: same=%d, but argument %d is not a tensor", o.full(), o.same, i)
				}
			}
		case "hide":
			err = each(val, ",", func(a *arg, _ string) error { a.hidden = true; return nil })
		default:
			err = fmt.Errorf("unknown flag %q", flag)
		}
		if err != nil {
			return false, err
		}
	}
	for _, a := range o.args {
		if a.hidden && !a.hasDef && !a.optional {
			return false, fmt.Errorf("%s: %s is hidden but has no default", o.full(), a.name)
		}
		if a.typ == "bool" && !a.list && !a.option && !a.hidden {
			return false, fmt.Errorf("%s: bool %s must be an option (opt=%s=…)", o.full(), a.name, a.name)
		}
	}
	if n := len(o.operands()); o.scalar != nil && (n < 1 || n > 2 || len(o.scalar) != 2*n-1) {
		return false, fmt.Errorf("%s: scalar has %d overloads, but num= has %d operands", o.full(), len(o.scalar), n)
	}
	if len(o.args) == 0 || o.args[0].typ != "Tensor" || o.args[0].list || o.args[0].num || o.args[0].optional {
		o.fn = true
	}
	// Lists of tensors and strings gain nothing from a typed entry.
	for _, a := range o.args {
		if a.option || a.hidden {
			continue
		}
		if a.typ == "Tensor" && (a.list || a.num && a.optional) || a.typ != "Tensor" && a.typ != "int" && a.typ != "float" || a.list && a.optional {
			o.hot = false
		}
	}
	if o.fn || len(o.returns) != 1 || o.returns[0] != "Tensor" {
		o.hot = false
	}
	return inPlace, nil
}

// operands returns the places of the arguments that also take numbers.
func (o *op) operands() []int {
	var at []int
	for i, a := range o.args {
		if a.num {
			at = append(at, i)
		}
	}
	return at
}

// inPlaceNames are PyTorch's names of in-place operators that torch.Tensor lacks, by the operator.
var inPlaceNames = map[string]string{
	"relu6":       "torch.nn.functional.relu6(inplace=True)",
	"leaky_relu":  "torch.nn.functional.leaky_relu_",
	"rrelu":       "torch.rrelu_",
	"elu":         "torch.nn.functional.elu_",
	"selu":        "torch.selu_",
	"celu":        "torch.celu_",
	"gelu":        "torch.ops.aten.gelu_",
	"silu":        "torch.nn.functional.silu(inplace=True)",
	"mish":        "torch.nn.functional.mish(inplace=True)",
	"hardtanh":    "torch.nn.functional.hardtanh_",
	"hardsigmoid": "torch.nn.functional.hardsigmoid(inplace=True)",
	"hardswish":   "torch.nn.functional.hardswish(inplace=True)",
	"threshold":   "torch.threshold_",
}

// sibling returns the in-place form of an operator.
func sibling(o *op, line string) (*op, error) {
	fields := strings.SplitN(line, " | ", 4)
	open := strings.IndexByte(o.text, '(')
	name, overload, dot := strings.Cut(o.text[:open], ".")
	name += "_"
	if dot {
		name += "." + overload
	}
	args := o.text[open:strings.LastIndex(o.text, ") -> ")]
	first := o.args[0]
	_, rest, found := strings.Cut(args, " "+first.name)
	if !found || first.typ != "Tensor" || first.list {
		return nil, fmt.Errorf("%s: +_ requires a Tensor as the first argument", o.full())
	}
	args = "(Tensor(a!) " + first.name + rest
	flags := strings.ReplaceAll(fields[1], "+_", "")
	goName := strings.TrimSpace(fields[0]) + "_"
	theirs := inPlaceNames[o.name]
	if theirs == "" {
		theirs = "torch.Tensor." + o.name + "_"
	}
	sib, _, err := parseLine(fmt.Sprintf("%s | %s | %s) -> Tensor(a!) | %s is [Tensor.%s] in place: it writes into the receiver and returns it. PyTorch: %s.",
		goName, flags, name+args, goName, fields[0], theirs))
	if err != nil {
		return nil, err
	}
	sib.section, sib.line = o.section, o.line
	return sib, nil
}
