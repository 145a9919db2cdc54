package tensor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/callsite"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/sites"
	"github.com/linstock-ml/linstock/vram"
)

// Kinds of errors, for errors.Is. An error of an operator is an *Error that wraps one of them.
var (
	// ErrReleased: a tensor was used after its release, or after its scope was closed.
	ErrReleased = errors.New("the tensor was released")
	// ErrNil: an operand is a nil *Tensor or a Tensor literal, or another argument is nil that must not be. It does not match
	// ErrArgument.
	ErrNil = errors.New("a tensor is needed, got nil")
	// ErrArgument: an argument is invalid: a shape, a dtype, a range, or a combination of arguments. An operator's error for
	// a device of a type that has none here, as tensor.CUDA(0) without a GPU, matches errors.ErrUnsupported, too.
	ErrArgument = vram.ErrArgument
	// ErrIndex: an index or a dimension is out of range.
	ErrIndex = errors.New("an index is out of range")
	// ErrNotImplemented: libtorch has no kernel for this dtype or device.
	ErrNotImplemented = errors.New("libtorch has no kernel for this dtype, layout or device")
	// ErrLinAlg: a decomposition did not converge, or a matrix is singular.
	ErrLinAlg = errors.New("linear algebra failed")
	// ErrOutOfMemory: the device has no room, even after everything that can be freed was freed. Use errors.As
	// with *vram.OutOfMemoryError for details.
	ErrOutOfMemory = vram.ErrOutOfMemory
	// ErrDevice: the accelerator reports an error.
	ErrDevice = errors.New("the device reports an error")
	// ErrDeviceLost: the accelerator reported an error after which it cannot compute in this process. Tensors on
	// it are lost and its memory is not freed. Other devices are not affected.
	ErrDeviceLost = errors.New("the device is lost")
	// ErrCapture: a CUDA graph is being captured, and the operation cannot be part of it, for example because it
	// waits for the device (Item, Data, Synchronize), or it would disturb the capture of another goroutine. See
	// package cuda.
	ErrCapture = errors.New("not possible while a graph is captured")
	// ErrStopRecomputation: an operator was called by a checkpointed function during its recomputation, and the
	// backward pass already has all that it needs. The function should return, as after any error; see
	// autograd.Checkpoint.
	ErrStopRecomputation = errors.New("the recomputation can stop")
	// ErrNaN: in autograd.DetectAnomaly, the backward of an operator returned NaN.
	ErrNaN = errors.New("a gradient is NaN")
	// ErrInternal: an assertion in libtorch failed, or a library that it calls threw an exception. An argument
	// that libtorch did not check may be the cause.
	ErrInternal = errors.New("internal error in libtorch")
	// ErrScope: a scope was used incorrectly: closed on another goroutine, or too many were open at once.
	ErrScope = errors.New("invalid use of a scope")
)

// Error is the error of an operator: its operands and the line that called it.
type Error struct {
	Op       string   // the operator, "matmul"
	Message  string   // what is wrong; libtorch's message if the error is libtorch's
	Operands []string // dtype and shape of each tensor operand, "float32(2, 3)"
	Caller   string   // file:line outside Linstock
	Kind     error    // one of the errors above, or another cause
	Forward  string   // in autograd.DetectAnomaly: file:line of the operator whose backward failed, if known
}

// Error returns the operator, the message, the operands and the line of the call.
func (e *Error) Error() string {
	if e == nil {
		return "<nil>"
	}
	var b strings.Builder
	b.WriteString("linstock: ")
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	b.WriteString(e.Message)
	if len(e.Operands) != 0 {
		b.WriteString(" [operands " + strings.Join(e.Operands, ", ") + "]")
	}
	if e.Caller != "" {
		b.WriteString(" at " + e.Caller)
	}
	return b.String()
}

// Unwrap returns the kind, for errors.Is(err, tensor.ErrOutOfMemory).
func (e *Error) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Kind
}

