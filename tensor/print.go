package tensor

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/repr"
)

// PrintOptions is how [Tensor.String] formats tensors. PyTorch: torch.set_printoptions.
type PrintOptions struct {
	Precision int   // decimals of floating-point elements; PyTorch: 4
	Threshold int   // a tensor with more elements is summarized; PyTorch: 1000, math.MaxInt for profile="full"
	EdgeItems int   // elements at the beginning and end of each dimension in a summary, at least 1; PyTorch: 3
	LineWidth int   // columns of a line; PyTorch: 80
	SciMode   *bool // with exponents; nil: if the elements' magnitudes require it
}

var printOptions atomic.Pointer[PrintOptions]

func init() {
	printOptions.Store(&PrintOptions{Precision: 4, Threshold: 1000, EdgeItems: 3, LineWidth: 80})
}

// CurrentPrintOptions returns the options of the process, at first PyTorch's. PyTorch: torch.get_printoptions.
func CurrentPrintOptions() PrintOptions { return *printOptions.Load() }

// SetPrintOptions sets the options of the process. It refuses negative numbers, EdgeItems of 0, and a Precision of more than
// 1074, with which every number is exact:
//
//	o := tensor.CurrentPrintOptions()
//	o.Precision, o.SciMode = 2, new(false)
//	err := tensor.SetPrintOptions(o)
//
// PyTorch: torch.set_printoptions.
func SetPrintOptions(o PrintOptions) error {
	const op = "SetPrintOptions"
	for _, n := range []struct {
		name         string
		value, least int
	}{{"Precision", o.Precision, 0}, {"Threshold", o.Threshold, 0}, {"EdgeItems", o.EdgeItems, 1}, {"LineWidth", o.LineWidth, 0}} {
		if n.value < n.least {
			return refused(op, ErrArgument, "%s must be at least %d, got %d", n.name, n.least, n.value)
		}
	}
	if o.Precision > 1074 {
		return refused(op, ErrArgument, "Precision must be at most 1074, got %d", o.Precision)
	}
	if o.SciMode != nil {
		o.SciMode = new(*o.SciMode)
	}
	printOptions.Store(&o)
	return nil
}

// LogValue returns String's text for package log/slog.
func (t *Tensor) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalJSON returns an error, as Python's json does: [Data] returns the elements, and package checkpoint stores tensors.
func (t *Tensor) MarshalJSON() ([]byte, error) {
	return nil, &Error{Op: "MarshalJSON", Message: "a tensor has no JSON form: use Data, or package checkpoint", Kind: ErrArgument}
}

// String formats t as PyTorch does in Python, and summarizes long tensors. It does not change t, its gradient or any
// scope. For a tensor that is failed, released or nil it returns the reason. PyTorch: Tensor.__repr__.
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
	shape, _, err := t.geometry("String", &m)
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
	layout := Layout(m.Layout)
	size := "size=" + tuple(shape)
	named := "dtype=torch." + dtype.String()
	prefix, text := "tensor(", "..."
	switch scheme := t.quantScheme(dtype); {
	case layout == layoutNested:
		prefix = "nested_tensor("
		if parts, err := t.nestedText(); err == nil {
			text = parts
		}
	case sparseParts[layout] != nil:
		suffixes = append(suffixes, size)
		if nnz, err := t.NNZ(); err == nil && device.Type != MetaType {
			suffixes = append(suffixes, fmt.Sprintf("nnz=%d", nnz))
		}
		if !isDefault {
			suffixes = append(suffixes, named)
		}
		if parts, err := t.sparseText(layout, len(prefix)); err == nil {
			text = parts
		}
	case device.Type == MetaType:
		suffixes = append(suffixes, size)
		if dtype != standard {
			suffixes = append(suffixes, named)
		}
	case scheme != "":
		suffixes = append(suffixes, size, named, "quantization_scheme=torch."+scheme)
		suffixes = append(suffixes, t.quantParameters(scheme)...)
		if dense, err := t.part("aten::dequantize.self"); err == nil {
			if body, err := dense.body(len(prefix)); err == nil {
				text = body
			}
			dense.Release()
		}
	case m.Numel == 0:
		text = "[]"
		if len(shape) != 1 {
			suffixes = append(suffixes, size)
		}
		// Without elements, a dtype of int64 or bool cannot be recognized.
		if dtype != standard {
			suffixes = append(suffixes, named)
		}
	default:
		body, err := t.body(len(prefix))
		if err != nil {
			suffixes = append(suffixes, size)
		} else {
			text = body
		}
		if !isDefault {
			suffixes = append(suffixes, named)
		}
	}
	if layout != Strided && layout != layoutNested {
		suffixes = append(suffixes, "layout=torch."+layout.String())
	}
	switch fn, err := t.gradFn(); {
	case err != nil: // of a view made without gradients whose base was then written to with them
		suffixes = append(suffixes, "grad_fn=<Invalid>")
	case fn != "":
		fn = strings.TrimRight(fn[strings.LastIndexByte(fn, ':')+1:], ">")
		suffixes = append(suffixes, "grad_fn=<"+fn+">")
	case m.RequiresGrad:
		suffixes = append(suffixes, "requires_grad=True")
	}
	if tangent := t.tangent(); tangent != nil {
		suffixes = append(suffixes, "tangent="+tangent.format())
		tangent.Release()
	}
	return withSuffixes(prefix, text, suffixes, layout == SparseCOO)
}

