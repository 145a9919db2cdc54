package nn

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/internal/repr"
	"github.com/linstock-ml/linstock/tensor"
)

// String describes m and its submodules as a tree, as PyTorch prints a module: one line for each, with its name and
// sizes. Slices of modules are shown as ModuleList and maps as ModuleDict, those of tensors as ParameterList and
// ParameterDict. PyTorch: str(module).
func String(m any) string { return describe(reflect.ValueOf(m), map[unsafePointer]bool{}) }

// child is a part of a module in String.
type child struct {
	name  string
	value reflect.Value
}

// describe returns the text of a value. open has the pointers on the path from the root.
func describe(v reflect.Value, open map[unsafePointer]bool) string {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Func) && v.IsNil() {
		return "None"
	}
	name, extra := v.Type().Name(), ""
	var parts []child
	switch v.Kind() {
	case reflect.Pointer:
		key := unsafePointer{v.Pointer(), v.Type()}
		if open[key] {
			return v.Type().Elem().Name() + "(...)"
		}
		open[key] = true
		defer delete(open, key)
		name = v.Type().Elem().Name()
		if l, ok := v.Interface().(*Loss); ok {
			return l.name + "()"
		}
		if v.Elem().Kind() != reflect.Struct {
			return name + "()"
		}
		if p, ok := v.Interface().(proxy); ok && p.stands() != nil {
			return describe(reflect.ValueOf(p.stands()), open)
		}
		if p, ok := v.Interface().(*Parametrized); ok {
			return p.describe(open)
		}
		if n, ok := v.Interface().(interface{ torchName() string }); ok {
			name = n.torchName()
		}
		extra = extraRepr(v.Interface())
		parts = children(v.Elem())
	case reflect.Struct:
		if v.CanAddr() && v.Addr().CanInterface() {
			extra = extraRepr(v.Addr().Interface())
		}
		parts = children(v)
	case reflect.Slice, reflect.Array, reflect.Map:
		named := v.Kind() == reflect.Map || dict(v.Type())
		if name = "ModuleList"; named {
			name = "ModuleDict"
		}
		parts = elements(v)
		if !modules(v.Type().Elem()) {
			return parameters(parts, named)
		}
		if !named {
			return block(name, "", collapse(parts, open))
		}
	case reflect.Func:
		return "Func()"
	}
	lines := make([]string, len(parts))
	for i, p := range parts {
		lines[i] = "(" + p.name + "): " + describe(p.value, open)
	}
	return block(name, extra, lines)
}

// describe returns the text of a Parametrized: that of its layer and the parametrizations that have names in the state.
func (p *Parametrized) describe(open map[unsafePointer]bool) string {
	v := reflect.ValueOf(p.Layer)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().Elem().Kind() != reflect.Struct {
		return "Parametrized()"
	}
	var lists []string
	for _, l := range p.Lists {
		if l == nil || l.suffixes != nil {
			continue
		}
		var parts []child
		for i, part := range l.Parametrizations {
			parts = append(parts, child{strconv.Itoa(i), reflect.ValueOf(part)})
		}
		lists = append(lists, "("+l.Name+"): "+block("ParametrizationList", "", collapse(parts, open)))
	}
	if len(lists) == 0 {
		return describe(v, open)
	}
	var lines []string
	for _, part := range children(v.Elem()) {
		lines = append(lines, "("+part.name+"): "+describe(part.value, open))
	}
	lines = append(lines, "(parametrizations): "+block("ModuleDict", "", lists))
	return block("Parametrized"+v.Type().Elem().Name(), extraRepr(p.Layer), lines)
}

// block joins a module's own text and the texts of its parts.
func block(name, extra string, lines []string) string {
	if len(lines) == 0 {
		return name + "(" + extra + ")"
	}
	if extra != "" {
		lines = append([]string{extra}, lines...)
	}
	return name + "(\n  " + strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n  ") + "\n)"
}

// collapse describes the elements of a list, and equal neighbours once.
func collapse(parts []child, open map[unsafePointer]bool) (lines []string) {
	for i := 0; i < len(parts); {
		text := describe(parts[i].value, open)
		end := i + 1
		for end < len(parts) && describe(parts[end].value, open) == text {
			end++
		}
		if end == i+1 {
			lines = append(lines, fmt.Sprintf("(%d): %s", i, text))
		} else {
			lines = append(lines, fmt.Sprintf("(%d-%d): %d x %s", i, end-1, end-i, text))
		}
		i = end
	}
	return lines
}

