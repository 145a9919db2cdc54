package tensor

import (
	"regexp"
	"strings"
	"sync"
)

// goAdvice replaces the Python names in the advice that libtorch's messages give by Go's names. It leaves the rest of a
// message unchanged.
func goAdvice(message string) string {
	if fusedAttention.MatchString(message) {
		message = strings.TrimSuffix(message, ".") + ". Hint: attention in nn.SDPAKernel([]nn.SDPBackend{nn.SDPMath}, f) has this derivative."
	}
	message = unusedElement.ReplaceAllString(pythonAdvice.Replace(message), "element $1 of")
	message = pythonKeyword.ReplaceAllStringFunc(message, func(word string) string {
		name, value, _ := strings.Cut(word, "=")
		if option, ok := keywordOptions()[strings.ReplaceAll(name, "_", "")]; ok {
			return "tensor." + option + "(" + strings.ToLower(value) + ")"
		}
		return word
	})
	return pythonDType.ReplaceAllStringFunc(message, func(word string) string {
		name := strings.TrimPrefix(word, "torch.")
		if full, ok := map[string]string{"float": "float32", "double": "float64", "half": "float16", "long": "int64"}[name]; ok {
			name = full
		}
		if d, err := ParseDType(name); err == nil {
			return "tensor." + goDType(d)
		}
		return word
	})
}

var (
	unusedElement = regexp.MustCompile(`\belement (\d+)of\b`) // of autograd.Grad, in libtorch without the space
	pythonKeyword = regexp.MustCompile(`\b[a-z][a-z_]*=(True|False)\b`)
	pythonDType   = regexp.MustCompile(`\btorch\.(bool|u?int\d+|float\d*|bfloat16|double|half|long|complex\d+)\b`)

	// The other kernels of attention have a first derivative backward alone.
	fusedAttention = regexp.MustCompile(`^(derivative for|Trying to use forward AD with) (aten::)?_scaled_dot_product_(flash|efficient|cudnn|fused)_`)
)

// unrepresentable is the text of the exception that libtorch throws for a number that a dtype cannot represent. The
// exception is not of libtorch's own classes.
var unrepresentable = regexp.MustCompile(`value cannot be converted to type (\S+) without overflow`)

// nativeDTypes maps C++ types to the names of their dtypes.
var nativeDTypes = map[string]string{
	"uint8_t": "Uint8", "int8_t": "Int8", "int16_t": "Int16", "int": "Int32", "int64_t": "Int64", "uint16_t": "Uint16", "uint32_t": "Uint32",
	"uint64_t": "Uint64", "c10::Half": "Float16", "c10::BFloat16": "BFloat16", "float": "Float32", "double": "Float64", "bool": "Bool",
	"c10::complex<c10::Half>": "Complex32", "c10::complex<float>": "Complex64", "c10::complex<double>": "Complex128", "c10::Float8_e5m2": "Float8E5M2", "c10::Float8_e4m3fn": "Float8E4M3FN",
	"c10::Float8_e5m2fnuz": "Float8E5M2FNUZ", "c10::Float8_e4m3fnuz": "Float8E4M3FNUZ",
}

// notRepresentable returns the message for a number that a dtype cannot represent, if that is what an exception's text
// says.
func notRepresentable(text string) (message string, ok bool) {
	m := unrepresentable.FindStringSubmatch(text)
	if m == nil {
		return text, false
	}
	name, known := nativeDTypes[m[1]]
	if !known {
		return text, true
	}
	return strings.Replace(text, "type "+m[1], "tensor."+name, 1), true
}

// keywordOptions maps the names of keyword arguments, without underscores, to their Go names.
var keywordOptions = sync.OnceValue(func() map[string]string {
	all := map[string]string{"retaingraph": "RetainGraph", "creategraph": "CreateGraph", "allowunused": "AllowUnused"}
	for _, name := range optNames {
		all[strings.ToLower(name)] = name
	}
	return all
})

const writtenTo = "Hint: an operator whose name ends in _, or SetIndex, wrote into it after the graph had saved it. Use the operator without _, or write into a Clone()."

// pythonAdvice maps advice for Python programs to advice for Go programs.
var pythonAdvice = strings.NewReplacer(
	"when you call .backward() or autograd.grad(). Specify retain_graph=True if", "when you call Backward or autograd.Grad. Give tensor.RetainGraph(true) if",
	"Set allow_unused=True if", "Give tensor.AllowUnused(true) if",
	"Hint: enable anomaly detection to find the operation that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True).", writtenTo,
	"Hint: enable anomaly detection to find the operation that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True, check_nan=False).", writtenTo,
	"`torch.no_grad()` instead of `torch.inference_mode()`", "autograd.NoGrad instead of autograd.Inference",
	"`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do not need ONNX exportability.",
	"lengths must be sorted in decreasing order. Sort the sequences by length first (Sort, IndexSelect), and bring the results back in order.",
	"'torch.use_deterministic_algorithms(True, warn_only=True)'", "tensor.SetDeterministic(true, tensor.WarnOnly)",
	"'torch.use_deterministic_algorithms(True)'", "tensor.SetDeterministic(true)",
	"'warn_only=True' option", "option tensor.WarnOnly",
	"Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert", "Use tensor.Item to convert",
	"Please clone() the tensor before performing the operation.", "Clone() the tensor first.",
	"please call .coalesce() first", "call Coalesce first",
	"by passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by \nmaking sure all `forward` function outputs participate in calculating loss.",
	"with the option dist.FindUnusedParameters(true), and all results of Forward or Run must have a part in the loss.",
	"`.clone()`", "Clone()", ".clone()", "Clone()",
	"`.detach()`", "Detach()", ".detach()", "Detach()",
	".detach_()", "tensor.Call(\"aten::detach_\", x)",
	".reshape(...)", "Reshape(...)",
	".contiguous()", "Contiguous()",
	".requires_grad_()", "RequiresGrad_()",
	".backward()", "Backward",
	", the `-` operator,", "",
	"use the `~` or `logical_not()` operator instead", "use LogicalNot instead",
	"Use the `^` or `logical_xor()` operator instead", "Use LogicalXor instead",
	"autograd.grad()", "autograd.Grad", "torch.autograd.grad(...)", "autograd.Grad", "torch.autograd.grad", "autograd.Grad",
	"torch.no_grad()", "autograd.NoGrad", "torch.inference_mode()", "autograd.Inference",
)
