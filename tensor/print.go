package tensor

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
)

// The defaults of torch.set_printoptions.
const (
	printPrecision = 4
	printThreshold = 1000 // more elements than this are summarised
	printEdge      = 3
	printWidth     = 80
)

// String prints t as Python's PyTorch does, long ones summarised. It does not change t, its gradient or a
// scope. A tensor that cannot be used prints why. PyTorch: Tensor.__repr__.
func (t *Tensor) String() string {
	switch {
	case t == nil:
		return "tensor(<nil>)"
	case t.fail != nil:
		return "tensor(<" + t.fail.err.Error() + ">)"
	case t.h == 0:
		return "tensor(<none>)"
	}
	var m cshim.Meta
	if !t.pin() {
		return "tensor(<released>)"
	}
	defer t.unpin()
	if err := t.meta("String", &m); err != nil {
		return "tensor(<" + err.Error() + ">)"
	}
	shape, _, err := t.geometry("String")
	if err != nil {
		return "tensor(<" + err.Error() + ">)"
	}
	dtype, device := DType(m.DType), deviceOf(&m)
	standard := DefaultDType()
	isDefault := dtype == standard || dtype == Int64 || dtype == Bool ||
		standard == Float64 && dtype == Complex128 || standard != Float64 && dtype == Complex64
	var suffixes []string
	if device.Type != CPUType {
		suffixes = append(suffixes, "device='"+device.String()+"'")
	}
	size := "size=" + tuple(shape)
	text := "[]"
	switch {
	case device.Type == MetaType || m.Layout != 0:
		text = "..."
		suffixes = append(suffixes, size)
		isDefault = dtype == standard
	case m.Numel == 0:
		if len(shape) != 1 {
			suffixes = append(suffixes, size)
		}
		// No element tells an int64 or bool dtype here.
		isDefault = dtype == standard
	default:
		p, err := t.printable(dtype, shape, int(m.Numel))
		if err != nil {
			text = "..."
			suffixes = append(suffixes, size)
			break
		}
		text = p.text(len("tensor("))
	}
	if !isDefault {
		suffixes = append(suffixes, "dtype=torch."+dtype.String())
	}
	switch fn := t.GradFn(); {
	case fn != "":
		fn = strings.TrimRight(fn[strings.LastIndexByte(fn, ':')+1:], ">")
		suffixes = append(suffixes, "grad_fn=<"+fn+">")
	case m.RequiresGrad:
		suffixes = append(suffixes, "requires_grad=True")
	}
	return withSuffixes("tensor("+text, suffixes)
}

func tuple(shape []int) string {
	words := make([]string, len(shape))
	for i, s := range shape {
		words[i] = strconv.Itoa(s)
	}
	if len(words) == 1 {
		return "(" + words[0] + ",)"
	}
	return "(" + strings.Join(words, ", ") + ")"
}

func withSuffixes(text string, suffixes []string) string {
	const indent = len("tensor(")
	last := len(text) - strings.LastIndexByte(text, '\n') + 1
	var b strings.Builder
	b.WriteString(text)
	for _, s := range suffixes {
		if last+len(s)+2 > printWidth {
			b.WriteString(",\n" + strings.Repeat(" ", indent) + s)
			last = indent + len(s)
		} else {
			b.WriteString(", " + s)
			last += len(s) + 2
		}
	}
	b.WriteByte(')')
	return b.String()
}

// printing is what there is to print: the elements, already as text and aligned, of a tensor of which only the
// edges were taken along the dimensions that are marked.
type printing struct {
	shape []int  // of the elements at hand
	cut   []bool // dimensions of which only the edges are at hand
	words []string
	width int // of a word and what separates it, on a line
}