// children returns the parts of a struct that are modules or hold some.
func children(v reflect.Value) (out []child) {
	plan := planOf(v.Type())
	for i := range plan.walked {
		f := &plan.walked[i]
		part := v.Field(f.index)
		for part.Kind() == reflect.Interface {
			part = part.Elem()
		}
		if !part.IsValid() || part.Type() == tensorType || !part.CanInterface() && !f.embedded {
			continue
		}
		switch t := part.Type(); {
		case f.embedded && t.Kind() == reflect.Struct:
			out = append(out, children(part)...)
		case f.embedded || t == reflect.TypeFor[Mode]():
		case part.Kind() == reflect.Pointer && part.IsNil():
		case (part.Kind() == reflect.Slice || part.Kind() == reflect.Map) && !modules(t.Elem()):
			if f.name != "" && f.role == parameter && factsOf(t).walked {
				out = append(out, child{f.name, part})
			}
		case f.name == "":
			out = append(out, elements(part)...)
		default:
			out = append(out, child{f.name, part})
		}
	}
	return out
}

// modules reports whether values of type t can be modules or hold some, and not only tensors.
func modules(t reflect.Type) bool {
	return t != tensorType && t != reflect.TypeFor[Named]() && factsOf(t).walked
}

// parameters describes a list of tensors, or a dict with names.
func parameters(parts []child, named bool) string {
	name := "ParameterList"
	if named {
		name = "ParameterDict"
	}
	lines := make([]string, len(parts))
	for i, p := range parts {
		text := "Object of type: NoneType"
		if t, ok := p.value.Interface().(*tensor.Tensor); ok && t.Err() == nil {
			size := strings.ReplaceAll(strings.Trim(fmt.Sprint(t.Shape()), "[]"), " ", "x")
			if d := t.Device(); d.Type == tensor.CUDAType {
				size += fmt.Sprintf(" (%v)", d)
			}
			text = fmt.Sprintf("Parameter containing: [%s of size %s]", typeName(t, named), size)
		}
		lines[i] = "  (" + p.name + "): " + text // indented twice, as PyTorch does
	}
	if len(lines) == 1 {
		return name + "(" + lines[0] + ")"
	}
	return block(name, "", lines)
}

// typeName returns the name of t's dtype, or of its type in PyTorch's older form, which a ParameterDict shows.
func typeName(t *tensor.Tensor, old bool) string {
	d := t.DType()
	name, ok := map[tensor.DType]string{tensor.Float32: "Float", tensor.Float64: "Double", tensor.Float16: "Half", tensor.BFloat16: "BFloat16",
		tensor.Complex64: "ComplexFloat", tensor.Complex128: "ComplexDouble"}[d]
	if !old || !ok {
		return "torch." + d.String()
	}
	if t.Device().Type == tensor.CUDAType {
		name = "cuda." + name
	}
	return "torch." + name + "Tensor"
}

// elements returns the elements of a slice or a map.
func elements(v reflect.Value) (out []child) {
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if dict(v.Type()) {
				name, part := entry(v.Index(i))
				out = append(out, child{name, part})
			} else {
				out = append(out, child{strconv.Itoa(i), v.Index(i)})
			}
		}
	case reflect.Map:
		keys := v.MapKeys()
		sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
		for _, k := range keys {
			out = append(out, child{k.String(), v.MapIndex(k)})
		}
	}
	return out
}

func pyBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// pyTuple formats ints as a tuple of Python.
func pyTuple(v []int) string {
	words := make([]string, len(v))
	for i, n := range v {
		words[i] = strconv.Itoa(n)
	}
	if len(v) == 1 {
		return "(" + words[0] + ",)"
	}
	return "(" + strings.Join(words, ", ") + ")"
}

// pySizes formats sizes of which some may be Keep, which is None in Python.
func pySizes(v []int) string {
	if slices.Contains(v, Keep) {
		return strings.ReplaceAll(pyTuple(v), strconv.Itoa(Keep), "None")
	}
	return pyInts(v)
}

// pyInts formats ints as one number if they are equal, and as a tuple otherwise.
func pyInts(v []int) string {
	for _, n := range v {
		if n != v[0] {
			return pyTuple(v)
		}
	}
	if len(v) == 0 {
		return "None"
	}
	return strconv.Itoa(v[0])
}

// all reports whether all numbers of v are n.
func all(v []int, n int) bool {
	for _, k := range v {
		if k != n {
			return false
		}
	}
	return true
}

// dims returns the size of a dimension, or 0.
func dims(t *tensor.Tensor, i int) int {
	if t == nil || t.Dim() <= i {
		return 0
	}
	return t.Size(i)
}