// format returns what Python's f"{t}" prints: the number of a tensor without dimensions.
func (t *Tensor) format() string {
	if t.Dim() != 0 || t.Device().Type == MetaType {
		return t.String()
	}
	v, err := Item[complex128](t)
	switch {
	case err != nil:
		return t.String()
	case t.DType().IsComplex():
		return repr.Complex(v)
	}
	return repr.Float(real(v))
}

// tangent returns the tangent of t, or nil if it has none; the caller releases it.
func (t *Tensor) tangent() *Tensor {
	if !modeOn(cshim.ModeForward) {
		return nil
	}
	out, err := CallUnchecked("aten::_unpack_dual", t, 0)
	if err != nil {
		return nil
	}
	out[0].(*Tensor).Release()
	return out[1].(*Tensor)
}

// sparseParts has the parts of sparse layouts: their names and the operators that return them.
var sparseParts = map[Layout][][2]string{
	SparseCOO: {{"indices", "aten::_indices"}, {"values", "aten::_values"}},
	SparseCSR: byRow, SparseCSC: byColumn, SparseBSR: byRow, SparseBSC: byColumn,
}

var (
	byRow    = [][2]string{{"crow_indices", "aten::crow_indices"}, {"col_indices", "aten::col_indices"}, {"values", "aten::values"}}
	byColumn = [][2]string{{"ccol_indices", "aten::ccol_indices"}, {"row_indices", "aten::row_indices"}, {"values", "aten::values"}}
)

// ask runs an operator with one operand and one result. Some operators that describe sparse tensors are internal to
// libtorch; each is called only for the layout it is meant for.
func (t *Tensor) ask(op string) (any, error) {
	out, err := CallUnchecked(op, t)
	if err != nil {
		return nil, err
	}
	if len(out) != 1 {
		return nil, refused(op, ErrArgument, "the operator returned %d results, want 1", len(out))
	}
	return out[0], nil
}

// part returns the tensor that an operator returns; the caller releases it.
func (t *Tensor) part(op string) (*Tensor, error) {
	out, err := t.ask(op)
	if err != nil {
		return nil, err
	}
	x, ok := out.(*Tensor)
	if !ok || x == nil {
		return nil, refused(op, ErrArgument, "the operator did not return a tensor")
	}
	return x, nil
}

// body returns the elements between brackets, indented by indent columns.
func (t *Tensor) body(indent int) (string, error) {
	var m cshim.Meta
	if err := t.meta("String", &m); err != nil {
		return "", err
	}
	shape, _, err := t.geometry("String", &m)
	switch {
	case err != nil:
		return "", err
	case m.Numel == 0:
		return "[]", nil
	case m.Layout != 0:
		dense, err := t.dense()
		if err != nil {
			return "", err
		}
		defer dense.Release()
		t = dense
	}
	p, err := t.printable(DType(m.DType), shape, int(m.Numel))
	switch {
	case err != nil:
		return "", err
	case len(p.words) != product(p.shape): // otherwise text would index beyond them
		return "", refused("String", ErrArgument, "another goroutine has changed the tensor's shape")
	}
	return p.text(indent), nil
}

func (t *Tensor) dense() (*Tensor, error) {
	out, err := Call("aten::to_dense", t)
	if err != nil {
		return nil, err
	}
	return out[0].(*Tensor), nil
}

// sparseText returns the indices and values of a sparse tensor.
func (t *Tensor) sparseText(layout Layout, indent int) (string, error) {
	var lines []string
	for _, p := range sparseParts[layout] {
		label := p[0] + "=tensor("
		x, err := t.part(p[1])
		if err != nil {
			return "", err
		}
		body, onMeta := "...", x.Device().Type == MetaType
		if !onMeta {
			body, err = x.body(indent + len(label))
		}
		shape, numel := x.Shape(), x.Numel()
		x.Release()
		if err != nil {
			return "", err
		}
		if onMeta || numel == 0 {
			body += ", size=" + tuple(shape)
		}
		lines = append(lines, label+body+")")
	}
	return strings.Join(lines, ",\n"+strings.Repeat(" ", indent)), nil
}

// nestedText returns the elements of a nested tensor.
func (t *Tensor) nestedText() (string, error) {
	var parts []*Tensor
	err := withGrad(false, func() (err error) { // as in Python, so that the parts print without a grad_fn
		parts, err = t.Unbind()
		return err
	})
	if err != nil {
		return "", err
	}
	var lines []string
	for _, p := range parts {
		lines = append(lines, "  "+strings.ReplaceAll(p.String(), "\n", "\n  "))
		p.Release()
	}
	return "[\n" + strings.Join(lines, ",\n") + "\n]", nil
}

