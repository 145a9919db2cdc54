package main

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"
)

var goWords = map[string]string{"self": "self", "type": "typ", "range": "rng", "func": "fn", "len": "length", "input": "input", "default": "def", "map": "m", "var": "v", "t": "other"}

// goParam returns the Go name of an argument: normalized_shape becomes normalizedShape.
func goParam(name string) string {
	if g, ok := goWords[name]; ok {
		return g
	}
	c := camel(name)
	return strings.ToLower(c[:1]) + c[1:]
}

var initialisms = map[string]string{"keepdim": "KeepDim", "unbiased": "Unbiased", "dtype": "DType", "ceil_mode": "CeilMode", "start_dim": "StartDim", "ord": "Ord", "p": "P", "n": "N", "k": "K", "hermitian": "Hermitian", "upper": "Upper", "full": "FullTerm"}

func camel(name string) string {
	if g, ok := initialisms[name]; ok {
		return g
	}
	var b strings.Builder
	for _, part := range strings.Split(name, "_") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// optKinds collects the types of an option in all operators that have it.
type optKinds struct {
	ints, list, number, scalar, boolean, text, tensor bool
	keywords                                          []string // PyTorch's names of it, which differ in case at most
	users                                             []string
}

func (a *arg) enum() string {
	switch {
	case a.typ == "ScalarType":
		return "DType"
	case a.typ == "Device", a.typ == "Generator", a.typ == "Layout", a.typ == "MemoryFormat":
		return a.typ
	case a.name == "reduction" && a.typ == "int":
		return "Reduction"
	}
	return ""
}

func (k *optKinds) add(a *arg) {
	switch a.typ {
	case "int":
		k.ints = true
		k.list = k.list || a.list
	case "float", "Scalar":
		k.number = true
		k.scalar = k.scalar || a.typ == "Scalar"
		k.list = k.list || a.list
	case "bool":
		k.boolean = true
	case "str":
		k.text = true
	case "Tensor":
		k.tensor = true
	}
}

// goType returns the parameter of the option's function and the sentence that documents it.
func (k *optKinds) goType() (param, doc string) {
	kinds := 0
	for _, b := range []bool{k.ints || k.number, k.boolean, k.text, k.tensor} {
		if b {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		var of []string
		if k.ints || k.number {
			of = append(of, "a number")
		}
		if k.boolean {
			of = append(of, "a bool")
		}
		if k.text {
			of = append(of, "a string")
		}
		if k.tensor {
			of = append(of, "a *Tensor")
		}
		return "v any", "v is " + strings.Join(of, " or ") + ", depending on the operator."
	case k.boolean:
		return "on ...bool", ""
	case k.text:
		return "v string", ""
	case k.tensor:
		return "v *Tensor", ""
	case k.number && !k.list && (k.scalar || k.ints):
		return "v any", "v is a Go number; an int is passed as an integer, as in Python."
	case k.number && !k.list:
		return "v float64", ""
	case k.number:
		return "v ...any", "v are Go numbers."
	case k.list:
		return "v ...int", ""
	default:
		return "v int", ""
	}
}

func emitGo(ops []*op, files map[string][]byte) error {
	opts := map[string]*optKinds{}
	for _, o := range ops {
		for _, a := range o.args {
			if !a.option || a.hidden || a.enum() != "" {
				continue
			}
			name := camel(a.name)
			k := opts[name]
			if k == nil {
				k = &optKinds{}
				opts[name] = k
			}
			if !slices.Contains(k.keywords, a.name) {
				k.keywords = append(k.keywords, a.name)
			}
			k.add(a)
			k.users = append(k.users, o.goName)
		}
	}
	functions := map[string]bool{}
	for _, o := range ops {
		if o.fn {
			functions[o.goName] = true
		}
	}
	var names []string
	for n := range opts {
		if functions[n] {
			return fmt.Errorf("option %s has the name of a function", n)
		}
		names = append(names, n)
	}
	sort.Strings(names)
	files["tensor/options_gen.go"] = options(names, opts)

	// Write one file per section, so that each is small enough to read.
	bySection := map[string][]*op{}
	var order []string
	for _, o := range ops {
		s := fileName(o.section)
		if bySection[s] == nil {
			order = append(order, s)
		}
		bySection[s] = append(bySection[s], o)
	}
	for _, s := range order {
		var b bytes.Buffer
		b.WriteString(generated + "\n\npackage tensor\n\n")
		uses := false
		for _, o := range bySection[s] {
			uses = uses || o.hot
		}
		if uses {
			b.WriteString("import \"github.com/linstock-ml/linstock/cshim\"\n\n")
		}
		for _, o := range bySection[s] {
			if err := emitOp(&b, o); err != nil {
				return err
			}
		}
		files["tensor/ops_"+s+"_gen.go"] = b.Bytes()
	}
	var t bytes.Buffer
	t.WriteString(generated + "\n\npackage tensor\n\n// operators is the table for tests: each operator's Go name, descriptor and function.\nvar operators = []struct {\n\tname string\n\top *op\n\tfn any\n}{\n")
	for _, o := range ops {
		fn := "(*Tensor)." + o.goName
		if o.fn {
			fn = o.goName
		}
		fmt.Fprintf(&t, "\t{%q, &%s, %s},\n", o.goName, o.goVar(), fn)
	}
	t.WriteString("}\n\n// optionsByName makes an option from its schema name.\nvar optionsByName = map[string]any{\n")
	for _, n := range names {
		for _, keyword := range opts[n].keywords {
			fmt.Fprintf(&t, "\t%q: %s,\n", keyword, n)
		}
	}
	t.WriteString("}\n")
	files["tensor/operators_gen_test.go"] = t.Bytes()
	return nil
}

func fileName(section string) string {
	words := strings.FieldsFunc(strings.ToLower(section), func(r rune) bool { return r < 'a' || r > 'z' })
	if len(words) == 0 {
		return "other"
	}
	return words[0]
}

func options(names []string, opts map[string]*optKinds) []byte {
	var b bytes.Buffer
	b.WriteString(generated + "\n\npackage tensor\n\nimport \"github.com/linstock-ml/linstock/internal/options\"\n\nconst (\n\tkeyNone optKey = iota\n\tkeyDType\n\tkeyDevice\n\tkeyReduction\n\tkeyGenerator\n\tkeyLayout\n\tkeyMemoryFormat\n")
	for _, n := range names {
		fmt.Fprintf(&b, "\tkey%s\n", n)
	}
	b.WriteString(")\n\nvar optNames = [...]string{\"\", \"DType\", \"Device\", \"Reduction\", \"Generator\", \"Layout\", \"MemoryFormat\",\n")
	for _, n := range names {
		fmt.Fprintf(&b, "\t%q,\n", n)
	}
	b.WriteString("}\n\n")
	for _, n := range names {
		k := opts[n]
		param, doc := k.goType()
		users := k.users
		if len(users) > 6 {
			users = append(append([]string{}, users[:6]...), "and others")
		}
		fmt.Fprintf(&b, "// %s is the keyword argument %s= (%s).", n, strings.Join(k.keywords, "= or "), strings.Join(users, ", "))
		if doc != "" {
			b.WriteString(" " + doc)
		}
		value := "v"
		if strings.HasPrefix(param, "on ") {
			value = "options.On(on)"
		}
		fmt.Fprintf(&b, "\nfunc %s(%s) Option { return kwarg{key%s, %s} }\n\n", n, param, n, value)
	}
	return b.Bytes()
}

func (o *op) goVar() string { return "op" + o.goName }

// kind returns the argument's kind for the encoder at run time.
func (a *arg) kind() string {
	k := map[string]string{"Tensor": "kindTensor", "int": "kindInt", "float": "kindFloat", "bool": "kindBool", "Scalar": "kindScalar", "str": "kindString", "ScalarType": "kindDType", "Device": "kindDevice", "Layout": "kindLayout", "MemoryFormat": "kindMemoryFormat", "Generator": "kindGenerator"}[a.typ]
	if a.typ == "Tensor" && a.num {
		k = "kindOperand"
	}
	if a.list {
		k += "s"
		if a.typ == "int" && a.listN > "1" {
			k += a.listN // one number stands for all N
		}
	}
	return k
}

func (a *arg) key() string {
	switch {
	case a.hidden || !a.option:
		return "keyNone"
	case a.enum() != "":
		return "key" + a.enum()
	default:
		return "key" + camel(a.name)
	}
}

func emitOp(b *bytes.Buffer, o *op) error {
	// The descriptor has only the defaults of the table; the shim applies those of the schema.
	same := ""
	if o.same != 0 {
		same = fmt.Sprintf("same: %d, ", o.same)
	}
	var args strings.Builder
	for _, a := range o.args {
		fmt.Fprintf(&args, "{%q, %s, %s, %v}, ", a.name, a.kind(), a.key(), a.optional || a.elemOpt)
	}
	descriptor := func(overload, more string) string {
		return fmt.Sprintf("op{name: \"aten::%s\", overload: %q, goName: %q, inPlace: %v, %sargs: []argSpec{%s}%s}", o.name, overload, o.goName, o.inPlace, same, args.String(), more)
	}
	// number returns the entry of the table of overloads for a number as the argument at i.
	number := func(i int, overload, more string) string {
		return fmt.Sprintf("%d: &%s", i, descriptor(overload, more))
	}
	more, at := "", o.operands()
	switch len(o.scalar) {
	case 1:
		more = ", numbers: []*op{" + number(at[0], o.scalar[0], "") + "}"
	case 3:
		both := ", numbers: []*op{" + number(at[1], o.scalar[2], "") + "}"
		more = ", numbers: []*op{" + number(at[0], o.scalar[0], both) + ", " + number(at[1], o.scalar[1], "") + "}"
	}
	if o.tensors != "" {
		more += fmt.Sprintf(", tensors: %q", o.tensors)
	}
	fmt.Fprintf(b, "var %s = %s\n\n", o.goVar(), descriptor(o.overload, more))

	var params []string
	var optional []string
	positional := o.typed()
	recv := ""
	if !o.fn {
		recv = "(t *Tensor) "
		positional = positional[1:]
	}
	hasOpts := false
	for _, a := range o.args {
		if a.option && !a.hidden {
			hasOpts = true
			if a.enum() != "" {
				optional = append(optional, a.enum())
			} else {
				optional = append(optional, camel(a.name))
			}
		}
	}
	for i, a := range positional {
		last := i == len(positional)-1
		params = append(params, goParam(a.name)+" "+a.goType(last && !hasOpts))
	}
	if hasOpts {
		params = append(params, "opts ...Option")
	}
	ret, retKind := o.goReturn()
	b.WriteString("// " + wrapDoc(o.doc) + "\n//\n")
	if len(optional) != 0 {
		b.WriteString("// " + wrapDoc("Options: "+strings.Join(optional, ", ")+".") + "\n//\n")
	}
	fmt.Fprintf(b, "//\taten::%s\n", o.text)
	fmt.Fprintf(b, "func %s%s(%s) %s {\n", recv, o.goName, strings.Join(params, ", "), ret)
	if o.hot && emitTyped(b, o, hasOpts) {
		b.WriteString("}\n\n")
		return nil
	}
	fmt.Fprintf(b, "\tvar c call\n\tc.begin(&%s)\n", o.goVar())
	if hasOpts {
		b.WriteString("\tc.options(opts)\n")
	}
	// Trailing arguments that keep their defaults need no slot unless an option may set them.
	end := len(o.args)
	for end > 0 && o.args[end-1].hidden && !o.args[end-1].tableDef {
		end--
	}
	for i, a := range o.args[:end] {
		name := goParam(a.name)
		if !o.fn && i == 0 {
			name = "t"
		}
		switch {
		case a.hidden && !a.tableDef:
			b.WriteString("\tc.skip()\n")
		case a.option:
			lit, err := a.literalFor()
			if err != nil {
				return fmt.Errorf("%s: %w", o.full(), err)
			}
			given := "opts"
			if !hasOpts {
				given = "nil"
			}
			fmt.Fprintf(b, "\tc.option(%d, %s, %s)\n", i, given, lit)
		default:
			fmt.Fprintf(b, "\tc.%s(%d, %s)\n", a.encoder(), i, name)
		}
	}
	switch retKind {
	case "":
		return fmt.Errorf("%s: no decoder for the result %v", o.full(), o.returns)
	case "inplace":
		fmt.Fprintf(b, "\treturn c.inPlace(%s)\n", receiver(o))
	default:
		fmt.Fprintf(b, "\treturn c.%s()\n", retKind)
	}
	b.WriteString("}\n\n")
	return nil
}

func receiver(o *op) string {
	if o.fn {
		return goParam(o.args[0].name)
	}
	return "t"
}

// literalFor returns the Go expression of a default of the table; the shim applies those of the schema.
func (a *arg) literalFor() (string, error) {
	if !a.tableDef {
		return "nil", nil
	}
	switch {
	case a.def == "None":
		return "none{}", nil
	case a.def == "True":
		return "true", nil
	case a.def == "False":
		return "false", nil
	case a.def == "Mean":
		return "ReduceMean", nil
	case strings.HasPrefix(a.def, "["):
		return "[]int{" + a.def[1:len(a.def)-1] + "}", nil
	case strings.HasPrefix(a.def, `"`), a.typ == "int", a.typ == "Scalar":
		return a.def, nil
	case a.typ == "float":
		return "float64(" + a.def + ")", nil
	}
	return "", fmt.Errorf("argument %s: default %s cannot be written in Go", a.name, a.def)
}

// emitTyped writes the call of the typed entry. It returns true if no code after it can be reached.
func emitTyped(b *bytes.Buffer, o *op, hasOpts bool) (always bool) {
	var tensors []string
	var args []string
	cond := []string{}
	if hasOpts {
		cond = append(cond, "len(opts) == 0")
	}
	pre := ""
	for i, a := range o.typed() {
		name := goParam(a.name)
		if i == 0 {
			name = "t"
		}
		switch {
		case a.typ == "Tensor" && a.num:
			pre += fmt.Sprintf("%sT, %sOK := %s.(*Tensor)\n", name, name, name)
			cond = append(cond, name+"OK")
			tensors = append(tensors, name+"T")
			args = append(args, name+"T.handle()")
		case a.typ == "Tensor":
			tensors = append(tensors, name)
			args = append(args, name+".handle()")
		default:
			args = append(args, name)
		}
	}
	mask := 0
	ti := 0
	for _, a := range o.typed() {
		if a.typ == "Tensor" {
			if a.optional {
				mask |= 1 << ti
			}
			ti++
		}
	}
	n := len(tensors)
	if n > 3 || n == 2 && mask != 0 {
		return false
	}
	b.WriteString(pre)
	if len(cond) != 0 {
		fmt.Fprintf(b, "\tif %s {\n", strings.Join(cond, " && "))
	}
	extra := ""
	if n == 3 {
		extra = fmt.Sprintf(", %d", mask)
	}
	in := strings.Join(tensors, ", ")
	pin := fmt.Sprintf("pin%d", n)
	if o.same == 2 && n == 2 {
		pin = "pinSame"
	} else if o.same != 0 {
		return false
	}
	fmt.Fprintf(b, "\tif f := %s(&%s, %s%s); f != nil { return f }\n", pin, o.goVar(), in, extra)
	call := fmt.Sprintf("cshim.Op%s(%s)", o.goName, strings.Join(args, ", "))
	if o.inPlace {
		fmt.Fprintf(b, "\treturn wrote%d(&%s, %s, %s)\n", n, o.goVar(), call, in)
	} else {
		fmt.Fprintf(b, "\tr := %s\n\tif r.Err != nil && again(&%s, r.Err) {\n\tr = %s\n\t}\n", call, o.goVar(), call)
		fmt.Fprintf(b, "\treturn done%d(&%s, r, %s)\n", n, o.goVar(), in)
	}
	if len(cond) != 0 {
		b.WriteString("\t}\n")
	}
	return len(cond) == 0
}

func (a *arg) goType(variadic bool) string {
	switch {
	case a.typ == "Tensor" && a.list:
		return "[]*Tensor"
	case a.typ == "Tensor" && a.num:
		return "any"
	case a.typ == "Tensor":
		return "*Tensor"
	}
	if a.enum() != "" {
		return a.enum()
	}
	elem := map[string]string{"int": "int", "float": "float64", "Scalar": "any", "str": "string", "bool": "bool"}[a.typ]
	if !a.list {
		return elem
	}
	if variadic {
		return "..." + elem
	}
	return "[]" + elem
}

func (a *arg) encoder() string {
	switch a.typ {
	case "Tensor":
		switch {
		case a.list:
			return "tensors"
		case a.num:
			return "operand"
		case a.optional:
			return "optTensor"
		}
		return "tensor"
	case "int":
		if a.enum() == "Reduction" {
			return "reduction"
		}
		if a.list {
			return "ints"
		}
		return "int"
	case "float":
		if a.list && a.optional {
			return "optFloats"
		}
		if a.list {
			return "floats"
		}
		return "float"
	case "Scalar":
		if a.list {
			return "numbers"
		}
		return "number"
	case "str":
		return "text"
	case "ScalarType":
		return "dtype"
	case "Device":
		return "device"
	case "bool":
		return "bools"
	}
	return "unknown_" + a.typ
}

func (o *op) goReturn() (typ, kind string) {
	if o.inPlace {
		return "*Tensor", "inplace"
	}
	switch {
	case len(o.returns) == 0:
		return "", ""
	case len(o.returns) == 1:
		switch o.returns[0] {
		case "Tensor":
			return "*Tensor", "one"
		case "Tensor[]":
			return "([]*Tensor, error)", "tensorList"
		case "bool":
			return "(bool, error)", "boolean"
		case "int":
			return "(int, error)", "integer"
		}
	}
	n := len(o.returns)
	return "(" + strings.TrimSuffix(strings.Repeat("*Tensor, ", n), ", ") + ")", map[int]string{2: "two", 3: "three", 4: "four"}[n]
}

func wrapDoc(s string) string {
	var b strings.Builder
	col := 0
	for i, w := range strings.Fields(s) {
		if i > 0 {
			if col+len(w) > 106 {
				b.WriteString("\n// ")
				col = 0
			} else {
				b.WriteByte(' ')
				col++
			}
		}
		b.WriteString(w)
		col += len(w)
	}
	return b.String()
}
