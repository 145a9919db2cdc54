// Package refuse makes the errors with which the library's upper packages turn an argument down.
package refuse

import (
	"errors"
	"fmt"

	"github.com/linstock-ml/linstock/internal/callsite"
	"github.com/linstock-ml/linstock/tensor"
)

// Error is a *tensor.Error of the given kind, with the line that called the library.
func Error(op string, kind error, format string, args ...any) error {
	return &tensor.Error{Op: op, Message: fmt.Sprintf(format, args...), Kind: kind, Caller: callsite.Line()}
}

// Nil is an ErrNil: what is needed, and was nil.
func Nil(op, what string) error {
	return Error(op, tensor.ErrNil, "%s is needed, got nil", what)
}

// Tensor is the failed tensor of Error.
func Tensor(op string, kind error, format string, args ...any) *tensor.Tensor {
	return tensor.Failed(Error(op, kind, format, args...))
}

// Unusable is nil for a tensor that operators take. Else it is the tensor's own error, or one of op that says that the
// tensor was released or is nil. what names the tensor, "parameter 3"; "" for the only one.
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