// extraRepr returns what PyTorch prints between the parentheses of a module.
func extraRepr(m any) string {
	if l, ok := m.(interface{ unmade() string }); ok {
		return l.unmade()
	}
	v := reflect.ValueOf(m)
	t := v.Type().Elem()
	if t.PkgPath() != reflect.TypeFor[Linear]().PkgPath() {
		return ""
	}
	as := func(family any) bool {
		f := reflect.TypeOf(family)
		return v.Type().ConvertibleTo(f)
	}
	to := func(family any) any { return v.Convert(reflect.TypeOf(family)).Interface() }
	switch {
	case as((*conv)(nil)):
		c := to((*conv)(nil)).(*conv)
		padding := ""
		if c.Same {
			padding = ", padding=same"
		} else if !all(c.Padding, 0) {
			padding = ", padding=" + pyTuple(c.Padding)
		}
		mode := ""
		if c.PaddingMode != "" && c.PaddingMode != "zeros" {
			mode = ", padding_mode=" + c.PaddingMode
		}
		return convRepr(c.Weight, c.Bias, 1, c.Groups, c.Stride, c.Dilation, padding, "") + mode
	case as((*transposed)(nil)):
		c := to((*transposed)(nil)).(*transposed)
		padding, output := "", ""
		if !all(c.Padding, 0) {
			padding = ", padding=" + pyTuple(c.Padding)
		}
		if !all(c.OutputPadding, 0) {
			output = ", output_padding=" + pyTuple(c.OutputPadding)
		}
		return convRepr(c.Weight, c.Bias, 0, c.Groups, c.Stride, c.Dilation, padding, output)
	case as((*maxPool)(nil)):
		p := to((*maxPool)(nil)).(*maxPool)
		return fmt.Sprintf("kernel_size=%s, stride=%s, padding=%s, dilation=%s, ceil_mode=%s", pyInts(p.Kernel), pyInts(p.Stride), pyInts(p.Padding), pyInts(p.Dilation), pyBool(p.Ceil))
	case as((*avgPool)(nil)):
		p := to((*avgPool)(nil)).(*avgPool)
		format := pyInts
		if t.Name() == "AvgPool1d" {
			format = pyTuple
		}
		return fmt.Sprintf("kernel_size=%s, stride=%s, padding=%s", format(p.Kernel), format(p.Stride), format(p.Padding))
	case as((*unpool)(nil)):
		p := to((*unpool)(nil)).(*unpool)
		return fmt.Sprintf("kernel_size=%s, stride=%s, padding=%s", pyTuple(p.Kernel), pyTuple(p.Stride), pyTuple(p.Padding))
	case as((*lpPool)(nil)):
		p := to((*lpPool)(nil)).(*lpPool)
		stride := pyInts(p.Stride)
		if p.follows && slices.Equal(p.Stride, p.Kernel) {
			stride = "None"
		}
		return fmt.Sprintf("norm_type=%s, kernel_size=%s, stride=%s, ceil_mode=%s", repr.Float(p.Norm), pyInts(p.Kernel), stride, pyBool(p.Ceil))
	case as((*adaptive)(nil)):
		return "output_size=" + pySizes(to((*adaptive)(nil)).(*adaptive).Size)
	case as((*padding)(nil)):
		p := to((*padding)(nil)).(*padding)
		if strings.HasPrefix(t.Name(), "Constant") {
			return "padding=" + pyTuple(p.Padding) + ", value=" + repr.Float(p.Value)
		}
		return pyTuple(p.Padding)
	case as((*batchNorm)(nil)):
		b := to((*batchNorm)(nil)).(*batchNorm)
		momentum := repr.Float(b.Momentum)
		if b.cumulative {
			momentum = "None"
		}
		return fmt.Sprintf("%d, eps=%s, momentum=%s, affine=%s, bias=%s, track_running_stats=%s", b.channels, repr.Float(b.Eps), momentum, pyBool(b.Weight != nil), pyBool(b.Bias != nil), pyBool(b.RunningMean != nil))
	case as((*dropout)(nil)):
		d := to((*dropout)(nil)).(*dropout)
		return "p=" + repr.Float(d.P) + ", inplace=" + pyBool(d.InPlace)
	case as((*recurrent)(nil)):
		return to((*recurrent)(nil)).(*recurrent).repr()
	case as((*rnnCell)(nil)):
		c := to((*rnnCell)(nil)).(*rnnCell)
		s := fmt.Sprintf("%d, %d", dims(c.WeightIH, 1), dims(c.WeightHH, 1))
		if c.BiasIH == nil {
			s += ", bias=False"
		}
		if c.IsReLU {
			s += ", nonlinearity=relu"
		}
		return s
	case as((*table)(nil)):
		return to((*table)(nil)).(*table).repr(t.Name())
	case as((*windows)(nil)):
		w := to((*windows)(nil)).(*windows)
		s := fmt.Sprintf("kernel_size=%s, dilation=%s, padding=%s, stride=%s", pyInts(w.Kernel), pyInts(w.Dilation), pyInts(w.Padding), pyInts(w.Stride))
		if t.Name() == "Fold" {
			s = "output_size=" + pyInts(w.Size) + ", " + s
		}
		return s
	}
	return plainRepr(m)
}