var quantSchemes = [...]string{"per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric", "per_channel_affine_float_qparams"}

// quantScheme returns the name of a quantized tensor's scheme, or "" for any other tensor.
func (t *Tensor) quantScheme(d DType) string {
	if _, ok := quantised[d]; !ok {
		return ""
	}
	if n, err := t.ask("aten::qscheme"); err == nil {
		if i, ok := n.(int); ok && i >= 0 && i < len(quantSchemes) {
			return quantSchemes[i]
		}
	}
	return "unknown"
}

func (t *Tensor) quantParameters(scheme string) (words []string) {
	named := [][2]string{{"scale", "aten::q_scale"}, {"zero_point", "aten::q_zero_point"}}
	if strings.HasPrefix(scheme, "per_channel") {
		named = [][2]string{{"scale", "aten::q_per_channel_scales"}, {"zero_point", "aten::q_per_channel_zero_points"}, {"axis", "aten::q_per_channel_axis"}}
	}
	for _, n := range named {
		v, err := t.ask(n[1])
		if err != nil {
			continue
		}
		switch v := v.(type) {
		case float64:
			words = append(words, n[0]+"="+repr.Float(v))
		case *Tensor:
			words = append(words, n[0]+"="+v.String())
			v.Release()
		default:
			words = append(words, fmt.Sprintf("%s=%v", n[0], v))
		}
	}
	return words
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

// withSuffixes appends the suffixes (dtype, device and others) to text; apart puts the first on its own line.
func withSuffixes(prefix, text string, suffixes []string, apart bool) string {
	indent := len(prefix)
	text = prefix + text
	last, width := len(text)-strings.LastIndexByte(text, '\n')+1, printOptions.Load().LineWidth
	var b strings.Builder
	b.WriteString(text)
	for _, s := range suffixes {
		if apart || last+len(s)+2 > width {
			apart = false
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

// printing is the state of formatting: the aligned text of the elements. Along the dimensions marked in cut, only the
// first and last elements are present.
type printing struct {
	*PrintOptions
	shape []int  // of the elements that are present
	cut   []bool // dimensions of which only the first and last elements are present
	words []string
	width int // of an element and its separator
}

func (t *Tensor) printable(dtype DType, shape []int, numel int) (*printing, error) {
	p := &printing{PrintOptions: printOptions.Load(), shape: slices.Clone(shape), cut: make([]bool, len(shape))}
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
	if dtype == bComplex32 { // few operators support it
		if err := next(x.To(Complex64)); err != nil {
			return nil, err
		}
	}
	if numel > p.Threshold {
		for d, n := range slices.Backward(shape) {
			if n/2 < p.EdgeItems || n == 2*p.EdgeItems {
				continue
			}
			p.shape[d], p.cut[d] = 2*p.EdgeItems, true
			if p.EdgeItems == 0 {
				if err := next(x.Narrow(d, 0, 0)); err != nil {
					return nil, err
				}
				continue
			}
			// The first and the last items, as two windows: a view, however large the tensor is.
			if err := next(x.Unfold(d, p.EdgeItems, n-p.EdgeItems)); err != nil {
				return nil, err
			}
			if err := next(x.MoveDim(-1, d+1)); err != nil {
				return nil, err
			}
		}
		if err := next(x.Reshape(p.shape...)); err != nil {
			return nil, err
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
		reals, reWidth := p.formatFloats(re)
		imags, imWidth := p.formatFloats(im)
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
	if dtype.IsFloat() || dtype == float8E8M0FNU {
		fs, err := x.floats()
		if err != nil {
			return nil, err
		}
		p.words, p.width = p.formatFloats(fs)
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
	case Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32:
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
	default:
		return nil, refused("String", ErrNotImplemented, "elements of dtype %v cannot be printed", dtype)
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

// formatFloats formats all elements in the same notation, chosen as by torch._tensor_str._Formatter: whole numbers with
// a trailing point, decimals, or decimals and an exponent.
func (o *PrintOptions) formatFloats(fs []float64) (words []string, width int) {
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
	if any && o.SciMode != nil {
		scientific = *o.SciMode
	}
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
			w = strconv.FormatFloat(f, 'e', o.Precision, 64)
		case whole:
			w = strconv.FormatFloat(f, 'f', 0, 64) + "."
		default:
			w = strconv.FormatFloat(f, 'f', o.Precision, 64)
		}
		words[i] = w
		// As in PyTorch, only finite nonzero elements determine the notation.
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

// write prints dimension d starting at element at; indent is the column where the text starts.
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
		if p.cut[d] && i == p.EdgeItems {
			b.WriteString("..." + between)
		}
		p.write(b, d+1, at+i*step, indent+1)
	}
	b.WriteByte(']')
}

func (p *printing) writeLine(b *strings.Builder, words []string, cut bool, indent int) {
	if cut {
		words = slices.Concat(words[:p.EdgeItems], []string{" ..."}, words[p.EdgeItems:])
	}
	line := max(1, (p.LineWidth-indent)/p.width)
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
