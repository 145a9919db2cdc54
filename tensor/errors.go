package tensor

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/callsite"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/sites"
	"github.com/linstock-ml/linstock/vram"
)

// What can have gone wrong; errors.Is tells. An error of an operator is an *Error around one of these.
var (
	// ErrReleased: a tensor was used after its release, or after its scope closed.
	ErrReleased = errors.New("the tensor was released")
	// ErrNil: a nil *Tensor, or one that no operator made, was given where a tensor is needed.
	ErrNil = errors.New("a tensor is needed, got nil")
	// ErrArgument: an argument does not fit: a shape, a dtype, a range, a combination.
	ErrArgument = errors.New("an argument does not fit")
	// ErrIndex: an index or a dimension is out of range.
	ErrIndex = errors.New("an index is out of range")
	// ErrNotImplemented: libtorch has no kernel for this dtype or device.
	ErrNotImplemented = errors.New("libtorch has no kernel for it")
	// ErrLinAlg: a decomposition did not converge, a matrix is singular.
	ErrLinAlg = errors.New("linear algebra failed")
	// ErrOutOfMemory: the device has no room, though all was freed that can be; a *vram.OutOfMemoryError says more.
	ErrOutOfMemory = vram.ErrOutOfMemory
	// ErrDevice: the accelerator reports an error.
	ErrDevice = errors.New("the device reports an error")
	// ErrDeviceLost: the accelerator met an error after which it computes nothing more in this process. Tensors on
	// it are gone, and its memory is not freed; other devices are as they were.
	ErrDeviceLost = errors.New("the device is lost")
	// ErrStopRecomputation: an operator was called by a checkpointed function that is computed again, and the backward
	// pass has all that it needs of it. The function should return, as after any error; see autograd.Checkpoint.
	ErrStopRecomputation = errors.New("the recomputation can stop")
	// ErrInternal: an assertion in libtorch failed, or a library that it calls threw an exception of its own. The
	// arguments may still be the cause: libtorch did not check them.
	ErrInternal = errors.New("libtorch failed inside")
	// ErrScope: a scope was used in a way that scopes cannot be: closed on another goroutine, too many at once.
	ErrScope = errors.New("misuse of a scope")
)

// Error is an operator's failure. It carries what the operator was given and the line that called it.
type Error struct {
	Op       string   // the operator, "matmul"
	Message  string   // what is wrong, in libtorch's words where they are its own
	Operands []string // dtype and shape of each tensor operand, "float32(2, 3)"
	Caller   string   // file:line outside Linstock
	Kind     error    // one of the Err… above, or another cause
}

func (e *Error) Error() string {
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

// Unwrap gives the kind, so that errors.Is(err, tensor.ErrOutOfMemory) tells.
func (e *Error) Unwrap() error { return e.Kind }

// failure is what a failed tensor carries. Once somebody has looked at the error, the scope that also
// remembers it stays silent.
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
	case cshim.CodeStopRecomputation:
		return ErrStopRecomputation
	case cshim.CodeInternal, cshim.CodeStd, cshim.CodeUnknown:
		return ErrInternal
	}
	return ErrArgument
}

// newError turns an error of the shim into an *Error; nil stays nil.
func newError(op string, err error, operands ...*Tensor) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: op, Caller: callsite.Line()}
	var native *cshim.Error
	switch {
	case errors.As(err, &native) && native.Code == cshim.CodeCallback && native.Callback != 0:
		e.Kind = takeCallbackError(native.Callback)
		e.Message = e.Kind.Error()
	case errors.As(err, &native) && native.Code == cshim.CodeOutOfMemory:
		oom := reclaim.OutOfMemory(native)
		e.Message, e.Kind = oom.Error(), oom
	case errors.As(err, &native):
		// The first line tells it; libtorch's later ones are its own source's.
		e.Message, e.Kind = strings.TrimRight(native.Message, "\n"), kindOf(native.Code)
		if i := strings.Index(e.Message, "\nException raised from"); i > 0 {
			e.Message = e.Message[:i]
		}
		e.Message = goAdvice(e.Message)
	default:
		e.Message, e.Kind = err.Error(), err
	}
	for _, t := range operands {
		e.Operands = append(e.Operands, t.describe())
	}
	return e
}

// refused is an error of our own about an argument.
func refused(op string, kind error, format string, args ...any) error {
	return &Error{Op: op, Message: fmt.Sprintf(format, args...), Kind: kind, Caller: callsite.Line()}
}

// failed makes the tensor that carries err, and tells the innermost scope of this goroutine.
func failed(err error) *Tensor {
	f := &failure{err: err}
	if s := currentScope(); s != nil {
		s.remember(f)
	}
	return &Tensor{fail: f}
}

// Failed returns a tensor that carries err, for code of one's own that returns tensors. A nil err is replaced
// by one that says so.
func Failed(err error) *Tensor {
	if err == nil {
		err = refused("Failed", ErrArgument, "no error was given")
	}
	return failed(err)
}

// passOn is what an operator returns when an input cannot be used: the input's own error, or one that says
// what is wrong with the input.
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
		return refused(op, ErrNil, "a tensor is needed, got one that no operator made")
	}
	made := ""
	if t.site != 0 {
		made = " (it was made at " + sites.Line(t.site-1) + ")"
	}
	if s := t.inScope(); s != nil && s.hasClosed() {
		if s.site == 0 && made == "" {
			made = " (LINSTOCK_DEBUG=alloc says where it was made and the scope opened)"
		}
		return refused(op, ErrReleased, "the tensor's scope%s has closed%s; Keep or MoveOut takes a tensor out of its scope", at(s.site), made)
	}
	if line := t.lastUseLine(); line != "" {
		return refused(op, ErrReleased, "the tensor was released after its last use at %s%s; linstock go took that for the last one, which is a fault of it",
			line, made)
	}
	return refused(op, ErrReleased, "the tensor was released%s", made)
}

// at says where a scope was opened, if that was noted.
func at(site uint32) string {
	if site == 0 {
		return ""
	}
	return ", opened at " + sites.Line(site-1) + ","
}