func convRepr(w, bias *tensor.Tensor, in, groups int, stride, dilation []int, padding, output string) string {
	channels := [2]int{dims(w, 0), dims(w, 1)}
	channels[1] *= max(1, groups)
	out := 1 - in
	var window []int
	if w != nil {
		if shape := w.Shape(); len(shape) > 2 {
			window = shape[2:]
		}
	}
	s := fmt.Sprintf("%d, %d, kernel_size=%s, stride=%s%s", channels[in], channels[out], pyTuple(window), pyTuple(stride), padding)
	if !all(dilation, 1) {
		s += ", dilation=" + pyTuple(dilation)
	}
	s += output
	if groups > 1 {
		s += fmt.Sprintf(", groups=%d", groups)
	}
	if bias == nil {
		s += ", bias=False"
	}
	return s
}

func (r *recurrent) repr() string {
	s := fmt.Sprintf("%d, %d", r.InputSize, r.HiddenSize)
	if r.ProjSize != 0 {
		s += fmt.Sprintf(", proj_size=%d", r.ProjSize)
	}
	if r.Layers != 1 {
		s += fmt.Sprintf(", num_layers=%d", r.Layers)
	}
	if !r.HasBias {
		s += ", bias=False"
	}
	if r.IsBatchFirst {
		s += ", batch_first=True"
	}
	if r.Drop != 0 {
		s += ", dropout=" + repr.Float(r.Drop)
	}
	if r.IsBidirectional {
		s += ", bidirectional=True"
	}
	return s
}

func (e *table) repr(name string) string {
	s := fmt.Sprintf("%d, %d", dims(e.Weight, 0), dims(e.Weight, 1))
	bag := name == "EmbeddingBag"
	if e.padded && !bag {
		s += fmt.Sprintf(", padding_idx=%d", e.pad)
	}
	if e.MaxNorm != 0 {
		s += ", max_norm=" + repr.Float(e.MaxNorm)
	}
	if e.NormType != 2 && e.NormType != 0 {
		s += ", norm_type=" + repr.Float(e.NormType)
	}
	if e.ByFrequency {
		s += ", scale_grad_by_freq=True"
	}
	if e.Sparse && !bag {
		s += ", sparse=True"
	}
	if bag {
		s += ", mode='" + e.Reduce + "'"
		if e.padded {
			s += fmt.Sprintf(", padding_idx=%d", e.pad)
		}
	}
	return s
}