func (t *Tensor) printable(dtype DType, shape []int, numel int) (*printing, error) {
	p := &printing{shape: slices.Clone(shape), cut: make([]bool, len(shape))}
	x := t.Detach()
	defer func() { x.Release() }()
	next := func(y *Tensor) error {
		x.Release()
		x = y
		return y.Err()
	}
	if err := x.Err(); err != nil {
		return nil, err
	}
	if numel > printThreshold {
		for d, n := range shape {
			if n <= 2*printEdge {
				continue
			}
			p.shape[d], p.cut[d] = 2*printEdge, true
			edges := FromSlice([]int{0, 1, 2, n - 3, n - 2, n - 1}, nil, x.Device())
			err := next(x.IndexSelect(d, edges))
			edges.Release()
			if err != nil {
				return nil, err
			}
		}
	}
	if dtype.IsComplex() {
		if err := next(x.ResolveConj()); err != nil {
			return nil, err
		}
		if err := next(x.ViewAsReal()); err != nil {
			return nil, err
		}
		parts, err := x.floats()
		if err != nil {
			return nil, err
		}
		re, im := make([]float64, len(parts)/2), make([]float64, len(parts)/2)
		for i := range re {
			re[i], im[i] = parts[2*i], parts[2*i+1]
		}
		reals, reWidth := formatFloats(re)
		imags, imWidth := formatFloats(im)
		for i, s := range imags {
			s = strings.TrimLeft(s, " ") + "j"
			if s[0] != '+' && s[0] != '-' {
				s = "+" + s
			}
			p.words = append(p.words, reals[i]+s)
		}
		p.width = reWidth + imWidth + 3
		return p, nil
	}
	if dtype.IsFloat() {
		fs, err := x.floats()
		if err != nil {
			return nil, err
		}
		p.words, p.width = formatFloats(fs)
		p.width += 2
		return p, nil
	}
	switch dtype {
	case Bool:
		bs, err := Data[bool](x)
		if err != nil {
			return nil, err
		}
		for _, b := range bs {
			p.words = append(p.words, map[bool]string{true: "True", false: "False"}[b])
		}
	case Uint64:
		us, err := Data[uint64](x)
		if err != nil {
			return nil, err
		}
		for _, u := range us {
			p.words = append(p.words, strconv.FormatUint(u, 10))
		}
	default:
		if err := next(x.To(Int64)); err != nil {
			return nil, err
		}
		is, err := Data[int64](x)
		if err != nil {
			return nil, err
		}
		for _, i := range is {
			p.words = append(p.words, strconv.FormatInt(i, 10))
		}
	}
	p.width = align(p.words) + 2
	return p, nil
}

func (t *Tensor) floats() ([]float64, error) {
	wide := t.To(Float64)
	defer wide.Release()
	return Data[float64](wide)
}

func align(words []string) int {
	width := 1
	for _, w := range words {
		width = max(width, len(w))
	}
	padTo(words, width)
	return width
}

func padTo(words []string, width int) {
	for i, w := range words {
		if len(w) < width {
			words[i] = strings.Repeat(" ", width-len(w)) + w
		}
	}
}

// formatFloats chooses one notation for all, as torch._tensor_str._Formatter does: whole numbers with a point
// after them, four decimals, or four decimals and an exponent.
func formatFloats(fs []float64) (words []string, width int) {
	low, high, whole, any := math.Inf(1), 0.0, true, false
	for _, f := range fs {
		if f == 0 || math.IsInf(f, 0) || math.IsNaN(f) {
			continue
		}
		any = true
		low, high = min(low, math.Abs(f)), max(high, math.Abs(f))
		whole = whole && f == math.Ceil(f)
	}
	scientific := any && (high/low > 1000 || high > 1e8 || low < 1e-4)
	width = 1
	words = make([]string, len(fs))
	for i, f := range fs {
		finite := !math.IsInf(f, 0) && !math.IsNaN(f)
		var w string
		switch {
		case math.IsNaN(f):
			w = "nan"
		case math.IsInf(f, 1):
			w = "inf"
		case math.IsInf(f, -1):
			w = "-inf"
		case scientific:
			w = strconv.FormatFloat(f, 'e', printPrecision, 64)
		case whole:
			w = strconv.FormatFloat(f, 'f', 0, 64) + "."
		default:
			w = strconv.FormatFloat(f, 'f', printPrecision, 64)
		}
		words[i] = w
		// Only these decide, in PyTorch too.
		if finite && f != 0 {
			width = max(width, len(w))
		}
	}
	padTo(words, width)
	return words, width
}

func (p *printing) text(indent int) string {
	if len(p.shape) == 0 {
		return p.words[0]
	}
	var b strings.Builder
	p.write(&b, 0, 0, indent)
	return b.String()
}

// write prints dimension d from the element at; indent is how far the text stands from the left.
func (p *printing) write(b *strings.Builder, d, at, indent int) {
	n := p.shape[d]
	if d == len(p.shape)-1 {
		p.writeLine(b, p.words[at:at+n], p.cut[d], indent)
		return
	}
	step := 1
	for _, s := range p.shape[d+1:] {
		step *= s
	}
	between := "," + strings.Repeat("\n", len(p.shape)-d-1) + strings.Repeat(" ", indent+1)
	b.WriteByte('[')
	for i := range n {
		if i > 0 {
			b.WriteString(between)
		}
		if p.cut[d] && i == printEdge {
			b.WriteString("..." + between)
		}
		p.write(b, d+1, at+i*step, indent+1)
	}
	b.WriteByte(']')
}

func (p *printing) writeLine(b *strings.Builder, words []string, cut bool, indent int) {
	if cut {
		words = slices.Concat(words[:printEdge], []string{" ..."}, words[printEdge:])
	}
	line := max(1, (printWidth-indent)/p.width)
	b.WriteByte('[')
	for i, w := range words {
		switch {
		case i == 0:
		case i%line == 0:
			b.WriteString(",\n" + strings.Repeat(" ", indent+1))
		default:
			b.WriteString(", ")
		}
		b.WriteString(w)
	}
	b.WriteByte(']')
}