// PanicError is in the error, for errors.As, of a panic in code that the library calls: a hook, an autograd.Function, a
// function of autograd.Checkpoint, a dataset or sampler of package data, or a batch's function of package serve.
type PanicError struct {
	Value any    // the value of the panic
	Stack []byte // the stack of the goroutine, as debug.Stack formats it
}

// Error returns the value of the panic as text.
func (e *PanicError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("linstock: panic: %v", e.Value)
}

// Unwrap returns the panic's value if it is an error, and nil otherwise.
func (e *PanicError) Unwrap() error {
	if e == nil {
		return nil
	}
	err, _ := e.Value.(error)
	return err
}

// failure is the error in a failed tensor. Once the program has read the error, the scope that also recorded it
// does not report it.
type failure struct {
	err  error
	seen atomic.Bool
}

func (f *failure) take() error {
	if f == nil {
		return nil
	}
	f.seen.Store(true)
	return f.err
}

func kindOf(c cshim.Code) error {
	switch c {
	case cshim.CodeIndex:
		return ErrIndex
	case cshim.CodeNotImplemented:
		return ErrNotImplemented
	case cshim.CodeLinAlg:
		return ErrLinAlg
	case cshim.CodeOutOfMemory:
		return ErrOutOfMemory
	case cshim.CodeDevice:
		return ErrDevice
	case cshim.CodeDeviceLost:
		return ErrDeviceLost
	case cshim.CodeCapture:
		return ErrCapture
	case cshim.CodeStopRecomputation:
		return ErrStopRecomputation
	case cshim.CodeNaN:
		return ErrNaN
	case cshim.CodeInternal, cshim.CodeStd, cshim.CodeUnknown:
		return ErrInternal
	}
	return ErrArgument
}

var outOfBounds = regexp.MustCompile(`^index -?\d+ is out of bounds for dimension`)

// newError converts an error of the shim to an *Error; nil stays nil.
func newError(op string, err error, operands ...*Tensor) error {
	if err == nil {
		return nil
	}
	named() // otherwise the next call would be named for what this one allocated before it failed
	e := &Error{Op: op, Caller: callsite.Line()}
	var native *cshim.Error
	switch {
	case errors.As(err, &native) && (native.Code == cshim.CodeConnection || native.Code == cshim.CodeTimeout) && handle.PeerFailure != nil:
		return handle.PeerFailure(op, err)
	case errors.As(err, &native) && native.Code == cshim.CodeCallback && native.Callback != 0:
		e.Kind = takeCallbackError(native.Callback)
		e.Message = strings.TrimPrefix(e.Kind.Error(), "linstock: ")
	case errors.As(err, &native) && native.Code == cshim.CodeOutOfMemory:
		native.Device = deviceWithoutMemory(native, operands)
		oom := reclaim.OutOfMemory(native)
		e.Message, e.Kind = oom.Error(), oom
	case errors.As(err, &native):
		// The first line is the message; libtorch's later lines are its C++ stack.
		e.Message, e.Kind = strings.TrimRight(native.Message, "\n"), kindOf(native.Code)
		if outOfBounds.MatchString(e.Message) { // of gather, scatter and index_add, which throw no IndexError
			e.Kind = ErrIndex
		}
		if i := strings.Index(e.Message, "\nException raised from"); i > 0 {
			e.Message = e.Message[:i]
		}
		e.Message = goAdvice(e.Message)
		if message, ok := notRepresentable(e.Message); ok && native.Code == cshim.CodeStd {
			e.Message, e.Kind = message, ErrArgument
		}
	default:
		e.Message, e.Kind = err.Error(), err
	}
	if native != nil && native.Node != "" {
		e.nameForward(native)
	}
	for _, t := range operands {
		e.Operands = append(e.Operands, t.describe())
	}
	return e
}

