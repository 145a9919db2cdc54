// Package refuse makes the errors with which the library's upper packages reject arguments.
package refuse

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/linstock-ml/linstock/internal/callsite"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/tensor"
)

// Error returns a *tensor.Error of the given kind, with the line that called the library.
func Error(op string, kind error, format string, args ...any) error {
	return &tensor.Error{Op: op, Message: fmt.Sprintf(format, args...), Kind: kind, Caller: callsite.Line()}
}

// Nil returns an ErrNil for the argument what.
func Nil(op, what string) error {
	return Error(op, tensor.ErrNil, "%s is needed, got nil", what)
}

// NilOption returns the error for an option that is nil.
func NilOption(op string) error {
	return Error(op, tensor.ErrArgument, "an option is nil")
}

// Option returns nil if op accepts the option of this name, which must be in known. An option without a name is an empty one.
func Option(op, name string, known []string) error {
	switch {
	case name == "":
		return Error(op, tensor.ErrArgument, "an option is empty")
	case !slices.Contains(known, name):
		return Error(op, tensor.ErrArgument, "%s", options.Unknown(op, name, known))
	}
	return nil
}

// Ended returns an error of op if ctx is nil or has ended; the error of an expired deadline wraps late, too.
func Ended(op string, ctx context.Context, late error) error {
	if ctx == nil {
		return Nil(op, "a context")
	}
	kind := ctx.Err()
	if kind == nil {
		return nil
	}
	message := kind.Error()
	if errors.Is(kind, context.DeadlineExceeded) {
		kind = errors.Join(late, kind)
	}
	return Error(op, kind, "%s", message)
}

// Cause returns the cause of the end of ctx, and nil before. The error matches ctx.Err(), too: with [errors.Is], a caller
// that asks for context.Canceled finds it also if the program has given a cause of its own.
func Cause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, ctx.Err()) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctx.Err(), cause)
}

// Tensor returns a failed tensor that carries the error of Error.
func Tensor(op string, kind error, format string, args ...any) *tensor.Tensor {
	return tensor.Failed(Error(op, kind, format, args...))
}

// Unusable returns nil if t can be an operand. Otherwise it returns t's own error, or an error of op if t was released
// or is nil. what names the tensor, such as "parameter 3"; it is "" for the only one.
func Unusable(op, what string, t *tensor.Tensor) error {
	err := t.Err()
	var e *tensor.Error
	if errors.As(err, &e) && e.Op == "Err" {
		named := *e
		named.Op = op
		if what != "" {
			named.Message = what + ": " + e.Message
		}
		return &named
	}
	return err
}

// Named attributes the error of an operator that op called to op.
func Named(op string, err error) error {
	var e *tensor.Error
	if !errors.As(err, &e) {
		return err
	}
	named := *e
	named.Op = op
	return &named
}
