package autograd_test

import (
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// keyed sets values under keys.
type keyed struct{ forward, backward any }

func (k keyed) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.Set(k.forward, 1)
	return []*tensor.Tensor{in[0].Clone()}, nil
}

func (k keyed) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.Set(k.backward, 2)
	return grads, nil
}

// TestKeysOfAContext tests that keys that are not comparable are errors of Apply or of the backward pass, and no panics
// elsewhere.
func TestKeysOfAContext(t *testing.T) {
	leak.Check(t)
	const want = "Set: a key of type []interface {} is not comparable"
	bad := []any{1}
	_ = tensor.WithScope(func() error {
		x := tensor.Ones([]int{2}).RequiresGrad_()
		if _, err := autograd.Apply(keyed{bad, 1}, x); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Apply: %v", err)
		}
		y, err := autograd.Apply(keyed{1, bad}, x)
		if err != nil {
			t.Fatal(err)
		}
		if err := y[0].Sum().Backward(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Backward: %v", err)
		}
		return nil
	})
	ctx := &autograd.Context{}
	ctx.Set(bad, 1)
	ctx.Set([1]any{bad}, 1)
	ctx.Set(nil, 3)
	if ctx.Value(bad) != nil || ctx.Value([1]any{bad}) != nil || ctx.Value(nil) != 3 {
		t.Errorf("the context has %v, %v and %v", ctx.Value(bad), ctx.Value([1]any{bad}), ctx.Value(nil))
	}
	if text := (&autograd.PanicError{Value: "mine", Stack: []byte("goroutine 1")}).Error(); text != "linstock: panic: mine" {
		t.Errorf("the text of a PanicError is %q", text)
	}
	if e := (*autograd.PanicError)(nil); e.Error() != "<nil>" || e.Unwrap() != nil {
		t.Error("a nil error has a text or a cause")
	}
}