// deviceWithoutMemory returns the device of an out-of-memory error. The shim guesses that of an error without bytes, for
// example of cuBLAS; a guess from the operands is better.
func deviceWithoutMemory(native *cshim.Error, operands []*Tensor) int32 {
	if native.Bytes != 0 || native.Device>>8 == 0 {
		return native.Device
	}
	for _, t := range operands {
		var m cshim.Meta
		if t == nil || !t.peek(&m) {
			continue
		}
		if w := deviceOf(&m).word(); w>>8 == native.Device>>8 {
			return w
		}
	}
	return native.Device
}

// nameForward adds the line of the operator whose backward failed.
func (e *Error) nameForward(native *cshim.Error) {
	e.Forward = sites.Caller(native.Site)
	node := native.Node
	if strings.HasSuffix(node, "::CallbackFunction>") { // the shim's class; the error that the node returned has the Go type
		node = "a Function"
	}
	e.Message = strings.TrimSuffix(e.Message, ".")
	if e.Forward == "" {
		e.Message += fmt.Sprintf("; %s failed, whose operator was called outside of DetectAnomaly", node)
		return
	}
	e.Message += fmt.Sprintf("; %s failed, the backward of the operator called at %s", node, e.Forward)
}

// refused returns an error of this package about an argument.
func refused(op string, kind error, format string, args ...any) error {
	return &Error{Op: op, Message: fmt.Sprintf(format, args...), Kind: kind, Caller: callsite.Line()}
}

// failed makes the tensor that carries err and records err in this goroutine's innermost scope.
func failed(err error) *Tensor {
	f := &failure{err: err}
	if s := currentScope(); s != nil {
		s.remember(f)
	}
	return &Tensor{fail: f}
}

// attribute returns the error of an operator that op calls as op's own.
func attribute(op string, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	of := *e
	of.Op = op
	return &of
}

// attributed returns t or, if t is failed, a tensor whose error is op's own.
func attributed(op string, t *Tensor) *Tensor {
	if t.fail == nil {
		return t
	}
	return failed(attribute(op, t.fail.take()))
}

// Failed returns a tensor that carries err, for the caller's own functions that return tensors. A function of several
// results returns the same failed tensor for each: a scope returns the error of a call of Failed unless the program has
// read it from the tensor of that call. A nil err is replaced by an error that says so.
func Failed(err error) *Tensor {
	if err == nil {
		err = refused("Failed", ErrArgument, "no error was given")
	}
	return failed(err)
}

// passOn returns the result of an operator whose input cannot be used: a failed tensor with the input's own
// error, or with one that says what is wrong with the input.
func passOn(op string, t *Tensor) *Tensor {
	if t != nil && t.fail != nil {
		return &Tensor{fail: t.fail}
	}
	return failed(unusable(op, t))
}

func unusable(op string, t *Tensor) error {
	switch {
	case t == nil:
		return refused(op, ErrNil, "a tensor is needed, got nil")
	case t.fail != nil:
		return t.fail.take()
	case t.h == 0:
		return refused(op, ErrNil, "a tensor is needed, got a Tensor literal")
	}
	// Each message ends with the use, because Error adds the line of the call.
	made := ""
	if t.site != 0 {
		made = " (it was made at " + sites.Line(t.site-1) + ")"
	}
	if s := t.inScope(); s != nil && s.hasClosed() {
		if s.site == 0 && made == "" {
			made = " (set LINSTOCK_DEBUG=alloc to record where it was made and the scope opened)"
		}
		return refused(op, ErrReleased, "the tensor's scope%s has closed%s; Keep or MoveOut takes a tensor out of its scope; it was used", at(s.site), made)
	}
	if line := t.lastUseLine(); line != "" {
		return refused(op, ErrReleased, "the tensor was released after its last use at %s%s; this is a bug in linstock go: it was used again", line, made)
	}
	return refused(op, ErrReleased, "the tensor was released%s before it was used", made)
}

// at returns where a scope was opened, if that was recorded.
func at(site uint32) string {
	if site == 0 {
		return ""
	}
	return ", opened at " + sites.Line(site-1) + ","
}