// plainRepr is extraRepr of the modules that are no family.
func plainRepr(m any) string {
	linear := func(w, bias *tensor.Tensor, option string, on bool) string {
		s := fmt.Sprintf("in_features=%d, out_features=%d, bias=%s", dims(w, 1), dims(w, 0), pyBool(bias != nil))
		if on {
			s += ", " + option
		}
		return s
	}
	affine := func(shape []int, eps float64, w, b *tensor.Tensor) string {
		return fmt.Sprintf("%s, eps=%s, elementwise_affine=%s, bias=%s", pyTuple(shape), repr.Float(eps), pyBool(w != nil), pyBool(b != nil))
	}
	inPlace := func(s string, on bool) string {
		if !on {
			return s
		}
		return strings.TrimPrefix(s+", inplace=True", ", ")
	}
	switch m := m.(type) {
	case *Linear:
		return linear(m.Weight, m.Bias, "float8="+m.Float8.String(), m.Float8 != NoFloat8)
	case *Int8Linear:
		return linear(m.Weight, m.Bias, "dynamic=True", m.Dynamic)
	case *Float8Linear:
		return linear(m.Weight, m.Bias, "per_row=True", m.Scales != nil && m.Scales.Dim() == 1)
	case *Bilinear:
		return fmt.Sprintf("in1_features=%d, in2_features=%d, out_features=%d, bias=%s", dims(m.Weight, 1), dims(m.Weight, 2), dims(m.Weight, 0), pyBool(m.Bias != nil))
	case *LayerNorm:
		return affine(m.Shape, m.Eps, m.Weight, m.Bias)
	case *RMSNorm:
		eps := "None"
		if m.Eps != 0 {
			eps = repr.Float(m.Eps)
		}
		return fmt.Sprintf("%s, eps=%s, elementwise_affine=%s", pyTuple(m.Shape), eps, pyBool(m.Weight != nil))
	case *GroupNorm:
		channels := ""
		if m.channels != 0 {
			channels = fmt.Sprintf(", %d", m.channels)
		}
		return fmt.Sprintf("%d%s, eps=%s, affine=%s, bias=%s", m.Groups, channels, repr.Float(m.Eps), pyBool(m.Weight != nil), pyBool(m.Bias != nil))
	case *LocalResponseNorm:
		return fmt.Sprintf("%d, alpha=%s, beta=%s, k=%s", m.Size, repr.Float(m.Alpha), repr.Float(m.Beta), repr.Float(m.K))
	case *GELU:
		if m.Approximate == "" {
			return "approximate='none'"
		}
		return "approximate='" + m.Approximate + "'"
	case *ReLU:
		return inPlace("", m.InPlace)
	case *ReLU6:
		return inPlace("", m.InPlace)
	case *SELU:
		return inPlace("", m.InPlace)
	case *SiLU:
		return inPlace("", m.InPlace)
	case *Mish:
		return inPlace("", m.InPlace)
	case *LeakyReLU:
		return inPlace("negative_slope="+repr.Float(m.NegativeSlope), m.InPlace)
	case *ELU:
		return inPlace("alpha="+repr.Float(m.Alpha), m.InPlace)
	case *CELU:
		return inPlace("alpha="+repr.Float(m.Alpha), m.InPlace)
	case *Hardtanh:
		return inPlace("min_val="+repr.Float(m.MinVal)+", max_val="+repr.Float(m.MaxVal), m.InPlace)
	case *RReLU:
		return inPlace("lower="+repr.Float(m.Lower)+", upper="+repr.Float(m.Upper), m.InPlace)
	case *Threshold:
		return inPlace("threshold="+repr.Float(m.Limit)+", value="+repr.Float(m.Value), m.InPlace)
	case *Softplus:
		return "beta=" + repr.Float(m.Beta) + ", threshold=" + repr.Float(m.Threshold)
	case *Hardshrink:
		return repr.Float(m.Lambd)
	case *Softshrink:
		return repr.Float(m.Lambd)
	case *PReLU:
		return fmt.Sprintf("num_parameters=%d", dims(m.Weight, 0))
	case *GLU:
		return fmt.Sprintf("dim=%d", m.Dim)
	case *Softmax:
		return fmt.Sprintf("dim=%d", m.Dim)
	case *LogSoftmax:
		return fmt.Sprintf("dim=%d", m.Dim)
	case *Softmin:
		return fmt.Sprintf("dim=%d", m.Dim)
	case *Flatten:
		return fmt.Sprintf("start_dim=%d, end_dim=%d", m.start+1, m.end-1)
	case *Unflatten:
		return fmt.Sprintf("dim=%d, unflattened_size=%s", m.Dim, pyTuple(m.Sizes))
	case *PixelShuffle:
		return fmt.Sprintf("upscale_factor=%d", m.Factor)
	case *PixelUnshuffle:
		return fmt.Sprintf("downscale_factor=%d", m.Factor)
	case *ChannelShuffle:
		return fmt.Sprintf("groups=%d", m.Groups)
	case *RotaryEmbedding:
		return fmt.Sprintf("%d, base=%s, interleaved=%s", m.Width, repr.Float(m.base), pyBool(m.interleaved))
	case *DropPath:
		return "p=" + repr.Float(m.P)
	case *KVCache:
		return fmt.Sprintf("batch=%d, heads=%d, length=%d, width=%d", dims(m.Keys, 0), dims(m.Keys, 1), dims(m.Keys, 2), dims(m.Keys, 3))
	case *Upsample:
		algorithm := m.Algorithm
		if algorithm == "" {
			algorithm = "nearest"
		}
		if len(m.Size) != 0 {
			return "size=" + pyInts(m.Size) + ", mode='" + algorithm + "'"
		}
		words := make([]string, len(m.Scale))
		for i, f := range m.Scale {
			words[i] = repr.Float(f)
		}
		scale := strings.Join(words, ", ")
		if len(words) > 1 {
			scale = "(" + scale + ")"
		}
		return "scale_factor=" + scale + ", mode='" + algorithm + "'"
	}
	return ""
}
